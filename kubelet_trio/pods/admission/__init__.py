"""Decide whether the node admits a pod. Pure: nothing in here does I/O."""

from kubelet_trio.pods.admission.decision import (
    AdmissionNode,
    Admitted,
    Decision,
    Preempting,
    Rejected,
    decide,
)
from kubelet_trio.pods.admission.declared_features import (
    DECLARED,
    lacks_features,
)
from kubelet_trio.pods.admission.hints import rejection_hints
from kubelet_trio.pods.admission.resize import (
    DEFERRED,
    INFEASIBLE,
    decide_resize,
    resize_order,
)
from kubelet_trio.pods.admission.sysctls import (
    SysctlRules,
    kernel_version,
    sysctl_rules,
)

__all__ = [
    "DECLARED",
    "DEFERRED",
    "INFEASIBLE",
    "AdmissionNode",
    "Admitted",
    "Decision",
    "Preempting",
    "Rejected",
    "SysctlRules",
    "decide",
    "decide_resize",
    "kernel_version",
    "lacks_features",
    "rejection_hints",
    "resize_order",
    "sysctl_rules",
]
