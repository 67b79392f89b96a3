"""Volumes on disks: attached and mounted once on the node, bind-mounted into each pod.

    plugins/kubernetes.io/<kind>/.../<disk>                    the disk's file system, its *place*
    plugins/kubernetes.io/<kind>/volumeDevices/.../<disk>/<uid>  its device, bind-mounted for a pod
    pods/<uid>/volumes/kubernetes.io~<kind>/<volume>           the pod's bind mount
    pods/<uid>/volumeDevices/kubernetes.io~<kind>/<volume>     the pod's link to the device

The layout is the Go kubelet's. No state is kept: a place is in use as long as the mount table shows
its file system somewhere else, or as a pod has an entry in it. A place exists before its disk is
attached and until it is detached, so after a crash at any step `clean` finds what to undo. A lock
for each place covers the time between attaching and the pod's bind mount.

A set-up that is cancelled does not wait for a program that hangs. The program keeps the lock of the
place (volumes/keyed.py), so nothing else works on the disk; what it has done when it ends is
completed by the next set-up, or undone by `unused`. What may still work in the directory of a pod
(a bind mount, a walk for the group, the map of a device) holds up the teardown of that pod.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import Protocol

import trio

from kubelet_trio.containers import make_directories
from kubelet_trio.model import get_logger, pod_object_ref
from kubelet_trio.volumes.block import DeviceMaps
from kubelet_trio.volumes.errors import VolumeError, VolumeStepError, other_label_error
from kubelet_trio.volumes.expansion import GrowthError, GrowthProblem, is_document
from kubelet_trio.volumes.host.disk_places import MAPS, DiskPlaces, PlacedKind, teardown_error
from kubelet_trio.volumes.host.format import format_and_mount
from kubelet_trio.volumes.host.plugins import PluginContext, unique_name
from kubelet_trio.volumes.host.resize import device_size, grow_filesystem
from kubelet_trio.volumes.keyed import KeyedLocks
from kubelet_trio.volumes.layout import MARKER, ready_file, volume_dir
from kubelet_trio.volumes.mountinfo import MountPoint
from kubelet_trio.volumes.ownership import own_volume
from kubelet_trio.volumes.selinux import mount_options, mounted_label
from kubelet_trio.volumes.spec import VolumeSpec
from kubelet_trio.volumes.teardown import RELEASE_PATIENCE
from kubelet_trio.volumes.tools import Tools

log = get_logger()


class DiskKind(PlacedKind, Protocol):
    """How the disks of one kind of volume are named, attached and detached."""

    @property
    def plugin(self) -> str:
        """The plugin's name below `kubernetes.io/`."""
        ...

    @property
    def owned_once(self) -> bool:
        """Whether only the first pod on the node sets the group of the files."""
        ...

    def name(self, spec: VolumeSpec) -> PurePath:
        """Return the disk's place, relative. Raises ValueError."""
        ...

    def map_name(self, spec: VolumeSpec) -> PurePath:
        """Return the place of its raw device, relative to `volumeDevices`. Raises ValueError."""
        ...

    def directory(self, spec: VolumeSpec) -> Path | None:
        """Return the directory that the volume is, if it is no disk. Raises OSError, ValueError."""
        ...

    async def attach(self, spec: VolumeSpec, place: Path) -> Path:
        """Attach the disk, and return its device. Idempotent.

        Raises OSError, ValueError or `ObjectError`.
        """
        ...

    async def rescan(self, spec: VolumeSpec) -> None:
        """Have the kernel read the size of an attached disk again. Raises OSError, ValueError."""
        ...

    async def detach(self, place: Path) -> None:
        """Detach the disk, which nothing uses any more. Idempotent. Raises OSError."""
        ...


