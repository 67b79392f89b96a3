"""Finds the file and the line of each problem of a configuration.

Only a configuration that is refused is read again for this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kubelet_trio.config.errors import ConfigError, Located
from kubelet_trio.model import Wanted, find_positions

_PREFIX = "invalid configuration: "
_UNKNOWN = re.compile(r"unknown field: (\S+?)(?: \(did you mean (\S+)\?\))?")
_MARK = re.compile(r"(?: in \"<[a-z ]+>\")?,? line (\d+), column (\d+)")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:(?:\.[A-Za-z0-9]+)|(?:\[[0-9]+\]))*")

File = tuple[str, str, Any]  # path, text, decoded; in the order in which they are applied


def locate(problems: Sequence[str], files: Sequence[File]) -> ConfigError:
    """Return the error of these problems, each with its place where a file has one."""
    return ConfigError(problems, [_located(problem, files) for problem in problems])


def _located(problem: str, files: Sequence[File]) -> Located:
    for path, text, _ in files:
        if problem.startswith(f"{path}: "):
            return _of_file(problem.removeprefix(f"{path}: "), path, text)
    message = _as_of_manifests(problem)
    for name in _names(message):
        for path, text, raw in reversed(files):
            # Drop-ins win: the last file that has the field decides.
            field = _field(name, raw)
            if field:
                (at,) = find_positions(text, [Wanted(1, field, ": expected " in message)])
                if at is not None:
                    return Located(message, path, at.line, at.column)
    return Located(problem)  # of a flag


def _field(name: str, raw: Any) -> str:
    """Return the path of a name in a file: of a field, or of a key (a signal, a gate); else ""."""
    if not isinstance(raw, dict):
        return ""
    if re.split(r"[.\[]", name)[0] in raw:
        return name
    owners = (top for top, inner in raw.items() if isinstance(inner, dict) and name in inner)
    return next((f"{top}[{name}]" for top in owners), "")


def _of_file(message: str, path: str, text: str) -> Located:
    """Return the place of a problem that a file as a whole has."""
    # The last mark is where reading stopped; the first may be where the block began.
    marks = list(_MARK.finditer(message))
    if marks:
        return Located(_MARK.sub("", message), path, int(marks[-1][1]), int(marks[-1][2]))
    name = message.split(" ", 1)[0]
    if name in ("apiVersion", "kind"):
        (at,) = find_positions(text, [Wanted(1, name)])
        if at is not None:
            return Located(message, path, at.line, at.column)
    return Located(message, path)


def _as_of_manifests(problem: str) -> str:
    """Return a problem in the words of manifests: field first, then what is wrong."""
    unknown = _UNKNOWN.fullmatch(problem)
    if unknown is None:
        return problem.removeprefix(_PREFIX)
    hint = f'; did you mean "{unknown[2]}"?' if unknown[2] else ""
    return f"{unknown[1]}: unknown field{hint}"


def _names(message: str) -> Iterable[str]:
    # The field that a message begins with, else one that it has in its text.
    return (found[0] for found in _NAME.finditer(message))
