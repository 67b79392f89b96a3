"""How a call to a fake runtime goes: its latency, fault, deadline and connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from kubelet_trio.cri import RuntimeCallError, RuntimeTimeoutError, RuntimeUnavailableError
from kubelet_trio.testing.faults import Fault, FaultKind, Faults
from kubelet_trio.testing.node import FakeNode

T = TypeVar("T")

DEADLINE = 120.0
NO_DEADLINE = float("inf")
# The least that a call that changes something is given: an agent that ends waits as long.
PATIENCE = 5.0
# Calls that runtimes leave half done when they are cancelled.
CHANGING = frozenset(
    {
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "ExecSync",
        "ReopenContainerLog",
        "RemoveImage",
        "CheckpointContainer",
        "UpdateRuntimeConfig",
        "UpdateContainerResources",
    }
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the runtime (or failed to, while it was down)."""

    time: float  # seconds of trio's clock
    name: str  # CRI's: StopContainer
    target: str = ""  # the id, UID or image it was about


@dataclass(frozen=True, slots=True)
class Cut:
    """A call that changes something and that its caller cancelled in the middle."""

    call: Call
    after: float  # seconds that it had taken by then
    names: frozenset[str]  # what it was about: ids, the pod's UID, names


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class _Step(Generic[T]):
    """What a call does, and whether it has been done."""

    effect: Callable[[], Awaitable[T]]
    when_cut: Callable[[], None]
    has_taken_effect: bool = False


class CallDesk:
    """Takes every call, keeps a log of them, and lets them go as told."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.faults = Faults()
        self.log: list[Call] = []
        self.cuts: list[Cut] = []
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
        when_cut: Callable[[], None] = _nothing,
    ) -> T:
        """Carry out one call.

        Args:
            call: CRI's name of it.
            target: what the log names it by.
            effect: what it does in the fake, and its answer.
            names: what a fault may name it by, besides `target`.
            limit: s until its deadline.
            when_cut: what the runtime does if the caller cancels it before it took effect.
        """
        self.note(call, target)
        taken = self.log[-1]
        step = _Step(effect, when_cut)
        with trio.CancelScope(deadline=trio.current_time() + limit) as scope:
            self._in_flight.add(scope)
            try:
                return await self._attempt(call, step, self.faults.take(call, names | {target}))
            except trio.Cancelled:
                # Its own deadline and a broken connection are not the caller's doing.
                if not scope.cancel_called:
                    self._cut(taken, step, names)
                raise
            finally:
                self._in_flight.discard(scope)
                broken = scope in self._broken
                self._broken.discard(scope)
        if broken:
            raise RuntimeUnavailableError(call, "error reading from server: EOF")
        raise RuntimeTimeoutError(call, "context deadline exceeded")

    def _cut(self, call: Call, step: _Step[T], names: frozenset[str]) -> None:
        """Take note of a call that is cancelled, and leave things as containerd does."""
        if call.name not in CHANGING:
            return
        cut = Cut(call, self._node.now() - call.time, names)
        self.cuts.append(cut)
        if cut.after < PATIENCE:
            said = f"{call.name} of {call.target} cut short after {cut.after:g} s"
            self._node.violations.append(f"t={self._node.now():g}: {said}")
        if not step.has_taken_effect:
            step.when_cut()

    async def _attempt(self, call: str, step: _Step[T], fault: Fault | None) -> T:
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise RuntimeUnavailableError(call, "connection error: connection refused")
        latency = self.latency.get(call, self.latency.get("", 0.0))
        await trio.sleep(latency / 2)
        await before_effect(call, fault)
        self._node.settle()
        result = await step.effect()
        # From here the call has taken effect, whether or not its reply arrives.
        step.has_taken_effect = True
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