class DiskVolumes:
    """The `AsyncVolumePlugin` of one kind of disk."""

    managed = True
    is_read_only = False

    def __init__(self, context: PluginContext, kind: DiskKind, map_dir: Path | None = None) -> None:
        """Take what the kinds share; `map_dir` is for raw devices, None: in the plugin's."""
        self._context = context
        self._mounter = context.mounter
        self._kind = kind
        self._escaped = f"kubernetes.io~{kind.plugin}"
        self._base = context.root_dir / "plugins/kubernetes.io" / kind.plugin
        self._map_base = map_dir or self._base / MAPS
        self._maps = DeviceMaps(context.mounter, context.devices)
        self._places = DiskPlaces(
            kind,
            self._escaped,
            self._base,
            self._map_base,
            context.pods_dir,
            context.mounter,
            self._maps,
        )
        self._locks = KeyedLocks(context.calls)

    def republishes(self, spec: VolumeSpec) -> bool:
        """Never: a disk stays as it is."""
        return False

    async def is_attachable(self, spec: VolumeSpec) -> bool:
        """Always: the attach controller lists every disk of a network at once."""
        return True

    def path(self, spec: VolumeSpec) -> Path:
        """Return the pod's mount point, or its link to the device."""
        pod_dir = self._context.pods_dir / spec.uid
        if spec.is_block:
            return pod_dir / MAPS / self._escaped / spec.disk_name
        return volume_dir(pod_dir, self._escaped, spec.disk_name)

    def map_dir(self, spec: VolumeSpec) -> Path:
        """Return the directory of the pods' entries for a device."""
        return self._map_base / self._kind.map_name(spec)

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether it is mounted and its group is set, or its device is mapped."""
        return await self._context.run(self._is_set_up, spec)

    async def set_up(self, spec: VolumeSpec) -> None:
        """Attach the disk, mount it for the node and for the pod; format it if it is empty.

        Raises OSError, ValueError, `ObjectError`, `VolumeStepError` or `VolumeError`.
        """
        run = self._context.run
        if await run(self._is_set_up, spec):
            return
        if spec.is_block:
            await self._map(spec)
            return
        directory = await self._directory(spec)
        source, own = directory or self._base / self._kind.name(spec), str(self.path(spec))
        async with self._locks.hold(str(source)):
            if directory is None:
                await self._mount_disk(spec, source)
            async with self._locks.hold(own):
                is_first = await run(self._bind, spec, source)
                if directory is not None and spec.mount_options:
                    # A disk is mounted with them for the node.
                    await run(self._mounter.restrict, self.path(spec), spec.mount_options)
        if not is_first and self._kind.owned_once and spec.fs_group is not None:
            await self._warn_of_group(spec, source, spec.fs_group)
        # Not under the disk's lock: the walk over a large volume takes long, and from now on the
        # mount table shows that the disk is in use.
        async with self._locks.hold(own):
            await run(self._finish, spec, is_first=is_first)

    async def tear_down(self, pod_dir: Path) -> None:
        """Unmount and unmap the pod's volumes, and detach the disks that no other pod uses.

        Raises `VolumeError` for the first of the pod's own mounts and devices that failed, or in
        which a call that was left still works. What cannot be detached within `RELEASE_PATIENCE`
        holds up no pod; `unused` returns it again.
        """
        try:
            await self._locks.wait_left_below(f"{pod_dir}/", RELEASE_PATIENCE)
        except OSError as exc:
            raise teardown_error(Path(exc.filename), exc) from exc
        places, errors = await self._context.run(self._places.tear_down, pod_dir)
        late: list[VolumeError] = []
        with trio.move_on_after(RELEASE_PATIENCE) as patience:
            await self._release_each(places, late)
        problems = [str(exc) for exc in late]
        if patience.cancelled_caught:
            problems.append(f"not detached within {RELEASE_PATIENCE:g} s")
        for problem in problems:
            log.warning("volume.detach_failed", plugin=self._kind.plugin, error=problem)
        if errors:
            raise errors[0]

    async def clean(self) -> None:
        """Unmount and detach every disk that no pod uses. Raises `VolumeError`."""
        places, errors = await self._context.run(self._places.unused)
        # A set-up is under way in the others.
        await self._release_all([p for p in places if not self._locks.is_held(str(p))], errors)

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what unmounts and detaches each disk that no pod uses, by its place."""
        places, errors = await self._context.run(self._places.unused)
        found: dict[str, Callable[[], Awaitable[None]]] = {
            str(place): partial(self._undo, place)
            for place in places
            if not self._locks.is_held(str(place))
        }
        # Entries of lost pods that could not be unmapped: all of them again.
        return found | ({self._escaped: self.clean} if errors else {})

    async def _undo(self, place: Path) -> None:
        await self._release_all([place], [])

    async def grow(self, spec: VolumeSpec, size: int) -> None:
        """Let the disk of a volume that is set up grow to `size` bytes, and its file system.

        Raises `GrowthError`.
        """
        run = self._context.run
        try:
            if not spec.is_block and await self._directory(spec) is not None:
                return
            base, name = self._base, self._kind.name
            if spec.is_block:
                base, name = self._map_base, self._kind.map_name
            place = base / name(spec)
            async with self._locks.hold(str(place)):
                try:
                    device = await run(self._device_of, spec, place)
                except FileNotFoundError as exc:
                    raise GrowthError(str(exc), GrowthProblem.GONE) from exc
                if await run(device_size, device) < size:
                    await self._kind.rescan(spec)
                if not spec.is_block:
                    await run(grow_mounted, self._context.tools, spec, device, place)
        except (OSError, ValueError) as exc:
            is_late = isinstance(exc, OSError) and exc.errno == errno.ETIMEDOUT
            problem = GrowthProblem.UNCERTAIN if is_late else GrowthProblem.FAILED
            raise GrowthError(str(exc), problem) from exc

    async def _directory(self, spec: VolumeSpec) -> Path | None:
        """Return the directory that the volume is, if it is no disk. Raises OSError, ValueError."""
        # Locked, so that one that hangs takes one thread, however often its pod tries again.
        async with self._locks.hold(_look(self.path(spec))):
            return await self._context.run(self._kind.directory, spec)

    async def _warn_of_group(self, spec: VolumeSpec, source: Path, group: int) -> None:
        """Tell the pod that the volume keeps another pod's group (SetUpAt in pkg/volume/local).

        Raises OSError.
        """
        async with self._locks.hold(_look(self.path(spec))):
            found = (await self._context.run(source.stat)).st_gid
        if found == group or self._context.events is None:
            return
        text = (
            f"The requested fsGroup is {group}, but the volume {spec.disk_name} has GID {found}. "
            "The volume may not be shareable."
        )
        self._context.events.emit(pod_object_ref(spec.pod), "Warning", "AlreadyMountedVolume", text)

    async def _mount_disk(self, spec: VolumeSpec, place: Path) -> None:
        run = self._context.run
        if await run(self._is_mounted_for, spec, place):
            return
        await run(make_directories, place)
        with _step("MountVolume.WaitForAttach"):
            device = await self._kind.attach(spec, place)
        options = {*mount_options(spec.mount_options, spec.selinux_label)}
        options |= {"ro"} if spec.read_only else set()
        tools, fstype = self._context.tools, spec.source.fsType or ""
        wanted = sorted(options - {""})
        with _step("MountVolume.MountDevice"):
            await run(format_and_mount, tools, self._mounter, device, place, fstype, wanted)

    async def _map(self, spec: VolumeSpec) -> None:
        place = self._map_base / self._kind.map_name(spec)
        entry, link = place / spec.uid, self.path(spec)
        async with self._locks.hold(str(place)):
            # Under the pod's own lock, for which its end waits: what a cancelled set-up still
            # writes would stay otherwise.
            async with self._locks.hold(str(link)):
                await self._context.run(_touch, entry)
            with _step("MapVolume.WaitForAttach"):
                device = await self._kind.attach(spec, place)
            with _step("MapVolume.MapBlockVolume"):
                async with self._locks.hold(str(link)):
                    await self._context.run(self._maps.map, device, entry, link)

    async def _release_all(self, places: list[Path], errors: list[VolumeError]) -> None:
        """Release places. Raises `VolumeError` for the first of all errors."""
        await self._release_each(places, errors)
        if errors:
            raise errors[0]

    async def _release_each(self, places: list[Path], errors: list[VolumeError]) -> None:
        """Release places side by side: one that hangs delays no other."""
        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(self._release, place, errors)

    async def _release(self, place: Path, errors: list[VolumeError]) -> None:
        run = self._context.run
        try:
            async with self._locks.hold(str(place)):
                if await run(self._places.is_used, place):
                    return
                await run(self._places.unmount, place)
                if not await run(self._places.is_disk_used, place):
                    await self._kind.detach(place)
                await run(self._places.remove, place)
        except OSError as exc:
            text = f'UnmountDevice failed for volume "{place.name}" : {exc}'
            errors.append(VolumeError(place.name, text))

    # What follows blocks.

    def _is_set_up(self, spec: VolumeSpec) -> bool:
        path = self.path(spec)
        if spec.is_block:
            entry = self._map_base / self._kind.map_name(spec) / spec.uid
            return self._maps.is_mapped(entry, path)
        return self._ready(spec).exists() and bool(self._places.mounts_at(path))

    def _device_of(self, spec: VolumeSpec, place: Path) -> Path:
        """Return the device of a volume that is set up. Raises OSError if it is not."""
        if spec.is_block:
            return self.path(spec).resolve(strict=True)
        mounts = self._places.mounts_at(place)
        if not mounts:
            raise FileNotFoundError(errno.ENOENT, "nothing is mounted", str(place))
        return Path(mounts[-1].source)

    def _is_mounted_for(self, spec: VolumeSpec, place: Path) -> bool:
        """Whether the disk is mounted as the pod wants it; unmount it if it has another SELinux
        label, and no pod uses it.

        Raises OSError; `VolumeError` if another pod uses it with that label.
        """
        mounts, label = self._places.mounts_at(place), spec.selinux_label
        if not mounts:
            return False
        is_own = bool(self._places.mounts_at(self.path(spec)))
        if is_own or label is None or _has_label(mounts[-1], spec):
            return True
        if self._places.is_used(place):
            raise other_label_error(spec.name, unique_name(spec) or spec.disk_name)
        self._places.unmount(place)
        return False

    def _ready(self, spec: VolumeSpec) -> Path:
        return ready_file(self._context.pods_dir / spec.uid, self._escaped, spec.disk_name)

    def _bind(self, spec: VolumeSpec, source: Path) -> bool:
        """Bind-mount the volume into the pod; return whether the pod is the first to have it."""
        path = self.path(spec)
        self._ready(spec).unlink(missing_ok=True)  # a reboot leaves it
        make_directories(path)
        # An attempt that failed later left its mount; a second one would cover it.
        if not self._places.mounts_at(path):
            self._mounter.bind(str(source), path)
        return not self._is_shared(path)

    def _finish(self, spec: VolumeSpec, *, is_first: bool) -> None:
        if not spec.read_only and (is_first or not self._kind.owned_once):
            own_volume(
                self.path(spec),
                spec.fs_group,
                read_only=False,
                policy=spec.change_policy,
                walks=self._context.walks,
            )
        ready = self._ready(spec)
        make_directories(ready.parent)
        ready.touch(MARKER)

    def _is_shared(self, path: Path) -> bool:
        """Whether another pod mounts the same directory."""
        # Bind mounts of one directory have the same file system and root (proc_pid_mountinfo(5)).
        own = self._places.mounts_at(path)[-1]
        pods, part = f"{self._context.pods_dir}/", f"/{self._escaped}/"
        return any(
            (mount.root, mount.source) == (own.root, own.source)
            for mount in self._mounter.mounts()
            if mount.path != own.path and mount.path.startswith(pods) and part in mount.path
        )


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Name the step of the set-up that the block is, for the event of a failure."""
    try:
        yield
    except (OSError, ValueError) as exc:
        raise VolumeStepError(str(exc), name) from exc


def _has_label(mount: MountPoint, spec: VolumeSpec) -> bool:
    # A persistent volume may name a label in its own mount options.
    own = mounted_label(spec.mount_options)
    return mounted_label(mount.super_options) == (spec.selinux_label or own)


def _look(path: Path) -> str:
    """Return the key of calls that change nothing, for which the end of the pod need not wait."""
    return f"look for {path}"


def _touch(entry: Path) -> None:
    make_directories(entry.parent)
    entry.touch(0o640)


def grow_mounted(tools: Tools, spec: VolumeSpec, device: Path, place: Path) -> None:
    """Let the file system of a volume that is mounted at its place grow. Blocks.

    Raises OSError, ValueError.
    """
    try:
        grow_filesystem(tools, device, place)
    except ValueError as exc:
        # The size of a document's volume is not known: nobody may have asked for more.
        if spec.claim is None or not is_document(spec.claim):
            raise
        log.info("volume.cannot_grow", volume=spec.disk_name, error=str(exc))


def safe_name(what: str, name: str) -> str:
    """Return a name that becomes part of a path. Raises ValueError if it would leave its place."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f'{what} "{name}" cannot be part of a path')
    return name
