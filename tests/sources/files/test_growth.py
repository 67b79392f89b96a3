"""Reading a directory takes as much work for each file, however many there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import trio
from trio.testing import MockClock

from kubelet_trio.model import inline_offload
from kubelet_trio.sources import FileSource
from tests.harness.calls import Calls, check_growth
from tests.sources.make import FakeWatcher, FixedClock, encoded, manifest

FAR = 2e11  # a wall clock so late that every file is old


async def calls_of(directory: Path, count: int) -> tuple[Counter[str], Counter[str]]:
    """Count the calls to read that many files, and then of ten scans during which one changes."""
    directory.mkdir()
    for n in range(count):
        (directory / f"{n}.yaml").write_bytes(encoded(manifest(f"pod-{n}")))
    options = {"open_watcher": FakeWatcher, "offload": inline_offload, "clock": FixedClock(FAR)}
    source = FileSource(directory, "n", interval=20.0, **options)  # type: ignore[arg-type]
    first, later = Calls(), Calls()
    async with trio.open_nursery() as nursery:
        with first.counted():
            await nursery.start(source.run)
            assert len((await source.snapshots.wait_value()).pods) == count
        (directory / "0.yaml").write_bytes(encoded(manifest("pod-0", hostNetwork=True)))
        with later.counted():
            await source.snapshots.wait_value()
            await trio.sleep(200)
        nursery.cancel_scope.cancel()
    return first.made, later.made


async def test_a_file_takes_as_many_calls_beside_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    few, few_later = await calls_of(tmp_path / "few", 20)
    many, many_later = await calls_of(tmp_path / "many", 80)
    check_growth(few, 20, many, 80)
    check_growth(few_later, 20, many_later, 80)
    (reads,) = {name for name in few if name.endswith(":load_manifest")}
    assert (many[reads], many_later[reads]) == (80, 1)
