"""When the daemon collects garbage, by what the interpreter has collected meanwhile."""

from __future__ import annotations

import gc
from dataclasses import replace

import trio
import trio.testing

from kubelet_trio.daemon.garbage import Collections, collect_when_quiet


class Interpreter:
    """Counts collections as the interpreter does; `busy` ones a second."""

    def __init__(self) -> None:
        self.found = Collections(0, 0)
        self.busy = 0
        self.full: list[float] = []

    def so_far(self) -> Collections:
        return replace(self.found, youngest=self.found.youngest + int(self.busy * self._now()))

    def made(self, middle: int) -> None:
        self.found = replace(self.found, middle=self.found.middle + middle)

    def collect(self) -> None:
        self.full.append(round(self._now()))

    def _now(self) -> float:
        return trio.current_time() - self.began

    async def run(self, nursery: trio.Nursery) -> None:
        self.began = trio.current_time()
        nursery.start_soon(collect_when_quiet, self.so_far, self.collect)
        await trio.testing.wait_all_tasks_blocked()


async def test_it_waits_for_a_quiet_second(autojump_clock: trio.testing.MockClock) -> None:
    python = Interpreter()
    before = gc.get_threshold()
    async with trio.open_nursery() as nursery:
        await python.run(nursery)
        assert gc.get_threshold()[2] > 100_000  # Python makes none by itself
        assert gc.get_threshold()[1] < before[1]  # and smaller ones of the middle generation
        await trio.sleep(100)
        assert not python.full  # there is nothing to collect
        python.made(60)
        python.busy = 5
        await trio.sleep(100)
        assert not python.full  # it is not quiet
        python.busy = 0
        await trio.sleep(100)
        assert len(python.full) == 1
        nursery.cancel_scope.cancel()
    assert gc.get_threshold() == before


async def test_it_does_not_wait_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    python = Interpreter()
    python.busy = 5
    async with trio.open_nursery() as nursery:
        await python.run(nursery)
        python.made(499)
        await trio.sleep(100)
        assert not python.full
        python.made(1)
        await trio.sleep(15)
        assert len(python.full) == 1
        nursery.cancel_scope.cancel()
