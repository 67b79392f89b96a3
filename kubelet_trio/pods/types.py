"""Values that the rooms of pods/ share: why a container waits, and how a pod ends."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from lightkube.models.core_v1 import PodCondition, PodStatus, ResourceRequirements

from kubelet_trio.managers import ClaimHealth, DeviceHealth
from kubelet_trio.model import ContainerId, PodUid


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """Why a container does not start: the reason and message of its waiting state."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """A container that must not start before `until` (Unix seconds), and its waiting state."""

    until: float
    waiting: WaitingReason
    since: float = 0.0  # of the failure, Unix seconds; 0: not known


@dataclass(frozen=True, slots=True)
class Doing:
    """A step that a worker is in, such as `setting up volumes`, since when (Unix seconds)."""

    what: str
    since: float


class PodStage(enum.Enum):
    """Where a worker is in its pod's life."""

    SYNC = "sync"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class PodFailure:
    """Why a pod as a whole failed: phase Failed, with this reason (DeadlineExceeded, Evicted)."""

    reason: str
    message: str


class PodResize(msgspec.Struct, frozen=True, omit_defaults=True):
    """A resize that is allocated, but whose actuation is not known to be complete (KEP-1287).

    The pod's record keeps it. It is written with the allocated resources and before any of them is
    applied, so that a restarted agent completes the resize.
    """

    generation: int | None = None  # of the pod whose resources were allocated
    # What an instance still has, if that differs from what is allocated to its container. An
    # instance that is not named here has the allocated resources.
    actuated: Mapping[ContainerId, ResourceRequirements] = {}
    # `spec.resources` as last applied to the pod's cgroup, if that differs from the pod's.
    pod_level: ResourceRequirements | None = None


@dataclass(frozen=True, slots=True)
class PendingResize:
    """Why a requested resize is not allocated: the condition PodResizePending."""

    reason: Literal["Deferred", "Infeasible"]
    message: str
    generation: int | None = None  # of the pod that requests it
    # Deferred: the reason of the admission (OutOfcpu), for the event. Infeasible: what prevents it
    # (swap_limitation), for the metric.
    detail: str = ""


class ResizeTrigger(enum.StrEnum):
    """Why pending resizes are decided on again.

    The values are labels of kubelet_pod_deferred_accepted_resizes_total.
    """

    POD_RESIZED = "pod_resized"
    POD_UPDATED = "pod_updated"
    PODS_ADDED = "pods_added"
    PODS_REMOVED = "pods_removed"
    POD_TERMINATED = "pod_terminated"
    PERIODIC = "periodic_retry"


@dataclass(frozen=True, slots=True)
class StatusInput:
    """All that `pod_status` reads besides the pod and what the runtime reports of it."""

    now: float  # Unix seconds
    stage: PodStage
    previous: PodStatus | None = None  # the last status reported
    is_first: bool = False  # of this agent: `previous` is of an earlier one
    waiting: Mapping[str, WaitingReason] = field(default_factory=dict)  # by container name
    failure: PodFailure | None = None
    start_time: float = 0.0  # Unix seconds; for a static pod not before the agent began
    host_ips: tuple[str, ...] = ()
    runtime_name: str = "containerd"  # prefix of containerID
    termination_messages: Mapping[ContainerId, str] = field(default_factory=dict)
    started: Mapping[ContainerId, bool] = field(default_factory=dict)  # startup probe results
    ready: Mapping[ContainerId, bool] = field(default_factory=dict)  # readiness probe results
    conditions: tuple[PodCondition, ...] = ()  # of other owners, kept unchanged
    end_conditions: tuple[PodCondition, ...] = ()  # reported with a terminal phase, not before
    may_succeed: bool = False  # in spite of `failure`, if its containers ended with exit code 0
    finished: bool = False  # its containers ended by themselves: the phase becomes terminal
    rejected: bool = False  # not admitted: the status lists no containers
    recursive_read_only: bool = False  # the runtime handler supports such mounts
    stop_signals: bool = False  # containers' stop signals are shown (KEP-4960)
    # Digests of the images that containers mount, by path (KEP-5365).
    image_refs: Mapping[ContainerId, Mapping[str, str]] = field(default_factory=dict)
    pending_resize: PendingResize | None = None
    resize: PodResize | None = None  # the one in progress
    pod_level_resizes: bool = True  # the status has the pod's own resources
    resize_error: str = ""  # why its last attempt failed
    # It asks for resources that have been neither granted nor refused yet.
    is_undecided: bool = False
    devices: Mapping[str, tuple[DeviceHealth, ...]] = field(default_factory=dict)  # by container
    claims: Mapping[str, tuple[ClaimHealth, ...]] = field(default_factory=dict)  # by container
    has_claims: bool = False  # it has devices by claims that it has not given back


class EndReason(enum.Enum):
    """Why a pod is ended. The values are stored in its record on disk."""

    DELETED = "deleted"  # no source wants it: nothing of it is kept
    ASKED = "asked"  # the API server has its deletionTimestamp: the object goes last
    FINISHED = "finished"  # its containers have all ended by themselves
    DEADLINE = "deadline"  # its activeDeadlineSeconds have passed
    REJECTED = "rejected"  # the node did not admit it, or cannot attach its volumes: it never ran
    PREEMPTED = "preempted"  # a critical pod needed its room
    EVICTED = "evicted"  # the node is under pressure, or the pod used more than its limits
    SHUTDOWN = "shutdown"  # the node is shutting down


# Ends caused by the node. They set the condition DisruptionTarget (KEP-3329), so that a pod's
# controller can leave them out of its failures.
DISRUPTIONS = frozenset({EndReason.EVICTED, EndReason.PREEMPTED, EndReason.SHUTDOWN})
_NODES_FAILURES = frozenset({"Evicted", "Preempting", "Terminated"})  # the reasons that they give


@dataclass(frozen=True, slots=True)
class TerminationRequest:
    """The recorded decision to end a pod; later requests are merged in (`merge_requests`)."""

    uid: PodUid
    reason: EndReason
    grace_period: int | None = None  # seconds; None: the pod's own
    failure: PodFailure | None = None
    requested_at: float = 0.0  # Unix seconds
    # Evicted for a limit of its own, not for the node's sake: no disruption (KEP-3329).
    is_over_limit: bool = False

    @property
    def is_by_node(self) -> bool:
        """Whether the node ends the pod, be it that its deletion was asked for before."""
        if self.reason is EndReason.REJECTED or self.failure is None:
            return self.reason in DISRUPTIONS
        return self.failure.reason in _NODES_FAILURES
