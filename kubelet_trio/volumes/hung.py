"""Blocking calls that a dead file server may keep for ever: waited for with a deadline.

A thread in such a call cannot be ended, and an ordinary one would hold up the agent's own end. So
it is a daemon thread, and there is one for each path at most, however often its pod tries again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

T = TypeVar("T")

PATIENCE = 30.0  # seconds for a look at what may lie on a file server


@dataclass(slots=True)
class _Call(Generic[T]):
    """One call under way, and what came of it."""

    thread: threading.Thread | None = None
    waiting: int = 0
    is_done: bool = False
    failure: OSError | None = None
    result: T | None = None


@dataclass(slots=True)
class HungCalls:
    """Calls by the path that they are about. Thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: dict[str, _Call[object]] = field(default_factory=dict)

    def run(
        self,
        path: str,
        call: Callable[[], T],
        seconds: float,
        discard: Callable[[T], object] = lambda _: None,
    ) -> T:
        """Call, or wait for the call that is under way for the path; return its result.

        Raises what it raises, OSError; ETIMEDOUT where it takes longer than `seconds`. It goes on
        then, and whoever asks again waits for it again.

        Args:
            path: names the call; whoever uses one gives it the same kind of call each time.
            call: what may hang.
            seconds: how long it is waited for.
            discard: given the result that comes when nobody waits any more.
        """
        with self._lock:
            found = cast("_Call[T] | None", self._calls.get(path))
            if found is None:
                found = _Call[T]()
                self._calls[path] = cast("_Call[object]", found)
                found.thread = threading.Thread(
                    target=self._run, args=(path, call, found, discard), name=path, daemon=True
                )
                found.thread.start()
            found.waiting += 1
        assert found.thread is not None
        found.thread.join(seconds)
        with self._lock:
            found.waiting -= 1
            if not found.is_done:
                text = f"its server did not answer within {seconds:g} s"
                raise OSError(errno.ETIMEDOUT, text, path)
        if found.failure is not None:
            raise OSError(found.failure.errno, found.failure.strerror, path)
        return cast("T", found.result)

    def _run(
        self, path: str, call: Callable[[], T], own: _Call[T], discard: Callable[[T], object]
    ) -> None:
        try:
            own.result = call()
        except OSError as exc:
            own.failure = exc
        finally:
            with self._lock:
                own.is_done = True
                del self._calls[path]
                is_waited_for = own.waiting > 0
        if own.failure is None and not is_waited_for:
            discard(cast("T", own.result))
