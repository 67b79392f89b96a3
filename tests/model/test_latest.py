from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from kubelet_trio.model import Latest


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
