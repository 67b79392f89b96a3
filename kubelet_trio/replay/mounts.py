"""Mounts in memory that take as long as the recorded ones, fail as they did, or hang."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import trio

from kubelet_trio.model import inline_offload
from kubelet_trio.replay.recorded import RecordedVolumeCall
from kubelet_trio.testing import FakeMounter

P = ParamSpec("P")
T = TypeVar("T")


class _PendingError(BaseException):
    """A mount is under way until a time: whoever offloads it waits, and tries again.

    Not an Exception: no handler of failed mounts takes it for one.
    """

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.until = until


class ReplayMounter(FakeMounter):
    """A `Mounter` on the recorded calls; what was not recorded succeeds at once.

    A mount cannot wait by itself, since in a replay it is no thread that does blocking work. So
    `offload`, which carries out all blocking work, waits instead, and starts the work anew: like
    the agent's own retries, it finds what is done already.
    """

    def __init__(self, calls: Sequence[RecordedVolumeCall], root_dir: Path) -> None:
        """Args:
        calls: the recorded ones.
        root_dir: of the replayed agent.
        """
        super().__init__()
        self._root = str(root_dir)
        self._calls: dict[tuple[str, str], list[RecordedVolumeCall]] = {}
        for call in calls:
            for place in _places(call):
                self._calls.setdefault((call.operation, place), []).append(call)
        self._closed = trio.Event()

    def close(self) -> None:
        """End all waits: the replay is over."""
        self._closed.set()

    async def offload(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Do blocking work here, at the pace of the recorded mounts in it."""
        while True:
            try:
                return await inline_offload(fn, *args, **kwargs)
            except _PendingError as pending:
                # As a thread that mounts, which nobody can cancel.
                with trio.CancelScope(deadline=pending.until, shield=True):
                    await self._closed.wait()
                await trio.lowlevel.checkpoint_if_cancelled()

    def _pace(self, operation: str, target: Path) -> None:
        """Wait for the end of a recorded call, by `_PendingError`. Raises its OSError."""
        place = _place(str(target))
        call = next((c for c in self._calls.get((operation, place), ()) if not c.is_made), None)
        if call is None:
            return
        if call.ended > trio.current_time():
            raise _PendingError(call.ended)
        call.is_made = True
        if call.error:
            raise _os_error(call.error, call.text, target)

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._pace("mount_tmpfs", target)
        super().mount_tmpfs(target, options)

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._pace("mount_hugetlbfs", target)
        super().mount_hugetlbfs(target, options)

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        self._pace("mount_nfs", target)
        super().mount_nfs(source, target, options)

    def mount_device(
        self, source: str, target: Path, fstype: str, options: Sequence[str] = ()
    ) -> None:
        self._pace("mount_device", target)
        super().mount_device(source, target, fstype, options)

    def bind(self, source: str, target: Path) -> None:
        self._pace("bind", target)
        super().bind(source, target)

    def unmount(self, target: Path) -> None:
        self._pace("unmount", target)
        super().unmount(target)


def _place(path: str) -> str:
    """Return a path below the pods' directory: the rest is of the machine."""
    _, found, place = path.rpartition("/pods/")
    return place if found else path


def _places(call: RecordedVolumeCall) -> list[str]:
    """Return the targets of a recorded call: the last path in its arguments."""
    paths = [arg for arg in call.args if isinstance(arg, str) and arg.startswith("/")]
    return [_place(paths[-1])] if paths else []


def _os_error(kind: str, text: str, target: Path) -> OSError:
    code = next((n for n, name in errno.errorcode.items() if name in text), None)
    if code is None:
        code = next((n for n in errno.errorcode if os.strerror(n) in text), errno.EIO)
    return OSError(code, os.strerror(code), str(target))
