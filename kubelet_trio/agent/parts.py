"""What of the agent its place in a cluster needs to know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from trio_util import AsyncValue

from kubelet_trio.cri import RuntimeState, v1
from kubelet_trio.events import EventRecorder
from kubelet_trio.model import Meter, PodKey
from kubelet_trio.node import PodCidr, Pressure
from kubelet_trio.status import StatusStore


@dataclass(frozen=True, slots=True)
class AgentParts:
    """See the module."""

    runtime: AsyncValue[RuntimeState]
    events: EventRecorder
    statuses: StatusStore
    pleg_problem: Callable[[], str | None]
    runtime_listed: Callable[[], Awaitable[None]]  # once, so that there is no such problem
    running: Callable[[], set[PodKey]]  # names of pods that have a worker
    images: Callable[[], Awaitable[list[v1.Image]]]
    pod_cidr: PodCidr
    pressure: AsyncValue[Pressure] | None = None
    guard_problem: Callable[[], str | None] = lambda: None
    meter: Meter = field(default_factory=Meter)
