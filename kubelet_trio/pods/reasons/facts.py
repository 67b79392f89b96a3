"""The inputs of `explain`: what a worker knows and has decided. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.model import ContainerId, RuntimePod
from kubelet_trio.pods.plan import PodPlan
from kubelet_trio.pods.types import Doing, Hold, PendingResize, PodStage, TerminationRequest


@dataclass(frozen=True, slots=True)
class Blocker:
    """A pod that holds the name which another one waits for.

    `activity`: the phase of its worker; "" if it has none.
    """

    uid: str
    activity: str = ""
    since: float | None = None
    doing: tuple[Doing, ...] = ()
    trouble: str = ""  # why it does not get out of the way


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """A volume that is being set up; `name` "": one of several."""

    name: str
    since: float
    error: str = ""  # of the last attempt
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class PullFacts:
    """A pull under way; `is_queued`: it waits for other pulls."""

    container: str
    image: str
    since: float
    is_queued: bool = False


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """A probe of a running instance. `row` findings in a row were `last`, as of `at`."""

    container: str
    kind: str  # Liveness, Readiness, Startup
    result: str  # unknown, success, failure
    last: str
    row: int
    threshold: int  # of failures
    output: str = ""  # of the last finding
    at: float | None = None
    period: float = 0.0  # seconds between two findings; 0: not known


@dataclass(frozen=True, slots=True)
class PodFacts:
    """All that is known of one pod.

    Attributes:
        pod: the pod as its source wants it.
        status: as published last.
        activity: the phase of its worker (`Phase`), since `since`.
        observed: what the runtime has of it.
        plan: the one of the last round of a pod that is to run.
        next_round: when the worker looks again, if nothing wakes it.
        hold: a failed step holds back the whole pod.
        resize_hold: a failed resize is tried again then.
        runtime_problem: why the runtime cannot be used; "" if it can.
        uncertain: whether what the runtime has is not known for sure.
        waits_for: the pods that hold its name.
        admission: what its admission waits for.
        deadline: when its `activeDeadlineSeconds` are over.
        grace_end: when its grace period is over.
        teardown: the last failure of its teardown.
        remains: why dead containers of it are left.
        record_problem: why its record is not on disk.
        worker_failure: why its worker has crashed, while it waits for its restart.
        manifest_problems: why its newest manifest is not in force.
        stopped: why the agent has stopped an instance.
        hints: what its rejection does not name.
    """

    now: float
    pod: Pod
    activity: str
    since: float
    stage: PodStage
    observed: RuntimePod
    status: PodStatus | None = None
    manifest: str = ""
    plan: PodPlan | None = None
    doing: tuple[Doing, ...] = ()
    next_round: float | None = None
    hold: Hold | None = None
    resize_hold: float | None = None
    runtime_problem: str = ""
    network_problem: str = ""
    uncertain: str = ""
    waits_for: tuple[Blocker, ...] = ()
    is_admitted: bool = True
    admission: str = ""
    pending: PendingResize | None = None
    resize_error: str = ""
    volumes: tuple[VolumeFacts, ...] = ()
    pulls: tuple[PullFacts, ...] = ()
    probes: tuple[ProbeFacts, ...] = ()
    request: TerminationRequest | None = None
    grace_end: float | None = None
    teardown: Hold | None = None
    remains: str = ""
    record_problem: str = ""
    deadline: float | None = None
    worker_failure: str = ""
    manifest_problems: tuple[str, ...] = field(default=())
    stopped: Mapping[ContainerId, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
