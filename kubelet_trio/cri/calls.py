"""Runs calls that change something to their answer, even if their caller is cancelled.

A runtime that sees such a call cancelled may leave it half done. containerd kills a shim that is
just starting, and the container ends as StartError, code 128, "context canceled". So each call
is a task of this child, `runtime/calls` in the tree. A caller that is cancelled waits for the
call's end, or leaves at once if the call allows it (`may_leave`); the next listing then shows
what the call did.

Every call is bounded: by its own deadline in the runtime's client, by `limit` seconds once its
caller was cancelled, and by `LINGER` seconds once the agent ends (`hurry`, or the end of this
child), since a runtime that hangs must not hold the agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from kubelet_trio.cri.errors import RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.model import get_logger
from kubelet_trio.supervision import (
    ChildSpec,
    ChildState,
    DeclaredNode,
    RestartPolicy,
    TreeNode,
    run_contained,
)

log = get_logger()

T = TypeVar("T")

LINGER = 5.0  # s for calls in flight once the agent ends
_LIMIT = 300.0  # s; longer than any deadline of a call that is not given its own
_POLICY = RestartPolicy(limit=3)


@dataclass(slots=True, eq=False)
class _InFlight:
    """One call, and whether its caller still waits for the answer."""

    name: str
    began: float
    # Shielded: the end of `run` gives it a deadline instead of cancelling it.
    scope: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    ended: trio.Event = field(default_factory=trio.Event)
    is_left: bool = False
    failure: Exception | None = None

    def limit(self, seconds: float) -> None:
        """Give it at most so many seconds more."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + seconds)


class CallsInFlight:
    """Owns the tasks of calls that change something. One supervised child runs it."""

    name = "calls"

    def __init__(self, limit: float = _LIMIT) -> None:
        """Give a call whose caller was cancelled at most `limit` seconds more."""
        self._limit = limit
        self._calls: dict[_InFlight, None] = {}  # oldest first
        # Kept here, although callers then spawn into it: only so can a call outlive its caller's
        # task. `run` alone sets it; None means that no call may start.
        self._nursery: trio.Nursery | None = None
        self._began: float | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the calls until cancelled, then wait for those in flight, `LINGER` s at most."""
        self._began = trio.current_time()
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None  # start no more calls
                    for call in self._calls:
                        call.limit(LINGER)
        finally:
            self._began = None

    def hurry(self) -> None:
        """Bound calls whose caller is cancelled to `LINGER` s: the agent ends. Does not block."""
        self._limit = min(self._limit, LINGER)
        for call in self._calls:
            if call.is_left:
                call.limit(LINGER)

    async def finish(self, name: str, call: Callable[[], Awaitable[T]], *, may_leave: bool) -> T:
        """Make a call that runs to its end even if this task is cancelled.

        Args:
            name: the call's name in the tree.
            call: the call.
            may_leave: whether a cancelled caller leaves at once instead of waiting for the end.

        Raises:
            RuntimeCallError: as the call does; `RuntimeUnavailableError` once the agent ends.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # a cancelled task starts no call
        if self._nursery is None:
            raise RuntimeUnavailableError(name, "not made: the agent is ending")
        answers: list[T] = []

        async def take_answer() -> None:
            answers.append(await call())

        flight = _InFlight(name, trio.current_time())
        self._calls[flight] = None
        self._nursery.start_soon(self._carry_out, flight, take_answer, name=f"runtime call {name}")
        await self._wait(flight, may_leave=may_leave)
        if flight.failure is not None:
            raise flight.failure
        if not answers:
            raise RuntimeUnavailableError(name, "given up: the agent is ending")
        return answers[0]

    async def _wait(self, flight: _InFlight, *, may_leave: bool) -> None:
        try:
            await flight.ended.wait()
        finally:
            if not flight.ended.is_set():  # we are cancelled
                flight.is_left = True
                flight.limit(self._limit)
                if not may_leave:
                    # Shielded: the caller must see what the call changed. Bounded by the call's own
                    # deadline, which `hurry` may shorten further.
                    until = flight.scope.deadline + 1.0
                    with trio.CancelScope(shield=True, deadline=until):
                        await flight.ended.wait()

    async def _carry_out(self, flight: _InFlight, call: Callable[[], Awaitable[None]]) -> None:
        try:
            with flight.scope:
                flight.failure = await run_contained(call)
        finally:
            del self._calls[flight]
            flight.ended.set()
        if flight.scope.cancelled_caught:
            log.warning("runtime.call_given_up", call=flight.name)
        if flight.is_left and flight.failure is not None:
            if not isinstance(flight.failure, RuntimeCallError):
                raise flight.failure  # a bug, which no caller is left to raise
            log.info("runtime.call_failed", call=flight.name, error=str(flight.failure))

    # The supervision tree

    def tree(self) -> TreeNode:
        """Return this child's node with the calls in flight."""
        if self._began is None:
            return TreeNode(self.name, ChildState.STOPPED)
        now = trio.current_time()
        state = ChildState.STOPPING if self._nursery is None else ChildState.RUNNING
        calls = tuple(
            TreeNode(
                call.name,
                ChildState.STOPPING if call.is_left else ChildState.RUNNING,
                age=now - call.began,
            )
            for call in self._calls
        )
        return TreeNode(self.name, state, age=now - self._began, children=calls)

    def declared(self) -> DeclaredNode:
        """Return this child's node without calls: they are dynamic."""
        return DeclaredNode(self.name, "dynamic")

    def as_spec(self) -> ChildSpec:
        """Return the spec of this child, whose stop waits for calls in flight."""
        return ChildSpec(self.name, self.run, policy=_POLICY, stop_grace=LINGER + 1.0)
