"""Checks a raw document against the API's types: refuses what the models would silently drop.

Walks along the typed models and reports unknown and misplaced fields and values of the wrong
type, each with its path and the expected type. Returns the document ready for conversion:
without nulls, with quantities as strings. `validation` checks the values themselves. What is wrong
is left out of the returned document, or replaced by an empty value where the models need one, so
that the rest can be validated as well.
"""

from __future__ import annotations

import datetime
import functools
import sys
import types
import typing
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from lightkube.models.core_v1 import EphemeralContainer, Pod

from kubelet_trio.objects import KINDS
from kubelet_trio.sources.errors import MAX_ERRORS, FieldError, json_type, quote

_INT64 = 2**63
_WRONG = object()  # in place of a value that is not of its type
_LONGEST_HINT = 64  # characters of a name for which a similar one is looked for

# Fields that hold quantities; the models type them as str and dict[str, str].
_QUANTITY_FIELDS = frozenset(("sizeLimit", "divisor"))
_QUANTITY_MAPS = frozenset(("limits", "requests", "overhead", "capacity"))
# Those of objects whose field names mean something else elsewhere.
_QUANTITIES = frozenset(
    (
        ("Counter", "value"),
        ("DeviceCapacity", "value"),
        ("CapacityRequestPolicy", "default"),
        ("CapacityRequestPolicyRange", "min"),
        ("CapacityRequestPolicyRange", "max"),
        ("CapacityRequestPolicyRange", "step"),
    )
)
# Fields with the names of types: their annotations mean the fields.
_HIDDEN: Mapping[tuple[str, str], Any] = {
    ("DeviceAttribute", "bool"): bool,
    ("DeviceAttribute", "bools"): list[bool],
    ("DeviceAttribute", "int"): int,
    ("DeviceAttribute", "ints"): list[int],
}
# Maps of objects, which the models type as plain maps.
_OBJECT_MAPS: Mapping[tuple[str, str], str] = {
    ("Device", "attributes"): "DeviceAttribute",
    ("Device", "capacity"): "DeviceCapacity",
    ("CounterSet", "counters"): "Counter",
    ("DeviceCounterConsumption", "counters"): "Counter",
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: Any  # without Optional
    required: bool


@dataclass(frozen=True, slots=True)
class _MapOf:
    """The type of a map of objects."""

    item: type[msgspec.Struct]


class _Quantity:
    """The type of a quantity, by the object that has it."""


def check_pod(raw: dict[str, Any]) -> tuple[dict[str, Any], list[FieldError]]:
    """Return the document for `msgspec.convert(..., Pod)`, and its errors.

    With errors the document is only good for finding more of them. Paths start at the Pod.
    """
    walk = _Walk()
    return walk.struct(raw, Pod, ""), walk.errors


def check_object(raw: dict[str, Any], kind: str) -> tuple[dict[str, Any], list[FieldError]]:
    """Do the same for an object of one of the other kinds."""
    walk = _Walk()
    return walk.struct(raw, KINDS[kind], ""), walk.errors


def check_ephemeral(raw: dict[str, Any], path: str) -> tuple[dict[str, Any], list[FieldError]]:
    """Do the same for one ephemeral container at a path of its pod."""
    walk = _Walk()
    return walk.struct(raw, EphemeralContainer, path), walk.errors


class _Walk:
    def __init__(self) -> None:
        self.errors: list[FieldError] = []

    def struct(self, raw: dict[str, Any], kind: type[msgspec.Struct], path: str) -> dict[str, Any]:
        known = _fields(kind)
        result: dict[str, Any] = {}
        hints = ""
        for name, value in raw.items():
            where = f"{path}.{name}" if path else name
            if name not in known:
                # Hints cost far more than the walk: not for thousands of fields.
                hint = _hint(name, kind, path) if len(self.errors) < MAX_ERRORS else ""
                self._error(where, "unknown field" + hint)
                hints += hint
            elif value is not None:  # null means "not set" in the API
                judged = self.value(value, known[name].type, where, name)
                if judged is not _WRONG:
                    result[name] = judged
                elif known[name].required:
                    result[name] = _empty(known[name].type)
        for name, field in known.items():
            # Only missing fields here: validation judges empty values, as the API server does.
            if field.required and name not in result:
                if f'did you mean "{name}"' not in hints:
                    self._error(f"{path}.{name}" if path else name, "Required value")
                result[name] = _empty(field.type)
        return result

    def value(self, raw: Any, kind: Any, path: str, name: str) -> Any:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if isinstance(raw, dict):
                return self.struct(raw, kind, path)
            return self._wrong(raw, "an object", path)
        if typing.get_origin(kind) is list:
            return self._list(raw, typing.get_args(kind)[0], path, name)
        if isinstance(kind, _MapOf):
            return self._objects(raw, kind.item, path, name)
        if kind is _Quantity:
            return self._string(raw, path, quantity=True)
        if kind is typing.Dict:  # noqa: UP006  # the models' RawExtension: any object
            return self._free(raw, path)
        if kind is dict:
            return self._map(raw, path, name)
        if kind is str:
            return self._string(raw, path, name in _QUANTITY_FIELDS)
        return self._scalar(raw, kind, path)

    def _list(self, raw: Any, item: Any, path: str, name: str) -> Any:
        if not isinstance(raw, list):
            return self._wrong(raw, "a list", path)
        judged = (self.value(value, item, f"{path}[{i}]", name) for i, value in enumerate(raw))
        return [_empty(item) if value is _WRONG else value for value in judged]

    def _map(self, raw: Any, path: str, name: str) -> Any:
        if not isinstance(raw, dict):
            return self._wrong(raw, "an object", path)
        quantity = name in _QUANTITY_MAPS
        judged = {
            key: self._string(value, f"{path}[{key}]", quantity)
            for key, value in raw.items()
            if self._is_text(key, path) and value is not None
        }
        return {key: value for key, value in judged.items() if value is not _WRONG}

    def _objects(self, raw: Any, item: type[msgspec.Struct], path: str, name: str) -> Any:
        if not isinstance(raw, dict):
            return self._wrong(raw, "an object", path)
        judged = {
            key: self.value(value, item, f"{path}[{key}]", name)
            for key, value in raw.items()
            if self._is_text(key, path) and value is not None
        }
        return {key: value for key, value in judged.items() if value is not _WRONG}

    def _free(self, raw: Any, path: str) -> Any:
        """Check an object whose fields only its reader knows: its texts alone."""
        if not isinstance(raw, dict):
            return self._wrong(raw, "an object", path)
        queue: deque[tuple[Any, str]] = deque([(raw, path)])
        while queue:
            value, where = queue.popleft()
            if isinstance(value, str) and not self._is_text(value, where):
                return _WRONG
            if isinstance(value, dict):
                if not all(self._is_text(key, where) for key in value):
                    return _WRONG
                queue.extend((item, f"{where}.{key}") for key, item in value.items())
            elif isinstance(value, list):
                queue.extend((item, f"{where}[{i}]") for i, item in enumerate(value))
        return raw

    def _string(self, raw: Any, path: str, quantity: bool) -> Any:
        if quantity and isinstance(raw, int | float) and not isinstance(raw, bool):
            return str(raw)  # resource.Quantity also unmarshals from JSON numbers
        if not isinstance(raw, str):
            hint = "; put it in quotes" if isinstance(raw, bool | int | float) else ""
            return self._wrong(raw, f"a string{hint}", path)
        return raw if self._is_text(raw, path) else _WRONG

    def _is_text(self, raw: str, path: str) -> bool:
        # JSON escapes can spell lone surrogates, which no UTF-8 output can carry.
        if any("\ud800" <= char <= "\udfff" for char in raw):
            self._wrong(ascii(raw), "valid Unicode", path)
            return False
        return True

    def _scalar(self, raw: Any, kind: Any, path: str) -> Any:
        if kind is bool:
            return raw if isinstance(raw, bool) else self._wrong(raw, "true or false", path)
        if kind is datetime.datetime:
            return self._time(raw, path)
        whole = isinstance(raw, int) and not isinstance(raw, bool) and -_INT64 <= raw < _INT64
        if kind is int:
            return raw if whole else self._wrong(raw, "a whole number", path)
        # The remaining type is intstr.IntOrString (ports): a number or a string.
        if isinstance(raw, str):
            return self._string(raw, path, quantity=False)
        return raw if whole else self._wrong(raw, "a whole number or a string", path)

    def _time(self, raw: Any, path: str) -> Any:
        if isinstance(raw, str):
            try:
                return msgspec.convert(raw, datetime.datetime)
            except msgspec.ValidationError:
                pass
        return self._wrong(raw, "a time such as 2006-01-02T15:04:05Z", path)

    def _wrong(self, raw: Any, expected: str, path: str) -> Any:
        shown = json_type(raw) if isinstance(raw, dict | list) or raw is None else quote(raw)
        self._error(path, f"Invalid value: {shown}: expected {expected}")
        return _WRONG

    def _error(self, path: str, message: str) -> None:
        self.errors.append(FieldError(path, message))


def _empty(kind: Any) -> Any:
    """Return a value of a field's type that says nothing."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {f.name: _empty(f.type) for f in _fields(kind).values() if f.required}
    if typing.get_origin(kind) is list:
        return []
    if kind is datetime.datetime:
        return "1970-01-01T00:00:00Z"
    if isinstance(kind, _MapOf) or kind is typing.Dict:  # noqa: UP006  # RawExtension
        return {}
    return {dict: {}, str: "", bool: False, _Quantity: "0"}.get(kind, 0)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    return {
        f.encode_name: _Field(f.encode_name, _type(kind, f.encode_name, f.type), f.required)
        for f in msgspec.structs.fields(kind)
    }


def _type(kind: type[msgspec.Struct], name: str, declared: Any) -> Any:
    """Return the type of a field: more exact than the models' where it must be."""
    place = (kind.__name__, name)
    # Names of two groups of the API may be the same.
    if kind.__module__.endswith(".resource_v1"):
        if place in _OBJECT_MAPS:
            return _MapOf(getattr(sys.modules[kind.__module__], _OBJECT_MAPS[place]))
        if place in _QUANTITIES:
            return _Quantity
        if place in _HIDDEN:
            return _HIDDEN[place]
    return _plain(declared)


def _plain(kind: Any) -> Any:
    """Return a field's type without its `| None`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return inner[0] if len(inner) == 1 else int | str
    return kind


def _hint(name: str, kind: type[msgspec.Struct], path: str) -> str:
    """Return a hint: the similar field, or the place of this one, or ""."""
    import difflib  # deferred: only invalid manifests need it

    if len(name) > _LONGEST_HINT:
        return ""
    near = difflib.get_close_matches(name, _fields(kind), n=1, cutoff=0.8)
    if near:
        return f'; did you mean "{near[0]}"?'
    home = _home(name, path)
    return f"; {name} belongs under {home}" if home else ""


def _home(name: str, path: str) -> str:
    """Return the place nearest to `path` that has a field of this name, or ""."""
    here = _steps(path)
    # A field of this name that is farther away is a coincidence, not a hint.
    best, best_distance = "", len(here) + 4
    for steps, kind in _places():
        if steps and name in _fields(kind):
            common = next(
                (i for i, (a, b) in enumerate(zip(here, steps, strict=False)) if a != b),
                min(len(here), len(steps)),
            )
            distance = len(here) + len(steps) - 2 * common
            if distance < best_distance:
                best, best_distance = ".".join(steps), distance
    return best


def _steps(path: str) -> list[str]:
    """Return a path's steps without their indices: spec, containers[]."""
    return [
        f"{step.partition('[')[0]}[]" if "[" in step else step for step in path.split(".") if step
    ]


def _places() -> Iterator[tuple[list[str], type[msgspec.Struct]]]:
    """Yield every object type inside a Pod with its path, breadth first."""
    queue: deque[tuple[list[str], Any]] = deque([([], Pod)])
    while queue:
        steps, kind = queue.popleft()
        yield steps, kind
        for name, field in _fields(kind).items():
            # Nothing below these two is written by an author.
            if name in ("status", "managedFields") or len(steps) > 6:
                continue
            inner = _inner(field.type)
            if inner is not None:
                mark = "[]" if typing.get_origin(field.type) is list else ""
                queue.append(([*steps, name + mark], inner))


def _inner(kind: Any) -> type[msgspec.Struct] | None:
    """Return the object that a field holds, or holds a list of; None for plain values."""
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind
    return inner if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else None
