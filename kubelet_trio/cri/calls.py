"""Calls that change something: each runs to its answer, whoever gives up on it.

Runtimes leave things half done where such a call is cancelled. containerd kills a shim that
is just starting, and the container ends as StartError, code 128, "context canceled". So a
call is a task of this child, `runtime/calls` in the tree, and no part of the task that asked.
Who asked and is cancelled waits on for the end, or leaves at once where the call allows it
(`may_leave`); what the call did is then found by the next listing.

No call goes on for ever. Each has its own deadline in the runtime's client. One whose asker
was cancelled has `limit` seconds more at most, and once the agent ends (`hurry`, or this
child's own end) `LINGER` seconds: a runtime that hangs must not hold the agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from kubelet_trio.cri._errors import RuntimeCallError, RuntimeUnavailableError
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

# How long a call in flight may go on after the agent was told to end.
LINGER = 5.0
# Longer than any call's own deadline but those that are given a time of their own.
_LIMIT = 300.0
_POLICY = RestartPolicy(limit=3)


@dataclass(slots=True, eq=False)
class _InFlight:
    """One call, and whether anybody still wants its answer."""

    name: str
    began: float
    # Shielded: the end of `run` gives it a deadline instead of cancelling it.
    scope: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    ended: trio.Event = field(default_factory=trio.Event)
    is_left: bool = False
    failure: Exception | None = None

    def limit(self, seconds: float) -> None:
        """Let it go on for no more than this."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + seconds)


class CallsInFlight:
    """Owns every call that changes something. One child runs it; the runtime's users ask."""

    name = "calls"

    def __init__(self, limit: float = _LIMIT) -> None:
        """Give a call whose asker was cancelled `limit` more seconds at most."""
        self._limit = limit
        self._calls: dict[_InFlight, None] = {}  # in the order of their beginning
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
                    self._nursery = None  # none begins any more
                    for call in self._calls:
                        call.limit(LINGER)
        finally:
            self._began = None

    def hurry(self) -> None:
        """The agent ends: who is cancelled now waits `LINGER` s at most. Never blocks."""
        self._limit = min(self._limit, LINGER)
        for call in self._calls:
            if call.is_left:
                call.limit(LINGER)

    async def finish(self, name: str, call: Callable[[], Awaitable[T]], *, may_leave: bool) -> T:
        """Make a call that runs to its end whether or not this task is cancelled.

        Args:
            name: what the tree shows.
            call: the call.
            may_leave: whether a cancelled asker goes at once, and the call ends by itself.

        Raises:
            RuntimeCallError: as the call does; `RuntimeUnavailableError` once the agent ends.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # nothing begins for who has to go
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
                    # Ends with the call's own scope, which `hurry` may cut shorter still.
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
                raise flight.failure  # a bug, and nobody is left to hear of it
            log.info("runtime.call_failed", call=flight.name, error=str(flight.failure))

    # What the tree shows

    def tree(self) -> TreeNode:
        """Return this child and the calls in flight, as of now."""
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
        """Return its name: its calls are not declared."""
        return DeclaredNode(self.name, "dynamic")

    def as_spec(self) -> ChildSpec:
        """Return it as a supervisor's child, with the time to wait for calls in flight."""
        return ChildSpec(self.name, self.run, policy=_POLICY, stop_grace=LINGER + 1.0)
