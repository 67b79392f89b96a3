"""The lock file: real locks, in one process, for each descriptor has its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kubelet_trio.host import Contention, lock_file


async def test_the_lock_is_waited_for_and_handed_over(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", list[str]()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def second() -> None:
                async with lock_file(path):
                    order.append("second has it")

            async with lock_file(path):
                nursery.start_soon(second)
                with Contention(path) as contention:
                    await contention.wait()  # the second one has opened it
                order.append("first gives it up")
    assert order == ["first gives it up", "second has it"]


async def test_one_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    async with lock_file(tmp_path / "lock"):
        with trio.move_on_after(0.01) as scope:
            async with lock_file(tmp_path / "lock"):
                raise AssertionError("both have it")
    assert scope.cancelled_caught


@pytest.mark.parametrize("remove", [True, False])
async def test_opening_and_deleting_are_contention(tmp_path: Path, remove: bool) -> None:
    path = tmp_path / "lock"
    async with lock_file(path):
        with Contention(path) as contention, trio.fail_after(10):
            if remove:
                path.unlink()
            else:
                path.read_bytes()
            await contention.wait()


async def test_nothing_is_no_contention(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    async with lock_file(path):
        with Contention(path) as contention, trio.move_on_after(0.05) as scope:
            await contention.wait()
    assert scope.cancelled_caught


async def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none/lock"):
        async with lock_file(tmp_path / "none/lock"):
            pass
