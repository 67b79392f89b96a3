"""The agent's end as calls in flight see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from kubelet_trio.supervision import GaveUpError


async def run_and_hurry(run: Callable[[], Awaitable[None]], hurry: Callable[[], None]) -> None:
    """Run the tree; on a cancellation from outside call `hurry` at once. Raises `GaveUpError`.

    The tree's parts are spared the cancellation until it is their turn to end. A worker that
    waits for its call is not to use up its turn.
    """
    gave_up: GaveUpError | None = None
    async with trio.open_nursery() as beside:
        beside.start_soon(_feel_cancellation, hurry, name="kubelet (cancellation)")
        try:
            await run()
        except GaveUpError as exc:  # through the nursery it would come out a group
            gave_up = exc
        beside.cancel_scope.cancel()
    if gave_up is not None:
        raise gave_up


async def _feel_cancellation(hurry: Callable[[], None]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        hurry()
