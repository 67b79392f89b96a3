"""hostPath: a file or directory of the host, checked to be what the pod says it is.

Nothing is mounted and nothing removed: the path is handed to the runtime as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from kubelet_trio.volumes.spec import VolumeSpec

_CHECKS: dict[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class HostPath:
    """The plugin of `hostPath` volumes."""

    managed = False
    follows_objects = False
    is_read_only = False

    def set_up(self, spec: VolumeSpec) -> None:
        """Check the path's type, making it first for the `OrCreate` types. Raises OSError."""
        path, wanted = self.path(spec), spec.source.type or ""
        if not wanted:
            return
        kind = wanted.removesuffix("OrCreate")
        if kind not in _CHECKS:
            raise ValueError(f"{wanted} is an invalid volume type")
        if wanted != kind and not path.exists():
            _create(path, kind)
        is_kind, words = _CHECKS[kind]
        if not path.exists() or not is_kind(path.stat().st_mode):
            raise ValueError(f"hostPath type check failed: {path} is not {words}")

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether the path is there: what it has to be was checked when the pod came."""
        return os.path.lexists(self.path(spec))

    def path(self, spec: VolumeSpec) -> Path:
        """Return the path on the host."""
        return Path(spec.source.path)


def _create(path: Path, kind: str) -> None:
    if kind == "Directory":
        path.mkdir(mode=0o755, parents=True)
    else:
        path.touch(mode=0o644)  # its directory must be there
