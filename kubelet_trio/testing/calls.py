"""How a call to a fake runtime goes: its latency, fault, deadline and connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import trio

from kubelet_trio.cri import RuntimeCallError, RuntimeTimeoutError, RuntimeUnavailableError
from kubelet_trio.testing.faults import Fault, FaultKind, Faults
from kubelet_trio.testing.node import FakeNode

T = TypeVar("T")

DEADLINE = 120.0
NO_DEADLINE = float("inf")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the runtime (or failed to, while it was down)."""

    time: float  # seconds of trio's clock
    name: str  # CRI's: StopContainer
    target: str = ""  # the id, UID or image it was about


class CallDesk:
    """Takes every call, keeps a log of them, and lets them go as told."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.faults = Faults()
        self.log: list[Call] = []
        self.latency: dict[str, float] = {}
        self.is_down = False
        self._in_flight: set[trio.CancelScope] = set()
        self._broken: set[trio.CancelScope] = set()

    def note(self, call: str, target: str = "") -> None:
        """Write a call into the log."""
        self.log.append(Call(self._node.now(), call, target))

    def go_down(self) -> None:
        """Break the calls in flight, and refuse those to come."""
        self.is_down = True
        self._broken |= self._in_flight
        for scope in self._in_flight:
            scope.cancel()
        self._node.wake()

    def come_back(self) -> None:
        self.is_down = False
        self._node.wake()

    async def serve(
        self,
        call: str,
        target: str,
        effect: Callable[[], Awaitable[T]],
        names: frozenset[str] = frozenset(),
        *,
        limit: float = DEADLINE,
    ) -> T:
        """Carry out one call.

        Args:
            call: CRI's name of it.
            target: what the log names it by.
            effect: what it does in the fake, and its answer.
            names: what a fault may name it by, besides `target`.
            limit: s until its deadline.
        """
        self.note(call, target)
        with trio.CancelScope(deadline=trio.current_time() + limit) as scope:
            self._in_flight.add(scope)
            try:
                return await self._attempt(call, effect, self.faults.take(call, names | {target}))
            finally:
                self._in_flight.discard(scope)
                broken = scope in self._broken
                self._broken.discard(scope)
        if broken:
            raise RuntimeUnavailableError(call, "error reading from server: EOF")
        raise RuntimeTimeoutError(call, "context deadline exceeded")

    async def _attempt(
        self, call: str, effect: Callable[[], Awaitable[T]], fault: Fault | None
    ) -> T:
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise RuntimeUnavailableError(call, "connection error: connection refused")
        latency = self.latency.get(call, self.latency.get("", 0.0))
        await trio.sleep(latency / 2)
        await before_effect(call, fault)
        self._node.settle()
        result = await effect()
        # From here the call has taken effect, whether or not its reply arrives.
        await trio.sleep(latency / 2)
        if fault is not None and fault.kind is FaultKind.LOST_REPLY:
            await trio.sleep(fault.delay)
            raise RuntimeUnavailableError(call, "error reading from server: EOF")
        return result


async def before_effect(call: str, fault: Fault | None) -> None:
    """Let a fault that comes before the effect happen."""
    if fault is None:
        return
    if fault.kind is FaultKind.HANG:
        await fault.lifted.wait()
    elif fault.kind is FaultKind.SLOW:
        await trio.sleep(fault.delay)
    elif fault.kind is FaultKind.ERROR:
        await trio.sleep(fault.delay)
        raise fault.error or RuntimeCallError(call, "injected failure")
