"""Checkpoints reach the disk together, in the newest state, whatever the disk does meanwhile."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.managers import CheckpointError, CheckpointKeeper
from kubelet_trio.model import Offload, inline_offload
from tests.agent.hanging import HangingDisk
from tests.simulation.hard_world import Disk


async def test_the_newest_state_of_each_file_is_written(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    keeper = CheckpointKeeper(tmp_path, inline_offload)
    await nursery.start(keeper.run)
    for number in range(5):
        keeper.put("one", str(number).encode)
    keeper.put("below/two", b"two".upper)
    await keeper.wait_kept(keeper.version)
    assert (tmp_path / "one").read_text() == "4"
    assert (tmp_path / "below" / "two").read_text() == "TWO"
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


async def test_a_state_from_before_the_start_is_written(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    keeper = CheckpointKeeper(tmp_path, inline_offload)
    keeper.put("one", b"1".upper)
    await nursery.start(keeper.run)
    await keeper.wait_kept(1)
    assert (tmp_path / "one").read_text() == "1"


async def test_a_failure_is_told_to_those_who_wait_and_tried_again(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = Disk()
    keeper = CheckpointKeeper(tmp_path, disk.offload)
    await nursery.start(keeper.run)
    disk.error = errno.ENOSPC
    keeper.put("one", b"1".upper)
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(CheckpointError, match="No space left"):
                await keeper.wait_kept(1)
    assert [entry["event"] for entry in logs] == ["managers.checkpoint_failed"]
    disk.error = 0
    await keeper.wait_kept(1)
    assert (tmp_path / "one").read_text() == "1"


async def test_a_change_while_the_disk_hangs_is_written_after_it(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = HangingDisk()
    offload: Offload = disk
    keeper = CheckpointKeeper(tmp_path, offload)
    await nursery.start(keeper.run)
    with disk.hanging():
        keeper.put("one", b"1".upper)
        await trio.sleep(1)
        keeper.put("one", b"2".upper)
        with trio.move_on_after(60) as waiting:
            await keeper.wait_kept(1)
        assert waiting.cancelled_caught
    await keeper.wait_kept(2)
    assert (tmp_path / "one").read_text() == "2"
