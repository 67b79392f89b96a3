"""Finds the lines of fields in a text of YAML or JSON, for the errors that name them.

Used only when a document is wrong: it reads the text once more, by events, and follows only the
paths that errors name. Good documents cost nothing, and hostile ones no more than their size.

A path is written as errors write it: `spec.containers[0].name`, `metadata.labels[app]`. A field's
name may contain dots itself, so all ways to read a path are followed, and the longest one counts.
A field that is missing, or that an alias or a merge key brought, has the position of the nearest
field around it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_LONGEST = 2000  # characters of a path that is followed
_MOST_NAMES = 64  # ways to read the next name of a path
_WIDTH = 100  # characters of a line that an excerpt shows

# Line breaks as YAML 1.1 and libyaml count them. JSON has fewer, in whitespace.
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_JSON = re.compile(
    r'[ \t\r\n]*(?:([{}\[\],:])|("(?:[^"\\\x00-\x1f]|\\.)*")|(-?[0-9][-+.0-9eE]*|true|false|null))',
    re.ASCII,
)


class Position(NamedTuple):
    """A place in a text; both count from 1, the column in characters."""

    line: int
    column: int


class Wanted(NamedTuple):
    """A field whose position is wanted: in the nth document (1 is the first), or its value's."""

    document: int
    path: str
    of_value: bool = False


def find_positions(text: str, wanted: Sequence[Wanted]) -> list[Position | None]:
    """Return the position of each field; None if the text ends or breaks before its document."""
    if text.lstrip().startswith("{"):
        try:
            return _Search(wanted).run(_json_tokens(text))
        except _NotJsonError:
            pass  # YAML may begin so, too
    return _Search(wanted).run(_yaml_tokens(text))


def excerpt(text: str, at: Position) -> str:
    """Return the line of a position and a caret below the column, cut to a readable width."""
    start = 0
    for number, found in enumerate(_BREAK.finditer(text), start=1):
        if number == at.line:
            line = text[start : found.start()]
            break
        start = found.end()
    else:
        line = text[start:]
    column = min(at.column - 1, len(line))
    # From the start of the line if the caret fits, else with the caret in the middle.
    cut = 0 if column < _WIDTH else column - _WIDTH // 2
    shown = line[cut : cut + _WIDTH]
    dots = "..." if cut else ""
    # A tab before the caret stays a tab, so that both lines have the same width.
    before = "".join("\t" if char == "\t" else " " for char in shown[: column - cut])
    shown = "".join(char if char == "\t" or char.isprintable() else "?" for char in shown)
    return f"{dots}{shown}\n{' ' * len(dots)}{before}^"


class _NotJsonError(Exception):
    pass


class _Token(NamedTuple):
    """One step through a text. `kind`: document, map, list, end, or value (scalar or alias)."""

    kind: str
    text: str
    line: int
    column: int


def _yaml_tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens until the end or the first syntax error."""
    import yaml  # deferred: not every start reads YAML

    kinds = {
        "DocumentStartEvent": "document",
        "MappingStartEvent": "map",
        "SequenceStartEvent": "list",
        "MappingEndEvent": "end",
        "SequenceEndEvent": "end",
        "ScalarEvent": "value",
        "AliasEvent": "value",
    }
    loader = yaml.CSafeLoader(text)
    try:
        while True:
            event: Any = loader.get_event()
            if isinstance(event, yaml.StreamEndEvent):
                return
            kind = kinds.get(type(event).__name__)
            if kind is not None:
                mark: Any = event.start_mark
                value = getattr(event, "value", "") if kind == "value" else ""
                yield _Token(kind, value, mark.line + 1, mark.column + 1)
    except yaml.YAMLError:
        return  # the caller knows it: what comes before has its position
    finally:
        loader.dispose()


def _json_tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of a stream of JSON values. Raises _NotJsonError at anything else."""
    line, start, depth, position = 1, 0, 0, 0
    end = len(text.rstrip())
    kinds = {"{": "map", "[": "list", "}": "end", "]": "end"}
    while position < end:
        found = _JSON.match(text, position)
        if found is None:
            raise _NotJsonError
        mark, string, word = found.groups()
        at = found.start(found.lastindex or 0)
        for each in _BREAK.finditer(text, position, at):
            line, start = line + 1, each.end()
        position = found.end()
        if depth == 0:
            yield _Token("document", "", line, at - start + 1)
        if mark in (",", ":"):
            continue
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark or "", 0)
        yield _Token(kinds.get(mark or "", "value"), _plain(string, word), line, at - start + 1)


