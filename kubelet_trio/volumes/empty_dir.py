"""emptyDir: a directory of the pod's own that lives as long as the pod on this node.

On the node's disk; in memory as a tmpfs, whose size is bounded by the smallest of the
volume's sizeLimit, the pod's memory limit and what pods may use of the node; or in huge
pages as a hugetlbfs. A marker says that the set-up is complete: after that the directory
is the pod's, and its mode is not ours to put back when the agent starts again.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from lightkube.models.core_v1 import EmptyDirVolumeSource, Pod

from kubelet_trio.containers import make_directories, pod_memory_limit
from kubelet_trio.model import parse_quantity, pod_containers, to_units
from kubelet_trio.volumes.layout import EMPTY_DIR, MARKER, ready_file, volume_dir
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.ownership import own_volume
from kubelet_trio.volumes.spec import VolumeSpec

_MODE = 0o777
_HUGE_PAGES = "HugePages"
_HUGE_PAGE_RESOURCE = "hugepages-"


@dataclass(frozen=True, slots=True)
class EmptyDir:
    """The plugin of `emptyDir` volumes."""

    pods_dir: Path
    mounter: Mounter
    memory_allocatable: int = 0  # bytes that pods may use of the node; 0: not known
    tmpfs_noswap: bool = False  # whether the kernel's tmpfs can be kept out of swap
    managed: bool = True
    follows_objects: bool = False
    is_read_only: bool = False

    def set_up(self, spec: VolumeSpec) -> None:
        """Make the directory or the mount, unless it is there. Raises OSError, ValueError."""
        source = spec.source or EmptyDirVolumeSource()
        path = self.path(spec)
        if self.is_set_up(spec):
            return
        ready = self._ready(spec)
        self.make(spec.pod, source, path, again=True)
        own_volume(path, spec.fs_group, read_only=False)
        make_directories(ready.parent)
        ready.touch(MARKER)

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether it was made whole, and is still there."""
        source = spec.source or EmptyDirVolumeSource()
        return self._ready(spec).exists() and self._is_made(source, self.path(spec))

    def path(self, spec: VolumeSpec) -> Path:
        """Return the directory on the host."""
        return volume_dir(self.pods_dir / spec.uid, EMPTY_DIR, spec.disk_name)

    def make(
        self,
        pod: Pod,
        source: EmptyDirVolumeSource,
        path: Path,
        *,
        mode: int = _MODE,
        again: bool = False,
    ) -> None:
        """Make an empty directory on a medium, unless it is there.

        Args:
            mode: who may do what in it; 0777 in memory is with the sticky bit, as a tmpfs has it.
            again: an earlier attempt may have left a directory without its mode.
        """
        medium = source.medium or ""
        if self._is_made(source, path) and (medium or not again):
            return
        if medium not in ("", "Memory") and not medium.startswith(_HUGE_PAGES):
            raise ValueError(f'emptyDir medium "{medium}" is not supported')
        _make_directory(path, mode)
        if medium == "Memory":
            options = self._tmpfs_options(pod, source)
            options += [f"mode={mode:04o}"] if mode != _MODE else []
            self.mounter.mount_tmpfs(path, options)
        elif medium:
            self.mounter.mount_hugetlbfs(path, [f"pagesize={page_size(pod, medium)}"])

    def _ready(self, spec: VolumeSpec) -> Path:
        return ready_file(self.pods_dir / spec.uid, EMPTY_DIR, spec.disk_name)

    def _is_made(self, source: EmptyDirVolumeSource, path: Path) -> bool:
        if not source.medium:
            return path.is_dir()
        return any(mount.path == str(path) for mount in self.mounter.mounts())

    def _tmpfs_options(self, pod: Pod, source: EmptyDirVolumeSource) -> list[str]:
        options = []
        size = tmpfs_size(pod, source, self.memory_allocatable)
        if size:
            options.append(f"size={size}")
        if self.tmpfs_noswap:
            options.append("noswap")
        return options


def tmpfs_size(pod: Pod, source: EmptyDirVolumeSource, memory_allocatable: int) -> int:
    """Return the size in bytes of a memory-backed volume; 0: the kernel's own default."""
    limits = [memory_allocatable, pod_memory_limit(pod)]
    if source.sizeLimit is not None:
        limits.append(to_units(parse_quantity(source.sizeLimit)))
    return min((limit for limit in limits if limit > 0), default=0)


def page_size(pod: Pod, medium: str) -> int:
    """Return the bytes of a huge page of the medium `HugePages` or `HugePages-2Mi`.

    The plain medium means the one size that the pod's containers ask for. Raises ValueError.
    """
    wanted = medium.removeprefix(_HUGE_PAGES).removeprefix("-")
    asked = {
        name.removeprefix(_HUGE_PAGE_RESOURCE)
        for container in pod_containers(pod)
        if container.spec.resources is not None
        for amounts in (container.spec.resources.requests, container.spec.resources.limits)
        for name in amounts or ()
        if name.startswith(_HUGE_PAGE_RESOURCE)
    }
    sizes = {to_units(parse_quantity(size)) for size in asked}
    if wanted:
        size = to_units(parse_quantity(wanted))
        if size not in sizes:
            raise ValueError(f'medium {medium} without a request for "hugepages-{wanted}"')
        return size
    if len(sizes) > 1:
        raise ValueError('medium "HugePages" can be used only if container requests one page size')
    if not sizes:
        raise ValueError('medium "HugePages" without a request for huge pages')
    return sizes.pop()


def _make_directory(path: Path, mode: int) -> None:
    make_directories(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != mode:
        os.chmod(path, mode)  # the umask took some of it
