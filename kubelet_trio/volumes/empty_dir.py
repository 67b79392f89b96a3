"""emptyDir: a directory that exists as long as its pod is on this node.

It is on the node's disk; in memory, as a tmpfs whose size is the smallest of the volume's
sizeLimit, the pod's memory limit and the node's allocatable memory; or in huge pages, as a
hugetlbfs.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from lightkube.models.core_v1 import EmptyDirVolumeSource, Pod

from kubelet_trio.containers import make_directories, pod_memory_limit
from kubelet_trio.model import (
    in_user_namespace,
    parse_quantity,
    pod_containers,
    to_units,
)
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.volumes.layout import EMPTY_DIR, MARKER, ready_file, volume_dir
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.ownership import own_volume
from kubelet_trio.volumes.spec import VolumeSpec

# defaultPerm in pkg/volume/emptydir: any user of any container may write.
_MODE = 0o777
_HUGE_PAGES = "HugePages"
_HUGE_PAGE_RESOURCE = "hugepages-"


@dataclass(frozen=True, slots=True)
class EmptyDir:
    """The plugin for `emptyDir` volumes."""

    pods_dir: Path
    mounter: Mounter
    memory_allocatable: int = 0  # the node's, in bytes; 0: unknown
    tmpfs_noswap: bool = False  # whether the kernel's tmpfs has the option `noswap`
    managed: bool = True
    follows_objects: bool = False
    is_read_only: bool = False

    def set_up(self, spec: VolumeSpec) -> None:
        """Make the directory or the mount, unless it exists. Raises OSError, ValueError."""
        source = spec.source or EmptyDirVolumeSource()
        path = self.path(spec)
        if self.is_set_up(spec):
            return
        ready = self._ready(spec)
        self.make(spec.pod, source, path, again=True)
        # Without a policy: fsGroupChangePolicy has no effect on ephemeral volumes (API reference).
        own_volume(path, spec.fs_group, read_only=False)
        make_directories(ready.parent)
        # From now on the pod may change the directory's mode; a restarted agent must not reset it.
        ready.touch(MARKER)

    def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether an earlier set-up was complete, and its directory or mount still exists."""
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
        """Make an empty directory on a medium, unless it exists.

        Args:
            pod: its limits bound a tmpfs, its requests choose the huge page size.
            source: the medium and the size limit.
            path: the directory.
            mode: its permissions; 0777 on a tmpfs comes with the sticky bit, tmpfs' default.
            again: set the mode even if the directory exists: an earlier attempt may have failed
                before that.
        """
        medium = source.medium or ""
        if self._is_made(source, path) and (medium or not again):
            return
        if medium not in ("", "Memory", _HUGE_PAGES) and not medium.startswith(f"{_HUGE_PAGES}-"):
            raise ValueError(f'unknown storage medium "{medium}"')
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
    """Return the size in bytes of a memory-backed volume; 0: the kernel's default."""
    # KEP-1967. Without it the kernel's default is half of the machine's memory (tmpfs(5)).
    limits = [memory_allocatable, pod_memory_limit(pod)]
    if source.sizeLimit is not None:
        limits.append(to_units(parse_quantity(source.sizeLimit)))
    return min((limit for limit in limits if limit > 0), default=0)


def page_size(pod: Pod, medium: str) -> int:
    """Return the page size in bytes for the medium `HugePages` or `HugePages-2Mi`.

    The plain medium means the only size that the pod or its containers request. Raises ValueError
    (getPageSizeMountOption).
    """
    wanted = medium.removeprefix(_HUGE_PAGES).removeprefix("-")
    asked = {
        name.removeprefix(_HUGE_PAGE_RESOURCE)
        for resources in (pod_spec(pod).resources, *(c.spec.resources for c in pod_containers(pod)))
        if resources is not None
        for amounts in (resources.requests, resources.limits)
        for name in amounts or ()
        if name.startswith(_HUGE_PAGE_RESOURCE)
    }
    sizes = {to_units(parse_quantity(size)) for size in asked}
    if wanted:
        sizes &= {to_units(parse_quantity(wanted))}
    if len(sizes) > 1:
        raise ValueError(
            f"medium: {medium} can't be used if container requests multiple huge page sizes"
        )
    if not sizes:
        raise ValueError(
            f"medium {medium}: hugePages storage requested, but there is no resource request for "
            "huge pages"
        )
    return sizes.pop()


def _make_directory(path: Path, mode: int) -> None:
    make_directories(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != mode:
        os.chmod(path, mode)  # mkdir(2) applies the umask


def tmpfs_noswap_supported(kernel_release: str) -> bool:
    """Whether a kernel release (`6.8.0-45-generic`) has tmpfs' `noswap`: Linux 6.4 or later."""
    numbers = re.match(r"(\d+)\.(\d+)", kernel_release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 4)


def has_tmpfs_noswap() -> bool:
    """Whether memory-backed volumes can be kept out of swap on this machine."""
    # The kernel refuses the option in a user namespace (shmem_parse_one in mm/shmem.c); checked
    # as in the Go kubelet's IsTmpfsNoswapOptionSupported (pkg/kubelet/util/swap).
    return tmpfs_noswap_supported(os.uname().release) and not in_user_namespace()
