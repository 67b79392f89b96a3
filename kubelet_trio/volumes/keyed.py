"""Locks by name, and the blocking calls that hold them even after their caller was cancelled.

A thread in a program of the host (mkfs on a dead disk, a login to a target that does not answer)
cannot be stopped. A task that is cancelled meanwhile does not wait for it: it *leaves* the call.
The locks that the task held then count as held until the call has returned. So

- no second call works on the same volume meanwhile; who needs the lock waits for 30 s, and then
  fails with an error that names the call;
- what the call did is on disk before the next owner of the lock looks, who completes it or undoes
  it. Nothing has to be remembered: set-up and release of a volume look at the disk first.

A program is killed after its limit, so most calls return then (`volumes/tools.py`).
"""

from __future__ import annotations

import enum
import errno
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import trio
from outcome import Error, Outcome, Value, capture

from kubelet_trio.model import Offload, get_logger

log = get_logger()

P = ParamSpec("P")
T = TypeVar("T")

LEFT_PATIENCE = 30.0  # seconds to wait for a call that an earlier task has left


class _State(enum.Enum):
    NEW = "new"
    RUNNING = "running"
    DROPPED = "dropped"  # its caller was cancelled before it began: it does nothing
    LEFT = "left"
    RETURNED = "returned"


@dataclass(eq=False, slots=True)
class LeftCall:
    """A call in a thread, from its start until it has returned."""

    name: str
    task: trio.lowlevel.Task
    began: float = field(default_factory=trio.current_time)
    ended: trio.Event = field(default_factory=trio.Event)  # set only if it was left
    _state: _State = _State.NEW
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> bool:
        """Whether the thread is to make the call."""
        return self._move({_State.NEW}, _State.RUNNING)

    def leave(self) -> bool:
        """Whether the call goes on without its caller, who was cancelled."""
        self._move({_State.NEW}, _State.DROPPED)
        return self._move({_State.RUNNING}, _State.LEFT)

    def end(self) -> bool:
        """Whether the call that returns now was left."""
        return not self._move({_State.RUNNING}, _State.RETURNED)

    def _move(self, allowed: set[_State], state: _State) -> bool:
        with self._lock:
            if self._state not in allowed:
                return False
            self._state = state
            return True


@dataclass(slots=True)
class LeftCalls:
    """The calls that cancelled tasks have left running."""

    _left: set[LeftCall] = field(default_factory=set)

    async def run(
        self, offload: Offload, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a blocking function; a caller that is cancelled leaves it. Raises what `fn` raises.

        The offload has to let its caller go at once (`Purpose.DEVICES`).
        """
        # A `partial` has no `__qualname__`.
        name = getattr(getattr(fn, "func", fn), "__qualname__", fn.__class__.__qualname__)
        call = LeftCall(name, trio.lowlevel.current_task())
        token = trio.lowlevel.current_trio_token()

        def work() -> Outcome[T] | None:
            if not call.begin():
                return None
            outcome = capture(fn, *args, **kwargs)
            if call.end():
                # The run has ended before the call: nothing waits for it.
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._end, call, outcome)
            return outcome

        # Of the thread, and for offloads that treat calls by their names.
        work.__name__, work.__qualname__ = name.rpartition(".")[2], name
        try:
            outcome = await offload(work)
        except trio.Cancelled:
            if call.leave():
                self._left.add(call)
            raise
        assert outcome is not None  # only a cancelled call is dropped
        return outcome.unwrap()

    def of_this_task(self) -> set[LeftCall]:
        """Return what the current task has left running."""
        task = trio.lowlevel.current_task()
        return {call for call in self._left if call.task is task}

    def _end(self, call: LeftCall, outcome: Outcome[object]) -> None:
        self._left.discard(call)
        call.ended.set()
        took = round(trio.current_time() - call.began, 1)
        if isinstance(outcome, Value):
            log.info("volume.left_call_ended", call=call.name, seconds=took)
            return
        assert isinstance(outcome, Error)
        log.warning(
            "volume.left_call_failed", call=call.name, seconds=took, error=repr(outcome.error)
        )


@dataclass(frozen=True, slots=True)
class LeavingOffload:
    """An `Offload` whose callers leave their calls when they are cancelled."""

    calls: LeftCalls
    offload: Offload

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.calls.run(self.offload, fn, *args, **kwargs)


@dataclass(slots=True)
class _Entry:
    lock: trio.Lock = field(default_factory=trio.Lock)
    tasks: int = 0  # that hold it or wait for it
    left: set[LeftCall] = field(default_factory=set)  # by tasks that held it

    def running(self) -> list[LeftCall]:
        return [call for call in self.left if not call.ended.is_set()]


@dataclass(slots=True)
class KeyedLocks:
    """A lock for each key that a task, or a call it has left, holds; others take no memory."""

    calls: LeftCalls = field(default_factory=LeftCalls)
    _entries: dict[str, _Entry] = field(default_factory=dict)

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of a key while the block runs, and what it leaves. Not reentrant.

        Raises OSError (ETIMEDOUT) if a call that an earlier owner has left does not return within
        `LEFT_PATIENCE`. Only calls of this task count, not those of tasks that it starts.
        """
        entry = self._entries.setdefault(key, _Entry())
        entry.tasks += 1
        try:
            async with entry.lock:
                await self._wait_left(key, entry, LEFT_PATIENCE)
                before = self.calls.of_this_task()
                try:
                    yield
                finally:
                    entry.left |= self.calls.of_this_task() - before
        finally:
            entry.tasks -= 1
            self._prune()

    def is_held(self, key: str) -> bool:
        """Whether a task holds the lock of a key or waits for it."""
        return key in self._entries and self._entries[key].tasks > 0

    async def wait_left(self, key: str, seconds: float) -> None:
        """Wait until no left call holds a key. Raises OSError (ETIMEDOUT) after `seconds`."""
        if key in self._entries:
            await self._wait_left(key, self._entries[key], seconds)

    async def wait_left_below(self, prefix: str, seconds: float) -> None:
        """Wait until no left call holds a key that begins with `prefix`.

        Raises OSError (ETIMEDOUT) after `seconds`.
        """
        for key, entry in list(self._entries.items()):
            if key.startswith(prefix):
                await self._wait_left(key, entry, seconds)

    async def _wait_left(self, key: str, entry: _Entry, seconds: float) -> None:
        with trio.move_on_after(seconds):
            for call in entry.running():
                await call.ended.wait()
        for call in entry.running():
            took = trio.current_time() - call.began
            text = f"{call.name} of an earlier attempt still runs after {took:.0f} s"
            raise OSError(errno.ETIMEDOUT, text, key)
        entry.left.clear()

    def _prune(self) -> None:
        for key, entry in list(self._entries.items()):
            if not entry.tasks and not entry.running():
                del self._entries[key]