def _plain(string: str | None, word: str | None) -> str:
    try:
        return str(json.loads(string)) if string else word or ""
    except ValueError as exc:
        raise _NotJsonError from exc


class _Frame:
    """An open map or list, with what is wanted inside: the names, each with the rests of paths."""

    def __init__(self, *, is_map: bool, rests: list[tuple[int, str]]) -> None:
        self.is_map = is_map
        self.key: _Token | None = None
        self.index = 0
        self.inside: dict[str, list[tuple[int, str]]] = {}
        for number, rest in rests:
            for name, left in _names(rest, is_map):
                self.inside.setdefault(name, []).append((number, left))


def _names(rest: str, is_map: bool) -> Iterator[tuple[str, str]]:
    """Yield each name or index that a path may begin with, and what follows it."""
    if rest.startswith("["):
        ends = [found.start() for found in re.finditer(r"\](?=\Z|[.\[])", rest)]
        for end in ends[:_MOST_NAMES]:
            yield rest[1:end], rest[end + 1 :]
    elif is_map:
        rest = rest.removeprefix(".")
        ends = [found.start() for found in re.finditer(r"(?!^)[.\[]|\Z", rest)]
        # The whole of it, too, however many dots it has.
        for end in {*ends[:_MOST_NAMES], len(rest)}:
            yield rest[:end], rest[end:]


class _Search:
    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = wanted
        self._found: list[Position | None] = [None] * len(wanted)
        self._left = [len(each.path) + 1 for each in wanted]  # characters not found yet
        self._frames: list[_Frame] = []
        self._skipped = 0  # open maps and lists in which nothing is wanted

    def run(self, tokens: Iterator[_Token]) -> list[Position | None]:
        document, rests = 0, list[tuple[int, str]]()
        last = max((each.document for each in self._wanted), default=0)
        for token in tokens:
            if token.kind == "document":
                document += 1
                if document > last:
                    break
                rests = [
                    (number, each.path if len(each.path) <= _LONGEST else "")
                    for number, each in enumerate(self._wanted)
                    if each.document == document
                ]
            elif self._skipped or (not self._frames and not rests):
                self._skip(token)
            elif token.kind == "end":
                self._frames.pop()
                rests = []  # of the document: its root has been seen
            elif not self._frames:
                self._enter(token, token, rests)
            else:
                self._step(token, self._frames[-1])
        return self._found

    def _skip(self, token: _Token) -> None:
        if token.kind in ("map", "list"):
            self._skipped += 1
        elif token.kind == "end":
            self._skipped -= 1

    def _step(self, token: _Token, frame: _Frame) -> None:
        if not frame.is_map:
            key, name = token, str(frame.index)
            frame.index += 1
        elif frame.key is None:
            if token.kind == "value":
                frame.key = token
            else:
                self._skip(token)  # a list as a key: refused elsewhere
            return
        else:
            key, name, frame.key = frame.key, frame.key.text, None
        self._enter(key, token, frame.inside.get(name, []))

    def _enter(self, key: _Token, value: _Token, rests: list[tuple[int, str]]) -> None:
        """Note the position of a field that is wanted, and go into it if it has fields."""
        for number, rest in rests:
            if len(rest) < self._left[number]:
                self._left[number] = len(rest)
                # A value that begins on a later line is better shown by its name.
                is_value = not rest and self._wanted[number].of_value and value.line == key.line
                place = value if is_value else key
                self._found[number] = Position(place.line, place.column)
        deeper = [each for each in rests if each[1]]
        if value.kind == "value":
            return
        if deeper:
            self._frames.append(_Frame(is_map=value.kind == "map", rests=deeper))
        else:
            self._skipped += 1
