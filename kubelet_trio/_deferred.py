"""Defers modules that a library imports and this agent rarely or never uses.

Memory and the time of an import are part of a node agent's footprint. A deferred module is in
`sys.modules`, but its code runs only when one of its own names is read (submodules do not
count). Other code in the process therefore sees no difference. A module that was imported
before is left alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_VERSION = "betterproto2._version"
_METADATA = "importlib.metadata"
_TASK_NAMES = "logAsyncioTasks"


class _UnexecutedModule(ModuleType):
    """A module that runs its code when one of its own names is first read.

    One thread runs it; other threads that read a name meanwhile wait for it.
    """

    def __getattr__(self, name: str) -> Any:
        # The import system itself reads dunders such as `__path__`: they must not run the code.
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _locks[self.__name__]:
            if self.__class__ is _UnexecutedModule and self.__name__ not in _executing:
                _executing.add(self.__name__)
                try:
                    self.__spec__.loader.exec_module(self)
                finally:
                    _executing.discard(self.__name__)
                self.__class__ = ModuleType  # type: ignore[assignment]  # no `__getattr__` any more
                _afterwards.pop(self.__name__, _nothing)()
        return ModuleType.__getattribute__(self, name)


def _nothing() -> None:
    pass


# Called once the module of that name has run its code.
_afterwards: dict[str, Callable[[], None]] = {}
# Reentrant: a module may import others that read its names while it still runs.
_locks: dict[str, threading.RLock] = {}
_executing: set[str] = set()


def defer(*names: str) -> None:
    """Run these modules when they are first used, not when they are imported.

    A package that imports this submodule of its own may still be to be imported. A missing module
    is not reported here: importing it fails as usual.
    """
    for name in names:
        if name in sys.modules:
            continue
        spec = _find_spec(name)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _UnexecutedModule
        _locks[name] = threading.RLock()
        sys.modules[name] = module


def defer_then(name: str, afterwards: Callable[[], None]) -> None:
    """Defer a module, and call `afterwards` once it has run; not for one that is here already."""
    if name not in sys.modules:
        defer(name)
        _afterwards[name] = afterwards


def _find_spec(name: str) -> ModuleSpec | None:
    """Return a module's spec, without importing the packages that it is in."""
    package = name.rpartition(".")[0]
    if not package or package in sys.modules:
        return importlib.util.find_spec(name)
    home = _find_spec(package)
    if home is None or home.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, home.submodule_search_locations)


def spare_task_names() -> None:
    """Keep `logging` from reading the name of a task from a deferred asyncio, which would run it.

    Since Python 3.12 it does so for every record, such as the one that structlog makes at its
    import. Once other code uses asyncio, this is undone.
    """
    if sys.version_info < (3, 12) or "asyncio" not in _locks:
        return
    import logging

    if getattr(logging, _TASK_NAMES):
        setattr(logging, _TASK_NAMES, False)
        _afterwards["asyncio"] = lambda: setattr(logging, _TASK_NAMES, True)


def names_on_demand(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__` for names whose modules not every agent needs.

    `homes` maps each name to its submodule, which is imported when the name is first read.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return get


def linux_only(name: str) -> type:
    """Return what stands for a public name on other systems: using it says that it needs Linux.

    An error is a class that can be named in `except`, so that programs are imported everywhere.
    """

    def refuse(*_: object, **__: object) -> None:
        raise OSError(
            f"kubelet_trio.{name} needs Linux, and this is {sys.platform}: run the program in a "
            "Linux virtual machine or container (WSL 2 on Windows)"
        )

    base: type = Exception if name.endswith("Error") else object
    return type(name, (base,), {"__init__": refuse, "__module__": "kubelet_trio"})


def spare_metadata() -> None:
    """Give betterproto2 its own version without importing `importlib.metadata`.

    It only compares the version with that of the generated code, but `importlib.metadata` imports
    `email`, `zipfile` and the compressors. If no single dist-info directory has the version,
    nothing changes.
    """
    if _VERSION in sys.modules or _METADATA in sys.modules:
        return
    package = importlib.util.find_spec("betterproto2")
    if package is None or package.origin is None:
        return
    from pathlib import Path  # not above: it should come after `load_lean`

    home = Path(package.origin).parent
    found = [
        path.stem.removeprefix("betterproto2-")
        for path in home.parent.glob("betterproto2-*.dist-info")
    ]
    spec = importlib.util.spec_from_file_location(_VERSION, home / "_version.py")
    if len(found) != 1 or spec is None or spec.loader is None:
        return
    # Replaces `importlib.metadata` only while `betterproto2._version` runs.
    stand_in = ModuleType(_METADATA)
    stand_in.version = lambda _name: found[0]  # type: ignore[attr-defined]
    module = importlib.util.module_from_spec(spec)
    sys.modules[_METADATA] = stand_in
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[_METADATA]
    sys.modules[_VERSION] = module
