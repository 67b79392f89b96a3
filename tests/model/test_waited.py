"""Nobody who waits is forgotten, and nothing is kept while nobody does."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.model import LateEvent, Waited


async def test_all_who_wait_for_an_event_go_on(nursery: trio.Nursery) -> None:
    event, done = LateEvent(), 0

    async def wait() -> None:
        nonlocal done
        await event.wait()
        done += 1

    with trio.move_on_after(0):
        await event.wait()  # one that was cancelled takes nothing away from the others
    nursery.start_soon(wait)
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    assert (event.is_set(), done) == (False, 0)
    event.set()
    event.set()
    await wait_all_tasks_blocked()
    assert (event.is_set(), done) == (True, 2)
    await wait()
    assert done == 3


async def test_a_value_is_waited_for_until_it_is_wanted(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    value = Waited(0)
    found: list[tuple[int, int]] = []

    async def wait(least: int) -> None:
        found.append((least, await value.wait_value(lambda v: v >= least)))

    for least in (2, 3, 0):
        nursery.start_soon(wait, least)
    await wait_all_tasks_blocked()
    assert found == [(0, 0)]
    value.value = 1
    await wait_all_tasks_blocked()
    assert found == [(0, 0)]
    value.value = 2
    await wait_all_tasks_blocked()
    assert found == [(0, 0), (2, 2)]
    value.value = 5
    await wait_all_tasks_blocked()
    assert (found[2:], value.value) == ([(3, 5)], 5)


async def test_one_who_left_does_not_disturb_who_waits_on(nursery: trio.Nursery) -> None:
    value, reached = Waited("a"), trio.Event()

    async def wait() -> None:
        await value.wait_value("c".__eq__)
        reached.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    with trio.move_on_after(0):
        await value.wait_value("b".__eq__)
    value.value = "c"
    await wait_all_tasks_blocked()
    assert reached.is_set()
