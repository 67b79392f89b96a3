"""Faults that a fake device plugin injects into calls."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import trio

from kubelet_trio.grpc import Status
from kubelet_trio.testing.devices.calls import DeviceCall
from kubelet_trio.testing.faults import FaultList


class DeviceFaultKind(enum.Enum):
    """How a call fails, or how its answer lies. ListAndWatch is hit when it begins."""

    REFUSE = "refuse"  # answered `status` at once, before the rules see the call
    HANG = "hang"  # waits until the fault is lifted, or the caller gives up
    SLOW = "slow"  # takes `delay` longer
    DIE_BEFORE = "die before"  # the plugin dies; the call takes no effect
    DIE_AFTER = "die after"  # the plugin dies once the call has taken effect
    NO_ANSWERS = "no answers"  # answered OK, but for no container; a list ends before it begins
    MORE_ANSWERS = "more answers"  # answered for one more container; a list has its devices twice
    OTHER_IDS = "other ids"  # prefers devices that nobody has
    FEWER_IDS = "fewer ids"  # prefers one device fewer than was asked for
    HUGE = "huge"  # answered with more bytes than a gRPC client takes by default


@dataclass(eq=False, slots=True)
class DeviceFault:
    """One fault: which calls it hits, how often, and how. Empty strings match all."""

    kind: DeviceFaultKind
    method: str = ""  # Allocate
    device: str = ""  # a device of the call
    times: int | None = 1  # None: until lifted
    delay: float = 0.0  # seconds
    status: Status = Status.UNAVAILABLE
    message: str = "injected failure"
    lifted: trio.Event = field(default_factory=trio.Event)

    def hits(self, call: DeviceCall) -> bool:
        return self.method in ("", call.method) and self.device in ("", *call.ids)


class DeviceFaults(FaultList[DeviceFault]):
    """The active faults of a plugin; the first that matches hits a call."""

    def add(
        self,
        kind: DeviceFaultKind,
        method: str = "",
        device: str = "",
        *,
        times: int | None = 1,
        delay: float = 0.0,
        status: Status = Status.UNAVAILABLE,
        message: str = "injected failure",
    ) -> DeviceFault:
        """Activate a fault; return it, for `lift`."""
        return self.activate(DeviceFault(kind, method, device, times, delay, status, message))

    def take(self, call: DeviceCall) -> DeviceFault | None:
        """Return the fault that hits this call, and count it down."""
        return self.take_first(lambda fault: fault.hits(call))
