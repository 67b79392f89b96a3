"""The agent is built in one direction: see `kubelet_trio.agent.compose`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kubelet_trio

PACKAGE = Path(kubelet_trio.__file__).parent
COMPOSING = ("agent", "daemon", "embed")
# Of an AsyncValue, of trio's cancel scopes, and of classes and exceptions.
SETTABLE = {"value", "deadline", "shield", "__cause__", "__module__", "__annotations__"}


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that are set, whatever the statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node


def is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def sources() -> Iterator[Path]:
    for room in COMPOSING:
        yield from sorted((PACKAGE / room).rglob("*.py"))


@pytest.mark.parametrize("path", list(sources()), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_attribute_is_set_on_another_object(path: Path) -> None:
    found = [
        f"{path.name}:{target.lineno}: {ast.unparse(target)}"
        for target in assigned(ast.parse(path.read_text()))
        if not is_own(target) and target.attr not in SETTABLE
    ]
    assert found == []


def test_what_is_set_late_is_found() -> None:
    tree = ast.parse("def build(a):\n    a.listener = b\n    a.count += 1\n    x, a.y = 1, 2\n")
    assert [target.attr for target in assigned(tree)] == ["listener", "count", "y"]


def test_no_part_of_the_agent_may_be_missing() -> None:
    for path in sorted((PACKAGE / "agent").glob("*.py")):
        text = path.read_text()
        assert "_require_" not in text, path.name
        assert "PodRegistry | None" not in text, path.name
