"""`-o jsonpath=`: kubectl's templates over decoded JSON. Pure.

`{.items[*].metadata.name}`, `{range .items[*]}...{end}`, `[?(@.x=="y")]`, slices, unions, `..` and
quoted text. As in kubectl, a missing field is no error and prints nothing, an index outside of a
list is one, and `$` inside of `range` is the current item.
Source: k8s.io/client-go/util/jsonpath.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_TERMINATORS = frozenset(" \t\r\n.,[]$@{}")
_SLICE = re.compile(r"(-?\d*)(?::(-?\d*))?(?::(-?\d*))?")
_KEY = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_COMPARISON = re.compile(r"([^!<>=]+)([!<>=]+)(.+)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?[\d.]+")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_RELAXED = re.compile(r"\{\.?([^{}]+)\}|\.?([^{}]+)")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class JsonPathError(ValueError):
    """A template that cannot be read, or does not fit the objects."""


class _Node(NamedTuple):
    """One step: `kind` names the method that evaluates it."""

    kind: str
    value: Any = None


_Steps = tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Range:
    over: _Steps
    body: tuple[_Steps | _Range, ...]


class JsonPath:
    """A parsed template."""

    def __init__(self, template: str) -> None:
        """Raises `JsonPathError`."""
        actions = iter(list(_Parser(template).actions()))
        self._blocks = tuple(_blocks(actions, is_inside=False))

    def find(self, data: Any) -> list[list[Any]]:
        """Return the results of each action. Raises `JsonPathError`."""
        return list(_execute(self._blocks, data))

    def text(self, data: Any) -> str:
        """Return what kubectl prints. Raises `JsonPathError`."""
        return "".join(" ".join(map(as_text, results)) for results in self.find(data))


def relaxed(path: str) -> str:
    """Return the template of a field, given as `a.b`, `.a.b`, `{a.b}` or `{.a.b}`.

    Raises `JsonPathError`.
    """
    found = _RELAXED.fullmatch(path)
    if found is None:
        raise JsonPathError(f'"{path}": expected a field, such as .metadata.name')
    return f"{{.{found[1] or found[2]}}}"


def as_text(value: Any) -> str:
    """Return a value as a template prints it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def _blocks(actions: Iterator[_Steps], *, is_inside: bool) -> Iterator[_Steps | _Range]:
    for steps in actions:
        first = steps[0] if steps else _Node("")
        if first == _Node("identifier", "range"):
            yield _Range(steps[1:], tuple(_blocks(actions, is_inside=True)))
        elif first == _Node("identifier", "end"):
            if not is_inside:
                raise JsonPathError("not in range, nothing to end")
            return
        else:
            yield steps


def _execute(blocks: Sequence[_Steps | _Range], data: Any) -> Iterator[list[Any]]:
    for block in blocks:
        if isinstance(block, _Range):
            for each in _follow(block.over, [data]):
                yield from _execute(block.body, each)
        else:
            yield _follow(block, [data])


def _follow(steps: _Steps, values: list[Any]) -> list[Any]:
    for step in steps:
        values = _EVALUATE[step.kind](values, step.value)
    return values


def _field(values: list[Any], name: str) -> list[Any]:
    return [value[name] for value in values if isinstance(value, dict) and name in value]


def _array(values: list[Any], params: tuple[int | None, int | None, int | None, bool]) -> list[Any]:
    start, stop, step, is_index = params
    found: list[Any] = []
    for value in values:
        if value is None:
            continue
        if not isinstance(value, list):
            raise JsonPathError(f"{_kind_of(value)} is not array or slice")
        size = len(value)
        first = (start or 0) + (size if (start or 0) < 0 else 0)
        after = size if stop is None else stop + (size if stop < 0 else 0)
        last = first + 1 if is_index else after
        if first == last:
            continue
        if not 0 <= first < size:
            raise JsonPathError(f"array index out of bounds: index {first}, length {size}")
        if not 0 <= last <= size:
            raise JsonPathError(f"array index out of bounds: index {last - 1}, length {size}")
        if first > last:
            raise JsonPathError(f"starting index {first} is greater than ending index {last}")
        found += value[first : last : step or 1]
    return found


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | str) else []


