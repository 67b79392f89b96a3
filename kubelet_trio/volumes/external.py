"""hostPath volumes: not mounted by the agent, and nothing in them is ever removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubelet_trio.containers import make_directories
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
    """The plugin for `hostPath` volumes: checks the path; the runtime mounts it."""

    hung: HungCalls  # a path may be on a file server that does not answer
    managed: bool = False
    follows_objects: bool = False
    is_read_only: bool = False

    def set_up(self, spec: VolumeSpec) -> None:
        """Check the path's type; create it first for the `OrCreate` types.

        Raises OSError, ValueError.
        """
        path, wanted = self.path(spec), spec.source.type or ""
        # ValidatePathNoBacksteps: an API server refuses it, but not every volume is from one.
        if ".." in spec.source.path.split("/"):
            raise ValueError(f"invalid HostPath `{spec.source.path}`: must not contain '..'")
        # Without a type the API promises no check; containerd makes a missing directory
        # (WithMounts in its CRI plugin).
        if not wanted:
            return
        if wanted.removesuffix("OrCreate") not in _CHECKS:
            raise ValueError(f"{wanted} is an invalid volume type")
        problem = self.hung.run(f"{path} ({wanted})", partial(_check, path, wanted), PATIENCE)
        if problem:
            raise ValueError(problem)

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether the path exists; `set_up` checked its type. Raises OSError."""
        path = str(self.path(spec))
        return self.hung.run(path, partial(os.path.lexists, path), PATIENCE)

    def path(self, spec: VolumeSpec) -> Path:
        """Return the path on the host."""
        return Path(spec.source.path)


def _check(path: Path, wanted: str) -> str:
    """Return why a path is not of the wanted type; "" if it is. Raises OSError."""
    kind = wanted.removesuffix("OrCreate")
    if wanted != kind and not path.exists():
        _create(path, kind)
    is_kind, words = _CHECKS[kind]
    if not path.exists() or not is_kind(path.stat().st_mode):
        return f"hostPath type check failed: {path} is not {words}"
    return ""


def _create(path: Path, kind: str) -> None:
    if kind == "Directory":
        # Also if another pod makes it at the same moment, and parents with the same mode.
        make_directories(path, 0o755)
    else:
        path.touch(mode=0o644)  # its directory must exist, as in the Go kubelet
