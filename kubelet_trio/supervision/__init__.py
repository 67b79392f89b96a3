"""Supervision trees: start children in order, restart those that fail, stop them in reverse.

docs/why-supervision.md explains the rules.
"""

from kubelet_trio.supervision.child import ChildSpec
from kubelet_trio.supervision.contained import call_contained, run_contained
from kubelet_trio.supervision.dynamic import DynamicSupervisor
from kubelet_trio.supervision.errors import GaveUpError
from kubelet_trio.supervision.policy import DEFAULT_POLICY, Restart, RestartPolicy, Strategy
from kubelet_trio.supervision.supervisor import Supervisor
from kubelet_trio.supervision.tree import ChildState, DeclaredNode, TreeNode, render_tree

__all__ = [
    "DEFAULT_POLICY",
    "ChildSpec",
    "ChildState",
    "DeclaredNode",
    "DynamicSupervisor",
    "GaveUpError",
    "Restart",
    "RestartPolicy",
    "Strategy",
    "Supervisor",
    "TreeNode",
    "call_contained",
    "render_tree",
    "run_contained",
]
