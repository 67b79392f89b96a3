"""What a supervision tree looks like: as declared, and as it lives.

`DeclaredNode` is known before anything runs, and is what `supervision.md` shows.
`TreeNode` is a snapshot of the running tree, and is what `kubelet-trio tree` shows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from kubelet_trio.durations import human_duration


class ChildState(enum.StrEnum):
    """Where a child is. All but STARTING, RUNNING and STOPPING have no task."""

    WAITING = "waiting"  # for the siblings before it to be ready
    STARTING = "starting"  # runs, and has not said that it is ready
    RUNNING = "running"
    BACKOFF = "backoff"  # failed, and waits for its restart
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"  # returned, and was allowed to
    FAILED = "failed"  # temporary, and crashed


@dataclass(frozen=True, slots=True)
class DeclaredNode:
    """A name in the tree as written. `kind`: `worker`, `dynamic`, or a strategy's value."""

    name: str
    kind: str = "worker"
    children: tuple[DeclaredNode, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One child at one moment."""

    name: str
    state: ChildState
    restarts: int = 0  # how many times it was started again
    last_error: str | None = None  # the failure of its last unhappy life, in one line
    age: float = 0.0  # seconds since this life began; 0 where there is none
    children: tuple[TreeNode, ...] = ()
    note: str = ""  # what the child says of itself, e.g. `ending, 8 s left`


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
