"""Check that JSON can be decoded as an object of its kind, before any validation rule.

Types come from the models: times where a model has a `datetime`, quantities in the maps of
resources. The models have one integer type, so Go's 32-bit integers are listed here.
"""

from __future__ import annotations

import datetime
import functools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kubelet_trio.kube import KubeError
from kubelet_trio.model import parse_quantity

# The pattern in the text of resource.ErrFormatWrong.
_QUANTITY = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
# What parseQuantityString scans: fewer dots than the pattern allows.
_SCANNED = re.compile(r"[+-]?\d*(\.\d*)?[eEinumkKMGTP]*[-+]?\d*")
_RESOURCES = frozenset({
    "allocatable", "allocatedResources", "capacity", "limits", "podFixed", "requests",
})  # fmt: skip
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_TIMES = frozenset({"acquireTime", "eventTime", "lastObservedTime", "renewTime"})
_MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"
_INT32 = frozenset({
    "ContainerStateTerminated.exitCode", "ContainerStateTerminated.signal",
    "ContainerStatus.restartCount", "DaemonEndpoint.Port", "Event.count", "EventSeries.count",
    "LeaseSpec.leaseDurationSeconds", "LeaseSpec.leaseTransitions", "VolumeNodeResources.count",
})  # fmt: skip


class MalformedError(ValueError):
    """An error of the decoder."""


def check_body(model: type, body: Mapping[str, Any], version: str) -> None:
    """Check a complete object.

    Raises:
        KubeError: 400; the server cannot decode the object.
    """
    try:
        _check(body, model, (), is_strict=True)
    except MalformedError as exc:
        kind = model.__name__
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {exc}'
        raise KubeError(400, "BadRequest", message) from exc


def check_patched(model: type, result: Mapping[str, Any], patch: Any) -> None:
    """Check the result of a patch. Numbers are not checked: the server truncates them silently.

    Raises:
        KubeError: 422; its message contains the whole patch.
    """
    try:
        _check(result, model, (), is_strict=False)
    except MalformedError as exc:
        message = f' "" is invalid: patch: Invalid value: "{go_value(patch)}": {exc}'
        raise KubeError(422, "Invalid", message) from exc


def go_value(value: Any) -> str:
    """Return a value as Go prints it with `%v`."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"map[{' '.join(f'{key}:{go_value(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(go_value, value))}]"
    return str(value)


def _check(value: Any, kind: Any, path: tuple[str, ...], *, is_strict: bool) -> None:
    if isinstance(value, Mapping):
        hints = _hints(kind)
        for key, item in value.items():
            inner, below = hints.get(key), (*path, key)
            if key in _RESOURCES and isinstance(item, Mapping) and inner is dict:
                _check_quantities(item)
            elif inner is datetime.datetime and isinstance(item, str):
                _check_time(key, item)
            elif is_strict and isinstance(item, int) and f"{_name(kind)}.{key}" in _INT32:
                _check_int32(item, kind, below)
            elif inner is not None:
                _check(item, inner, below, is_strict=is_strict)
    elif isinstance(value, list):
        for item in value:
            _check(item, kind, path, is_strict=is_strict)


def _check_quantities(amounts: Mapping[str, Any]) -> None:
    for amount in amounts.values():
        if not isinstance(amount, str):
            continue
        if not amount or not _SCANNED.fullmatch(amount):
            raise MalformedError(f"quantities must match the regular expression '{_QUANTITY}'")
        try:
            parse_quantity(amount)
        except ValueError as exc:
            raise MalformedError("unable to parse quantity's suffix") from exc


def _check_time(key: str, text: str) -> None:
    if not _TIME.fullmatch(text):
        # Go names the first part that does not fit. For text that is no time at all that is the
        # year, `2006` in Go's layouts.
        layout = _MICRO_LAYOUT if key in _MICRO_TIMES else _LAYOUT
        raise MalformedError(
            f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"'
        )


def _check_int32(value: int, kind: Any, path: tuple[str, ...]) -> None:
    if not -(2**31) <= value < 2**31:
        field = f"{_name(kind)}.{'.'.join(path)}"
        raise MalformedError(
            f"json: cannot unmarshal number {value} into Go struct field {field} of type int32"
        )


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", ""))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a model's fields, without Optional and List around them."""
    if not isinstance(kind, type) or not hasattr(kind, "__annotations__"):
        return {}
    hints: Callable[..., dict[str, Any]] = typing.get_type_hints
    # lightkube appends `_` to a name that is a keyword of Python.
    return {name.rstrip("_"): next(_bare(hint)) for name, hint in hints(kind).items()}


def _bare(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType, list):
        for inner in typing.get_args(hint):
            if inner is not type(None):
                yield from _bare(inner)
    else:
        yield hint
