"""One task per claim at a time, which outlives a caller that is cancelled.

A driver may prepare a claim for a minute. If its pod is deleted meanwhile, the call goes on to its
answer, within the driver's deadline: only then is it known what there is to give back, and only
then may the next call for the claim begin. Tasks for other claims go on beside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import trio

from kubelet_trio.managers.claims.types import ClaimError, ClaimKey
from kubelet_trio.model import get_logger
from kubelet_trio.supervision import run_contained

log = get_logger()

LINGER = 5.0  # seconds for tasks in flight once the agent ends

Work = Callable[[], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Turn:
    """The right to change some claims: it has come once no earlier turn has any of them."""

    keys: frozenset[ClaimKey]
    come: trio.Event = field(default_factory=trio.Event)


@dataclass(slots=True, eq=False)
class _Task:
    turn: _Turn
    # Shielded: the end of `run` gives it a deadline instead of cancelling it.
    scope: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    ended: trio.Event = field(default_factory=trio.Event)
    is_left: bool = False
    is_done: bool = False
    failure: Exception | None = None


class ClaimTasks:
    """Runs the tasks. One supervised child runs it."""

    def __init__(self) -> None:
        self._turns: dict[_Turn, None] = {}  # oldest first
        self._tasks: dict[_Task, None] = {}
        # `run` alone sets it; None means that no task may start.
        self._nursery: trio.Nursery | None = None
        self._began = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks until cancelled, then wait for those in flight, `LINGER` s at most."""
        async with trio.open_nursery() as self._nursery:
            self._began.set()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
                for task in self._tasks:
                    task.scope.deadline = min(task.scope.deadline, trio.current_time() + LINGER)

    async def finish(
        self, keys: Collection[ClaimKey], begin: Callable[[], Awaitable[Work | None]]
    ) -> None:
        """Change claims when their turn has come.

        Args:
            keys: the claims. Turns for a claim come in the order of the calls.
            begin: called when it has come, and cancelled with the caller; returns the rest of the
                work, None if there is none. The rest runs to its end even if the caller is
                cancelled.

        Raises:
            ClaimError: as `begin` or its work does, or the agent ends.
        """
        await self._began.wait()
        turn = await self._take(frozenset(keys))
        task = None
        try:
            self._expect_running()
            work = await begin()
            if work is None:
                return
            task = self._start(turn, work)
        finally:
            if task is None:
                self._pass_on(turn)
        try:
            await task.ended.wait()
        finally:
            task.is_left = not task.ended.is_set()
        if task.failure is not None:
            raise task.failure
        if not task.is_done:
            raise ClaimError("given up: the agent is ending")

    def _expect_running(self) -> trio.Nursery:
        if self._nursery is None:
            raise ClaimError("the agent is ending")
        return self._nursery

    def _start(self, turn: _Turn, work: Work) -> _Task:
        nursery = self._expect_running()
        task = _Task(turn)
        self._tasks[task] = None
        names = ", ".join(sorted(key.name for key in turn.keys))
        nursery.start_soon(self._carry_out, task, work, name=f"claims {names}")
        return task

    async def _carry_out(self, task: _Task, work: Work) -> None:
        try:
            with task.scope:
                task.failure = await run_contained(work)
                task.is_done = True
        finally:
            del self._tasks[task]
            self._pass_on(task.turn)
            task.ended.set()
        if task.is_left and task.failure is not None:
            if not isinstance(task.failure, ClaimError):
                raise task.failure  # a bug, which no caller is left to raise
            log.info("claims.task_failed", error=str(task.failure))

    async def _take(self, keys: frozenset[ClaimKey]) -> _Turn:
        turn = _Turn(keys)
        self._turns[turn] = None
        self._call_next()
        try:
            await turn.come.wait()
        except trio.Cancelled:
            self._pass_on(turn)
            raise
        return turn

    def _pass_on(self, turn: _Turn) -> None:
        del self._turns[turn]
        self._call_next()

    def _call_next(self) -> None:
        taken: set[ClaimKey] = set()
        for turn in self._turns:
            if not turn.keys & taken:
                turn.come.set()
            taken |= turn.keys
