"""The agent with a clock on the hops of docs/architecture.md: the program that `bench.trace` runs.

Each function that a walk names, each CRI call and each piece of blocking work in a thread is
noted with its begin and end (seconds of CLOCK_MONOTONIC, which all processes share) and its
supervised task. The notes stay in memory and go to the file that `SPANS` names at the end.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog

SPANS = "KUBELET_TRIO_BENCH_SPANS"
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
_ROW = re.compile(r"^\| \d+ \| `([\w.]+)` \| `kubelet/", re.MULTILINE)
_TOLD_BY_CALLS = "cri.guarded."  # these hops are CRI calls, which are noted anyway

Function = Callable[..., Any]


def hop_names() -> list[str]:
    """Return the functions that the walks name, below the package, each once."""
    found = dict.fromkeys(_ROW.findall(PAGE.read_text()))
    return [name for name in found if not name.startswith(_TOLD_BY_CALLS)]


class Clock:
    """Notes when functions begin and end."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float, str, str]] = []

    def timed(self, function: Function, name: Callable[..., str]) -> Function:
        """Return the function with a clock; `name` gets its arguments."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                began = time.monotonic()
                try:
                    return await function(*args, **kwargs)
                finally:
                    self._note(began, name(*args))

            return run

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                self._note(began, name(*args))

        return call

    def _note(self, began: float, name: str) -> None:
        task = structlog.contextvars.get_contextvars().get("child", "")
        self.spans.append((began, time.monotonic(), str(task), name))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(sorted(self.spans)))


def install(clock: Clock) -> None:
    """Put the clock on everything that is noted."""
    for hop in hop_names():
        owner, attribute = _find(f"kubelet_trio.{hop}")
        short = ".".join(hop.split(".")[-2:])
        _replace(owner, attribute, clock, lambda *_args, short=short: short)
    guarded, threads = (
        importlib.import_module(f"kubelet_trio.{name}") for name in ("cri.guarded", "model.threads")
    )
    _replace(guarded.GuardedRuntime, "_read", clock, lambda _self, call, *_args: f"CRI {call}")
    _replace(
        threads.ThreadOffload, "__call__", clock, lambda _self, fn, *_args: f"thread {_of(fn)}"
    )


def _find(dotted: str) -> tuple[Any, str]:
    """Return the module or class of a function, and its name there."""
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:-1]:
            owner = getattr(owner, part)
        return owner, parts[-1]
    raise ValueError(f"docs/architecture.md names {dotted}, which does not exist")


def _replace(owner: Any, attribute: str, clock: Clock, name: Callable[..., str]) -> None:
    before = inspect.getattr_static(owner, attribute)
    if not inspect.isfunction(before) or inspect.isasyncgenfunction(inspect.unwrap(before)):
        return  # a context manager's hop shows by what it does
    after = clock.timed(before, name)
    setattr(owner, attribute, after)
    for module in _package():  # those that have imported it by its name
        for key, value in list(vars(module).items()):
            if value is before:
                setattr(module, key, after)


def _package() -> Iterator[Any]:
    yield from (m for n, m in list(sys.modules.items()) if n.partition(".")[0] == "kubelet_trio")


def _of(function: Function) -> str:
    inner = getattr(function, "func", function)  # of a partial
    return str(getattr(inner, "__qualname__", "?"))


def main() -> None:
    """Run `kubelet-trio` with the clock."""
    importlib.import_module("kubelet_trio.daemon.run")  # loads what is patched
    clock = Clock()
    install(clock)
    atexit.register(clock.save, Path(os.environ[SPANS]))
    importlib.import_module("kubelet_trio.cli").main()


if __name__ == "__main__":
    main()
