"""Rooms are entered by their front door: what `__init__.py` does not export stays inside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kubelet_trio

PACKAGE = Path(kubelet_trio.__file__).parent


def imports_past_a_door(module: Path) -> Iterator[str]:
    """Yield the imports of a module that reach into another room than its own."""
    room = module.relative_to(PACKAGE).parts[0]
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, *path = name.split(".")
            if package == "kubelet_trio" and len(path) > 1 and path[0] != room:
                yield f"{module.relative_to(PACKAGE)}:{node.lineno}: {name}"


def test_nothing_outside_a_room_imports_past_its_door() -> None:
    modules = (m for m in PACKAGE.rglob("*.py") if "generated" not in m.parts)
    assert [found for module in modules for found in imports_past_a_door(module)] == []
