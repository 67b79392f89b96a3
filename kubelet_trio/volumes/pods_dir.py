"""The directory of all pods: made and shared with containers at the start, released at the end.

Its methods block.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.containers import make_directories
from kubelet_trio.model import PodUid, get_logger
from kubelet_trio.volumes.mounter import Mounter, is_bound_to_itself

log = get_logger()


@dataclass(frozen=True, slots=True)
class PodsDirectory:
    """`pods` below the agent's root directory."""

    path: Path
    mounter: Mounter

    def make(self) -> None:
        """Make it unless it exists, and share the mounts below the root directory. Raises OSError.

        Without the right to share them pods still run, but `mountPropagation` has no effect.
        """
        root_dir = self.path.parent
        make_directories(self.path)
        try:
            self.mounter.share(root_dir)
        except OSError as exc:
            # The Go kubelet refuses to start then (MakeRShared in setupDataDirs). A user who may
            # not mount has nothing to share: that is no news.
            tell = log.warning if os.geteuid() == 0 else log.debug
            tell("volumes.root_not_shared", path=str(root_dir), error=str(exc))

    def release(self) -> None:
        """Undo the mount of `make`, unless a pod still has a directory. Raises OSError.

        Detached: it has no mounts below it, and whoever still reads a log there may go on.
        """
        root_dir = self.path.parent
        if self.pods() or not is_bound_to_itself(root_dir, self.mounter.mounts()):
            return
        try:
            self.mounter.detach(root_dir)
        except OSError as exc:
            log.warning("volumes.root_not_released", path=str(root_dir), error=str(exc))

    def pods(self) -> frozenset[PodUid]:
        """Return the pods that have a directory. Raises OSError."""
        try:
            with os.scandir(self.path) as entries:
                return frozenset(PodUid(e.name) for e in entries if e.is_dir())
        except FileNotFoundError:
            return frozenset()
