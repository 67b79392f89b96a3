"""Imports modules without what only their readers need, which saves a fifth of an agent's memory.

Docstrings, the annotations of functions, and the methods that `dataclasses` generates once more
for each class are up to 10 MB of an agent, and the running program reads none of them. After
`load_lean` a module that is imported comes without docstrings; the modules of this package come
without their functions' annotations too, and their dataclasses share the methods below.
Nothing of what a program does changes, but `help()` and a debugger see less. The daemon always
does this; a program that embeds an agent does it only if it calls `load_lean` itself, before it
imports anything else.
"""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from opcode import opmap
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, CoroutineType, FunctionType, ModuleType
from typing import Any, NotRequired, Required, Self, clear_overloads, get_type_hints

from kubelet_trio._deferred import defer, defer_then, spare_metadata

_PACKAGE = __name__.partition(".")[0]
_FUNCTION = 0x1 | 0x2  # CO_OPTIMIZED | CO_NEWLOCALS: not the body of a class or module
_HAS_DOCSTRING = 0x4000000  # CO_HAS_DOCSTRING, since Python 3.14
_TELLS_OF_DOCSTRINGS = sys.version_info >= (3, 14)
# Of a class: where there is none, `dataclasses` would write the signature there, by `inspect`.
_LEFT_OUT = "-"
_IMPLEMENTATION = {"cpython": "CPython", "pypy": "PyPy"}.get(sys.implementation.name, "")
_LOAD, _STORE = opmap["LOAD_CONST"], opmap["STORE_NAME"]


def load_lean() -> None:
    """Import from now on in this way, in the whole process.

    Modules that are here already stay as they are.
    """
    if "dataclasses" in sys.modules:  # else it would bring `inspect` along
        _share_at_once()
    details = (ExtensionFileLoader, EXTENSION_SUFFIXES), (LeanLoader, SOURCE_SUFFIXES)
    sys.path_hooks.insert(0, FileFinder.path_hook(*details))
    sys.path_importer_cache.clear()


def import_libraries() -> None:
    """Import the libraries that the daemon stands on, without what they import and do not need.

    For the daemon alone: other programs may need it. Modules that are here already stay as they
    are.
    """
    _spare_inspect()
    spare_metadata()
    defer_then("yaml", _spare_yaml)
    # structlog wants colours on Windows, and can keep its loggers from being pickled without what
    # pickles them. What msgspec and betterproto2 take of typing_extensions, `typing` has too, and
    # no message here has a field of the types of decimal and uuid.
    with _absent("better_exceptions", "colorama", "greenlet", "twisted"):
        no_pickle = _in_place_of("pickle", PicklingError=type("PicklingError", (Exception,), {}))
        # Of structlog's defaults only a program without a configuration of its own needs these.
        console = {"ConsoleRenderer": _Console, "_has_colors": True, "set_exc_info": _note_error}
        no_colours = _in_place_of("structlog.dev", **console)
        no_frames = _in_place_of("structlog.tracebacks", ExceptionDictTransformer=_Unused)
        no_decimal = _in_place_of("decimal", Decimal=type("Decimal", (), {}))
        kinds = {"UUID": type("UUID", (), {}), "SafeUUID": type("SafeUUID", (), {"unknown": None})}
        no_uuid = _in_place_of("uuid", **kinds)
        types: dict[str, object] = {"NotRequired": NotRequired, "Required": Required, "Self": Self}
        types["get_type_hints"] = get_type_hints
        no_types = _in_place_of("typing_extensions", **types)
        with no_pickle, no_decimal, no_uuid, no_colours, no_frames, no_types:
            # Only named by others; whoever uses one gets it.
            defer("msgspec.inspect", "attrs.validators", "structlog.stdlib")
            _defer_but("attr.validators", instance_of=_instance_of)  # for outcome
            import betterproto2
            import msgspec
            import structlog
    # DTLS is for programs on trio, and nothing here speaks it. To name threads, trio looks for
    # their library: ctypes would run ldconfig, and import what unpacks archives.
    no_dtls = _in_place_of("trio._dtls", **dict.fromkeys(_DTLS, _LeftOut))
    name = "trio_util._trio_async_generator"  # asynchronous generators are Python's own
    no_generators = _in_place_of(name, trio_async_generator=_LeftOut)
    importlib.import_module("ctypes")
    # attrs asks for the name of this Python.
    no_platform = _in_place_of("platform", python_implementation=lambda: _IMPLEMENTATION)
    no_search = _in_place_of("ctypes.util", find_library=_library)
    with no_dtls, no_generators, no_platform, no_search:
        import inotify_simple
        import trio
        import trio_util

    del betterproto2, inotify_simple, msgspec, structlog, trio, trio_util


_DTLS = ("DTLSChannel", "DTLSChannelStatistics", "DTLSEndpoint")


class _LeftOut:
    """Stands in a library's names for what nobody here uses."""


