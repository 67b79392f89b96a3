"""The functions of Kubernetes' CEL environment for devices, and operators that are safe.

Functions and methods share one table: a method's object is its first argument. A TypeError is told
as "no such overload", a ValueError by its text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import re2
from celpy import celtypes
from celpy.evaluation import CELEvalError, base_functions

from kubelet_trio.managers.claims.allocation.cel_values import Quantity, SemVer
from kubelet_trio.model import NANO

_NUMBERS = (celtypes.IntType, celtypes.UintType, celtypes.DoubleType)


class Optional:
    """An optional value; `NONE` is the empty one."""

    __slots__ = ("content",)

    def __init__(self, content: Any = None) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optional):
            return NotImplemented
        if self is NONE or other is NONE:
            return self is other
        return bool(self.content == other.content)

    __hash__ = None  # type: ignore[assignment]  # no key of a map


NONE = Optional()


def _is_number(value: object) -> bool:
    return type(value) in _NUMBERS  # a bool of the library is an int, and one of CEL is not


def _numeric(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return an operator for numbers of one type: Python's also repeats and formats strings."""

    def apply(left: Any, right: Any) -> Any:
        failed = _error_of(left, right)
        if failed is not None:
            return failed
        if not _is_number(left) or type(left) is not type(right):
            raise TypeError("no such overload")
        return function(left, right)

    return apply


def _add(left: Any, right: Any) -> Any:
    failed = _error_of(left, right)
    if failed is not None:
        return failed
    joined = (celtypes.StringType, celtypes.BytesType, celtypes.ListType)
    if type(left) is not type(right) or not (_is_number(left) or isinstance(left, joined)):
        raise TypeError("no such overload")
    return type(left)(left + right)


def _error_of(*values: Any) -> CELEvalError | None:
    return next((value for value in values if isinstance(value, CELEvalError)), None)


def equals(left: Any, right: Any) -> bool:
    """Return whether two values are equal: values of different types never are, but numbers."""
    if _is_number(left) and _is_number(right):
        return bool(int(left) == int(right) if _both_whole(left, right) else left == right)
    if type(left) is not type(right):
        both_maps = isinstance(left, dict) and isinstance(right, dict)
        if not both_maps:
            return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equals, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equals(left[key], right[key]) for key in left)
    if isinstance(left, celtypes.BoolType):
        return int(left) == int(right)
    return bool(left == right)


def _both_whole(left: Any, right: Any) -> bool:
    return not isinstance(left, float) and not isinstance(right, float)


def _equal(left: Any, right: Any) -> Any:
    return _error_of(left, right) or celtypes.BoolType(equals(left, right))


def _different(left: Any, right: Any) -> Any:
    return _error_of(left, right) or celtypes.BoolType(not equals(left, right))


def _contained(item: Any, container: Any) -> Any:
    failed = _error_of(item, container)
    if failed is not None:
        return failed
    if isinstance(container, dict):
        return celtypes.BoolType(any(equals(item, key) for key in container))
    if isinstance(container, list):
        return celtypes.BoolType(any(equals(item, one) for one in container))
    raise TypeError("no such overload")


def _text(value: Any) -> str:
    if not isinstance(value, celtypes.StringType):
        raise TypeError("no such overload")
    return str(value)


def _string(value: Any) -> Any:
    if isinstance(value, Quantity | SemVer | Optional):
        raise TypeError("no such overload")
    return celtypes.StringType(value)


def _matches(text: Any, pattern: Any) -> Any:
    options = re2.Options()
    options.log_errors = False  # it would write to stderr
    try:
        found = re2.compile(_text(pattern), options).search(_text(text))
    except re2.error:
        raise ValueError("not a regular expression") from None
    return celtypes.BoolType(found is not None)


def _same(left: Any, right: Any) -> None:
    if type(left) is not type(right) or not isinstance(left, Quantity | SemVer):
        raise TypeError("no such overload")


def _is_greater(left: Any, right: Any) -> Any:
    _same(left, right)
    return celtypes.BoolType(left > right)


def _is_less(left: Any, right: Any) -> Any:
    _same(left, right)
    return celtypes.BoolType(left < right)


