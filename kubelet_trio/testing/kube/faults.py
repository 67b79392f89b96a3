"""Faults that a fake API server injects into requests."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import trio

from kubelet_trio.kube import KubeError
from kubelet_trio.testing.faults import FaultList


class KubeFaultKind(enum.Enum):
    """How a request fails."""

    ERROR = "error"  # refused with `error`
    HANG = "hang"  # no response until the fault is lifted or the client gives up
    SLOW = "slow"  # takes `delay` longer
    BROKEN = "broken"  # no connection
    LOST_REPLY = "lost reply"  # takes effect, then the connection breaks


@dataclass(eq=False, slots=True)
class KubeFault:
    """One fault: which requests it hits, how often, and how. Empty strings match all.

    `verb` is as in the API's audit log: get, list, watch, create, update, patch, delete,
    deletecollection.
    """

    kind: KubeFaultKind
    verb: str = ""
    resource: str = ""  # `pods`, or `pods/status`
    name: str = ""
    times: int | None = 1  # None: until lifted
    delay: float = 0.0  # seconds
    error: KubeError | None = None
    lifted: trio.Event = field(default_factory=trio.Event)

    def hits(self, request: KubeRequest) -> bool:
        return (
            self.verb in ("", request.verb)
            and self.resource in ("", request.resource, request.resource.partition("/")[0])
            and self.name in ("", request.name)
        )


@dataclass(frozen=True, slots=True)
class KubeRequest:
    """One request, as in an audit log."""

    time: float  # seconds of trio's clock
    verb: str
    resource: str  # plural, with the subresource: `pods/status`
    namespace: str = ""
    name: str = ""
    user: str = ""


class KubeFaults(FaultList[KubeFault]):
    """The active faults of an API server; the first that matches hits a request."""

    def add(
        self,
        kind: KubeFaultKind,
        verb: str = "",
        resource: str = "",
        name: str = "",
        *,
        times: int | None = 1,
        delay: float = 0.0,
        error: KubeError | None = None,
    ) -> KubeFault:
        """Activate a fault; return it, for `lift`."""
        return self.activate(KubeFault(kind, verb, resource, name, times, delay, error))

    def take(self, request: KubeRequest) -> KubeFault | None:
        """Return the fault that hits this request, and count it down."""
        return self.take_first(lambda fault: fault.hits(request))
