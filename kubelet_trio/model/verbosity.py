"""How much is logged: klog's levels, set at the start and by whoever may while the agent runs.

Loggers are kept once they were used. So one class is what all of them are of, and a new level
swaps its methods: what is not logged costs a call of a function that does nothing, as before.
"""

from __future__ import annotations

import logging
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


def set_verbosity(verbosity: int) -> None:
    """Log as much as `-v` would make us, from now on."""
    for name, value in vars(_logger_class(verbosity)).items():
        if not name.startswith("__"):
            setattr(BoundLogger, name, value)
    level = logging.DEBUG if verbosity >= LIBRARIES else logging.WARNING
    logging.getLogger().setLevel(level)
    for name in _TELLTALES:
        logging.getLogger(name).setLevel(logging.WARNING)
