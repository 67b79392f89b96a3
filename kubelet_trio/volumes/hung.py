"""Run blocking calls that may hang on an unreachable file server, each with a deadline.

Each call runs in a thread of its own, at most one for a path, however often its pod tries again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from outcome import Error, Outcome, Value, capture

T = TypeVar("T")

PATIENCE = 30.0  # seconds for a look at a path that may be on a file server


@dataclass(slots=True)
class _Call(Generic[T]):
    """A call in progress; `outcome` is None until it has returned."""

    thread: threading.Thread | None = None
    waiting: int = 0
    outcome: Outcome[T] | None = None


@dataclass(slots=True)
class HungCalls:
    """The calls in progress, by the path that they work on. Thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: dict[str, _Call[object]] = field(default_factory=dict)

    def run(
        self,
        path: str,
        call: Callable[[], T],
        seconds: float,
        discard: Callable[[T], object] = lambda _: None,
    ) -> T:
        """Run the call, or join the one in progress for the path; return its result.

        Raises what the call raises, an OSError with `path` as its file name; and OSError
        (ETIMEDOUT) after `seconds`. The call then goes on, and the next `run` joins it.

        Args:
            path: the key of the call; use a key for one kind of call only.
            call: the blocking call.
            seconds: how long to wait for it.
            discard: called with a result that arrives after every caller has given up.
        """
        with self._lock:
            found = cast("_Call[T] | None", self._calls.get(path))
            if found is None:
                found = _Call[T]()
                self._calls[path] = cast("_Call[object]", found)
                # A daemon: the interpreter joins other threads before it exits, and the kernel
                # does not interrupt a thread that hangs in such a call (state D).
                found.thread = threading.Thread(
                    target=self._run, args=(path, call, found, discard), name=path, daemon=True
                )
                found.thread.start()
            found.waiting += 1
        assert found.thread is not None
        # Not under the lock, which the thread needs to deliver its outcome.
        found.thread.join(seconds)
        # Both under one lock: a result is either returned here or discarded by the thread.
        with self._lock:
            found.waiting -= 1
            outcome = found.outcome
        if outcome is None:
            text = f"its server did not answer within {seconds:g} s"
            raise OSError(errno.ETIMEDOUT, text, path)
        return _unwrap(outcome, path)

    def _run(
        self, path: str, call: Callable[[], T], own: _Call[T], discard: Callable[[T], object]
    ) -> None:
        outcome = capture(call)
        with self._lock:
            own.outcome = outcome
            del self._calls[path]
            is_awaited = own.waiting > 0
        if isinstance(outcome, Value) and not is_awaited:
            discard(outcome.value)


def _unwrap(outcome: Outcome[T], path: str) -> T:
    # Not `Outcome.unwrap`, which may be called once: several threads can join one call.
    if isinstance(outcome, Value):
        return cast("T", outcome.value)
    assert isinstance(outcome, Error)
    error = outcome.error
    if isinstance(error, OSError):
        raise OSError(error.errno, error.strerror, path) from error
    raise error
