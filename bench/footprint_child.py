"""Runs `kubelet-trio` under tracemalloc, for `bench.footprint`.

It writes a JSON of bytes by module, by line and in all to $FOOTPRINT, once $FOOTPRINT.go exists.
A module's bytes are those that its import keeps, without those of the modules that it imports.
"""

from __future__ import annotations

import _thread
import importlib._bootstrap_external as bootstrap
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from types import ModuleType
from typing import Any

# tracemalloc brings it; the agent alone does not.
for _name in ("pickle", "_pickle", "_compat_pickle"):
    sys.modules.pop(_name, None)

_modules: dict[str, int] = {}
_nested: list[int] = []


def _noting(run: Callable[[Any, ModuleType], None]) -> Callable[[Any, ModuleType], None]:
    def exec_module(self: object, module: ModuleType) -> None:
        before = tracemalloc.get_traced_memory()[0]
        _nested.append(0)
        try:
            run(self, module)
        finally:
            kept = tracemalloc.get_traced_memory()[0] - before
            _modules[module.__name__] = kept - _nested.pop()
            if _nested:
                _nested[-1] += kept

    return exec_module


def _write(path: str) -> None:
    while not os.path.exists(f"{path}.go"):
        time.sleep(0.1)
    now, peak = tracemalloc.get_traced_memory()
    lines: dict[str, int] = {}
    for one in tracemalloc.take_snapshot().statistics("lineno")[:200]:
        frame = one.traceback[0]
        lines["/".join(frame.filename.split("/")[-3:]) + f":{frame.lineno}"] = one.size
    import json

    figures = {"modules": _modules, "lines": lines, "sums": {"now": now, "peak": peak}}
    with open(f"{path}.new", "w") as file:
        json.dump(figures, file)
    os.rename(f"{path}.new", path)


def _main() -> None:
    sys.path.pop(0)  # bench/ itself: it has modules of common names
    tracemalloc.start()
    loaders = bootstrap._LoaderBasics  # type: ignore[attr-defined]
    loaders.exec_module = _noting(loaders.exec_module)
    _thread.start_new_thread(_write, (os.environ["FOOTPRINT"],))
    sys.argv[0] = "kubelet-trio"
    from kubelet_trio.cli import main

    main()


_main()
