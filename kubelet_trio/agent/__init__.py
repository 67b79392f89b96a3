"""The root: the one place that builds components and wires channels."""

from kubelet_trio.agent.core import Agent
from kubelet_trio.agent.settings import AgentSettings, Seams

__all__ = ["Agent", "AgentSettings", "Seams"]
