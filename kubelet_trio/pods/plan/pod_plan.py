"""The values that planning takes and gives: `PlanInput` and `PodPlan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet_trio.model import ContainerId, PodContainer, SandboxId
from kubelet_trio.pods.plan.backoff import BackOffEntry, BackOffKey, BackOffPolicy
from kubelet_trio.pods.plan.resize import ResizePod
from kubelet_trio.pods.types import Hold, PodResize, WaitingReason


@dataclass(frozen=True, slots=True)
class PlanInput:
    """All that `plan_pod` reads besides the pod and what the runtime reports of it."""

    now: float  # Unix seconds
    crash: Mapping[BackOffKey, BackOffEntry] = field(default_factory=dict)  # by `crash_key`
    policy: BackOffPolicy = field(default_factory=BackOffPolicy)  # how the entries of `crash` grow
    # `container_hash` by container name. A container without one counts as unchanged.
    hashes: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)  # of the spec, by container name
    # Whether a running sidecar lets the next container start (startup probe, postStart).
    # A sidecar that is not in here does.
    started: Mapping[ContainerId, bool] = field(default_factory=dict)
    # Running instances to restart, and why: `failed liveness probe`.
    unhealthy: Mapping[ContainerId, str] = field(default_factory=dict)
    pull: Mapping[str, Hold] = field(default_factory=dict)  # image pulls that must wait
    # Exit codes by container name, from the last status (`reported_ends`): for containers that
    # ran and whose record the runtime has lost.
    ended: Mapping[str, int] = field(default_factory=dict)
    keep_dead: int | None = 1  # dead instances kept of each container; None: all
    restarting_all: bool = False  # the last status has AllContainersRestarting
    resize: PodResize | None = None  # the one in progress
    # The resize has failed, and is not tried again before a container starts.
    resize_is_held: bool = False
    # Instances that were stopped to start again, whatever the restart policy says.
    restarting: frozenset[ContainerId] = frozenset()
    # Newest instances whose restart was asked for by hand: they restart without a back-off.
    asked: frozenset[ContainerId] = frozenset()


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop one instance. `grace_period` None: the pod's own."""

    id: ContainerId
    name: str
    message: str  # of the Killing event
    grace_period: int | None = None
    starts_again: bool = False  # whatever the restart policy says


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Create and start the next instance of a container."""

    container: PodContainer
    attempt: int  # its restart count; at least, if `unrecorded`
    # The runtime knows no instance: log files may tell of earlier ones, and count on.
    unrecorded: bool = False
    back_off: tuple[BackOffKey, BackOffEntry] | None = None  # to keep once it is created


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What one sync does, in this order: stop, remove, create the sandbox, resize, start.

    The actions of one field may run concurrently, except that `start` keeps its order within
    init containers (it holds at most one ordinary init container).
    """

    stop_containers: tuple[StopContainer, ...] = ()
    stop_sandboxes: tuple[SandboxId, ...] = ()  # and all their containers, which stop first
    remove_containers: tuple[ContainerId, ...] = ()  # one after the other
    back_offs: tuple[tuple[BackOffKey, BackOffEntry], ...] = ()  # to keep after the removals
    create_sandbox: bool = False
    sandbox_attempt: int = 0
    sandbox_id: SandboxId | None = None  # where to start containers if none is created
    resize: ResizePod | None = None
    start: tuple[StartContainer, ...] = ()
    waiting: Mapping[str, WaitingReason] = field(default_factory=dict)  # by container name
    retry_at: float | None = None  # Unix time at which the first back-off ends
    # The holds behind `waiting`, for `reasons`. Two plans that differ only here do the same.
    holds: Mapping[str, Hold] = field(default_factory=dict, compare=False)  # by container name
    finished: bool = False  # every container has ended and none will start again

    @property
    def is_noop(self) -> bool:
        """Whether there is nothing to do but wait."""
        return not (
            self.stop_containers
            or self.stop_sandboxes
            or self.remove_containers
            or self.create_sandbox
            or self.resize is not None
            or self.start
        )
