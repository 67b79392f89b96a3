"""The tree as data: `DeclaredNode`, which `supervision.md` shows, is known before the tree runs;
`TreeNode`, which `kubelet-trio tree` shows, is a snapshot of the running tree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from kubelet_trio.durations import human_duration


class ChildState(enum.StrEnum):
    """The state of a child. Only STARTING, RUNNING and STOPPING have a task."""

    WAITING = "waiting"  # for the siblings before it to be ready
    STARTING = "starting"  # runs, and is not ready yet
    RUNNING = "running"
    BACKOFF = "backoff"  # failed, and waits for its restart
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"  # returned, as it may: it is not permanent
    FAILED = "failed"  # crashed, and is not restarted: temporary, or out of restarts


@dataclass(frozen=True, slots=True)
class DeclaredNode:
    """A declared child. `kind`: `worker`, `dynamic`, or a strategy's value."""

    name: str
    kind: str = "worker"
    children: tuple[DeclaredNode, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One child at one moment."""

    name: str
    state: ChildState
    restarts: int = 0  # number of restarts
    last_error: str | None = None  # its latest failure, in one line
    age: float = 0.0  # seconds since this life began; 0 without a life
    children: tuple[TreeNode, ...] = ()
    note: str = ""  # from the child itself, e.g. `ending, 8 s left`


def render_tree(root: TreeNode) -> str:
    """Draw a live tree, one child a line: name, state, age, restarts, note, last error."""
    rows = list(_rows(root, "", ""))
    width = max(len(lead) + len(node.name) for lead, node in rows)
    return "\n".join(f"{lead + node.name:<{width}}  {_facts(node)}".rstrip() for lead, node in rows)


def _rows(node: TreeNode, lead: str, below: str) -> Iterator[tuple[str, TreeNode]]:
    yield lead, node
    for child in node.children:
        is_last = child is node.children[-1]
        yield from _rows(
            child,
            below + ("└── " if is_last else "├── "),
            below + ("    " if is_last else "│   "),
        )


def _facts(node: TreeNode) -> str:
    facts = [f"{node.state.value:<8}", f"{human_duration(node.age):>6}"]
    if node.restarts:
        facts.append(f"restarts={node.restarts}")
    if node.note:
        facts.append(node.note)
    if node.last_error is not None:
        facts.append(f"last error: {node.last_error}")
    return "  ".join(facts)
