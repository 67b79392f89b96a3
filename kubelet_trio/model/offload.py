"""The seam for blocking work (disk, mounts): a thread in the daemon, inline in virtual time.

Trio's autojump clock does not see threads, so a simulation hands every room
`inline_offload` instead of `thread_offload`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")


class Offload(Protocol):
    """Runs a blocking function without stalling the tree; its exceptions come back."""

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


async def thread_offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `fn` in a worker thread, to its end even if the caller is cancelled."""
    return await trio.to_thread.run_sync(lambda: fn(*args, **kwargs))


async def inline_offload(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `fn` here and now: for virtual time, where a thread would not be seen."""
    await trio.lowlevel.checkpoint()
    return fn(*args, **kwargs)
