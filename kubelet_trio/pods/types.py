"""Values that the pure decisions of this room take and give."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lightkube.models.core_v1 import PodCondition, PodStatus

from kubelet_trio.model import ContainerId, PodContainer, PodUid, SandboxId


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop one instance. `grace_period` None: the pod's own."""

    id: ContainerId
    name: str
    message: str  # of the Killing event
    grace_period: int | None = None


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Create and start the next instance of a container."""

    container: PodContainer
    attempt: int  # its restart count
    back_off: tuple[BackOffKey, BackOffEntry] | None = None  # to keep once it was created


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What one sync does, in this order: kill, remove, sandbox, start.

    Everything named in one field may run at the same time, except that `start` keeps
    its order within init containers (there is at most one ordinary init container in it).
    """

    stop_containers: tuple[StopContainer, ...] = ()
    stop_sandboxes: tuple[SandboxId, ...] = ()  # with all that runs in them, containers first
    remove_containers: tuple[ContainerId, ...] = ()  # one after the other
    back_offs: tuple[tuple[BackOffKey, BackOffEntry], ...] = ()  # to keep once those are removed
    create_sandbox: bool = False
    sandbox_attempt: int = 0
    sandbox_id: SandboxId | None = None  # the one to start in, where none is created
    start: tuple[StartContainer, ...] = ()
    waiting: Mapping[str, WaitingReason] = field(default_factory=dict)  # by container name
    retry_at: float | None = None  # Unix time at which a back-off ends
    finished: bool = False  # every container has ended and none will start again

    @property
    def is_noop(self) -> bool:
        """Whether there is nothing to do but wait."""
        return not (
            self.stop_containers
            or self.stop_sandboxes
            or self.remove_containers
            or self.create_sandbox
            or self.start
        )


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """Why a container does not start: the reason and message of its waiting state."""

    reason: str
    message: str = ""


# The waiting reason of a container whose crashes hold it back.
CRASH_LOOP = "CrashLoopBackOff"

# What a back-off is kept by; the pod's UID comes first, so that a pod's keys can be dropped.
BackOffKey: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackOffEntry:
    """The crash or pull back-off of one key: `delay` s since `updated` (Unix time)."""

    delay: float
    updated: float
    note: str = ""  # what failed last, for the message of a container that waits


@dataclass(frozen=True, slots=True)
class Hold:
    """A container that is not started before `until` (Unix seconds), and what its status says."""

    until: float
    waiting: WaitingReason


class PodStage(enum.Enum):
    """Where a worker is in its pod's life."""

    SYNC = "sync"
    TERMINATING = "terminating"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class PodFailure:
    """A verdict on the whole pod: phase Failed with this reason (DeadlineExceeded, Evicted ...)."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class StatusInput:
    """All that `pod_status` reads beside the pod and what the runtime says."""

    now: float  # Unix seconds
    stage: PodStage
    previous: PodStatus | None = None
    waiting: Mapping[str, WaitingReason] = field(default_factory=dict)
    failure: PodFailure | None = None
    start_time: float = 0.0
    host_ips: tuple[str, ...] = ()
    runtime_name: str = "containerd"  # prefix of containerID
    termination_messages: Mapping[ContainerId, str] = field(default_factory=dict)
    started: Mapping[ContainerId, bool] = field(default_factory=dict)  # startup probe results
    ready: Mapping[ContainerId, bool] = field(default_factory=dict)  # readiness probe results
    conditions: tuple[PodCondition, ...] = ()  # owned by others, kept as they are
    end_conditions: tuple[PodCondition, ...] = ()  # told with a terminal phase, not before
    finished: bool = False  # it ended by itself: its phase becomes terminal, static or not
    rejected: bool = False  # it was not admitted: nothing is said of its containers
    recursive_read_only: bool = False  # the runtime handler supports such mounts


class EndReason(enum.Enum):
    """Why a pod is ended; its values are on disk."""

    DELETED = "deleted"  # nobody wants it: it is to be gone entirely
    ASKED = "asked"  # its deletion was asked for at the API server: the object goes last
    FINISHED = "finished"  # its containers have all ended, by themselves
    DEADLINE = "deadline"  # its activeDeadlineSeconds have passed
    REJECTED = "rejected"  # the node did not admit it: it never ran
    PREEMPTED = "preempted"  # a critical pod took its place
    EVICTED = "evicted"  # the node is short of something, or it used more than it may
    SHUTDOWN = "shutdown"  # the node is shutting down


# Ends that the node brought about: the pod's controller is not to count them against it.
DISRUPTIONS = frozenset({EndReason.EVICTED, EndReason.PREEMPTED, EndReason.SHUTDOWN})


@dataclass(frozen=True, slots=True)
class TerminationRequest:
    """The recorded decision to end a pod. Merged only: grace may shrink, a reason stays."""

    uid: PodUid
    reason: EndReason
    grace_period: int | None = None  # seconds; None: the pod's own
    failure: PodFailure | None = None
    requested_at: float = 0.0  # Unix seconds
