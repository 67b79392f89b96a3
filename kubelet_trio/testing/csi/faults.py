"""Faults that a fake CSI driver injects into calls."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import trio

from kubelet_trio.grpc import Status
from kubelet_trio.testing.csi.calls import CsiCall
from kubelet_trio.testing.faults import FaultList


class CsiFaultKind(enum.Enum):
    """How a call fails. All but REFUSE count as a call in progress until they end."""

    REFUSE = "refuse"  # answered `status` at once, before the rules see the call
    ERROR = "error"  # answered `status` after `delay`; takes no effect
    HANG = "hang"  # waits until the fault is lifted, or the caller gives up
    SLOW = "slow"  # takes `delay` longer
    GOES_ON = "goes on"  # takes `delay` longer, and takes effect even if the caller gives up
    LOST_REPLY = "lost reply"  # takes effect, then is answered `status`
    DIE_BEFORE = "die before"  # the driver dies; the call takes no effect
    DIE_AFTER = "die after"  # the driver dies once the call has taken effect


@dataclass(eq=False, slots=True)
class CsiFault:
    """One fault: which calls it hits, how often, and how. Empty strings match all."""

    kind: CsiFaultKind
    method: str = ""  # NodePublishVolume
    target: str = ""  # a volume id or a path of the call
    times: int | None = 1  # None: until lifted
    delay: float = 0.0  # seconds
    status: Status = Status.UNAVAILABLE
    message: str = "injected failure"
    lifted: trio.Event = field(default_factory=trio.Event)

    def hits(self, call: CsiCall) -> bool:
        targets = ("", call.volume_id, call.path, call.staging_path)
        return self.method in ("", call.method) and self.target in targets


class CsiFaults(FaultList[CsiFault]):
    """The active faults of a driver; the first that matches hits a call."""

    def add(
        self,
        kind: CsiFaultKind,
        method: str = "",
        target: str = "",
        *,
        times: int | None = 1,
        delay: float = 0.0,
        status: Status = Status.UNAVAILABLE,
        message: str = "injected failure",
    ) -> CsiFault:
        """Activate a fault; return it, for `lift`."""
        return self.activate(CsiFault(kind, method, target, times, delay, status, message))

    def take(self, call: CsiCall) -> CsiFault | None:
        """Return the fault that hits this call, and count it down."""
        return self.take_first(lambda fault: fault.hits(call))
