"""hostPath: a file or directory of the host, checked to be what the pod says it is.

Nothing is mounted and nothing removed: the path is handed to the runtime as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubelet_trio.volumes.hung import PATIENCE, HungCalls
from kubelet_trio.volumes.spec import VolumeSpec

_CHECKS: dict[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


@dataclass(frozen=True, slots=True)
class HostPath:
    """The plugin of `hostPath` volumes. A path may lie on a file server: each look has its time."""

    hung: HungCalls
    managed: bool = False
    follows_objects: bool = False
    is_read_only: bool = False

    def set_up(self, spec: VolumeSpec) -> None:
        """Check the path's type, making it first for the `OrCreate` types.

        Raises OSError, ValueError.
        """
        path, wanted = self.path(spec), spec.source.type or ""
        if not wanted:
            return
        if wanted.removesuffix("OrCreate") not in _CHECKS:
            raise ValueError(f"{wanted} is an invalid volume type")
        problem = self.hung.run(f"{path} ({wanted})", partial(_check, path, wanted), PATIENCE)
        if problem:
            raise ValueError(problem)

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether the path is there: what it has to be was checked when the pod came.

        Raises OSError.
        """
        path = str(self.path(spec))
        return self.hung.run(path, partial(os.path.lexists, path), PATIENCE)

    def path(self, spec: VolumeSpec) -> Path:
        """Return the path on the host."""
        return Path(spec.source.path)


def _check(path: Path, wanted: str) -> str:
    """Return why a path is not what it has to be; "" where it is. Raises OSError."""
    kind = wanted.removesuffix("OrCreate")
    if wanted != kind and not path.exists():
        _create(path, kind)
    is_kind, words = _CHECKS[kind]
    if not path.exists() or not is_kind(path.stat().st_mode):
        return f"hostPath type check failed: {path} is not {words}"
    return ""


def _create(path: Path, kind: str) -> None:
    if kind == "Directory":
        path.mkdir(mode=0o755, parents=True)
    else:
        path.touch(mode=0o644)  # its directory must be there
