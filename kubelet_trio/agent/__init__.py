"""The root: the one place that builds components and wires channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio.agent.admission import AdmissionSettings, NodeMarks, admission_settings
from kubelet_trio.agent.cgroups import CgroupPolicy, CgroupTree, PodCgroupRemover, ReservedCgroup
from kubelet_trio.agent.core import Agent
from kubelet_trio.agent.directories import make_node_directories
from kubelet_trio.agent.node_api import NodeApiSettings
from kubelet_trio.agent.settings import AgentSettings, Seams

if TYPE_CHECKING:
    from kubelet_trio.agent.cluster import Cluster, ClusterSettings
    from kubelet_trio.agent.join import Apis, make_cluster, open_apis
    from kubelet_trio.agent.node_api_config import node_api_settings
    from kubelet_trio.agent.node_page import node_page_child

# What only some nodes need is loaded by those. (`node_api_config` reads the configuration, which
# is the daemon's: a program that embeds an agent does not load it.)
_DEFERRED = {
    "Apis": "join",
    "Cluster": "cluster",
    "ClusterSettings": "cluster",
    "make_cluster": "join",
    "node_api_settings": "node_api_config",
    "open_apis": "join",
    "node_page_child": "node_page",
}

__all__ = [
    "AdmissionSettings",
    "Agent",
    "AgentSettings",
    "Apis",
    "CgroupPolicy",
    "CgroupTree",
    "Cluster",
    "ClusterSettings",
    "NodeApiSettings",
    "NodeMarks",
    "PodCgroupRemover",
    "ReservedCgroup",
    "Seams",
    "admission_settings",
    "make_cluster",
    "make_node_directories",
    "node_api_settings",
    "node_page_child",
    "open_apis",
]


def __getattr__(name: str) -> object:
    if name in _DEFERRED:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_DEFERRED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
