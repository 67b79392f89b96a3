from __future__ import annotations

from collections.abc import Callable

import trio
from trio.testing import wait_all_tasks_blocked

from kubelet_trio.model import Latest


async def call(put: Callable[[int], None], value: int) -> None:
    put(value)


async def test_a_slow_reader_sees_only_the_newest_value() -> None:
    box: Latest[int] = Latest()
    box.put(1)
    box.put(2)
    assert await box.wait_value() == 2


async def test_a_reader_waits_for_the_first_value() -> None:
    box: Latest[int] = Latest()
    read: list[int] = []

    async def reader() -> None:
        read.append(await box.wait_value())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader)
        await wait_all_tasks_blocked()
        assert read == []
        box.put(7)
    assert read == [7]


async def test_a_value_is_read_once(autojump_clock: trio.testing.MockClock) -> None:
    box: Latest[int] = Latest()
    box.put(1)
    await box.wait_value()
    with trio.move_on_after(1) as wait:
        await box.wait_value()
    assert wait.cancelled_caught


async def test_a_writer_may_wait_until_its_value_has_been_taken() -> None:
    box: Latest[int] = Latest()
    await box.wait_taken()  # nothing is left in it
    taken: list[int] = []

    async def writer() -> None:
        await box.wait_taken()
        taken.append(1)

    async with trio.open_nursery() as nursery:
        box.put(1)
        nursery.start_soon(writer)
        await wait_all_tasks_blocked()
        box.put(2)
        await wait_all_tasks_blocked()
        assert taken == []
        assert await box.wait_value() == 2
    assert taken == [1]


async def test_a_value_that_comes_while_another_one_is_taken_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for _ in range(20):  # Trio runs the tasks of a turn in any order
        box: Latest[int] = Latest()
        box.put(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.wait_value)
            nursery.start_soon(call, box.put, 2)
        with trio.move_on_after(1) as taken:
            await box.wait_taken()
        with trio.move_on_after(1) as there:
            await box.wait_there()
        assert taken.cancelled_caught is not there.cancelled_caught
        with trio.move_on_after(1):
            await box.wait_value()
        await box.wait_taken()


async def test_a_value_that_a_reader_waits_for_is_taken_at_once() -> None:
    box: Latest[int] = Latest()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.wait_value)
        await wait_all_tasks_blocked()
        box.put(1)
        with trio.fail_after(1):
            await box.wait_taken()


async def test_a_reader_may_wait_for_a_value_without_taking_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    box: Latest[int] = Latest()
    with trio.move_on_after(1) as wait:
        await box.wait_there()
    assert wait.cancelled_caught
    for value in (1, 2):
        box.put(value)
        await box.wait_there()
        await box.wait_there()
        assert await box.wait_value() == value
    with trio.move_on_after(1) as wait:
        await box.wait_there()
    assert wait.cancelled_caught
