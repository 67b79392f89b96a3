"""Blocking calls that a dead file server may keep for ever: waited for with a deadline.

A thread in such a call cannot be ended, and an ordinary one would hold up the agent's own end. So
it is a daemon thread, and there is one for each path at most, however often its pod tries again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Call:
    """One call under way, and what it raised."""

    thread: threading.Thread | None = None
    failure: OSError | None = None


@dataclass(slots=True)
class HungCalls:
    """Calls by the path that they are about. Thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: dict[str, _Call] = field(default_factory=dict)

    def run(self, path: str, call: Callable[[], None], seconds: float) -> None:
        """Call, or wait for the call that is under way for the path.

        Raises what it raises, OSError; ETIMEDOUT where it takes longer than `seconds`. It goes on
        then, and whoever asks again waits for it again.
        """
        with self._lock:
            found = self._calls.get(path)
            if found is None:
                found = self._calls[path] = _Call()
                found.thread = threading.Thread(
                    target=self._run, args=(path, call, found), name=f"mount {path}", daemon=True
                )
                found.thread.start()
        assert found.thread is not None
        found.thread.join(seconds)
        if found.thread.is_alive():
            raise OSError(errno.ETIMEDOUT, f"its server did not answer within {seconds:g} s", path)
        if found.failure is not None:
            raise OSError(found.failure.errno, found.failure.strerror, path)

    def _run(self, path: str, call: Callable[[], None], own: _Call) -> None:
        try:
            call()
        except OSError as exc:
            own.failure = exc
        finally:
            with self._lock:
                del self._calls[path]
