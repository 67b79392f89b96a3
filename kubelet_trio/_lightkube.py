"""Import lightkube's models without its client.

`lightkube/__init__.py` imports the client, and with it an HTTP library, asyncio and YAML:
6 MB that a standalone node never uses, of the 50 it is to fit in. So the package is put
into `sys.modules` unexecuted, and executed when somebody asks it for anything but a
submodule: other code in the process that uses lightkube's client finds it as it expects.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

_NAME = "lightkube"


class _UnexecutedPackage(ModuleType):
    """A package that runs its `__init__` at the first look at one of its own names."""

    def __getattr__(self, name: str) -> Any:
        # Dunders are asked for by the import system itself; its machinery must not set us off.
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # from here on as any other
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def defer_client() -> None:
    """See the module; nothing happens where lightkube was imported before."""
    if _NAME in sys.modules:
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.loader is None:
        return  # the import of the models will say that it is missing
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _UnexecutedPackage
    sys.modules[_NAME] = module
