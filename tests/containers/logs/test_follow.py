from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.containers import LogOptions, follow_log, inotify_watch
from kubelet_trio.containers.logs.cri_log import format_line
from kubelet_trio.model import inline_offload, thread_offload

TIME = "2024-05-01T10:00:00Z"
P = ParamSpec("P")
T = TypeVar("T")


class Writer:
    """A container and its runtime: writes lines, rotates, ends, begins again."""

    def __init__(self, directory: Path) -> None:
        self.path: Path | None = directory / "0.log"
        self._directory = directory
        self.write("begin")

    def write(self, text: str, *, partial: bool = False) -> None:
        assert self.path is not None
        with self.path.open("ab") as file:
            file.write(format_line(TIME, "stdout", text.encode(), partial=partial))

    def rotate(self) -> None:
        assert self.path is not None
        os.rename(self.path, self.path.with_suffix(".log.20240501"))

    def begin_again(self) -> None:
        self.path = self._directory / "1.log"

    def end(self) -> None:
        self.path = None


async def collect(writer: Writer, options: LogOptions, into: list[bytes]) -> None:
    assert writer.path is not None
    async with follow_log(
        writer.path, options, lambda: writer.path, offload=inline_offload
    ) as pieces:
        async for piece in pieces:
            into.append(piece)  # noqa: PERF401  # seen while it grows


async def test_lines_show_as_they_are_written_until_the_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    writer, seen = Writer(tmp_path), list[bytes]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, writer, LogOptions(), seen)
        await trio.sleep(1)
        assert b"".join(seen) == b"begin\n"
        writer.write("half", partial=True)
        await trio.sleep(1)
        writer.write(" whole")
        await trio.sleep(1)
        assert b"".join(seen) == b"begin\nhalf whole\n"
        writer.write("last words")
        writer.end()
    assert b"".join(seen) == b"begin\nhalf whole\nlast words\n"


async def test_following_goes_on_after_a_rotation(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    writer, seen = Writer(tmp_path), list[bytes]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, writer, LogOptions(), seen)
        await trio.sleep(1)
        writer.write("before")
        writer.rotate()
        await trio.sleep(1)
        writer.write("after")
        await trio.sleep(1)
        writer.end()
    assert b"".join(seen) == b"begin\nbefore\nafter\n"


async def test_what_is_written_to_a_log_just_replaced_is_not_lost(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A runtime opens the new file first, and only then lets go of the old one."""
    writer, seen, asked = Writer(tmp_path), list[bytes](), 0
    path = writer.path
    assert path is not None

    def current() -> Path | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            writer.rotate()
            writer.write("after")
        elif asked == 3:  # it knows of the new file, and has read the old one to its end
            with path.with_suffix(".log.20240501").open("ab") as old:
                old.write(format_line(TIME, "stdout", b"late"))
        return path if asked < 6 else None

    with trio.fail_after(60):
        async with follow_log(path, LogOptions(), current, offload=inline_offload) as pieces:
            async for piece in pieces:
                seen.append(piece)
    assert b"".join(seen) == b"begin\nlate\nafter\n"


async def test_following_goes_on_with_the_next_attempt(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    writer, seen = Writer(tmp_path), list[bytes]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, writer, LogOptions(tail=0), seen)
        await trio.sleep(1)
        writer.write("dying")
        writer.begin_again()
        await trio.sleep(1)  # its log is not there yet
        writer.write("alive")
        await trio.sleep(1)
        writer.end()
    assert b"".join(seen) == b"dying\nalive\n"


async def test_following_ends_at_the_limit(tmp_path: Path, autojump_clock: MockClock) -> None:
    writer, seen = Writer(tmp_path), list[bytes]()
    with trio.fail_after(60):
        await collect(writer, LogOptions(limit=3), seen)
    assert b"".join(seen) == b"beg"


async def test_the_last_lines_stay_so_many_while_the_container_writes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    writer, seen = Writer(tmp_path), list[bytes]()
    path = tmp_path / "0.log"

    async def busy(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        result = await inline_offload(fn, *args, **kwargs)
        writer.write("later")  # between any two reads
        return result

    with trio.fail_after(60):
        async with follow_log(
            path, LogOptions(tail=1, most=1), lambda: None, offload=busy
        ) as pieces:
            async for piece in pieces:
                seen.append(piece)
    assert b"".join(seen) == b"begin\n"


async def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    gone = tmp_path / "9.log"
    async with follow_log(gone, LogOptions(), lambda: gone, offload=inline_offload) as pieces:
        with pytest.raises(FileNotFoundError):
            await anext(pieces)


async def test_leaving_early_closes_the_file(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert writer.path is not None
    before = len(os.listdir("/proc/self/fd"))
    async with follow_log(
        writer.path, LogOptions(), lambda: writer.path, offload=inline_offload
    ) as pieces:
        assert await anext(pieces) == b"begin\n"
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


async def test_inotify_wakes_the_reader_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert writer.path is not None
    with trio.fail_after(20):
        async with follow_log(
            writer.path,
            LogOptions(),
            lambda: writer.path,
            offload=thread_offload,
            open_watch=inotify_watch,
        ) as pieces:
            assert await anext(pieces) == b"begin\n"
            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    assert await anext(pieces) == b"more\n"

                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                writer.write("more")
