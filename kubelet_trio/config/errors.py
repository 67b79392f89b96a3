"""Errors of a configuration.

ConfigError         all problems of a command line and its files; the agent does not start
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Located:
    """One problem and its place; `line` is 0 where it has none, `file` empty for a flag."""

    message: str
    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.file:
            return self.message
        position = f":{self.line}:{self.column}" if self.line else ""
        return f"{self.file}{position}: {self.message}"


class ConfigError(Exception):
    """A command line or configuration is invalid; `problems` has a line for each reason.

    `located` has the same problems with file, line and column.
    """

    def __init__(self, problems: Iterable[str], located: Iterable[Located] = ()) -> None:
        self.problems = tuple(problems)
        self.located = tuple(located) or tuple(map(Located, self.problems))
        super().__init__("\n".join(map(str, self.located)))
