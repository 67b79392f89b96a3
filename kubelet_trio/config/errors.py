"""Errors of a configuration.

ConfigError         all problems of a command line and its files; the agent does not start
"""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(Exception):
    """A command line or configuration is invalid; `problems` has a line for each reason."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
