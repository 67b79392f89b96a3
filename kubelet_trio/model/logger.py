"""The loggers of the package: structlog's, with manners where nobody has set structlog up."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_Quiet = structlog.make_filtering_bound_logger(logging.WARNING)


def get_logger() -> Any:
    """Return a logger, for a module to keep.

    It logs as `structlog.configure` says. In a program that has not called that, structlog would
    print everything on stdout, which is the program's own, and, where rich is installed, tracebacks
    with all local variables, secrets among them: there it writes warnings and errors to stderr.
    """
    return _Logger()


class _Logger:
    """Chooses at each call: a program may set structlog up after it has imported this package."""

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
