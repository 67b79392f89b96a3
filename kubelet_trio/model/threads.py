"""Worker threads by purpose, and an end of the process that no hung thread holds up.

A thread in a system call that does not return (a hung NFS server, a dead disk) cannot be
stopped. So each purpose has threads of its own: what hangs takes those, and every other room
goes on. How a cancelled caller leaves depends on the purpose:

- What only reads is abandoned at once. Most of it has a deadline too, after which it raises
  TimeoutError (an OSError).
- What changes something is waited for: a record or a mount that is finished behind its
  caller's back could undo a later one. Only once `end_threads` was called, when the agent has
  had its time to end in good order, is it abandoned as well.

An abandoned thread keeps its place in its purpose until it returns. The threads are daemons:
neither `trio.run` nor the interpreter waits for them.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

import trio

from kubelet_trio.model.offload import Offload, Purpose

if TYPE_CHECKING:
    from outcome import Outcome

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the threads of a purpose may do."""

    threads: int
    only_reads: bool = False
    deadline: float = float("inf")  # seconds for a call; only for what only reads


BOUNDS = {
    Purpose.OTHER: Bounds(8),
    Purpose.RECORDS: Bounds(8),
    Purpose.PODS: Bounds(16),
    Purpose.PULLS: Bounds(4),
    Purpose.OFFLINE: Bounds(4),
    Purpose.CERTIFICATES: Bounds(4),
    Purpose.SOURCES: Bounds(4, only_reads=True),
    Purpose.VOLUMES: Bounds(16),
    # One thread a pod, and a pod's volumes are walked for at most 45 s: what takes longer hangs.
    Purpose.VOLUME_STATS: Bounds(64, only_reads=True, deadline=60.0),
    Purpose.CGROUPS: Bounds(4),
    Purpose.SIGNALS: Bounds(2, only_reads=True, deadline=10.0),
    Purpose.FILE_SYSTEMS: Bounds(2, only_reads=True, deadline=10.0),
    Purpose.USAGE: Bounds(4, only_reads=True, deadline=120.0),
    Purpose.STATS: Bounds(4, only_reads=True, deadline=60.0),
    Purpose.LOGS: Bounds(16, only_reads=True),
    Purpose.GARBAGE: Bounds(4),
    Purpose.PROCESSES: Bounds(4, only_reads=True, deadline=30.0),
    Purpose.RUNTIME: Bounds(16),
}

# Calls whose thread has not returned, of every run in this process: also those that nobody
# waits for any more. Threads take themselves out, so it outlives `trio.run`.
_busy: set[_Call] = set()


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> object: ...


@dataclass(slots=True)
class _Pool:
    """The threads of one `trio.run`."""

    limiters: dict[Purpose, trio.CapacityLimiter] = field(default_factory=dict)
    waiting: set[_Call] = field(default_factory=set)  # calls that somebody waits for
    is_ending: bool = False

    def limiter(self, purpose: Purpose) -> trio.CapacityLimiter:
        found = self.limiters.get(purpose)
        if found is None:
            found = trio.CapacityLimiter(BOUNDS[purpose].threads)
            self.limiters[purpose] = found
        return found


_pool: trio.lowlevel.RunVar[_Pool] = trio.lowlevel.RunVar("kubelet_trio_threads")


def _current_pool() -> _Pool:
    try:
        return _pool.get()
    except LookupError:
        made = _Pool()
        _pool.set(made)
        return made


class _Call:
    """One call: its thread, and the task that waits for it."""

    def __init__(self, pool: _Pool, purpose: Purpose, name: str) -> None:
        self.name = f"{purpose.value}: {name}"
        self._pool = pool
        self._purpose = purpose
        self._token = trio.lowlevel.current_trio_token()
        self._task: trio.lowlevel.Task | None = None
        self._raise_cancel: Callable[[], NoReturn] | None = None
        self._result: Outcome[object] | None = None

    async def run(self, fn: Callable[[], object]) -> object:
        limiter = self._pool.limiter(self._purpose)
        await limiter.acquire_on_behalf_of(self)
        self._task = trio.lowlevel.current_task()
        self._pool.waiting.add(self)
        _busy.add(self)
        run_in_context = contextvars.copy_context().run
        trio.lowlevel.start_thread_soon(
            lambda: run_in_context(fn), self._report_from_thread, self.name
        )
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._result is None:  # let go by `leave`
            assert self._raise_cancel is not None
            self._raise_cancel()
        return self._result.unwrap()

    def leave(self) -> None:
        """Let a caller go that was cancelled and still waits."""
        if self._raise_cancel is not None and self._task is not None:
            task, self._task = self._task, None
            self._pool.waiting.discard(self)
            trio.lowlevel.reschedule(task)

    def _abort(self, raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        if BOUNDS[self._purpose].only_reads or self._pool.is_ending:
            self._task = None
            self._pool.waiting.discard(self)
            return trio.lowlevel.Abort.SUCCEEDED
        self._raise_cancel = raise_cancel
        return trio.lowlevel.Abort.FAILED

    def _report_from_thread(self, result: Outcome[object]) -> None:
        _busy.discard(self)
        try:
            self._token.run_sync_soon(self._report, result)
        except trio.RunFinishedError:
            _close(result)

    def _report(self, result: Outcome[object]) -> None:
        self._pool.limiter(self._purpose).release_on_behalf_of(self)
        self._pool.waiting.discard(self)
        if self._task is None:
            _close(result)
        else:
            self._result = result
            trio.lowlevel.reschedule(self._task)


def _close(result: Outcome[object]) -> None:
    """Close a file that was opened for somebody who has gone meanwhile."""
    value = getattr(result, "value", None)  # an error has none
    if isinstance(value, _Closable):
        value.close()


class ThreadOffload:
    """Runs what blocks in a thread of one purpose; see the module for cancellation."""

    def __init__(self, purpose: Purpose = Purpose.OTHER) -> None:
        self._purpose = purpose

    def of(self, purpose: Purpose) -> Offload:
        return ThreadOffload(purpose)

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        deadline = BOUNDS[self._purpose].deadline
        # A `partial` has no name of its own.
        name: str = getattr(fn, "__qualname__", "") or getattr(
            getattr(fn, "func", fn), "__qualname__", "?"
        )
        call = _Call(_current_pool(), self._purpose, name)
        with trio.move_on_after(deadline):
            return cast("T", await call.run(lambda: fn(*args, **kwargs)))
        raise TimeoutError(f"{call.name} has not returned within {deadline:g} s")


thread_offload = ThreadOffload()


def end_threads() -> None:
    """From now on let cancelled callers go at once, whatever their threads do.

    For the end of the process, after the agent has had its time to end in good order.
    """
    pool = _current_pool()
    pool.is_ending = True
    for call in list(pool.waiting):
        call.leave()


def busy_threads() -> list[str]:
    """Return what threads are at work on, those that were abandoned included."""
    return sorted(call.name for call in list(_busy))
