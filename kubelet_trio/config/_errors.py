"""What can be wrong with a configuration.

ConfigError         said to the user, all problems at once; the agent does not start
"""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(Exception):
    """A command line or configuration that this agent does not start with."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))
