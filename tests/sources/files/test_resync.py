"""The file source in virtual time: what happens when nobody tells it anything."""

from __future__ import annotations

from pathlib import Path

import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.model import inline_offload
from kubelet_trio.sources import FileSource
from tests.sources.make import FakeWatcher, FixedClock, encoded, manifest, names

FAR = 2e11  # a wall clock so late that every file is old; at 0.0 every file was just written


def make(path: Path, watcher: FakeWatcher, wall: float = FAR) -> FileSource:
    return FileSource(
        path,
        "n",
        interval=20.0,
        open_watcher=lambda: watcher,
        offload=inline_offload,
        clock=FixedClock(wall),
    )


async def take(source: FileSource) -> list[str]:
    return names((await source.snapshots.wait_value()).pods)


async def test_a_change_that_nobody_tells_of_is_found_within_the_interval(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    source = make(tmp_path, FakeWatcher())
    await nursery.start(source.run)
    assert await take(source) == []
    (tmp_path / "a.yaml").write_bytes(encoded(manifest("a")))
    assert await take(source) == ["a-n"]
    assert trio.current_time() == 10
    (tmp_path / "a.yaml").unlink()
    assert await take(source) == []
    assert trio.current_time() == 30.1


async def test_a_change_that_is_told_is_found_after_the_burst(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    watcher = FakeWatcher()
    source = make(tmp_path, watcher, wall=0.0)
    await nursery.start(source.run)
    assert await take(source) == []
    start = trio.current_time()
    file = tmp_path / "a.yaml"
    file.write_bytes(encoded(manifest("a")))
    watcher.tell(file)
    assert await take(source) == ["a-n"]
    assert trio.current_time() - start < 0.02


async def test_an_endless_burst_is_acted_on_all_the_same(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    watcher = FakeWatcher()
    source = make(tmp_path, watcher)
    await nursery.start(source.run)
    assert await take(source) == []

    async def storm() -> None:
        while True:
            watcher.tell(tmp_path / ".web.swp")
            await trio.sleep(0.005)

    nursery.start_soon(storm)
    start = trio.current_time()
    (tmp_path / "a.yaml").write_bytes(encoded(manifest("a")))
    assert await take(source) == ["a-n"]
    assert trio.current_time() - start < 0.2


async def test_a_file_that_never_holds_still_holds_up_the_others_for_a_while_only(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    source = make(tmp_path, FakeWatcher(), wall=0.0)
    (tmp_path / "a.yaml").write_bytes(encoded(manifest("a")))
    noisy = tmp_path / "b.yaml"

    async def writer() -> None:
        for size in range(1000):
            noisy.write_bytes(b"#" * size)
            await trio.sleep(0.05)

    nursery.start_soon(writer)
    await wait_all_tasks_blocked()
    await nursery.start(source.run)
    assert await take(source) == ["a-n"]
    assert 5 <= trio.current_time() <= 6


async def test_a_problem_is_logged_once_and_again_only_when_it_changes(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("kind: Pod")
    source = make(tmp_path, FakeWatcher())
    with capture_logs() as logs:
        await nursery.start(source.run)
        await trio.sleep(1000)
        assert [(log["event"], log["problem"]) for log in logs] == [
            ("source.problem", "Required value")
        ] * 3
        assert [log["field"] for log in logs] == ["apiVersion", "metadata.name", "spec"]
        assert (logs[0]["document"], logs[0]["line"], logs[0]["column"]) == (1, 1, 1)
        (tmp_path / "a.yaml").write_text("kind: Pods\n")
        await trio.sleep(1000)
        (tmp_path / "a.yaml").write_bytes(encoded(manifest("a")))
        await trio.sleep(1000)
        assert [log["event"] for log in logs[3:]] == ["source.problem", "source.problem_solved"]
    assert source.problems.value == ()


async def test_nothing_is_delivered_while_nothing_changes(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_bytes(encoded(manifest("a")))
    source = make(tmp_path, FakeWatcher())
    await nursery.start(source.run)
    assert await take(source) == ["a-n"]
    with trio.move_on_after(100) as wait:
        await take(source)
    assert wait.cancelled_caught


async def test_the_source_is_ready_before_it_has_looked(
    autojump_clock: MockClock, nursery: trio.Nursery, tmp_path: Path
) -> None:
    source = make(tmp_path / "missing", FakeWatcher())
    await nursery.start(source.run)
    assert source.delivered is None
