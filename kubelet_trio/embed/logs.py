"""Reads the log of one container line by line, while it grows and across restarts.

Between two lines the iterator holds only an open file: a loop over it may be left at any time,
by `break` or an exception, without closing anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio

from kubelet_trio.containers import LogFile, LogOptions, LogRenderer, LogWatch
from kubelet_trio.model import Offload

# The container's current (or last) log file, and whether more may be written.
Current = Callable[[], tuple[Path | None, bool]]

_NO_FILE = 0.1  # seconds between checks while there is no file to watch


class LogLines:
    """Iterates over the lines, without their newlines, as text (bad UTF-8 replaced)."""

    def __init__(
        self,
        current: Current,
        options: LogOptions,
        *,
        follow: bool,
        offload: Offload,
        open_watch: Callable[[Path], AbstractAsyncContextManager[LogWatch]],
    ) -> None:
        """Internal: programs call `RunningPod.logs`."""
        self._current = current
        self._options = options
        self._follow = follow
        self._offload = offload
        self._open_watch = open_watch
        self._renderer = LogRenderer(options)
        self._log: LogFile | None = None
        self._first = True
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._ended = False

    def __aiter__(self) -> LogLines:
        return self

    async def __anext__(self) -> str:
        """Return the next line; wait for it if more may be written. Raises OSError."""
        if self._lines:
            await trio.lowlevel.checkpoint()
        while not self._lines:
            if self._ended:
                raise StopAsyncIteration
            await self._read_more()
        return self._lines.popleft().decode("utf-8", "replace")

    def close(self) -> None:
        """Close the file; further iteration ends."""
        self._ended = True
        if self._log is not None:
            self._log.close()
            self._log = None

    # A loop that was left by `break` closes nothing; without it the descriptor would leak.
    def __del__(self) -> None:
        self.close()

    async def _read_more(self) -> None:
        # Before the read: lines written before the container's end are then never missed.
        path, more = self._current()
        if self._log is None and not await self._open(path):
            await self._pause(more)
            return
        log = self._log
        assert log is not None
        # Before the read, so that the last lines of a rotated file are read first.
        replaced = await self._offload(_is_replaced, log)
        entries = await self._offload(log.read)
        if entries is not None:
            self._take(self._renderer.render(entries))
            if self._renderer.is_full:
                self._finish()
        elif path not in (None, log.path) or replaced:
            self._take(self._renderer.render(log.read_unfinished()))
            if not await self._open(path):
                await self._pause(more)
        else:
            await self._pause(more)

    async def _open(self, path: Path | None) -> bool:
        """Switch to another file; return False if it does not exist yet."""
        if path is None:
            return False
        tail = self._options.tail if self._first else None  # applies to the first file only
        try:
            opened = await self._offload(LogFile, path, tail)
        except FileNotFoundError:
            return False
        if self._log is not None:
            self._log.close()
        self._log, self._first = opened, False
        return True

    async def _pause(self, more: bool) -> None:
        """Wait for more to read, or end if nothing will come."""
        if not (self._follow and more):
            self._finish()
        elif not self._lines:
            await self._wait()

    async def _wait(self) -> None:
        if self._log is None:
            await trio.sleep(_NO_FILE)
            return
        async with self._open_watch(self._log.path.parent) as watch:
            # Checked again under the watch: lines may have come since the last read.
            if not await self._offload(_has_more, self._log):
                await watch.wait_change()

    def _take(self, rendered: bytes) -> None:
        *lines, self._rest = (self._rest + rendered).split(b"\n")
        self._lines.extend(lines)

    def _finish(self) -> None:
        if self._log is not None:
            self._take(self._renderer.render(self._log.read_unfinished()))
        if self._rest:
            self._lines.append(self._rest)
        self.close()


def _is_replaced(log: LogFile) -> bool:
    return log.is_replaced() or log.is_truncated()


def _has_more(log: LogFile) -> bool:
    return log.has_more() or log.is_replaced()
