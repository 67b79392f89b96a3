"""A ring is never lost, and many are one."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.model import Bell


async def test_a_ring_before_the_wait_is_not_lost(autojump_clock: MockClock) -> None:
    bell = Bell()
    bell.ring()
    with trio.fail_after(1):
        await bell.wait_ring()


async def test_many_rings_are_one(autojump_clock: MockClock) -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    await bell.wait_ring()
    with trio.move_on_after(1) as second:
        await bell.wait_ring()
    assert second.cancelled_caught


async def test_clear_forgets_the_rings_before_it(autojump_clock: MockClock) -> None:
    bell = Bell()
    bell.ring()
    bell.clear()
    with trio.move_on_after(1) as waiting:
        await bell.wait_ring()
    assert waiting.cancelled_caught


async def test_a_waiter_hears_a_ring_after_somebody_cleared(nursery: trio.Nursery) -> None:
    bell, heard = Bell(), trio.Event()

    async def wait() -> None:
        await bell.wait_ring()
        heard.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    bell.clear()
    bell.ring()
    await wait_all_tasks_blocked()
    assert heard.is_set()


async def test_a_waiter_hears_a_ring_after_another_one_was_cancelled(
    nursery: trio.Nursery,
) -> None:
    bell, heard, first = Bell(), trio.Event(), trio.CancelScope()

    async def leave() -> None:
        with first:
            await bell.wait_ring()

    async def wait() -> None:
        await bell.wait_ring()
        heard.set()

    nursery.start_soon(leave)
    await wait_all_tasks_blocked()
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    first.cancel()
    await wait_all_tasks_blocked()
    bell.ring()
    await wait_all_tasks_blocked()
    assert heard.is_set()