def _wildcard(values: list[Any], _: Any) -> list[Any]:
    return [child for value in values for child in _children(value)]


def _recursive(values: list[Any], _: Any) -> list[Any]:
    found = []
    # Depth first, without recursion: the nesting of an object is not ours to limit.
    waiting = list(reversed(values))
    while waiting:
        value = waiting.pop()
        if children := _children(value):
            found.append(value)
            if not isinstance(value, str):
                waiting += reversed(children)
    return found


def _filter(values: list[Any], condition: tuple[_Steps, str, _Steps]) -> list[Any]:
    left, sign, right = condition
    found = []
    for value in values:
        if not isinstance(value, list):
            raise JsonPathError(f"{_kind_of(value)} is not array or slice and cannot be filtered")
        for each in value:
            lefts = _follow(left, [each])
            if not sign:
                found += [each] * bool(lefts)
                continue
            rights = _follow(right, [each])
            if len(lefts) > 1 or len(rights) > 1:
                raise JsonPathError("can only compare one element at a time")
            if lefts and rights and _is_true(lefts[0], sign, rights[0]):
                found.append(each)
    return found


def _is_true(left: Any, sign: str, right: Any) -> bool:
    def family(value: Any) -> type:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float if is_number else type(value)

    is_ordered = isinstance(left, str) or family(left) is float
    if family(left) is not family(right) or not (is_ordered or sign in ("==", "!=")):
        raise JsonPathError(
            f"incompatible types for comparison: {_kind_of(left)} {sign} {_kind_of(right)}"
        )
    return _COMPARE[sign](left, right)


def _union(values: list[Any], parts: tuple[_Steps, ...]) -> list[Any]:
    return [found for steps in parts for found in _follow(steps, values)]


def _constant(values: list[Any], value: Any) -> list[Any]:
    return [value for _ in values]


_EVALUATE: dict[str, Callable[[list[Any], Any], list[Any]]] = {
    "field": _field,
    "array": _array,
    "wildcard": _wildcard,
    "recursive": _recursive,
    "filter": _filter,
    "union": _union,
    "constant": _constant,
    "text": lambda _, text: [text],
}


def _kind_of(value: Any) -> str:
    names = {dict: "map", list: "list", str: "string", bool: "bool", type(None): "null"}
    return names.get(type(value), "number")