def _compare(left: Any, right: Any) -> Any:
    _same(left, right)
    return celtypes.IntType((left > right) - (left < right))


def _quantity(text: Any) -> Quantity:
    return Quantity.parse(_text(text))


def _semver(text: Any, loosely: Any = celtypes.BoolType(False)) -> SemVer:  # noqa: B008  # immutable
    return SemVer.parse(_text(text), loosely=bool(loosely))


def _parses(parse: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*arguments: Any) -> Any:
        try:
            parse(*arguments)
        except ValueError:
            return celtypes.BoolType(False)
        return celtypes.BoolType(True)

    return apply


def _amount(value: Any) -> Quantity:
    if not isinstance(value, Quantity):
        raise TypeError("no such overload")
    return value


def _as_integer(value: Any) -> Any:
    if not _amount(value).is_integer:
        raise ValueError("the quantity is not an integer")
    return celtypes.IntType(value.nano // NANO)


def _nano_of(value: Any) -> int:
    """Return an operand of a quantity's `add` and `sub`: another one, or an int."""
    if type(value) is celtypes.IntType:
        return int(value) * NANO
    return _amount(value).nano


def _part(index: int) -> Callable[[Any], Any]:
    def apply(value: Any) -> Any:
        if not isinstance(value, SemVer):
            raise TypeError("no such overload")
        return celtypes.IntType(value.release[index])

    return apply


def _includes(values: Any, wanted: Any) -> Any:
    items = values if isinstance(values, celtypes.ListType) else [values]
    return celtypes.BoolType(any(equals(one, wanted) for one in items))


def _optional(value: Any) -> Optional:
    if not isinstance(value, Optional):
        raise TypeError("no such overload")
    return value


def _or_value(value: Any, default: Any) -> Any:
    return default if _optional(value) is NONE else value.content


def _value(value: Any) -> Any:
    if _optional(value) is NONE:
        raise ValueError("optional.none() dereference")
    return value.content


_BASE = (
    *("!_", "-_", "_<_", "_<=_", "_>_", "_>=_", "_||_", "_&&_", "_?_:_", "_[_]"),
    *("size", "contains", "startsWith", "endsWith"),
    *("bool", "bytes", "double", "int", "uint", "type"),
)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: base_functions[name] for name in _BASE},
    "_+_": _add,
    "_-_": _numeric(operator.sub),
    "_*_": _numeric(operator.mul),
    "_/_": _numeric(operator.truediv),
    "_%_": _numeric(operator.mod),
    "_==_": _equal,
    "_!=_": _different,
    "_in_": _contained,
    "matches": _matches,
    "string": _string,
    "quantity": _quantity,
    "isQuantity": _parses(_quantity),
    "semver": _semver,
    "isSemver": _parses(_semver),
    "isGreaterThan": _is_greater,
    "isLessThan": _is_less,
    "compareTo": _compare,
    "isInteger": lambda value: celtypes.BoolType(_amount(value).is_integer),
    "asInteger": _as_integer,
    "asApproximateFloat": lambda value: celtypes.DoubleType(_amount(value).nano / NANO),
    "sign": lambda value: celtypes.IntType((_amount(value).nano > 0) - (_amount(value).nano < 0)),
    "add": lambda left, right: Quantity(_amount(left).nano + _nano_of(right)),
    "sub": lambda left, right: Quantity(_amount(left).nano - _nano_of(right)),
    "major": _part(0),
    "minor": _part(1),
    "patch": _part(2),
    "lowerAscii": lambda text: celtypes.StringType(
        "".join(c.lower() if c.isascii() else c for c in _text(text))
    ),
    "upperAscii": lambda text: celtypes.StringType(
        "".join(c.upper() if c.isascii() else c for c in _text(text))
    ),
    "trim": lambda text: celtypes.StringType(_text(text).strip()),
    "includes": _includes,
    "orValue": _or_value,
    "or": lambda value, other: other if _optional(value) is NONE else value,
    "hasValue": lambda value: celtypes.BoolType(_optional(value) is not NONE),
    "value": _value,
}
