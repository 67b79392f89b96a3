"""Mount and unmount: the seam to the kernel, and to the helper for NFS. All of it blocks."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from kubelet_trio.model import in_user_namespace
from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.mountinfo import MountPoint, read_mountinfo
from kubelet_trio.volumes.tools import HostTools, Tools, run_tool

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SHARED = 0x100000
_UMOUNT_NOFOLLOW = 0x8  # a container may have replaced the target by a link
_MNT_FORCE = 0x1
_MNT_DETACH = 0x2
HELPERS = (Path("/sbin/mount.nfs"), Path("/usr/sbin/mount.nfs"))
_MOUNT_NFS_LIMIT = 60.0  # seconds
# Which file systems have FS_USERNS_MOUNT in the kernel.
_IN_NAMESPACE = " (a user namespace may mount only tmpfs, overlayfs, FUSE and bind mounts)"
_PATIENCE = 60.0  # seconds to wait for the unmount of a remote file system


class Mounter(Protocol):
    """Mounts and unmounts. Every method raises OSError with the kernel's errno."""

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        """Mount a new tmpfs on a directory; options such as `size=1048576`."""
        ...

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        """Mount a new hugetlbfs on a directory; options such as `pagesize=2097152`."""
        ...

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        """Mount an NFS export (`server:/path`). OSError also if the host has no mount.nfs."""
        ...

    def mount_device(
        self, source: str, target: Path, fstype: str, options: Sequence[str] = ()
    ) -> None:
        """Mount the file system of a device; options as mount(8) has them.

        OSError also if the host has no mount(8), or if it fails; the text has its output.
        """
        ...

    def bind(self, source: str, target: Path) -> None:
        """Bind-mount `source` (a file, or a directory with its submounts) at `target`."""
        ...

    def restrict(self, target: Path, options: Sequence[str]) -> None:
        """Give a bind mount options such as `noexec`. Errors as of `mount_device`."""
        ...

    def share(self, target: Path) -> None:
        """Make a directory a mount point with shared propagation."""
        ...

    def unmount(self, target: Path) -> None:
        """Unmount the topmost mount at `target`: EINVAL if none, EBUSY if in use.

        ETIMEDOUT if its server does not answer; the kernel may still complete it later.
        """
        ...

    def detach(self, target: Path) -> None:
        """Unmount what is at `target` and below now; what is open there stays open."""
        ...

    def mounts(self) -> list[MountPoint]:
        """Return the mounts of this process' mount namespace."""
        ...


class KernelMounter:
    """The `Mounter` of the machine: mount(2) and umount2(2) through libc."""

    def __init__(self) -> None:
        import ctypes  # deferred: it costs memory, and not every mode mounts

        # use_errno: a copy for each thread, which Python's own calls do not change (ctypes).
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self._hung = HungCalls()
        # Without argtypes ctypes passes an int for the flags, an unsigned long (mount(2)).
        self._libc.mount.argtypes = (
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_ulong,
            ctypes.c_char_p,
        )
        self._libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._mount("tmpfs", target, "tmpfs", 0, ",".join(options))

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        self._mount("nodev", target, "hugetlbfs", 0, ",".join(options))

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        run_mount_nfs(source, target, options)

    def mount_device(
        self, source: str, target: Path, fstype: str, options: Sequence[str] = ()
    ) -> None:
        run_mount(source, target, fstype, options)

    def bind(self, source: str, target: Path) -> None:
        self._mount(source, target, "", _MS_BIND | _MS_REC, "")

    def restrict(self, target: Path, options: Sequence[str]) -> None:
        # By mount(8), which knows the options by name.
        run_mount(str(target), target, "", ["bind", "remount", *options])

    def share(self, target: Path) -> None:
        mounts = self.mounts()
        around = _mount_around(target, mounts)
        if around is not None and around.shared:
            return
        if around is None or around.path != str(target):
            if any(m.path.startswith(f"{target}/") for m in mounts):
                # A bind mount on top would hide them, and they could not be unmounted any more.
                raise OSError(errno.EBUSY, "it has mounts below it", str(target))
            self.bind(str(target), target)
        # A separate call, because MS_SHARED allows no other flag than MS_REC (mount(2)).
        self._mount("", target, "", _MS_SHARED | _MS_REC, "")

    def unmount(self, target: Path) -> None:
        if not any(m.path == str(target) and _is_remote(m) for m in self.mounts()):
            self._unmount(target)
            return
        try:
            self._hung.run(str(target), partial(self._unmount, target), _PATIENCE)
        except TimeoutError:
            # As the Go kubelet does for NFS: umount -f aborts pending requests (umount2(2)).
            self._hung.run(f"{target} (by force)", partial(self._unmount, target, _MNT_FORCE), 5)

    def detach(self, target: Path) -> None:
        self._unmount(target, _MNT_DETACH)

    def _unmount(self, target: Path, flags: int = 0) -> None:
        if self._libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW | flags) != 0:
            raise self._error(target)

    def mounts(self) -> list[MountPoint]:
        return read_mountinfo()

    def _mount(self, source: str, target: Path, fstype: str, flags: int, data: str) -> None:
        result = self._libc.mount(
            os.fsencode(source), os.fsencode(target), fstype.encode(), flags, data.encode()
        )
        if result != 0:
            raise self._error(target)

    def _error(self, target: Path) -> OSError:
        number = self._errno()
        why = namespace_hint() if number == errno.EPERM else ""
        return OSError(number, f"{os.strerror(number)}{why}", str(target))