class _Console:
    """Stands for structlog's renderer for terminals until something is written with it."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __call__(self, logger: Any, name: str, event: Any) -> Any:
        from structlog.dev import ConsoleRenderer

        return ConsoleRenderer(**self._options)(logger, name, event)


def _note_error(logger: Any, name: str, event: Any) -> Any:
    from structlog.dev import set_exc_info

    return set_exc_info(logger, name, event)


class _Unused(_LeftOut):
    """Likewise, for what the library makes an instance of."""

    def __init__(self, *_: object, **__: object) -> None: ...


def _spare_inspect() -> None:
    """Leave `inspect` unexecuted, which trio and dataclasses import for next to nothing."""
    names = {
        "CORO_CLOSED": "CORO_CLOSED",
        "cleandoc": str,  # of what is left out
        "getcoroutinestate": _state_of,
        "iscoroutine": lambda value: isinstance(value, CoroutineType),
        "iscoroutinefunction": _is_coroutine_function,
    }
    _defer_but("inspect", **names)
    import dataclasses

    dataclasses.inspect = _NoSignatures("inspect")  # type: ignore[attr-defined]
    _share_at_once()


def _state_of(coroutine: CoroutineType[Any, Any, Any]) -> str:
    if coroutine.cr_running:
        return "CORO_RUNNING"
    if coroutine.cr_suspended:
        return "CORO_SUSPENDED"
    return "CORO_CLOSED" if coroutine.cr_frame is None else "CORO_CREATED"


def _is_coroutine_function(value: object) -> bool:
    import inspect

    inspect.isclass(value)  # by any other name it becomes the real one
    return inspect.iscoroutinefunction(value)


def _spare_yaml() -> None:
    """Drop the parser and the emitter in Python, where those in C do the same."""
    import yaml
    from yaml import emitter, parser, reader, scanner, serializer

    if not yaml.__with_libyaml__:
        return
    vars(yaml).update(SafeLoader=yaml.CSafeLoader, SafeDumper=yaml.CSafeDumper)
    unused = emitter.Emitter, parser.Parser, reader.Reader, scanner.Scanner, serializer.Serializer
    for cls in unused:
        for name, value in list(vars(cls).items()):
            if isinstance(value, FunctionType):
                delattr(cls, name)


def _defer_but(name: str, **names: object) -> None:
    """Defer a module whose use for these names is no reason to run it."""
    if name not in sys.modules:
        defer(name)
        vars(sys.modules[name]).update(names)


def _instance_of(kind: type) -> Callable[[object, Any, object], None]:
    def check(_instance: object, attribute: Any, value: object) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"'{attribute.name}' must be {kind!r} (got {value!r})")

    return check


class _NoSignatures(ModuleType):
    """Is `inspect` to dataclasses, which would write a signature where a docstring is missing."""

    @staticmethod
    def signature(_cls: type, **_: object) -> str:
        return ""

    @staticmethod
    def unwrap(value: Any) -> Any:  # Python 3.14 asks it of each name of a class with slots
        while hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        return value

    @staticmethod
    def get_annotations(cls: type) -> dict[str, Any]:
        found: dict[str, Any] = vars(cls).get("__annotations__", {})
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["inspect"], name)


def drop_leftovers() -> None:
    """Drop what the imports have left in caches: for tracebacks, type checkers, later imports."""
    import linecache
    import re

    linecache.clearcache()
    re.purge()
    clear_overloads()
    for clear in getattr(typing, "_cleanups", ()):  # of `Optional["Name"]`: compiled names
        clear()
    sys.path_importer_cache.clear()


def _library(name: str) -> str | None:
    # For inotify-simple None: the process itself, whichever C library it has.
    return None if name == "c" else "libc.so.6"


@contextmanager
def _absent(*names: str) -> Iterator[None]:
    """Let these modules be missing, as far as they are not here."""
    added = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(added))  # type: ignore[arg-type]  # None: not importable
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


@contextmanager
def _in_place_of(name: str, **names: object) -> Iterator[None]:
    """Let a module of these names stand for another one, as far as that is not here.

    Who asks for a further name, as a later version of a library may, gets the other module's.
    """
    if name in sys.modules:
        yield
        return

    def of_the_other(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        leave()
        return getattr(importlib.import_module(name), wanted)

    def leave() -> None:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        if vars(sys.modules.get(package, stand_in)).get(last) is stand_in:
            delattr(sys.modules[package], last)

    stand_in = sys.modules[name] = ModuleType(name)
    vars(stand_in).update(names, __getattr__=of_the_other)
    package, _, last = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], last, stand_in)
    try:
        yield
    finally:
        leave()


class LeanLoader(SourceFileLoader):
    """Loads a module, from its cached bytecode too, and leaves out what nobody reads."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code without docstrings."""
        code = super().get_code(fullname)
        return None if code is None else without_docstrings(code)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        super().exec_module(module)
        if module.__name__.partition(".")[0] == _PACKAGE:
            trim(module)


def without_docstrings(code: CodeType) -> CodeType:
    """Return the code, and all code in it, without docstrings."""
    constants = list(code.co_consts)
    for place, value in enumerate(constants):
        if isinstance(value, CodeType):
            constants[place] = without_docstrings(value)
    if code.co_flags & _FUNCTION:
        if _has_docstring(code):
            constants[0] = None
    else:
        stored = _docstring_of_body(code)
        if stored is not None:
            constants[stored] = _LEFT_OUT
    if all(new is old for new, old in zip(constants, code.co_consts, strict=True)):
        return code
    return code.replace(co_consts=tuple(constants))


