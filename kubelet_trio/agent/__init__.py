"""The root: the one place that builds components and wires channels."""

from kubelet_trio.agent.cgroups import CgroupPolicy, CgroupTree, PodCgroupRemover, ReservedCgroup
from kubelet_trio.agent.core import Agent
from kubelet_trio.agent.settings import AgentSettings, Seams

__all__ = [
    "Agent",
    "AgentSettings",
    "CgroupPolicy",
    "CgroupTree",
    "PodCgroupRemover",
    "ReservedCgroup",
    "Seams",
]
