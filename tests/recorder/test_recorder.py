"""The recorder on its own: what it holds in memory, and how it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import Purpose, SystemClock, inline_offload, thread_offload
from kubelet_trio.recorder import Entry, Kind, Recorder, Recording, read_body, read_entries
from kubelet_trio.recorder import recorder as module
from kubelet_trio.recorder.ring import segment_contents
from kubelet_trio.testing import TrioClock

LIMIT = 1 << 20


def make(tmp_path: Path, limit: int = LIMIT) -> Recorder:
    return Recorder(tmp_path, Recording(limit, dict), TrioClock(), inline_offload)


def keys(tmp_path: Path, kind: Kind = Kind.EXIT) -> list[str]:
    return [entry.key for entry in entries(tmp_path) if entry.kind is kind]


def entries(tmp_path: Path) -> list[Entry]:
    return [
        entry
        for path, data in segment_contents(tmp_path / "recorder")
        for entry in read_entries(data, str(path))
    ]


async def test_notes_are_written_within_the_interval_and_none_means_no_work(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    writes = 0

    async def counting(fn: object, *args: object, **more: object) -> object:
        nonlocal writes
        writes += 1
        return await inline_offload(fn, *args, **more)  # type: ignore[arg-type]

    recorder = Recorder(
        tmp_path,
        Recording(LIMIT, dict),
        TrioClock(),
        counting,  # type: ignore[arg-type]
    )
    await nursery.start(recorder.run)
    await trio.sleep(1)
    before = writes
    await trio.sleep(1000)
    assert writes == before
    recorder.note(Kind.EXIT, "a", {"pid": 1})
    await trio.sleep(0.1)
    recorder.note(Kind.EXIT, "b", {"pid": 1})
    await trio.sleep(0.3)
    assert writes == before  # the agent has work to do for what is new: not now
    await trio.sleep(0.2)
    assert keys(tmp_path) == ["a", "b"]
    assert writes == before + 1


async def test_many_notes_do_not_wait(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    recorder = make(tmp_path, 8 << 20)
    await nursery.start(recorder.run)
    recorder.note(Kind.EXIT, "first", {"pid": 1})
    await trio.sleep(0.01)
    for number in range(2500):
        recorder.note(Kind.EXIT, str(number), {"pid": 1})
    await trio.sleep(0.01)
    assert len(keys(tmp_path)) == 2501


async def test_what_is_noted_while_the_disk_writes_is_written_next(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    late = iter(("late",))

    def records_at_a_segment() -> list[tuple[str, bytes]]:
        for key in late:
            recorder.note(Kind.EXIT, key, {"pid": 1})
        return []

    limit = 64 * 1024  # an eighth of it is a segment: two of these entries begin another
    recording = Recording(limit, dict, read_records=records_at_a_segment)
    recorder = Recorder(tmp_path, recording, TrioClock(), inline_offload)
    await nursery.start(recorder.run)
    recorder.note(Kind.EXIT, "a", {"text": "a" * 6000})
    await trio.sleep(1)
    for key in ("b", "c"):
        recorder.note(Kind.EXIT, key, {"text": key * 6000})
    await trio.sleep(1)
    recorder.note(Kind.EXIT, "last", {"pid": 1})
    await trio.sleep(1)
    assert keys(tmp_path) == ["a", "b", "c", "late", "last"]


async def test_what_is_noted_before_it_runs_and_at_its_end_is_written(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    recorder = make(tmp_path)
    recorder.note(Kind.EXIT, "before", {"pid": 1})
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        await trio.sleep(10)
        recorder.note(Kind.EXIT, "last", {"pid": 1})
        nursery.cancel_scope.cancel()
    assert keys(tmp_path) == ["before", "last"]


async def test_more_than_memory_may_hold_is_lost_and_counted(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_NOTES", 10)
    recorder = make(tmp_path)
    for number in range(15):
        recorder.note(Kind.EXIT, str(number), {"pid": 1})
    assert recorder.lost == 5
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert recorder.lost == 5
    assert keys(tmp_path) == [str(number) for number in range(10)]
    (gap,) = [entry for entry in entries(tmp_path) if entry.kind is Kind.GAP]
    assert read_body(gap.body)["lost"] == 5


async def test_an_entry_that_cannot_be_kept_takes_no_other_with_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    recorder = make(tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        recorder.note(Kind.EXIT, "a", {"pid": 1})
        recorder.note(Kind.EXIT, "surrogate", {"text": "\udcff"})
        recorder.note(Kind.EXIT, "large", {"text": "x" * LIMIT})
        recorder.note(Kind.EXIT, "b", {"pid": 1})
        await trio.sleep(1)
        assert recorder.lost == 2
        recorder.note(Kind.EXIT, "c", {"pid": 1})
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert keys(tmp_path) == ["a", "b", "c"]
    (gap,) = [entry for entry in entries(tmp_path) if entry.kind is Kind.GAP]
    assert read_body(gap.body)["lost"] == 2


async def test_notes_of_threads_are_in_the_recording(tmp_path: Path) -> None:
    threads = thread_offload.of(Purpose.RECORDER)
    recorder = Recorder(tmp_path, Recording(LIMIT, dict), SystemClock(), threads)
    recorder.begin()
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        note = recorder.note_from_thread
        await trio.to_thread.run_sync(note, Kind.VOLUME, "bind", {"call": 1, "args": []})
        await recorder.flush()
        nursery.cancel_scope.cancel()
    assert keys(tmp_path, Kind.VOLUME) == ["bind"]


async def test_a_disk_that_hangs_delays_the_end_by_its_deadline_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    hangs = trio.Event()

    async def hang(*_: object, **__: object) -> None:
        await hangs.wait()

    recorder = Recorder(
        tmp_path,
        Recording(LIMIT, dict),
        TrioClock(),
        hang,  # type: ignore[arg-type]
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        await trio.sleep(10)
        for number in range(module.MOST_NOTES + 7):
            recorder.note(Kind.EXIT, str(number), {"pid": 1})
        assert recorder.lost == 7  # and memory stays bounded
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(module.END_LIMIT)


async def test_the_thread_that_hangs_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_LIMIT", 0.05)
    free, is_in = threading.Event(), threading.Event()
    threads = thread_offload.of(Purpose.RECORDER)

    def hang() -> dict[str, object]:
        is_in.set()
        free.wait(60)
        return {}

    recorder = Recorder(tmp_path, Recording(LIMIT, hang), SystemClock(), threads)
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        await trio.to_thread.run_sync(is_in.wait)
        nursery.cancel_scope.cancel()
    free.set()


async def test_an_agent_that_dies_leaves_all_but_the_last_moments(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    recorder = make(tmp_path)
    await nursery.start(recorder.run)
    for number in range(100):
        recorder.note(Kind.EXIT, str(number), {"pid": 1})
        await trio.sleep(0.1)
    # What is on disk now is what a process that is killed would leave.
    assert len(keys(tmp_path)) >= 94
