"""Reads YAML as Kubernetes does (sigs.k8s.io/yaml): the values of each document.

Built on libyaml's events instead of PyYAML's constructor, which keeps the last of two equal
keys, recurses without a limit, expands aliases without a limit, and reads times as dates and
`22:22` as the number 1342. Scalars follow the YAML library of Kubernetes: YAML 1.1 without
sexagesimal numbers; times stay strings. Keys become strings, because JSON has no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kubelet_trio.sources.errors import YamlError

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 100  # of nested lists and mappings; a Pod has about 10
MAX_ALIASED = 100_000  # values that aliases may add to a file

_TAG = "tag:yaml.org,2002:"
_COLLECTION_TAGS = (None, "!", _TAG + "map", _TAG + "seq")

# Of YAML 1.1: an unquoted `no` or `off` is a boolean, as in sigs.k8s.io/yaml.
_BOOLS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
# Octal in both forms: 0644 (YAML 1.1) and 0o644 (YAML 1.2).
_INT = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F_]+)|0[bB]([01_]+)|0[oO]?([0-7_]+)|(0|[1-9][0-9_]*))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def yaml_documents(text: str) -> Iterator[Any]:
    """Yield the value of each document, None for an empty one.

    Raises YamlError at the first error.
    """
    import yaml  # deferred: not every start reads YAML

    loader = yaml.CSafeLoader(text)
    builder = _Builder(loader)
    try:
        while True:
            event = loader.get_event()
            if isinstance(event, yaml.StreamEndEvent):
                return
            if isinstance(event, yaml.DocumentStartEvent):
                yield builder.document()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        at = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise YamlError(_explained(exc, text, mark), *at) from exc
    except yaml.reader.ReaderError as exc:
        before = text.encode()[: exc.position].decode(errors="ignore")
        column = len(before) - before.rfind("\n")
        raise YamlError(str(exc.reason), before.count("\n") + 1, column) from exc
    except yaml.YAMLError as exc:
        raise YamlError(" ".join(str(exc).split())) from exc
    finally:
        loader.dispose()


def plain_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar: None, bool, int, float or str."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    # Most scalars are words: skip the regular expressions for them.
    if text[0] not in "+-.0123456789":
        return text
    match = _INT.fullmatch(text)
    if match is not None:
        number = _int(match)
        return text if number is None else number
    if _FLOAT.fullmatch(text):
        value = float(text)
        # JSON has one type of number: 30.0 is valid for an integer field.
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    # float() reads these words without the dot of YAML.
    return float(text.replace(".", "", 1)) if _NOT_FINITE.fullmatch(text) else text


def _int(match: re.Match[str]) -> int | None:
    sign, *groups = match.groups()
    for digits, base in zip(groups, (16, 2, 8, 10), strict=True):
        digits = (digits or "").replace("_", "")
        if digits:
            if len(digits) > 100:  # no field takes it, and int() needs quadratic time
                return None
            return int(sign + digits, base)
    return None


def _explained(exc: yaml.MarkedYAMLError, text: str, mark: yaml.Mark | None) -> str:
    """Return libyaml's message, with what its author did where that is known."""
    problem = exc.problem or str(exc)
    if problem.startswith("mapping values are not allowed"):
        return f'{problem}: is the line indented too far, or does a value with ": " need quotes?'
    if problem.startswith("found character that cannot start any token") and mark is not None:
        rest = text.splitlines()[mark.line][mark.column :]
        if rest.startswith("\t"):
            return "a tab in the indentation: YAML takes only spaces there"
        return f"{problem}: a value that begins with {rest[:1]} needs quotes"
    start = exc.context_mark
    if exc.context and start is not None and mark is not None and start.line < mark.line:
        # The mistake is often where the block began, or anywhere in between.
        return f"{problem} {exc.context} that began in line {start.line + 1}"
    return problem


class _Builder:
    """Builds values from a stream of events, one document after the other."""

    def __init__(self, loader: yaml.CSafeLoader) -> None:
        self._loader = loader
        self._anchors: dict[str, tuple[Any, int]] = {}  # value, and number of values inside
        self._count = 0
        self._aliased = 0

    def document(self) -> Any:
        self._anchors.clear()
        return self._value(self._loader.get_event(), 0)

    def _value(self, event: Any, depth: int) -> Any:
        # By name: the module does not import yaml at import time.
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event)
        before = self._count
        self._count += 1
        if kind == "ScalarEvent":
            value: Any = _scalar(event)
        elif event.tag not in _COLLECTION_TAGS:
            raise YamlError(f"tag {event.tag} is not used in manifests", *_at(event))
        elif depth >= MAX_DEPTH:
            raise YamlError(f"nested deeper than {MAX_DEPTH} levels", *_at(event))
        elif kind == "SequenceStartEvent":
            value = self._sequence(depth + 1)
        else:
            value = self._mapping(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._count - before)
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise YamlError(f"alias *{event.anchor} has no anchor before it", *_at(event))
        # Count what an alias expands to: "billion laughs" multiplies values at each level.
        value, size = self._anchors[event.anchor]
        self._count += size
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            raise YamlError("aliases expand to too many values", *_at(event))
        return value

    def _sequence(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while type(event := self._loader.get_event()).__name__ != "SequenceEndEvent":
            values.append(self._value(event, depth))
        return values

    def _mapping(self, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while type(event := self._loader.get_event()).__name__ != "MappingEndEvent":
            # Merge keys (<<, yaml.org/type/merge.html): own fields win, then earlier sources.
            if _is_merge_key(event):
                for source in self._merge_sources(depth):
                    merged = {**source, **merged}
                continue
            key = self._key(event, depth)
            if key in own:
                raise YamlError(f'duplicate field "{key}"', *_at(event))
            own[key] = self._value(self._loader.get_event(), depth)
        return {**merged, **own} if merged else own

    def _key(self, event: Any, depth: int) -> str:
        key = self._value(event, depth)
        if isinstance(key, bool):
            return "true" if key else "false"
        if isinstance(key, (str, int, float)):
            return str(key)
        raise YamlError("a field's name must be a string", *_at(event))

    def _merge_sources(self, depth: int) -> list[dict[str, Any]]:
        event = self._loader.get_event()
        value = self._value(event, depth)
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise YamlError("<< takes a mapping or a list of mappings", *_at(event))
        return sources


def _is_merge_key(event: Any) -> bool:
    return (
        type(event).__name__ == "ScalarEvent"
        and event.value == "<<"
        and (event.tag == _TAG + "merge" or (event.tag is None and event.implicit[0]))
    )


def _scalar(event: Any) -> Any:
    tag = event.tag
    # Not implicit: quoted, or a block scalar. It is always a string.
    if tag is None:
        return plain_scalar(event.value) if event.implicit[0] else event.value
    if tag in ("!", _TAG + "str", _TAG + "timestamp"):
        return event.value
    wanted = {"null": type(None), "bool": bool, "int": int, "float": (int, float)}
    value = plain_scalar(event.value)
    kinds = wanted.get(tag.removeprefix(_TAG))
    if kinds is None:
        raise YamlError(f"tag {tag} is not used in manifests", *_at(event))
    if not isinstance(value, kinds):  # type: ignore[arg-type]
        raise YamlError(f"{event.value!r} is no {tag.removeprefix(_TAG)}", *_at(event))
    return value


def _at(event: Any) -> tuple[int, int]:
    return int(event.start_mark.line) + 1, int(event.start_mark.column) + 1
