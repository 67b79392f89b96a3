"""Loggers of the package, and the verbosity of the log, which may change at run time.

structlog caches a logger at its first use. All loggers are therefore of one class, and a new
verbosity replaces the class's methods: a line that is not logged costs one empty call. Only with
a `vmodule` that call looks at its caller.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import structlog

_Quiet = structlog.make_filtering_bound_logger(logging.WARNING)


def get_logger() -> Any:
    """Return a logger for a module.

    It logs as configured by `structlog.configure`. If the program has not called that, it writes
    warnings and errors to stderr.
    """
    # structlog's own default prints everything to stdout, and with rich installed tracebacks
    # with all local variables, including secrets.
    return _Logger()


class _Logger:
    """Chooses at each call: a program may configure structlog after importing this package."""

    def __init__(self) -> None:
        self._configured = structlog.get_logger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._configured if structlog.is_configured() else _unconfigured(), name)


def _unconfigured() -> Any:
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=_Quiet,
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(
                key_order=["timestamp", "level", "event"], drop_missing=True
            ),
        ],
    )


_DETAILS, _LIBRARIES = 4, 6  # the verbosity from which debug lines, and libraries, are logged
# Their debug lines contain headers with tokens, and URLs with passwords.
_LEAKING = ("hpack", "httpx2")


def _logger_class(verbosity: int) -> type[Any]:
    level = logging.DEBUG if verbosity >= _DETAILS else logging.INFO
    return structlog.make_filtering_bound_logger(level)


class BoundLogger(_logger_class(0)):  # type: ignore[misc]  # made at run time
    """The wrapper class for `structlog.configure`."""


class _FileLevels:
    """The levels of single files (`vmodule`)."""

    def __init__(self) -> None:
        self.patterns: tuple[tuple[str, int], ...] = ()
        self._known: dict[str, int] = {}

    def set(self, patterns: Sequence[tuple[str, int]]) -> None:
        self.patterns, self._known = tuple(patterns), {}

    def level(self, path: str) -> int:
        """Return the level of a file; 0 if it has none. The first matching pattern wins."""
        if path not in self._known:
            name = PurePath(path).stem
            levels = (n for pattern, n in self.patterns if _matches(name, pattern))
            self._known[path] = next(levels, 0)
        return self._known[path]


_files = _FileLevels()


def _matches(name: str, pattern: str) -> bool:
    # Go negates a character class by ^, fnmatch by !.
    return fnmatchcase(name, pattern.replace("[^", "[!"))


def set_verbosity(verbosity: int) -> None:
    """Set the verbosity, with the meaning of `-v`."""
    # structlog's filter is a class per level. Loggers are cached, so the class is changed instead.
    for name, value in vars(_logger_class(verbosity)).items():
        if not name.startswith("__"):
            setattr(BoundLogger, name, value)
    if _files.patterns and verbosity < _DETAILS:
        BoundLogger.debug = _debug_by_file
    level = logging.DEBUG if verbosity >= _LIBRARIES else logging.WARNING
    logging.getLogger().setLevel(level)
    for name in _LEAKING:
        logging.getLogger(name).setLevel(logging.WARNING)


def set_vmodule(patterns: Sequence[tuple[str, int]]) -> None:
    """Set the verbosity of single files, like klog's `-vmodule`; `set_verbosity` applies it.

    Args:
        patterns: shell patterns of file names without directory and `.py`, with their levels.
    """
    _files.set(patterns)


def _debug_by_file(self: Any, event: str, *args: Any, **values: Any) -> Any:
    if (
        _files.level(sys._getframe(1).f_code.co_filename) >= _DETAILS
    ):  # the stack is read as by `logging`
        return _detailed(self, event, *args, **values)
    return None


_detailed = vars(_logger_class(_DETAILS))["debug"]
