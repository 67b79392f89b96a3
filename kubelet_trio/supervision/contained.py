"""Run work and return its failure as a value, for callers that must outlive it.

These are: the embedded tree (the program decides what its end means), one connection of a server
(the other connections must go on), and one of many items that a task handles in turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_contained(
    run: Callable[..., Awaitable[None]], *args: Any, **kwargs: Any
) -> Exception | None:
    """Run `run(*args, **kwargs)` to its end; return its failure, None if it returned.

    `Cancelled`, alone or in a group, and other `BaseException`s propagate.
    """
    try:
        await run(*args, **kwargs)
    except BaseExceptionGroup as group:
        failures, rest = group.split(Exception)
        # As in `ChildLife`: Cancelled must reach its scope.
        if rest is not None:
            raise rest from failures
        return failures
    except Exception as exc:  # noqa: BLE001  # a catch-all of supervision: the caller decides
        return exc
    return None


def call_contained(call: Callable[..., T], *args: Any) -> T | Exception:
    """Call `call(*args)`; return its result, or the exception that it raised."""
    try:
        return call(*args)
    except Exception as exc:  # noqa: BLE001  # a catch-all of supervision: the caller decides
        return exc