class _Parser:
    """Reads a template from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def actions(self) -> Iterator[_Steps]:
        """Yield the steps of each `{...}`, and the texts between them."""
        while self._at < len(self._text):
            brace = self._text.find("{", self._at)
            end = len(self._text) if brace < 0 else brace
            if end > self._at:
                yield (_Node("text", self._text[self._at : end]),)
            self._at = end + 1
            if brace >= 0:
                yield tuple(self._action())

    def _action(self) -> Iterator[_Node]:
        last = ""
        while True:
            character = self._peek()
            if self._starts("}"):
                return
            if self._starts("[?("):
                node = self._filter()
            elif self._starts(".."):
                if last == "recursive":
                    raise JsonPathError("invalid multiple recursive descent")
                yield _Node("recursive")
                last = "recursive"
                if not (self._peek().isalnum() or self._peek() == "_"):
                    continue
                node = self._field()
            elif character in ("", "\n", "\r"):
                raise JsonPathError(f'unclosed action: "{self._text}" has no closing }}')
            elif character in " \t@$":
                self._at += 1
                continue
            else:
                yield from self._step(character)
                last = ""
                continue
            yield node
            last = node.kind

    def _step(self, character: str) -> Iterator[_Node]:
        if character == "[":
            yield from self._array()
        elif character in "\"'":
            yield _Node("text", self._quoted(character))
        elif character == ".":
            self._at += 1
            yield self._field()
        elif character in "+-" or character.isdigit():
            yield _Node("constant", self._number())
        elif character.isalpha() or character == "_":
            yield self._identifier()
        else:
            raise JsonPathError(f"unrecognized character in action: {character!r}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _starts(self, prefix: str) -> bool:
        if not self._text.startswith(prefix, self._at):
            return False
        self._at += len(prefix)
        return True

    def _word(self) -> str:
        """Return the text until a terminator; a backslash keeps the character after it."""
        word = ""
        while self._at < len(self._text) and self._peek() not in _TERMINATORS:
            self._at += self._peek() == "\\"
            word += self._peek()
            self._at += 1
        return word

    def _field(self) -> _Node:
        name = self._word()
        # A dot alone is the object itself, as in `{.}`.
        if not name:
            return _Node("union", ((),))
        return _Node("wildcard") if name == "*" else _Node("field", name)

    def _identifier(self) -> _Node:
        word = self._word()
        if word in ("true", "false"):
            return _Node("constant", word == "true")
        if word not in ("range", "end"):
            raise JsonPathError(f"unrecognized identifier {word}: did you mean .{word}?")
        return _Node("identifier", word)

    def _number(self) -> int | float:
        found = _NUMBER.match(self._text, self._at)
        text = found[0] if found is not None else self._peek()
        self._at += len(text)
        try:
            return float(text) if "." in text else int(text)
        except ValueError:
            raise JsonPathError(f"cannot parse number {text}") from None

    def _quoted(self, quote: str) -> str:
        start = self._at + 1
        end = start
        while self._text[end : end + 1] not in (quote, "", "\n"):
            end += 1 + (self._text[end] == "\\")
        if self._text[end : end + 1] != quote:
            raise JsonPathError(f"unterminated quoted string: {self._text[self._at :]}")
        self._at = end + 1
        return _ESCAPE.sub(_unescaped, self._text[start:end])

    def _array(self) -> Iterator[_Node]:
        end = self._text.find("]", self._at)
        if end < 0:
            raise JsonPathError(f"unterminated array: {self._text[self._at :]}")
        text = self._text[self._at + 1 : end]
        self._at = end + 1
        parts = text.split(",")
        if len(parts) > 1:
            yield _Node("union", tuple(tuple(_subscript(part.strip())) for part in parts))
        else:
            yield from _subscript(text)

    def _filter(self) -> _Node:
        start, quote = self._at, ""
        while True:
            character = self._peek()
            if character in ("", "\n"):
                raise JsonPathError(f"unterminated filter: [?({self._text[start:]}")
            if quote:
                self._at += character == "\\"
                quote = "" if character == quote else quote
            elif character in "\"'":
                quote = character
            elif character == ")":
                break
            self._at += 1
        text = self._text[start : self._at]
        self._at += 1
        if not self._starts("]"):
            raise JsonPathError("unclosed array expect ]")
        return _Node("filter", _condition(text))


def _condition(text: str) -> tuple[_Steps, str, _Steps]:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        return _inside(text), "", ()
    if found[2] == "=" and found[3].startswith("~"):
        raise JsonPathError(
            "regular expressions are not supported, as in kubectl: use -o json | jq"
        )
    if found[2] not in _COMPARE:
        raise JsonPathError(f"unrecognized filter operator {found[2]}")
    return _inside(found[1]), found[2], _inside(found[3])


def _inside(text: str) -> _Steps:
    """Return the steps of a text inside of braces."""
    return next(_Parser(f"{{{text}}}").actions())


def _subscript(text: str) -> Iterator[_Node]:
    if text == "*":
        text = ":"
    if key := _KEY.fullmatch(text):
        yield from _inside(f".{key[1] if key[1] is not None else key[2]}")
        return
    found = _SLICE.fullmatch(text)
    numbers = [found[n] for n in (1, 2, 3)] if found is not None else []
    if found is None or numbers == ["", None, None] or "-" in numbers:
        raise JsonPathError(f"invalid array index {text}")
    start, stop, step = (int(number) if number else None for number in numbers)
    if step is not None and step <= 0:
        raise JsonPathError("step must be > 0")
    yield _Node("array", (start, stop, step, numbers[1] is None))


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        if number > 0x10FFFF:
            raise JsonPathError(f"unquote string: no such character \\{code}")
        return chr(number)
    if len(code) == 3:
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)
