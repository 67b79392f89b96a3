"""Follows a log while it is written, across rotations and restarts of the container.

inotify wakes the reader; a slow poll covers lost events. At the end of a file the caller's
`current` returns the path that the container writes to now: the same one (a new file after a
rotation), that of the next attempt, or None if nothing will be written any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio

from kubelet_trio.containers.logs.cri_log import LogFile, LogOptions, LogRenderer
from kubelet_trio.model import Offload

POLL = 0.2  # s between checks without inotify
POLL_WITH_INOTIFY = 1.0  # s
LINGER = 0.1  # s in which a log may still be written to after it was replaced


class LogWatch(Protocol):
    """Waits until a file of a directory may have changed."""

    async def wait_change(self) -> None: ...


OpenWatch = Callable[[Path], AbstractAsyncContextManager[LogWatch]]


@asynccontextmanager
async def follow_log(
    path: Path,
    options: LogOptions,
    current: Callable[[], Path | None],
    *,
    offload: Offload,
    open_watch: OpenWatch | None = None,
) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """Open an iterator over rendered pieces of a log; iterating raises OSError.

    `tail` applies to `path` only; later files are read from their beginning.
    """
    pieces = _follow(path, options, current, offload, open_watch or poll_watch)
    try:
        yield pieces
    finally:
        await pieces.aclose()


async def _follow(
    path: Path,
    options: LogOptions,
    current: Callable[[], Path | None],
    offload: Offload,
    open_watch: OpenWatch,
) -> AsyncGenerator[bytes, None]:
    renderer = LogRenderer(options)
    log, lingered = await offload(LogFile, path, options.tail), False
    try:
        async with open_watch(path.parent) as watch:
            while not renderer.is_full:
                # Before the last read: what was written before the end is then never missed.
                writing_to = current()
                replaced = await offload(_is_replaced, log)
                while not renderer.is_full and (entries := await offload(log.read)) is not None:
                    yield renderer.render(entries)  # noqa: ASYNC119  # see `follow_log`
                if replaced and not lingered:
                    # A runtime creates the new file before it stops writing to this one.
                    lingered = True
                    await trio.sleep(LINGER)
                    continue
                # This file is complete: render its last line even without a newline.
                if writing_to != log.path or replaced:
                    yield renderer.render(log.read_unfinished())  # noqa: ASYNC119
                    if writing_to is None:
                        return
                    following = await offload(_open_if_there, writing_to)
                    if following is not None:
                        log.close()
                        log, lingered = following, False
                        continue
                await watch.wait_change()
    finally:
        log.close()


def _is_replaced(log: LogFile) -> bool:
    return log.is_replaced() or log.is_truncated()


def _open_if_there(path: Path) -> LogFile | None:
    try:
        return LogFile(path)
    except FileNotFoundError:
        return None


class _Poll:
    async def wait_change(self) -> None:
        await trio.sleep(POLL)


@asynccontextmanager
async def poll_watch(directory: Path) -> AsyncIterator[LogWatch]:
    """Poll every 0.2 s: for machines without inotify, and for virtual time."""
    await trio.lowlevel.checkpoint()
    yield _Poll()


@asynccontextmanager
async def inotify_watch(directory: Path) -> AsyncIterator[LogWatch]:
    """Wake when a file of the directory is written, created or renamed. Raises OSError."""
    from inotify_simple import INotify, flags

    await trio.lowlevel.checkpoint()
    with INotify(nonblocking=True) as inotify:
        inotify.add_watch(
            directory, flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.DONT_FOLLOW
        )
        yield _Inotify(inotify.fileno(), inotify.read)


class _Inotify:
    def __init__(self, descriptor: int, drain: Callable[[int], object]) -> None:
        self._descriptor = descriptor
        self._drain = drain

    async def wait_change(self) -> None:
        with trio.move_on_after(POLL_WITH_INOTIFY):
            await trio.lowlevel.wait_readable(self._descriptor)
            self._drain(0)
