"""`-l` and `--field-selector`: which objects to show, as kubectl selects them. Pure.

Source: k8s.io/apimachinery/pkg/labels/selector.go and pkg/fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from kubelet_trio.cli.podstate import Json

_Test = Callable[[str | None], bool]
Selector = Callable[[Mapping[str, str]], bool]

_REQUIREMENT = re.compile(
    r"\s*(?:"
    r"(?P<not>!)?\s*(?P<has>[\w./-]+)"
    r"|(?P<key>[\w./-]+)\s*(?:"
    r"(?P<sign>==|=|!=|>|<)\s*(?P<value>[\w.-]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    r"))\s*"
)


def parse_labels(text: str) -> Selector:
    """Return the test of an object's labels: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.

    Raises ValueError, naming the part.
    """
    tests = [_requirement(part) for part in _split(text)]

    def matches(labels: Mapping[str, str]) -> bool:
        return all(test(labels.get(key)) for key, test in tests)

    return matches


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of parentheses."""
    return iter(re.split(r",(?![^()]*\))", text)) if text.strip() else iter(())


def _requirement(text: str) -> tuple[str, _Test]:
    found = _REQUIREMENT.fullmatch(text)
    if found is None:
        raise ValueError(
            f'"{text.strip()}": expected KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), '
            "KEY, !KEY, KEY>NUMBER or KEY<NUMBER"
        )
    if has := found["has"]:
        is_wanted = not found["not"]
        return has, lambda value: (value is not None) is is_wanted
    key, value, sign = found["key"], found["value"], found["sign"]
    if sign in (">", "<"):
        return key, _compare(value, sign)
    values = {v.strip() for v in found["values"].split(",")} if found["set"] else {value}
    # A label that is missing is not equal to any value.
    if sign == "!=" or found["set"] == "notin":
        return key, lambda actual: actual not in values
    return key, lambda actual: actual in values


def _compare(text: str, sign: str) -> _Test:
    if not re.fullmatch(r"-?\d+", text):
        raise ValueError(f'"{sign}{text}": expected a number')
    bound = int(text)

    def test(actual: str | None) -> bool:
        if actual is None or not re.fullmatch(r"-?\d+", actual):
            return False
        return int(actual) > bound if sign == ">" else int(actual) < bound

    return test


def parse_fields(text: str) -> list[tuple[str, bool, str]]:
    """Return path, whether it has to be equal, and value: `status.phase=Running,metadata.name!=x`.

    Raises ValueError, naming the part.
    """
    found = []
    for part in text.split(",") if text.strip() else ():
        pieces = re.fullmatch(r"\s*([\w.]+)\s*(==|=|!=)(.*)", part)
        if pieces is None:
            raise ValueError(f'"{part.strip()}": expected FIELD=VALUE or FIELD!=VALUE')
        found.append((pieces[1], pieces[2] != "!=", pieces[3].strip()))
    return found


def has_fields(thing: Json, wanted: list[tuple[str, bool, str]]) -> bool:
    """Return whether an object's fields have these values; a missing one is empty."""
    return all((_at(thing, path) == value) is is_equal for path, is_equal, value in wanted)


def _at(thing: Json, path: str) -> str:
    found: object = thing
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)
