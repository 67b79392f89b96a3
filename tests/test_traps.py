"""A test that hangs must fail: no fixture may end its body quietly.

A context manager that yields under a deadline which cancels without raising (`move_on_after`, a
nursery's or scope's `deadline`) absorbs the cancellation of a body that hangs, and the test passes.
`trio.fail_after` raises.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kubelet_trio

TESTS = Path(__file__).parent
PLACES = (TESTS, Path(kubelet_trio.__file__).parent / "testing")
_QUIET = {"move_on_after", "move_on_at", "CancelScope"}


def quiet_deadlines(source: str) -> Iterator[int]:
    """Yield the lines of generators' deadlines that end a body without an error."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _yields(function.body):
            yield from _in_generator(function)


def _in_generator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    for node in _own_nodes(function.body):
        if isinstance(node, ast.With) and _yields(node.body):
            calls = [item.context_expr for item in node.items]
            yield from (call.lineno for call in calls if _is_quiet(call))
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(to, ast.Attribute) and to.attr == "deadline" for to in targets):
                yield node.lineno


def _is_quiet(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name == "CancelScope":
        return any(word.arg in {"deadline", "relative_deadline"} for word in call.keywords)
    return name in _QUIET


def _yields(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Yield) for node in _own_nodes(body))


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield what a body holds, without what functions inside it hold."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def test_no_fixture_absorbs_a_body_that_hangs() -> None:
    found = [
        f"{path}:{line}"
        for place in PLACES
        for path in sorted(place.rglob("*.py"))
        for line in quiet_deadlines(path.read_text())
    ]
    assert found == []


def test_the_trap_is_seen() -> None:
    quiet = """
async def run():
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = 1
        yield
async def other():
    with trio.move_on_after(1), open("x") as file:
        yield file
async def third():
    with trio.CancelScope(deadline=1):
        if True:
            yield
"""
    assert sorted(quiet_deadlines(quiet)) == [4, 7, 10]


def test_what_raises_or_yields_outside_is_no_trap() -> None:
    loud = """
async def run():
    with trio.fail_after(1):
        yield
    with trio.move_on_after(1):
        await close()
async def no_generator():
    scope.deadline = 1
    def inner():
        yield
"""
    assert list(quiet_deadlines(loud)) == []
