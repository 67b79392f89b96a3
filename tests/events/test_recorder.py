"""Reporting never waits and never fails; what there is no room for is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
import trio
from structlog.testing import LogCapture

from kubelet_trio.events import EventRecorder, EventRing
from kubelet_trio.model import EventSink, pod_ref

WEB = pod_ref("default", "web", "u1")


class Clock:
    now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def told() -> Iterator[LogCapture]:
    capture, before = LogCapture(), structlog.get_config()
    structlog.configure(processors=[capture])
    yield capture
    structlog.configure(**before)


def messages(recorder: EventRecorder) -> list[str | None]:
    return [event.message for event in recorder.ring.events()]


async def test_what_is_emitted_is_folded_by_the_task() -> None:
    recorder = EventRecorder(EventRing("node1"), Clock())
    sink: EventSink = recorder
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        sink.emit(WEB, "Normal", "Started", "Container started")
        await recorder.ring.version.wait_value(1)
        nursery.cancel_scope.cancel()
    [event] = recorder.ring.events()
    assert (event.reason, event.message, event.count) == ("Started", "Container started", 1)


async def test_what_was_emitted_before_the_task_runs_is_not_lost() -> None:
    recorder = EventRecorder(EventRing("node1"), Clock())
    recorder.emit(WEB, "Normal", "Early", "early")
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        await recorder.ring.version.wait_value(1)
        nursery.cancel_scope.cancel()
    assert messages(recorder) == ["early"]


async def test_the_oldest_is_dropped_and_counted_when_nobody_folds() -> None:
    recorder = EventRecorder(EventRing("node1"), Clock(), waiting=2)
    for message in "abcd":
        recorder.emit(WEB, "Normal", "R", message)
    assert recorder.dropped == 2
    recorder.flush()
    assert messages(recorder) == ["c", "d"]


async def test_what_waits_when_the_task_ends_is_folded() -> None:
    recorder = EventRecorder(EventRing("node1"), Clock())
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        recorder.emit(WEB, "Normal", "R", "last words")
        nursery.cancel_scope.cancel()
    assert messages(recorder) == ["last words"]


async def test_an_event_is_logged_once_and_its_repeats_quietly(told: LogCapture) -> None:
    recorder = EventRecorder(EventRing("node1"), Clock())
    for _ in range(3):
        recorder.emit(WEB, "Warning", "BackOff", "again")
    recorder.emit(WEB, "Normal", "Started", "it runs")
    recorder.flush()
    levels = [entry["log_level"] for entry in told.entries]
    assert levels == ["warning", "debug", "debug", "info"]
    assert told.entries[0]["object"] == "Pod/default/web"