def _has_docstring(code: CodeType) -> bool:
    """Tell whether a function's first constant is its docstring."""
    if not code.co_consts or not isinstance(code.co_consts[0], str):
        return False
    if _TELLS_OF_DOCSTRINGS:
        return bool(code.co_flags & _HAS_DOCSTRING)
    # There it is None where there is none, but for comprehensions and lambdas.
    return not code.co_name.startswith("<")


def _docstring_of_body(code: CodeType) -> int | None:
    """Return which constant a class or module stores as `__doc__`."""
    if "__doc__" not in code.co_names:
        return None
    name, steps = code.co_names.index("__doc__"), code.co_code
    for at in range(2, len(steps), 2):
        if steps[at] == _STORE and steps[at + 1] == name and steps[at - 2] == _LOAD:
            place = steps[at - 1]
            return place if isinstance(code.co_consts[place], str) else None
    return None


def trim(module: ModuleType) -> None:
    """Drop the annotations of a module's functions, and let its dataclasses share methods."""
    for value in list(vars(module).values()):
        # In this order: a module in its names may import on the question for an attribute.
        if not isinstance(value, FunctionType | type) or value.__module__ != module.__name__:
            continue
        if isinstance(value, FunctionType):
            _drop_annotations(value)
        else:
            for function in _functions_of(value):
                _drop_annotations(function)
            if vars(value).get("_is_protocol"):
                _share_stubs(value)
            if "__dataclass_params__" in vars(value):
                share_methods(value)


def _functions_of(cls: type) -> Iterator[FunctionType]:
    for value in vars(cls).values():
        ends = (value.fget, value.fset) if isinstance(value, property) else (value,)
        for end in ends:
            function = getattr(end, "__func__", end)
            if isinstance(function, FunctionType):
                yield function


def _drop_annotations(function: FunctionType) -> None:
    while True:
        del function.__annotations__
        inner = getattr(function, "__wrapped__", None)
        if not isinstance(inner, FunctionType):
            return
        function = inner


def _share_at_once() -> None:
    """Let `dataclasses` take the shared methods, where it would compile those of each class.

    Since Python 3.13 it compiles all of a class together.
    """
    import dataclasses

    compiled = getattr(dataclasses, "_create_fn", None)
    if compiled is None or compiled.__module__ == __name__:
        return

    def create(name: str, *args: Any, **options: Any) -> Any:
        home = (options.get("globals") or {}).get("__name__", "")
        if name in _SHARED and home.partition(".")[0] == _PACKAGE:
            return _SHARED[name]
        return compiled(name, *args, **options)

    dataclasses._create_fn = create  # type: ignore[attr-defined]


def share_methods(cls: type) -> None:
    """Replace methods that `dataclasses` has generated for this class alone."""
    for name, shared in _SHARED.items():
        method = vars(cls).get(name)
        method = getattr(method, "__wrapped__", method)  # of `recursive_repr`
        is_generated = method in (shared, getattr(shared, "__wrapped__", shared)) or (
            isinstance(method, FunctionType) and method.__code__.co_filename == "<string>"
        )
        if is_generated:
            setattr(cls, name, shared)


def _share_stubs(protocol: type) -> None:
    """Replace the methods of a protocol that have no body: only type checkers read them."""
    for name, method in list(vars(protocol).items()):
        if not isinstance(method, FunctionType) or vars(method):
            continue
        code = method.__code__
        if set(code.co_consts) == {None} and (stub := _STUBS.get(code.co_code)):
            setattr(protocol, name, stub)


def _stub(*_: object, **__: object) -> None: ...


def _documented_stub() -> None:
    """-"""
    ...


async def _async_stub(*_: object, **__: object) -> None: ...


async def _documented_async_stub() -> None:
    """-"""
    ...


_STUBS = {
    _stub.__code__.co_code: _stub,
    _documented_stub.__code__.co_code: _stub,
    _async_stub.__code__.co_code: _async_stub,
    _documented_async_stub.__code__.co_code: _async_stub,
}


# What equality compares, by class.
_compared: dict[type, Callable[[Any], object]] = {}


def _values_of(instance: Any) -> object:
    cls = instance.__class__
    get = _compared.get(cls)
    if get is None:
        from dataclasses import fields

        names = [field.name for field in fields(cls) if field.compare]
        get = _compared[cls] = attrgetter(*names) if names else _no_value
    return get(instance)


def _no_value(_instance: object) -> object:
    return ()


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values_of(self) == _values_of(other)


def _hash(self: Any) -> int:
    return hash(_values_of(self))


@recursive_repr()
def _repr(self: Any) -> str:
    from dataclasses import fields

    shown = (f for f in fields(self) if f.repr)
    values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in shown)
    return f"{self.__class__.__qualname__}({values})"


def _setattr(self: Any, name: str, _value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED: dict[str, object] = {
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
}
