"""Blocking work by purpose: what hangs takes its own threads, and no end waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.model import (
    Purpose,
    busy_threads,
    end_threads,
    inline_offload,
    offload_for,
    thread_offload,
)
from kubelet_trio.model.threads import BOUNDS

READS = [p for p in Purpose if BOUNDS[p].only_reads]
LEFT = [p for p in Purpose if BOUNDS[p].is_left]
CHANGES = [p for p in Purpose if not BOUNDS[p].only_reads and p not in LEFT]


class Hung:
    """A call that hangs until the test lets it go."""

    def __init__(self) -> None:
        self.began = 0
        self.ended = 0
        self.begun = threading.Semaphore(0)
        self._go = threading.Event()

    def __call__(self) -> str:
        self.began += 1
        self.begun.release()
        self._go.wait(30)
        self.ended += 1
        return "done"

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def hung() -> Iterator[Hung]:
    call = Hung()
    with _letting_go(call):
        yield call


@contextmanager
def _letting_go(call: Hung) -> Iterator[None]:
    try:
        yield
    finally:
        call.let_go()


@asynccontextmanager
async def _filled(purpose: Purpose, hung: Hung) -> AsyncIterator[trio.Nursery]:
    """Fill every thread of a purpose with what hangs, and then some."""
    offload = thread_offload.of(purpose)
    async with trio.open_nursery() as nursery:
        with _letting_go(hung):
            for _ in range(BOUNDS[purpose].threads + 2):
                nursery.start_soon(offload, hung)
            for _ in range(BOUNDS[purpose].threads):
                await trio.to_thread.run_sync(hung.begun.acquire)
            yield nursery


def test_every_purpose_has_bounds() -> None:
    assert set(BOUNDS) == set(Purpose)
    # A call that changes something is never given up for its time.
    assert [p for p in CHANGES if BOUNDS[p].deadline != float("inf")] == []


@pytest.mark.parametrize("purpose", Purpose)
async def test_what_hangs_takes_no_threads_of_another_purpose(purpose: Purpose, hung: Hung) -> None:
    with trio.fail_after(10):
        async with _filled(purpose, hung):
            for other in set(Purpose) - {purpose}:
                with trio.fail_after(5):
                    assert await thread_offload.of(other)(os.path.exists, "/")
            assert hung.began == BOUNDS[purpose].threads


@pytest.mark.parametrize("purpose", READS + LEFT)
async def test_a_call_that_may_be_left_is_abandoned_when_its_caller_is_cancelled(
    purpose: Purpose, hung: Hung
) -> None:
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(BOUNDS[purpose].threads + 2):
                nursery.start_soon(thread_offload.of(purpose), hung)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert hung.ended == 0


@pytest.mark.parametrize("purpose", [p for p in READS if BOUNDS[p].deadline < float("inf")])
async def test_a_read_that_hangs_fails_in_time(
    purpose: Purpose, hung: Hung, mock_clock: MockClock
) -> None:
    told: list[OSError] = []

    async def read() -> None:
        try:
            await thread_offload.of(purpose)(hung)
        except OSError as exc:
            told.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        mock_clock.jump(BOUNDS[purpose].deadline - 1)
        await wait_all_tasks_blocked()
        assert not told
        mock_clock.jump(2)
    (error,) = told
    assert isinstance(error, TimeoutError)
    assert purpose.value in str(error)


@pytest.mark.parametrize("purpose", CHANGES)
async def test_what_changes_something_is_waited_for_and_its_result_comes_back(
    purpose: Purpose, hung: Hung
) -> None:
    results: list[str] = []

    async def write() -> None:
        results.append(await thread_offload.of(purpose)(hung))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
            assert not results
            hung.let_go()
    assert results == ["done"]


@pytest.mark.parametrize("was_cancelled_before", [True, False])
@pytest.mark.parametrize("purpose", Purpose)
def test_at_the_end_nobody_waits_for_a_thread(
    purpose: Purpose, was_cancelled_before: bool, hung: Hung
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(BOUNDS[purpose].threads + 2):
                nursery.start_soon(thread_offload.of(purpose), hung)
            await wait_all_tasks_blocked()
            if was_cancelled_before:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await wait_all_tasks_blocked()
            end_threads()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert hung.ended == 0
    assert [name for name in busy_threads() if name.startswith(f"{purpose.value}: ")]


async def test_exceptions_come_back() -> None:
    with pytest.raises(FileNotFoundError):
        await thread_offload(os.stat, "/nowhere/at/all")


async def test_a_file_opened_for_nobody_is_closed() -> None:
    go, closed = threading.Event(), threading.Event()

    class File:
        def close(self) -> None:
            closed.set()

    def slow_open() -> File:
        go.wait(30)
        return File()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread_offload.of(Purpose.LOGS), slow_open)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        go.set()
        assert await trio.to_thread.run_sync(closed.wait, 10)


async def test_an_offload_that_knows_no_purposes_serves_all() -> None:
    assert {offload_for(inline_offload, purpose) for purpose in Purpose} == {inline_offload}
