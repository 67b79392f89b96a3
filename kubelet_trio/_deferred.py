"""Modules that a library imports and this agent rarely or never uses.

Memory and the time of an import are part of a node agent's footprint. What is deferred stands
in `sys.modules` unexecuted, and is executed when somebody asks it for a name that is not one
of its submodules: other code in the process finds in it what it expects. Nothing is done to
a module that was imported before.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_VERSION = "betterproto2._version"
_METADATA = "importlib.metadata"
_TASK_NAMES = "logAsyncioTasks"


class _UnexecutedModule(ModuleType):
    """A module that runs its code at the first look at one of its own names.

    One thread runs it, others that look meanwhile wait for it.
    """

    def __getattr__(self, name: str) -> Any:
        # Dunders are asked for by the import system itself; its machinery must not set us off.
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _locks[self.__name__]:
            if self.__class__ is _UnexecutedModule and self.__name__ not in _executing:
                _executing.add(self.__name__)
                try:
                    self.__spec__.loader.exec_module(self)
                finally:
                    _executing.discard(self.__name__)
                self.__class__ = ModuleType  # type: ignore[assignment]  # as any other from here on
                _afterwards.pop(self.__name__, _nothing)()
        return ModuleType.__getattribute__(self, name)


def _nothing() -> None:
    pass


# What is done when a module has been executed.
_afterwards: dict[str, Callable[[], None]] = {}
# Reentrant: what a module imports while it runs may look back into it.
_locks: dict[str, threading.RLock] = {}
_executing: set[str] = set()


def defer(*names: str) -> None:
    """Let these modules be executed when they are first used, not when they are imported.

    Of a submodule the packages above it are imported. One that is missing is left to the
    import of whoever needs it.
    """
    for name in names:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _UnexecutedModule
        _locks[name] = threading.RLock()
        sys.modules[name] = module


def spare_task_names() -> None:
    """Keep `logging` from asking a deferred asyncio for the name of a task, which executes it.

    From Python 3.12 on it asks for every record, such as the one that structlog makes when it is
    imported. Once somebody uses asyncio, it does so again.
    """
    if sys.version_info < (3, 12) or "asyncio" not in _locks:
        return
    import logging

    if getattr(logging, _TASK_NAMES):
        setattr(logging, _TASK_NAMES, False)
        _afterwards["asyncio"] = lambda: setattr(logging, _TASK_NAMES, True)


def names_on_demand(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__` for names whose modules not every agent needs.

    `homes` says in which submodule a name is; that is imported when the name is first asked for.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return get


def spare_metadata() -> None:
    """Tell betterproto2 its version without `importlib.metadata`.

    It asks only to compare it with what wrote the messages, and that brings `email`, `zipfile`
    and the compressors. Where the version cannot be read off its directory it asks as ever.
    """
    if _VERSION in sys.modules or _METADATA in sys.modules:
        return
    package = importlib.util.find_spec("betterproto2")
    if package is None or package.origin is None:
        return
    home = Path(package.origin).parent
    found = [
        path.stem.removeprefix("betterproto2-")
        for path in home.parent.glob("betterproto2-*.dist-info")
    ]
    spec = importlib.util.spec_from_file_location(_VERSION, home / "_version.py")
    if len(found) != 1 or spec is None or spec.loader is None:
        return
    stand_in = ModuleType(_METADATA)
    stand_in.version = lambda _name: found[0]  # type: ignore[attr-defined]
    module = importlib.util.module_from_spec(spec)
    sys.modules[_METADATA] = stand_in
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[_METADATA]
    sys.modules[_VERSION] = module
