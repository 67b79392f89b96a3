"""Decide whether the node admits a pod. Pure: nothing in here does I/O."""

from kubelet_trio.pods.admission.affinity import matches_node
from kubelet_trio.pods.admission.decision import (
    AdmissionNode,
    Admitted,
    Decision,
    Preempting,
    Rejected,
    decide,
    decide_beside,
)
from kubelet_trio.pods.admission.declared_features import (
    declared_features,
    lacks_features,
)
from kubelet_trio.pods.admission.held import NOTHING, Held, Listed, Share, Sums, share_of
from kubelet_trio.pods.admission.hints import rejection_hints
from kubelet_trio.pods.admission.resize import (
    DEFERRED,
    INFEASIBLE,
    decide_resize,
    decide_resize_beside,
    resize_order,
)
from kubelet_trio.pods.admission.sysctls import (
    SysctlRules,
    kernel_version,
    sysctl_rules,
)

__all__ = [
    "DEFERRED",
    "INFEASIBLE",
    "NOTHING",
    "AdmissionNode",
    "Admitted",
    "Decision",
    "Held",
    "Listed",
    "Preempting",
    "Rejected",
    "Share",
    "Sums",
    "SysctlRules",
    "decide",
    "decide_beside",
    "decide_resize",
    "decide_resize_beside",
    "declared_features",
    "kernel_version",
    "lacks_features",
    "matches_node",
    "rejection_hints",
    "resize_order",
    "share_of",
    "sysctl_rules",
]
