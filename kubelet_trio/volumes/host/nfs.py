"""`nfs` volumes: exports of a file server, mounted for each pod by the host's mount.nfs.

    pods/<uid>/volumes/kubernetes.io~nfs/<volume>    the mount point

No state is kept: the mount table shows which volumes exist. A server that does not answer holds up
its own volume alone. A set-up that is cancelled leaves mount.nfs running, which is killed after a
minute; until then it keeps the lock of the mount point (volumes/keyed.py), so the end of the pod
waits for it, and unmounts what it may have mounted. As in pkg/volume/nfs of the Go kubelet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import trio

from kubelet_trio.containers import make_directories
from kubelet_trio.model import remove_empty
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.keyed import KeyedLocks
from kubelet_trio.volumes.layout import NFS, names_in, volume_dir, volumes_dir
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.spec import VolumeSpec
from kubelet_trio.volumes.teardown import RELEASE_PATIENCE, teardown_error, unmount_foreign


class NfsVolumes:
    """The `AsyncVolumePlugin` of NFS, inline or persistent. As upstream, it ignores fsGroup."""

    managed = False  # the files are also those of the server's other clients
    is_read_only = False

    def __init__(self, context: PluginContext) -> None:
        """Create the plugin."""
        self._context = context
        self._mounter = context.mounter
        self._locks = KeyedLocks(context.calls)

    def republishes(self, spec: VolumeSpec) -> bool:
        """Never: an export stays as it is."""
        return False

    async def is_attachable(self, spec: VolumeSpec) -> bool:
        """Never: a server has nothing to attach."""
        return False

    def path(self, spec: VolumeSpec) -> Path:
        """Return the mount point."""
        return volume_dir(self._context.pods_dir / spec.uid, NFS, spec.disk_name)

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether it is mounted. Raises OSError."""
        return await self._context.run(_is_mounted, self._mounter, self.path(spec))

    async def set_up(self, spec: VolumeSpec) -> None:
        """Mount the export, unless it is mounted. Raises OSError."""
        path = self.path(spec)
        async with self._locks.hold(_key(path)):
            await self._context.run(mount_export, self._mounter, spec, path)

    async def tear_down(self, pod_dir: Path) -> None:
        """Unmount the pod's volumes side by side, and remove their mount points.

        Raises `VolumeError` for the first that failed, or that a call which was left still mounts.
        """
        directory = volumes_dir(pod_dir) / NFS
        errors: list[VolumeError] = []
        try:
            names = await self._context.run(names_in, directory)
            async with trio.open_nursery() as volumes:
                for name in names:
                    volumes.start_soon(self._end, directory / name, errors)
            await self._context.run(remove_empty, directory)
        except OSError as exc:
            raise VolumeError("", f"tearing down {directory} failed: {exc}") from exc
        if errors:
            raise errors[0]

    async def _end(self, path: Path, errors: list[VolumeError]) -> None:
        """Unmount one volume, once nothing mounts it any more."""
        try:
            await self._locks.wait_left_below(_key(path), RELEASE_PATIENCE)
            async with self._locks.hold(_key(path)):
                await self._context.run(unmount_foreign, path, self._mounter)
        except OSError as exc:
            errors.append(teardown_error(path, exc.strerror or str(exc)))
        except VolumeError as exc:
            errors.append(exc)

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return nothing: every mount is in the directory of its pod."""
        return {}


def _key(path: Path) -> str:
    # The slash ends it: no key is the beginning of another volume's.
    return f"{path}/"


# What follows blocks.


def mount_export(mounter: Mounter, spec: VolumeSpec, path: Path) -> None:
    """Mount the export of a volume, unless something is mounted there. Raises OSError."""
    if _is_mounted(mounter, path):
        return
    make_directories(path)
    options = [*spec.mount_options, *(["ro"] if spec.read_only else [])]
    server = spec.source.server
    # nfs(5): an IPv6 address needs brackets.
    host = f"[{server}]" if ":" in server and not server.startswith("[") else server
    try:
        mounter.mount_nfs(f"{host}:{spec.source.path}", path, options)
    except OSError:
        remove_empty(path)
        raise


def _is_mounted(mounter: Mounter, path: Path) -> bool:
    return any(mount.path == str(path) for mount in mounter.mounts())


def make_nfs(context: PluginContext) -> NfsVolumes:
    """Return the plugin of `nfs` volumes."""
    return NfsVolumes(context)
