"""The agent: its settings, its composition from all rooms, and the agent itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelet_trio._deferred import names_on_demand
from kubelet_trio.agent.admission import AdmissionSettings, NodeMarks, admission_settings
from kubelet_trio.agent.compose import make_agent
from kubelet_trio.agent.core import Agent, make_node_directories
from kubelet_trio.agent.settings import (
    AgentSettings,
    NodeApiSettings,
    NodeSocketSettings,
    OwnNode,
    Seams,
)

if TYPE_CHECKING:
    from kubelet_trio.agent.cluster import ApiServer, ClusterSettings, ReviewApis
    from kubelet_trio.agent.pages import node_page, node_page_child

# Imported on first use: a standalone node needs none of these.
_DEFERRED = {
    "ApiServer": "cluster",
    "ClusterSettings": "cluster",
    "ReviewApis": "cluster",
    "node_page": "pages",
    "node_page_child": "pages",
}

__all__ = [
    "AdmissionSettings",
    "Agent",
    "AgentSettings",
    "ApiServer",
    "ClusterSettings",
    "NodeApiSettings",
    "NodeMarks",
    "NodeSocketSettings",
    "OwnNode",
    "ReviewApis",
    "Seams",
    "admission_settings",
    "make_agent",
    "make_node_directories",
    "node_page",
    "node_page_child",
]

__getattr__ = names_on_demand(__name__, _DEFERRED)
