"""The errors that docstrings say come out of a function exist: a reader can catch them."""

from __future__ import annotations

import ast
import builtins
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import h2.exceptions
import httpcore2
import msgspec
import pytest
import trio
import yaml

import kubelet_trio

PACKAGE = Path(kubelet_trio.__file__).parent
MODULES = [path for path in PACKAGE.rglob("*.py") if "generated" not in path.parts]
_NAMED = re.compile(r"\b((?:[A-Z][a-z0-9]+)+Error)\b")
_LIBRARIES = (builtins, subprocess, click, trio, httpcore2, h2.exceptions, msgspec, yaml)
_REASONS = {"ImageInspectError"}  # of waiting containers: no class


@functools.cache
def classes() -> frozenset[str]:
    """Return the names of all classes of the package and of the libraries whose errors it names."""
    ours = {
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    theirs = {name for library in _LIBRARIES for name in dir(library)}
    return frozenset(ours | theirs | _REASONS)


def raised(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield function and error for each error that a docstring says comes out of a function."""
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        for part in re.findall(r"\bRaises\b.*?(?=\n\n|\Z)", text, re.DOTALL):
            for name in _NAMED.findall(part):
                yield node.name, name


def test_every_error_of_a_docstring_exists() -> None:
    known = classes()
    gone = [
        f"{path.relative_to(PACKAGE)}: {function}: {name}"
        for path in MODULES
        for function, name in raised(ast.parse(path.read_text()))
        if name not in known
    ]
    assert gone == []


@pytest.mark.parametrize(
    "text",
    [
        "Do it. Raises `AbsentError`.",
        "Do it.\n\n    Raises:\n        AbsentError: it went.",
    ],
)
def test_an_error_that_does_not_exist_is_found(text: str) -> None:
    module = ast.parse(f'def do():\n    """{text}"""\n')
    assert list(raised(module)) == [("do", "AbsentError")]
    assert "AbsentError" not in classes()
