"""Worker threads by purpose; a thread that hangs does not delay the end of the process.

A thread in a system call that does not return (an NFS server that is down, a dead disk) cannot be
stopped. Each purpose therefore has its own threads, and a hang only affects that purpose. The
effect of a cancellation depends on the purpose:

- A call that only reads is abandoned immediately. Most of them also have a deadline, after which
  they raise TimeoutError (an OSError).
- A call that changes something is waited for: a late write or mount could undo a newer one. Only
  after `end_threads`, when the agent's time to end in order is over, it is abandoned as well.
- A call for `Purpose.DEVICES` is abandoned immediately although it changes something: its caller
  keeps account of it (`LeftCalls` in volumes/keyed.py).

An abandoned thread counts towards its purpose's limit until it returns. The threads are daemon
threads: neither `trio.run` nor the interpreter waits for them.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NoReturn, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

import trio

from kubelet_trio.model.offload import Offload, Purpose

if TYPE_CHECKING:
    from outcome import Outcome

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one purpose."""

    threads: int
    only_reads: bool = False
    is_left: bool = False  # its caller keeps account of what it leaves running
    deadline: float = inf  # seconds per call; only together with `only_reads`


BOUNDS = {
    Purpose.OTHER: Bounds(8),
    Purpose.RECORDS: Bounds(8),
    Purpose.PODS: Bounds(16),
    Purpose.PULLS: Bounds(4),
    Purpose.OFFLINE: Bounds(4),
    Purpose.CERTIFICATES: Bounds(4),
    Purpose.SOURCES: Bounds(4, only_reads=True),
    Purpose.VOLUMES: Bounds(16),
    # A volume that hangs takes one thread, and one for each of its pods, however often they try
    # again (volumes/keyed.py). Each ends when its program has been killed after its limit.
    Purpose.DEVICES: Bounds(256, is_left=True),
    # One thread per pod. A walk of a pod's volumes ends after 45 s: one that takes longer hangs.
    Purpose.VOLUME_STATS: Bounds(64, only_reads=True, deadline=60.0),
    Purpose.CGROUPS: Bounds(4),
    Purpose.SIGNALS: Bounds(2, only_reads=True, deadline=10.0),
    Purpose.FILE_SYSTEMS: Bounds(2, only_reads=True, deadline=10.0),
    Purpose.USAGE: Bounds(4, only_reads=True, deadline=120.0),
    Purpose.STATS: Bounds(4, only_reads=True, deadline=60.0),
    Purpose.LOGS: Bounds(16, only_reads=True),
    Purpose.GARBAGE: Bounds(4),
    Purpose.PROCESSES: Bounds(4, only_reads=True, deadline=30.0),
    # It only creates its directory: a late mkdir undoes nothing.
    Purpose.PLUGINS: Bounds(2, only_reads=True, deadline=30.0),
    # Its caller is the recorder alone, which the agent does not wait for at its end.
    Purpose.RECORDER: Bounds(1, is_left=True),
    Purpose.RUNTIME: Bounds(16),
}

# Calls whose thread has not returned, including abandoned ones. Not a RunVar: threads remove
# themselves, also after their `trio.run` has ended.
_busy: set[_Call] = set()


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> object: ...


@dataclass(slots=True)
class _Pool:
    """The threads of one `trio.run`."""

    limiters: dict[Purpose, trio.CapacityLimiter] = field(default_factory=dict)
    waiting: set[_Call] = field(default_factory=set)  # calls with a waiting task
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
        pool = _Pool()
        _pool.set(pool)
        return pool


class _Call:
    """One call: its thread, and its waiting task."""

    def __init__(self, pool: _Pool, purpose: Purpose, name: str) -> None:
        self.name = f"{purpose.value}: {name}"
        self._pool = pool
        self._purpose = purpose
        self._token = trio.lowlevel.current_trio_token()
        self._task: trio.lowlevel.Task | None = None
        self._raise_cancel: Callable[[], NoReturn] | None = None
        self._result: Outcome[object] | None = None

    async def run(self, fn: Callable[[], object]) -> object:
        # On behalf of the call, not of the task: an abandoned thread keeps its place.
        limiter = self._pool.limiter(self._purpose)
        await limiter.acquire_on_behalf_of(self)
        self._task = trio.lowlevel.current_task()
        self._pool.waiting.add(self)
        _busy.add(self)
        # Log lines of the thread have the caller's context (structlog.contextvars).
        run_in_context = contextvars.copy_context().run
        trio.lowlevel.start_thread_soon(
            lambda: self._run_named(partial(run_in_context, fn)), self._report_from_thread
        )
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._result is None:  # rescheduled by `abandon`
            assert self._raise_cancel is not None
            self._raise_cancel()
        return self._result.unwrap()

    def _run_named(self, fn: Callable[[], object]) -> object:
        # For profiles. Trio would name the kernel's thread too, by two calls that release the GIL.
        thread = threading.current_thread()
        before, thread.name = thread.name, self.name
        try:
            return fn()
        finally:
            thread.name = before

    def abandon(self) -> None:
        """Raise Cancelled in a caller that was cancelled and still waits."""
        if self._raise_cancel is not None and self._task is not None:
            task, self._task = self._task, None
            self._pool.waiting.discard(self)
            trio.lowlevel.reschedule(task)

    def _abort(self, raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        bounds = BOUNDS[self._purpose]
        if bounds.only_reads or bounds.is_left or self._pool.is_ending:
            # None: the result is closed when the thread returns it (`_report`).
            self._task = None
            self._pool.waiting.discard(self)
            return trio.lowlevel.Abort.SUCCEEDED
        self._raise_cancel = raise_cancel
        return trio.lowlevel.Abort.FAILED

    def _report_from_thread(self, result: Outcome[object]) -> None:
        _busy.discard(self)
        try:
            self._token.run_sync_soon(self._report, result)
        # The run ended while the thread hung: no task waits for the result.
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
    """Close the result of an abandoned call, such as an open file."""
    value = getattr(result, "value", None)  # an error has none
    if isinstance(value, _Closable):
        value.close()


class ThreadOffload:
    """Runs blocking functions in threads of one purpose; the module describes cancellation."""

    def __init__(self, purpose: Purpose = Purpose.OTHER) -> None:
        self._purpose = purpose

    def of(self, purpose: Purpose) -> Offload:
        return ThreadOffload(purpose)

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Now, because a thread that changes something is not stopped once it has started.
        await trio.lowlevel.checkpoint_if_cancelled()
        deadline = BOUNDS[self._purpose].deadline
        # A `partial` has no `__qualname__`.
        name: str = getattr(fn, "__qualname__", "") or getattr(
            getattr(fn, "func", fn), "__qualname__", "?"
        )
        call = _Call(_current_pool(), self._purpose, name)
        if deadline == inf:  # of most purposes; a scope costs as much as the rest of this
            return cast("T", await call.run(lambda: fn(*args, **kwargs)))
        with trio.move_on_after(deadline):
            return cast("T", await call.run(lambda: fn(*args, **kwargs)))
        raise TimeoutError(f"{call.name} has not returned within {deadline:g} s")


thread_offload = ThreadOffload()


def end_threads() -> None:
    """From now on raise Cancelled in cancelled callers immediately, whatever their threads do.

    For the end of the process, when the agent's time to end in order is over.
    """
    pool = _current_pool()
    pool.is_ending = True
    for call in list(pool.waiting):
        call.abandon()


def busy_threads() -> list[str]:
    """Return the names of running calls, including abandoned ones."""
    return sorted(call.name for call in list(_busy))
