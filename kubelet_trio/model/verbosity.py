"""How much is logged: klog's levels, set at the start and by whoever may while the agent runs.

Loggers are kept once they were used. So one class is what all of them are of, and a new level
swaps its methods: what is not logged costs a call of a function that does nothing, as before.
Only where single files have a level of their own (`vmodule`) that function looks who calls it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import structlog

DETAILS, LIBRARIES = 4, 6  # from which verbosity on these are logged
# They log what travels: headers with tokens in them, and URLs with passwords.
_TELLTALES = ("hpack", "httpx2")


def _logger_class(verbosity: int) -> type[Any]:
    level = logging.DEBUG if verbosity >= DETAILS else logging.INFO
    return structlog.make_filtering_bound_logger(level)


class BoundLogger(_logger_class(0)):  # type: ignore[misc]  # made at run time
    """What `structlog.configure` is given as its wrapper class."""


class _Files:
    """The levels that files have of their own."""

    def __init__(self) -> None:
        self.patterns: tuple[tuple[str, int], ...] = ()
        self._known: dict[str, int] = {}

    def set(self, patterns: Sequence[tuple[str, int]]) -> None:
        self.patterns, self._known = tuple(patterns), {}

    def level(self, path: str) -> int:
        """Return the level of a file; 0 if it has none. The first pattern that matches wins."""
        if path not in self._known:
            name = PurePath(path).stem
            levels = (n for pattern, n in self.patterns if _matches(name, pattern))
            self._known[path] = next(levels, 0)
        return self._known[path]


_files = _Files()


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[^", "[!"))  # Go's way to say "none of these"


def set_verbosity(verbosity: int) -> None:
    """Log as much as `-v` would make us, from now on."""
    for name, value in vars(_logger_class(verbosity)).items():
        if not name.startswith("__"):
            setattr(BoundLogger, name, value)
    if _files.patterns and verbosity < DETAILS:
        BoundLogger.debug = _debug_by_file
    level = logging.DEBUG if verbosity >= LIBRARIES else logging.WARNING
    logging.getLogger().setLevel(level)
    for name in _TELLTALES:
        logging.getLogger(name).setLevel(logging.WARNING)


def set_vmodule(patterns: Sequence[tuple[str, int]]) -> None:
    """Log more of single files, as klog's `-vmodule` does, from the next `set_verbosity` on.

    Args:
        patterns: shell patterns of files' names without directory and `.py`, with their levels.
    """
    _files.set(patterns)


def _debug_by_file(self: Any, event: str, *args: Any, **values: Any) -> Any:
    if _files.level(sys._getframe(1).f_code.co_filename) >= DETAILS:  # as logging
        return _detailed(self, event, *args, **values)
    return None


_detailed = vars(_logger_class(DETAILS))["debug"]
