"""Liveness, readiness and startup probes."""

from kubelet_trio.probes.orphans import ExecOrphans, ProcOrphans
from kubelet_trio.probes.pod_probes import FAILED_LIVENESS, FAILED_STARTUP, PodProbes, adopted_from
from kubelet_trio.probes.runner import ProbeServices
from kubelet_trio.probes.state import ProbeKind

__all__ = [
    "FAILED_LIVENESS",
    "FAILED_STARTUP",
    "ExecOrphans",
    "PodProbes",
    "ProbeKind",
    "ProbeServices",
    "ProcOrphans",
    "adopted_from",
]
