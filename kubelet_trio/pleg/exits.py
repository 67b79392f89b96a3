"""Knowing at once that a process has ended: the seam, and pidfds behind it.

A pidfd becomes readable when its process dies, so trio waits for it like for a socket:
no thread, no polling. It names the process and not the number, so once it is open the
PID may be reused without harm; that it was the right process when it was opened is for
the caller to ask.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Protocol

import trio


class ExitWatch(Protocol):
    """A watch on one process; leaving the context closes it."""

    def __enter__(self) -> ExitWatch: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    async def wait_exited(self) -> None:
        """Return once the process has ended."""
        ...


class ExitWaiter(Protocol):
    """Opens watches on processes that are not our children."""

    def open(self, pid: int) -> ExitWatch:
        """Watch the process that has this PID now.

        Raises `ProcessLookupError` where there is none, another `OSError` where
        processes cannot be watched here at all.
        """
        ...


class PidfdWatch:
    """One open pidfd."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> PidfdWatch:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        trio.lowlevel.notify_closing(self._fd)
        os.close(self._fd)

    async def wait_exited(self) -> None:
        await trio.lowlevel.wait_readable(self._fd)


class PidfdExitWaiter:
    """Watches processes through `pidfd_open` (Linux 5.3 and later)."""

    def open(self, pid: int) -> PidfdWatch:
        return PidfdWatch(os.pidfd_open(pid))
