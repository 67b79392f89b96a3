"""Supervision: who runs whom, what a failure means, and in which order all of it stops."""

from kubelet_trio.supervision._errors import GaveUpError
from kubelet_trio.supervision.child import ChildSpec, Component
from kubelet_trio.supervision.contained import call_contained, run_contained
from kubelet_trio.supervision.dynamic import DynamicSupervisor
from kubelet_trio.supervision.policy import (
    DEFAULT_POLICY,
    CrashBackoff,
    Restart,
    RestartBudget,
    RestartPolicy,
    Strategy,
    restart_group,
)
from kubelet_trio.supervision.supervisor import Supervisor
from kubelet_trio.supervision.tree import (
    ChildState,
    DeclaredNode,
    TreeNode,
    render_tree,
)

__all__ = [
    "DEFAULT_POLICY",
    "ChildSpec",
    "ChildState",
    "Component",
    "CrashBackoff",
    "DeclaredNode",
    "DynamicSupervisor",
    "GaveUpError",
    "Restart",
    "RestartBudget",
    "RestartPolicy",
    "Strategy",
    "Supervisor",
    "TreeNode",
    "call_contained",
    "declared",
    "render_tree",
    "restart_group",
    "run_contained",
]


def declared(component: Component) -> DeclaredNode:
    """Return the names of a tree that need not run: a supervisor and all below it."""
    return component.declared()
