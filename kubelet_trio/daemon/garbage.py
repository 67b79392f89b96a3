"""Collect cyclic garbage when the daemon has nothing else to do.

A collection of the youngest objects takes a millisecond. A full one looks at every object that was
made since the start: with 500 pods it stops all tasks for 60 ms and more, and Python makes it in
the middle of a burst, whose many new objects it takes for a reason to. Nothing that lives in a
burst is garbage, so it can wait until the burst is over.

A collection of the middle generation looks at what ten of the youngest have left, in a burst some
18,000 objects: 10 to 20 ms. After each second one of the youngest, it looks at the same objects in
smaller portions.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import trio

from kubelet_trio.lean import drop_leftovers
from kubelet_trio.model import next_due

_NEVER = 1_000_000  # collections of the middle generation until Python makes a full one by itself
_PERIOD = 10.0  # s between looks
_QUIET = 1.0  # s without a collection of the youngest: fewer than 700 more objects
_MIDDLE = 1  # collections of the youngest to be exceeded before one of the middle; Python has 10
# Collections of the middle generation after which a full one is due, nearly as Python has it, and
# after which it is made at the next look, quiet or not: the survivors of some 2,000 objects each.
_DUE, _OVERDUE = 50, 500


@dataclass(frozen=True, slots=True)
class Collections:
    """How many collections there were of the youngest and of the middle generation."""

    youngest: int
    middle: int


def collections_so_far() -> Collections:
    """Return how many there were since the process began."""
    youngest, middle, *_ = gc.get_stats()
    return Collections(youngest["collections"], middle["collections"])


def spare_collector() -> None:
    """Exempt the objects that exist now, mostly code, from garbage collection."""
    # A full collection would scan them, and stop every task for 20 ms, each time.
    drop_leftovers()
    gc.collect()
    gc.freeze()


async def collect_when_quiet(
    so_far: Callable[[], Collections] = collections_so_far,
    collect: Callable[[], object] = gc.collect,
) -> None:
    """Make the full collections instead of Python, until cancelled."""
    youngest, middle, oldest = gc.get_threshold()
    gc.set_threshold(youngest, min(middle, _MIDDLE), _NEVER)
    try:
        last = so_far().middle
        while True:
            await trio.sleep_until(next_due(_PERIOD))
            before = so_far()
            made = before.middle - last
            if made < _DUE:
                continue
            await trio.sleep(_QUIET)
            if so_far().youngest == before.youngest or made >= _OVERDUE:
                collect()
                last = so_far().middle
    finally:
        gc.set_threshold(youngest, middle, oldest)
