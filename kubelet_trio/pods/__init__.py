"""Run the pods of the node: one worker a pod, and the decisions that it carries out.

From the bottom up: `plan` decides what a worker does next, `status` what it reports, `admission`
whether the pod may run at all; these three are pure. `images` pulls, `records` keeps what must
outlive the agent, `steps` carries out plans through the runtime, and `worker` is the task of each
pod, with the registry of them.
"""

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.pods.admission import (
    AdmissionNode,
    Admitted,
    Preempting,
    Rejected,
    SysctlRules,
    declared_features,
    kernel_version,
    lacks_features,
    matches_node,
    sysctl_rules,
)
from kubelet_trio.pods.cgroups.node import CgroupPolicy, NodeCgroups, PlainCgroups, ReservedCgroup
from kubelet_trio.pods.cgroups.orphans import OrphanCgroups
from kubelet_trio.pods.cgroups.tree import CgroupOperations, MeteredTree, PodCgroupRemover
from kubelet_trio.pods.images import ImageError, ImagePuller, PullRate
from kubelet_trio.pods.plan import BackOffPolicy, BackOffTable, PodPlan, restarts_after
from kubelet_trio.pods.records.names import PodNames
from kubelet_trio.pods.records.record import (
    PodRecord,
    PodRecords,
    decode_pod_record,
    encode_pod_record,
    load_records,
    read_pod_records,
    unrecorded_pods,
    wanted_pods,
)
from kubelet_trio.pods.records.remains import Remains
from kubelet_trio.pods.records.userns import UserNamespaceManager
from kubelet_trio.pods.services import (
    NoClaims,
    NoManagers,
    NoNotes,
    NoServices,
    PodCgroups,
    PodClaims,
    PodManagers,
    PodNotes,
    PodServices,
)
from kubelet_trio.pods.steps.service_variables import ClusterServiceVariables
from kubelet_trio.pods.types import (
    EndReason,
    PendingResize,
    PodFailure,
    PodStage,
    TerminationRequest,
)
from kubelet_trio.pods.worker.admitter import AdmissionCheck, Admitter, report_crash
from kubelet_trio.pods.worker.debugging import (
    DebugRefusedError,
    check_debuggable,
    check_runnable,
)
from kubelet_trio.pods.worker.orphans import LeftVolumes, OrphanDirectories
from kubelet_trio.pods.worker.registry import PodRegistry
from kubelet_trio.pods.worker.restarting import RestartRefusedError
from kubelet_trio.pods.worker.worker import PodWorker

if TYPE_CHECKING:
    from kubelet_trio.pods.edits import (
        ContainerChange,
        EditPlan,
        ObjectChange,
        PodChange,
        Verdict,
        as_json,
        changed_fields,
        container_changes,
        ended_containers,
        new_containers,
        volume_changes,
    )
    from kubelet_trio.pods.reasons import Blocker, PodFacts, PodWhy, Reason, explain, sentences

# Loaded when somebody asks why a pod is as it is, or what an edit would do.
_EDITS = (
    *("ContainerChange", "EditPlan", "ObjectChange", "PodChange", "Verdict"),
    *("as_json", "changed_fields", "container_changes", "ended_containers", "new_containers"),
    "volume_changes",
)
_REASONS = ("Blocker", "PodFacts", "PodWhy", "Reason", "explain", "sentences")
_DEFERRED = {**dict.fromkeys(_EDITS, "edits"), **dict.fromkeys(_REASONS, "reasons")}

__all__ = [
    "AdmissionCheck",
    "AdmissionNode",
    "Admitted",
    "Admitter",
    "BackOffPolicy",
    "BackOffTable",
    "Blocker",
    "CgroupOperations",
    "CgroupPolicy",
    "ClusterServiceVariables",
    "ContainerChange",
    "DebugRefusedError",
    "EditPlan",
    "EndReason",
    "ImageError",
    "ImagePuller",
    "LeftVolumes",
    "MeteredTree",
    "NoClaims",
    "NoManagers",
    "NoNotes",
    "NoServices",
    "NodeCgroups",
    "ObjectChange",
    "OrphanCgroups",
    "OrphanDirectories",
    "PendingResize",
    "PlainCgroups",
    "PodCgroupRemover",
    "PodCgroups",
    "PodChange",
    "PodClaims",
    "PodFacts",
    "PodFailure",
    "PodManagers",
    "PodNames",
    "PodNotes",
    "PodPlan",
    "PodRecord",
    "PodRecords",
    "PodRegistry",
    "PodServices",
    "PodStage",
    "PodWhy",
    "PodWorker",
    "Preempting",
    "PullRate",
    "Reason",
    "Rejected",
    "Remains",
    "ReservedCgroup",
    "RestartRefusedError",
    "SysctlRules",
    "TerminationRequest",
    "UserNamespaceManager",
    "Verdict",
    "as_json",
    "changed_fields",
    "check_debuggable",
    "check_runnable",
    "container_changes",
    "declared_features",
    "decode_pod_record",
    "encode_pod_record",
    "ended_containers",
    "explain",
    "kernel_version",
    "lacks_features",
    "load_records",
    "matches_node",
    "new_containers",
    "read_pod_records",
    "report_crash",
    "restarts_after",
    "sentences",
    "sysctl_rules",
    "unrecorded_pods",
    "volume_changes",
    "wanted_pods",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