def namespace_hint() -> str:
    """Return what to add to the error of a mount; "" outside user namespaces."""
    return _IN_NAMESPACE if in_user_namespace() else ""


def _is_remote(mount: MountPoint) -> bool:
    return mount.fstype.startswith("nfs")


def _mount_around(path: Path, mounts: Sequence[MountPoint]) -> MountPoint | None:
    """Return the mount that holds a path: the nearest at or above it, of several the latest."""
    places = {str(path), *map(str, path.parents)}
    found = [mount for mount in mounts if mount.path in places]
    # The kernel lists them in the order of mounting, and `max` returns the first of equals.
    return max(reversed(found), key=lambda mount: len(mount.path), default=None)


def is_bound_to_itself(target: Path, mounts: Sequence[MountPoint]) -> bool:
    """Whether the mount at `target` is one that `share` made: a directory bound to itself.

    False for a file system that an administrator mounted there, and if there are more mounts at
    or below the target.
    """
    here = [m for m in mounts if m.path == str(target) or m.path.startswith(f"{target}/")]
    around = _mount_around(target.parent, mounts)
    if len(here) != 1 or here[0].path != str(target) or around is None:
        return False
    own = Path(around.root) / target.relative_to(around.path)
    return here[0].source == around.source and Path(here[0].root) == own


def run_mount(
    source: str,
    target: Path,
    fstype: str,
    options: Sequence[str],
    tools: Tools = HostTools(),  # noqa: B008  # it has no state
) -> None:
    """Mount a device with mount(8), which knows every file system's options.

    Raises OSError with the text of the Go kubelet (doMount in k8s.io/mount-utils).
    """
    arguments = [
        *(["-t", fstype] if fstype else []),
        *(["-o", ",".join(options)] if options else []),
    ]
    arguments += [source, str(target)]
    done = tools.run("mount", *arguments)
    if done.code != 0:
        raise OSError(
            f"mount failed: {done.ending}\nMounting command: mount\n"
            f"Mounting arguments: {' '.join(arguments)}\nOutput: {done.excerpt}{namespace_hint()}"
        )


def run_mount_nfs(
    source: str,
    target: Path,
    options: Sequence[str],
    helpers: Sequence[Path] = HELPERS,
    limit: float = _MOUNT_NFS_LIMIT,
) -> None:
    """Run mount.nfs, which talks to the server first; kill it after `limit` seconds.

    Raises OSError with the helper's output, or if it is not installed.
    """
    # A helper, because mount(2) neither resolves the server's name nor negotiates the version.
    command = [source, str(target), *(["-o", ",".join(options)] if options else [])]
    try:
        done = run_tool(helpers, command, limit, waits=False)
    except OSError as exc:
        if exc.errno == errno.ETIMEDOUT:
            raise OSError(f"{source} did not answer within {limit:g} s") from exc
        raise
    if done.code != 0:
        raise OSError(f"mounting {source} failed: {done.failure}{namespace_hint()}")
