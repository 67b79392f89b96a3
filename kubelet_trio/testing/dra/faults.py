"""Faults that a fake DRA driver injects into calls."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import trio

from kubelet_trio.grpc import Status
from kubelet_trio.testing.dra.calls import DraCall
from kubelet_trio.testing.faults import FaultList


class DraFaultKind(enum.Enum):
    """How a call fails, or how its answer lies. NodeWatchResources is hit when it begins."""

    REFUSE = "refuse"  # answered `status` at once, before the rules see the call
    HANG = "hang"  # waits until the fault is lifted, or the caller gives up
    SLOW = "slow"  # takes `delay` longer
    DIE_BEFORE = "die before"  # the driver dies; the call takes no effect
    DIE_AFTER = "die after"  # the driver dies once the call has taken effect
    CLAIM_ERROR = "claim error"  # answers `message` for `claim`, or for all; without an effect
    LEAVE_OUT = "leave out"  # does not answer for `claim`, or for any; without an effect
    OTHER_UID = "other uid"  # answers for a claim that nobody asked for, too
    HUGE = "huge"  # answers with more bytes than a gRPC client takes by default


@dataclass(eq=False, slots=True)
class DraFault:
    """One fault: which calls it hits, how often, and how. Empty strings match all."""

    kind: DraFaultKind
    method: str = ""  # NodePrepareResources
    claim: str = ""  # the UID of a claim of the call
    times: int | None = 1  # None: until lifted
    delay: float = 0.0  # seconds
    status: Status = Status.UNAVAILABLE
    message: str = "injected failure"
    lifted: trio.Event = field(default_factory=trio.Event)

    def hits(self, call: DraCall) -> bool:
        return self.method in ("", call.method) and self.claim in ("", *call.uids)


class DraFaults(FaultList[DraFault]):
    """The active faults of a driver; the first that matches hits a call."""

    def add(
        self,
        kind: DraFaultKind,
        method: str = "",
        claim: str = "",
        *,
        times: int | None = 1,
        delay: float = 0.0,
        status: Status = Status.UNAVAILABLE,
        message: str = "injected failure",
    ) -> DraFault:
        """Activate a fault; return it, for `lift`."""
        return self.activate(DraFault(kind, method, claim, times, delay, status, message))

    def take(self, call: DraCall) -> DraFault | None:
        """Return the fault that hits this call, and count it down."""
        return self.take_first(lambda fault: fault.hits(call))
