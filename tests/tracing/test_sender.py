"""How spans leave: in batches, without holding anything up, dropped and counted if need be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.supervision import Supervisor
from kubelet_trio.tracing import span
from kubelet_trio.tracing.queue import BATCH, CAPACITY, DELAY
from kubelet_trio.tracing.sender import FLUSH_LIMIT
from tests.tracing.traces import Traced, traced

DROPPED = "kubelet_trio_spans_dropped_total"
EXPORTED = "kubelet_trio_spans_exported_total"


@asynccontextmanager
async def running(told: Traced) -> AsyncIterator[Supervisor]:
    """Run the child in a tree that is stopped at the end."""
    tree = Supervisor("kubelet", [told.tracing.as_spec()])
    async with trio.open_nursery() as nursery:
        await nursery.start(tree.run)
        with told.tracing.active():
            yield tree
        tree.stop()


def make(count: int, name: str = "a") -> None:
    for _ in range(count):
        with span(name):
            pass


async def test_a_span_waits_for_others_for_a_while(autojump_clock: MockClock) -> None:
    told = traced()
    async with running(told):
        make(1)
        await trio.sleep(DELAY - 0.1)
        assert told.receiver.spans == []
        make(2)
        await trio.sleep(0.2)
        assert len(told.receiver.spans) == 3
        assert told.receiver.requests == 1
        assert told.counted(EXPORTED) == {(): 3}


async def test_a_full_batch_leaves_at_once(autojump_clock: MockClock) -> None:
    told = traced()
    async with running(told):
        make(BATCH)
        await trio.sleep(0.1)
        assert len(told.receiver.spans) == BATCH


async def test_the_loop_is_given_back_between_requests(autojump_clock: MockClock) -> None:
    told = traced()
    async with running(told):
        make(BATCH)
        await trio.sleep(0.1)
        assert told.receiver.requests == BATCH / 32  # encoding 32 spans takes about 10 ms


async def test_a_receiver_that_is_away_holds_nothing_up_and_gets_the_oldest_later(
    autojump_clock: MockClock,
) -> None:
    told = traced()
    told.receiver.away = "UNAVAILABLE: connection refused"
    with capture_logs() as logs:
        async with running(told):
            make(CAPACITY + 7)
            await trio.sleep(30)
            assert told.counted(DROPPED) == {("queue_full",): 7}
            told.receiver.away = ""
            await trio.sleep(31)
            assert len(told.receiver.spans) == CAPACITY
    assert [log["event"] for log in logs if log["event"].startswith("tracing.")] == [
        "tracing.export_failed",
        "tracing.resumed",
    ]


async def test_a_receiver_that_stays_away_loses_the_oldest_spans_in_time(
    autojump_clock: MockClock,
) -> None:
    told = traced()
    told.receiver.away = "UNAVAILABLE"
    async with running(told):
        make(40)
        await trio.sleep(55)
        assert told.counted(DROPPED) == {}
        assert 3 < told.receiver.requests < 10  # with a growing delay
        await trio.sleep(60)
        assert told.counted(DROPPED) == {("failed",): 40}


async def test_what_the_receiver_refuses_is_counted(autojump_clock: MockClock) -> None:
    told = traced()
    told.receiver.refuses = frozenset({"b"})
    async with running(told):
        make(3)
        make(2, "b")
        await trio.sleep(DELAY + 1)
        assert told.counted(EXPORTED) == {(): 3}
        assert told.counted(DROPPED) == {("refused",): 2}


async def test_the_end_of_the_agent_sends_what_is_left(autojump_clock: MockClock) -> None:
    told = traced()
    async with running(told):
        make(100)
    assert len(told.receiver.spans) == 100
    assert told.counted(DROPPED) == {}


@pytest.mark.parametrize(
    ("away", "latency", "seconds"), [("UNAVAILABLE", 0.0, 0.0), ("", 1e6, FLUSH_LIMIT)]
)
async def test_the_end_of_the_agent_waits_for_no_receiver(
    away: str, latency: float, seconds: float, autojump_clock: MockClock
) -> None:
    told = traced()
    told.receiver.away, told.receiver.latency = away, latency
    async with running(told):
        make(100)
        ended_at = trio.current_time()
    assert trio.current_time() - ended_at == pytest.approx(seconds, abs=0.1)
    assert told.counted(DROPPED) == {("agent_ended",): 100}


async def test_a_request_that_the_end_interrupts_is_sent_again(autojump_clock: MockClock) -> None:
    told = traced()
    told.receiver.latency = 2.0
    async with running(told):
        make(10)
        await trio.sleep(DELAY + 1)  # in the middle of the request
    assert len(told.receiver.spans) == 10


async def test_a_cancelled_agent_ends_at_once(autojump_clock: MockClock) -> None:
    told = traced()
    told.receiver.latency = 1e6
    async with trio.open_nursery() as nursery:
        await nursery.start(told.tracing.run)
        with told.tracing.active():
            make(10)
        await trio.sleep(DELAY + 1)
        nursery.cancel_scope.cancel()
    assert trio.current_time() == pytest.approx(DELAY + 1, abs=0.1)
