"""docs/troubleshooting.md: its keys are in the code, and it has every Warning event."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ELSEWHERE = ("testing", "generated")
# What takes an event's reason first; admission's rejections are events, too.
NAMING = ("StepError", "DnsWarning", "_event", "Rejected", "_failed", "Refusal", "PodFailure")


@cache
def trees() -> list[ast.Module]:
    """Return the agent's modules, parsed."""
    paths = (ROOT / "kubelet_trio").rglob("*.py")
    return [ast.parse(p.read_text()) for p in paths if not set(ELSEWHERE) & set(p.parts)]


def words() -> Iterator[str]:
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def rows(title: str) -> list[str]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def text(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def warnings_of(tree: ast.Module) -> set[str]:
    """Return the reasons that follow the word Warning, or begin a step's error."""
    names = {
        at.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for at in node.targets
        if isinstance(at, ast.Name) and isinstance(node.value.value, str)
    }
    found = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [text(arg, names) for arg in call.args]
        called = ast.unparse(call.func).rpartition(".")[2]
        if "Warning" in given[:-1]:
            found.add(given[given.index("Warning") + 1])
        elif given and called in NAMING:
            found.add(given[0])
    return {reason for reason in found if re.fullmatch(r"[A-Z]\w+", reason)} - {"Normal", "Warning"}


def test_every_key_is_in_the_code() -> None:
    code = "\n".join(words())
    keys = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert len(keys) > 70
    assert [key for key in keys if key not in code] == []


def test_every_warning_event_is_listed_once_in_order() -> None:
    listed = rows("Warning events")
    emitted = set().union(*map(warnings_of, trees()))
    assert len(emitted) > 30
    assert sorted(emitted - set(listed)) == []
    assert listed == sorted(set(listed))


def test_what_keeps_a_pod_from_becoming_ready_is_listed() -> None:
    from kubelet_trio.embed import running

    assert set(running._STUCK) <= set(rows("A container waits"))
