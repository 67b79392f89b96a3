"""Mounts in memory that take as long as the recorded ones, fail as they did, or hang."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

from kubelet_trio.replay.recorded import RecordedVolumeCall
from kubelet_trio.testing import FakeMounter

# The address of NFS volumes that stand for those of CSI drivers: see `wanted`.
CSI = "csi."
_QUICK = 0.05  # s of a mount that nobody notices


class ReplayMounter(FakeMounter):
    """A `Mounter` on the recorded calls; what was not recorded succeeds at once."""

    def __init__(
        self,
        calls: Sequence[RecordedVolumeCall],
        now: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        """Args:
        calls: the recorded ones.
        now: returns the virtual time; in any thread.
        wait: waits for one in the current thread.
        """
        super().__init__()
        self._now = now
        self._wait = wait
        self._calls: dict[tuple[str, str], list[RecordedVolumeCall]] = {}
        for call in calls:
            for place in _places(call):
                self._calls.setdefault((call.operation, place), []).append(call)

    def _pace(self, operation: str, place: str) -> None:
        """Wait for the end of the next recorded call. Raises its OSError."""
        left = [c for c in self._calls.get((operation, place), ()) if not c.is_made]
        for call, following in zip_longest(left, left[1:]):
            call.is_made = True
            # One that hangs is over when the recorded agent has begun another one.
            hangs = call.ended == math.inf and following is not None
            ends = following.began if hangs and following is not None else call.ended
            if ends > self._now():
                self._wait(ends)
            if hangs:
                continue
            if call.error:
                code = call.errno or errno.EIO
                raise OSError(code, call.text or os.strerror(code), place)
            return

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._pace("mount_tmpfs", _place(str(target)))
        super().mount_tmpfs(target, options)

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._pace("mount_hugetlbfs", _place(str(target)))
        super().mount_hugetlbfs(target, options)

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        if source.startswith(CSI):
            driver, _, handle = source.removeprefix(CSI).partition(":/")
            self._pace("NodeStageVolume", f"{driver} {handle}")
            self._pace("NodePublishVolume", _volume(str(target)))
        else:
            self._pace("mount_nfs", _place(str(target)))
        super().mount_nfs(source, target, options)

    def mount_device(
        self, source: str, target: Path, fstype: str, options: Sequence[str] = ()
    ) -> None:
        self._pace("mount_device", _place(str(target)))
        super().mount_device(source, target, fstype, options)

    def bind(self, source: str, target: Path) -> None:
        self._pace("bind", _place(str(target)))
        super().bind(source, target)

    def restrict(self, target: Path, options: Sequence[str]) -> None:
        self._pace("restrict", _place(str(target)))
        super().restrict(target, options)

    def unmount(self, target: Path) -> None:
        found = next((m for m in self.mounts() if m.path == str(target)), None)
        if found is not None and found.source.startswith(CSI):
            driver, _, handle = found.source.removeprefix(CSI).partition(":/")
            self._pace("NodeUnpublishVolume", _volume(str(target)))
            self._pace("NodeUnstageVolume", f"{driver} {handle}")
        else:
            self._pace("unmount", _place(str(target)))
        super().unmount(target)


def may_wait(calls: Sequence[RecordedVolumeCall]) -> bool:
    """Whether a recorded mount has taken its time."""
    return any(call.ended - call.began > _QUICK for call in calls)


def _place(path: str) -> str:
    """Return a path below the pods' directory: the rest is of the machine."""
    _, found, place = path.rpartition("/pods/")
    return place if found else path


def _volume(path: str) -> str:
    """Return pod and volume of a path: a driver's volume has another directory in a replay."""
    parts = _place(path).split("/")  # UID, volumes, plugin, volume
    return f"{parts[0]}/{parts[3]}" if len(parts) > 3 else path


def _places(call: RecordedVolumeCall) -> list[str]:
    """Return what a recorded call is about: its target, the last path in its arguments."""
    words = [str(arg) for arg in call.args if isinstance(arg, str)]
    if call.operation in ("NodeStageVolume", "NodeUnstageVolume"):
        return [" ".join(words[:2])]
    paths = [
        _volume(w) if call.operation.startswith("Node") else _place(w) for w in words if "/" in w
    ]
    return paths[-1:]
