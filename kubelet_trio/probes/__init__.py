"""Liveness, readiness and startup probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.probes.orphans import ExecOrphans, ProcOrphans
from kubelet_trio.probes.pod_probes import FAILED_LIVENESS, FAILED_STARTUP, PodProbes, adopted_from
from kubelet_trio.probes.runner import ProbeServices
from kubelet_trio.probes.state import Finding, ProbeKind

if TYPE_CHECKING:
    from kubelet_trio.probes.scripted import ContainerScript, ScriptedFinding

__all__ = [
    "FAILED_LIVENESS",
    "FAILED_STARTUP",
    "ContainerScript",
    "ExecOrphans",
    "Finding",
    "PodProbes",
    "ProbeKind",
    "ProbeServices",
    "ProcOrphans",
    "ScriptedFinding",
    "adopted_from",
]

# Only a replay has a script.
__getattr__ = names_on_demand(
    __name__, {"ContainerScript": "scripted", "ScriptedFinding": "scripted"}
)
