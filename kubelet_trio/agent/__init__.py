"""The root: the one place that builds components and wires channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio.agent.admission import AdmissionSettings, NodeMarks, admission_settings
from kubelet_trio.agent.cgroups import CgroupPolicy, CgroupTree, PodCgroupRemover, ReservedCgroup
from kubelet_trio.agent.core import Agent
from kubelet_trio.agent.node_api import NodeApiSettings
from kubelet_trio.agent.settings import AgentSettings, Seams

if TYPE_CHECKING:
    from kubelet_trio.agent.node_api_config import node_api_settings

__all__ = [
    "AdmissionSettings",
    "Agent",
    "AgentSettings",
    "CgroupPolicy",
    "CgroupTree",
    "NodeApiSettings",
    "NodeMarks",
    "PodCgroupRemover",
    "ReservedCgroup",
    "Seams",
    "admission_settings",
    "node_api_settings",
]


def __getattr__(name: str) -> object:
    # The configuration is the daemon's: a program that embeds an agent does not load it.
    if name == "node_api_settings":
        from kubelet_trio.agent.node_api_config import node_api_settings

        return node_api_settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
