"""Serve calls to a fake runtime: latency, faults, deadlines, broken connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from kubelet_trio.cri import RuntimeCallError, RuntimeTimeoutError, RuntimeUnavailableError
from kubelet_trio.testing.faults import Fault, FaultKind, Faults
from kubelet_trio.testing.node import FakeNode

T = TypeVar("T")

DEADLINE = 120.0  # runtimeRequestTimeout: 2m by default
NO_DEADLINE = float("inf")
# Seconds that the agent must leave a changing call before it cancels it, also when the agent stops.
PATIENCE = 5.0
# Changing calls: runtimes leave them half done when they are cancelled.
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
        "UpdatePodSandboxResources",
    }
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the runtime (or failed to, while it was down)."""

    time: float  # seconds of trio's clock
    name: str  # CRI's: StopContainer
    target: str = ""  # id, UID or image


@dataclass(frozen=True, slots=True)
class Cut:
    """A changing call that its caller cancelled."""

    call: Call
    after: float  # seconds from its start to the cancellation
    names: frozenset[str]  # ids, the pod's UID, names


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class _Step(Generic[T]):
    """The effect of a call, and whether it has happened."""

    effect: Callable[[], Awaitable[T]]
    when_cut: Callable[[], None]
    has_taken_effect: bool = False


class CallDesk:
    """Logs every call, and serves it with latency and faults."""

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
        """Add a call to the log."""
        self.log.append(Call(self._node.now(), call, target))

    def go_down(self) -> None:
        """Break the calls in progress, and refuse new ones."""
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
        """Serve one call.

        Args:
            call: its CRI name.
            target: its target, for the log.
            effect: takes effect in the fake; returns the reply.
            names: further targets of faults that match it.
            limit: seconds until its deadline.
            when_cut: the effect if the caller cancels it before `effect`.
        """
        self.note(call, target)
        taken = self.log[-1]
        step = _Step(effect, when_cut)
        with trio.CancelScope(deadline=trio.current_time() + limit) as scope:
            self._in_flight.add(scope)
            try:
                return await self._attempt(call, step, self.faults.take(call, names | {target}))
            except trio.Cancelled:
                # `cancel_called`: its own deadline or a broken connection cancelled it. Else its
                # caller did.
                if not scope.cancel_called:
                    self._cut(taken, step, names)
                raise
            finally:
                self._in_flight.discard(scope)
                # Kept apart from the deadline, which cancels the same scope.
                broken = scope in self._broken
                self._broken.discard(scope)
        if broken:
            raise RuntimeUnavailableError(call, "error reading from server: EOF")
        raise RuntimeTimeoutError(call, "context deadline exceeded")

    def _cut(self, call: Call, step: _Step[T], names: frozenset[str]) -> None:
        """Record a cancelled call, with the effect that a cancellation has in containerd."""
        if call.name not in CHANGING:
            return
        cut = Cut(call, self._node.now() - call.time, names)
        self.cuts.append(cut)
        if cut.after < PATIENCE:
            text = f"{call.name} of {call.target} cut short after {cut.after:g} s"
            self._node.violations.append(f"t={self._node.now():g}: {text}")
        if not step.has_taken_effect:
            step.when_cut()

    async def _attempt(self, call: str, step: _Step[T], fault: Fault | None) -> T:
        # A real call is a checkpoint even if it fails at once: callers that retry must not starve
        # other tasks.
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise RuntimeUnavailableError(call, "connection error: connection refused")
        # Half before the effect and half after it, so that a cancellation can hit either side.
        latency = self.latency.get(call, self.latency.get("", 0.0))
        await trio.sleep(latency / 2)
        await before_effect(call, fault)
        # Exits during the sleep: the effect must see them.
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
    """Apply a fault that precedes the effect."""
    if fault is None:
        return
    if fault.kind is FaultKind.HANG:
        await fault.lifted.wait()
    elif fault.kind is FaultKind.SLOW:
        await trio.sleep(fault.delay)
    elif fault.kind is FaultKind.ERROR:
        await trio.sleep(fault.delay)
        raise fault.error or RuntimeCallError(call, "injected failure")
