"""Work whose failure is a value to whoever started it, and no exception.

A tree inside somebody else's program is such work: who embeds it decides what its end
means. One connection of a server is too: what it raises is a bug in whatever it served,
and the other connections are to go on. So is what one task does for each of many in turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_contained(
    run: Callable[..., Awaitable[None]], *args: Any, **kwargs: Any
) -> Exception | None:
    """Run `run(*args, **kwargs)` to its end and return what it failed with, None if nothing.

    `Cancelled`, alone or in a group, and other `BaseException`s travel on.
    """
    try:
        await run(*args, **kwargs)
    except BaseExceptionGroup as group:
        failures, rest = group.split(Exception)
        if rest is not None:
            raise rest from failures
        return failures
    except Exception as exc:  # noqa: BLE001  # a catch-all of supervision: the caller decides
        return exc
    return None


def call_contained(call: Callable[..., T], *args: Any) -> T | Exception:
    """Call `call(*args)` and return what it returns, or the exception it raised."""
    try:
        return call(*args)
    except Exception as exc:  # noqa: BLE001  # a catch-all of supervision: the caller decides
        return exc
