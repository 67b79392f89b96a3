"""FlexVolumes: volumes of drivers that are programs on the host.

The driver `vendor/driver` is the program `<volumePluginDir>/vendor~driver/driver`. It is looked for
whenever a volume needs it, not watched: one that is installed, replaced or removed counts from its
next use on. Each call is `driver <command> <arguments>`, and answers with a JSON object.

    init, attach, waitforattach, mountdevice, mount    set-up
    unmount, unmountdevice, detach                     teardown
    expandvolume, expandfs                             growth

A driver that answers "Not supported" leaves the step to the agent: it mounts the attached device,
binds the device's mount, or lets the file system grow. In a cluster the controllers call `attach`,
`detach` and `expandvolume`. As pkg/volume/flexvolume in the Go kubelet.
"""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import trio
from lightkube.models.core_v1 import Secret

from kubelet_trio.containers import make_directories
from kubelet_trio.model import get_logger, pod_key, remove_empty
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import ObjectError, secret_content, secret_key
from kubelet_trio.volumes.errors import MissingToolError, VolumeError, VolumeStepError
from kubelet_trio.volumes.expansion import GrowthError, GrowthProblem, claimed_size
from kubelet_trio.volumes.host.disk_places import directories
from kubelet_trio.volumes.host.disks import grow_mounted, safe_name
from kubelet_trio.volumes.host.flex_driver import FlexAnswer, FlexDriver
from kubelet_trio.volumes.host.format import format_and_mount
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.keyed import KeyedLocks
from kubelet_trio.volumes.layout import MARKER, ready_file, volume_dir, volumes_dir
from kubelet_trio.volumes.mountinfo import MountPoint
from kubelet_trio.volumes.ownership import own_volume
from kubelet_trio.volumes.spec import VolumeSpec
from kubelet_trio.volumes.teardown import RELEASE_PATIENCE

log = get_logger()

_OWN = "kubernetes.io~"  # directories of the kinds that are built in
_OPTION = "kubernetes.io/"


class FlexVolumes:
    """The `AsyncVolumePlugin` of FlexVolumes, of all drivers."""

    managed = True
    is_read_only = False

    def __init__(self, context: PluginContext) -> None:
        """Create the plugin; without an attach controller, the drivers attach from here."""
        self._context = context
        self._mounter = context.mounter
        self._controller = context.controller
        self._base = context.root_dir / "plugins/kubernetes.io/flexvolume"
        self._locks = KeyedLocks(context.calls)

    def republishes(self, spec: VolumeSpec) -> bool:
        """Never: drivers are called once."""
        return False

    def path(self, spec: VolumeSpec) -> Path:
        """Return the volume's directory in the pod. Raises ValueError for a driver's bad name."""
        pod_dir = self._context.pods_dir / spec.uid
        return volume_dir(pod_dir, _escaped(spec.source.driver), spec.disk_name)

    async def is_attachable(self, spec: VolumeSpec) -> bool:
        """Whether the driver attaches volumes. Raises OSError, ValueError."""
        abilities = await self._init(self.driver(spec.source.driver))
        return abilities is not None and abilities.can("attach")

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether the driver has mounted it for the pod."""
        return await self._context.run(self._is_set_up, spec)

    async def set_up(self, spec: VolumeSpec) -> None:
        """Have the driver mount the volume.

        Raises OSError, ValueError, `ObjectError` or `VolumeStepError`.
        """
        if spec.is_block:
            raise ValueError("FlexVolumes cannot be used as block devices")
        if await self.is_set_up(spec):
            return
        driver = self.driver(spec.source.driver)
        abilities = await self._init(driver)
        if abilities is None:
            raise ValueError(f"FlexVolume driver {driver.name} does not support init")
        place, own = self._place(spec), str(self.path(spec))
        async with self._locks.hold(str(place)):
            if abilities.can("attach"):
                try:
                    await self._context.run(self._mount_device, spec, driver, place)
                except OSError as exc:
                    raise VolumeStepError(str(exc), "MountVolume.MountDevice") from exc
            async with self._locks.hold(own):
                await self._context.run(self._mount, spec, driver, place)
        async with self._locks.hold(own):
            await self._context.run(self._finish, spec, has_group=abilities.can("fsgroup"))

    async def _init(self, driver: FlexDriver) -> FlexAnswer | None:
        """Ask a driver what it can. Raises OSError."""
        # One at a time, so that a driver that hangs takes one thread, whatever number of pods.
        async with self._locks.hold(f"init of {driver.program}"):
            return await self._context.run(driver.call, "init")

    async def tear_down(self, pod_dir: Path) -> None:
        """Have the drivers unmount the pod's volumes, and the devices that no other pod uses.

        Raises `VolumeError` for the first volume of the pod that failed, or in which a call that
        was left still works. A device that cannot be unmounted and detached within
        `RELEASE_PATIENCE` holds up no pod; `unused` returns it again.
        """
        errors: list[VolumeError] = []
        targets = await self._context.run(_targets, pod_dir)
        async with trio.open_nursery() as volumes:
            for target in targets:
                volumes.start_soon(self._end, pod_dir, target, errors)
        await self._context.run(_remove_parents, pod_dir)
        if errors:
            raise errors[0]

    async def _end(self, pod_dir: Path, target: Path, errors: list[VolumeError]) -> None:
        """Undo one volume of a pod; then its device, if it was the last use."""
        name = target.parent.name.replace("~", "/")
        place = self._base / name / "mounts" / target.name
        try:
            await self._locks.wait_left(str(target), RELEASE_PATIENCE)
            async with self._locks.hold(str(target)):
                await self._context.run(self._tear_down, name, pod_dir, target)
        except (OSError, ValueError) as exc:
            errors.append(_teardown_error(target, exc))
            return
        problem = f"no end within {RELEASE_PATIENCE:g} s; the pod does not wait any longer"
        with trio.move_on_after(RELEASE_PATIENCE):
            try:
                async with self._locks.hold(str(place)):
                    await self._context.run(self._release, name, place)
                return
            except (OSError, ValueError) as exc:
                problem = str(exc)
        log.warning("flex.device_not_unmounted", driver=name, place=str(place), error=problem)

    async def clean(self) -> None:
        """Have the drivers unmount every device that no pod uses. Raises `VolumeError`."""
        errors: list[VolumeError] = []
        for undo in (await self.unused()).values():
            try:
                await undo()
            except VolumeError as exc:
                errors.append(exc)
        if errors:
            raise errors[0]

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what unmounts each device that no pod uses, by its place."""
        return {
            str(place): partial(self._undo, name, place)
            for name, place in await self._context.run(self._places)
        }

    async def _undo(self, name: str, place: Path) -> None:
        if self._locks.is_held(str(place)):
            return  # a set-up is under way
        try:
            async with self._locks.hold(str(place)):
                await self._context.run(self._release, name, place)
        except (OSError, ValueError) as exc:
            text = f'UnmountDevice failed for volume "{place.name}" : {exc}'
            raise VolumeError(place.name, text) from exc

    async def grow(self, spec: VolumeSpec, size: int) -> None:
        """Have the driver let a volume grow to `size` bytes, and its file system.

        Raises `GrowthError`.
        """
        try:
            driver, place = self.driver(spec.source.driver), self._place(spec)
            async with self._locks.hold(str(place)):
                await self._context.run(self._grow, spec, driver, place, size)
        except (OSError, ValueError) as exc:
            # After a timeout the driver may still be at work.
            is_late = isinstance(exc, OSError) and exc.errno == errno.ETIMEDOUT
            problem = GrowthProblem.UNCERTAIN if is_late else GrowthProblem.FAILED
            raise GrowthError(str(exc), problem) from exc

    def driver(self, name: str) -> FlexDriver:
        """Return a driver by its name. Raises ValueError for a name that is none."""
        directory = _escaped(name)
        program = self._context.flex_dir / directory / name.rpartition("/")[2]
        return FlexDriver(name, program)

    # What follows blocks.

    def _is_set_up(self, spec: VolumeSpec) -> bool:
        # A driver need not mount anything: it may write files.
        path, ready = self.path(spec), self._ready(spec)
        if not ready.exists():
            return False
        return bool(self._mounts_at(path)) or ready.read_text() == _FILES

    def _ready(self, spec: VolumeSpec) -> Path:
        escaped = _escaped(spec.source.driver)
        return ready_file(self._context.pods_dir / spec.uid, escaped, spec.disk_name)

    def _place(self, spec: VolumeSpec) -> Path:
        """Return where the volume's device is mounted for the node (getDeviceMountPath)."""
        name = safe_name("volume", spec.disk_name)
        return self._base.joinpath(spec.source.driver, "mounts", name)

    def _mount_device(self, spec: VolumeSpec, driver: FlexDriver, place: Path) -> None:
        """Wait for the device, and mount it for the node, unless it is mounted. Raises OSError."""
        if self._mounts_at(place):
            return
        make_directories(place)
        options = _options(spec)
        device = self._attach(spec, driver, options)
        waited = driver.call("waitforattach", device, options)
        device = waited.device if waited is not None else device
        if driver.call("mountdevice", str(place), device, options) is not None or not device:
            return
        mode, fstype = "ro" if spec.read_only else "rw", spec.source.fsType or ""
        tools = self._context.tools
        format_and_mount(tools, self._mounter, Path(device), place, fstype, [mode])

    def _attach(self, spec: VolumeSpec, driver: FlexDriver, options: str) -> str:
        """Return the device's path; "" if the driver has none. Raises OSError."""
        if self._controller is not None:
            return self._controller.device(flex_unique_name(spec))
        done = driver.call("attach", options, self._context.node_name)
        return done.device if done is not None else ""

    def _mount(self, spec: VolumeSpec, driver: FlexDriver, place: Path) -> None:
        path, options = self.path(spec), _options(spec, _pod_options(spec))
        if self._mounts_at(path):
            return
        make_directories(path)
        try:
            if driver.call("mount", str(path), options) is not None:
                return
            if not self._mounts_at(place):
                raise OSError(f"FlexVolume driver {driver.name} supports no way to mount")
            self._mounter.bind(str(place), path)
        except OSError as exc:
            # After a timeout the driver may still mount: teardown then calls its unmount.
            if exc.errno != errno.ETIMEDOUT and not self._mounts_at(path):
                remove_empty(path)
            raise

    def _grow(self, spec: VolumeSpec, driver: FlexDriver, place: Path, size: int) -> None:
        """Raises OSError, ValueError, `GrowthError`."""
        if not self._is_set_up(spec):
            text = f"volume {spec.disk_name} is not mounted for pod {spec.uid} any more"
            raise GrowthError(text, GrowthProblem.GONE)
        abilities = driver.call("init")
        if abilities is not None and not abilities.can("requiresfsresize"):
            text = f"FlexVolume driver {driver.name} needs nothing on the node to grow a volume"
            raise GrowthError(text, GrowthProblem.UNSUPPORTED)
        options, sizes = _options(spec), (str(size), str(claimed_size(spec.claim)))
        if self._controller is None:
            # What the controller does in a cluster (ExpandVolumeDevice).
            driver.call("expandvolume", options, str(place), *sizes)
        mounts = self._mounts_at(place)
        device = mounts[-1].source if mounts and mounts[-1].source.startswith("/") else ""
        done = driver.call("expandfs", options, device, str(self.path(spec)), *sizes)
        if done is None and device:
            grow_mounted(self._context.tools, spec, Path(device), place)

    def _finish(self, spec: VolumeSpec, *, has_group: bool) -> None:
        path = self.path(spec)
        if has_group and not spec.read_only:
            walks, policy = self._context.walks, spec.change_policy
            own_volume(path, spec.fs_group, read_only=False, policy=policy, walks=walks)
        ready = self._ready(spec)
        make_directories(ready.parent)
        ready.write_text("" if self._mounts_at(path) else _FILES)
        ready.chmod(MARKER)

    def _tear_down(self, name: str, pod_dir: Path, target: Path) -> None:
        """Have the driver unmount a volume of a pod. Raises OSError, ValueError."""
        try:
            if self.driver(name).call("unmount", str(target)) is None:
                self._unmount(target)
        except MissingToolError:
            # Without its driver only what is not mounted can go.
            if self._mounts_at(target):
                raise
        if self._mounts_at(target):
            raise OSError(f"the driver's unmount left a mount at {target}")
        ready_file(pod_dir, target.parent.name, target.name).unlink(missing_ok=True)
        if target.exists():  # drivers may remove it
            target.rmdir()

    def _release(self, name: str, place: Path) -> None:
        """Have the driver unmount a device, unless a pod uses it. Raises OSError, ValueError."""
        is_mounted = bool(self._mounts_at(place))
        # Not a look at the directory itself: a file system whose server died does not answer.
        if (not is_mounted and not os.path.lexists(place)) or self._is_used(place):
            return
        driver = self.driver(name)
        if is_mounted:
            if driver.call("unmountdevice", str(place)) is None:
                self._unmount(place)
            if self._mounts_at(place):
                raise OSError(f"the driver's unmountdevice left a mount at {place}")
        if self._controller is None and os.access(driver.program, os.X_OK):
            driver.call("detach", place.name, self._context.node_name)
        remove_empty(place)

    def _is_used(self, place: Path) -> bool:
        own = self._mounts_at(place)
        others = [m for m in self._mounter.mounts() if m.path != str(place)]
        return any((m.device or m.source) == (o.device or o.source) for m in own for o in others)

    def _places(self) -> list[tuple[str, Path]]:
        """Return the places of devices, with their drivers' names."""
        return _places(self._base)

    def _unmount(self, target: Path) -> None:
        for _ in self._mounts_at(target):
            self._mounter.unmount(target)

    def _mounts_at(self, path: Path) -> list[MountPoint]:
        return [mount for mount in self._mounter.mounts() if mount.path == str(path)]


_FILES = "files\n"  # in the marker of a volume whose driver has mounted nothing


def _escaped(driver: str) -> str:
    """Return the name of a driver's directories: `vendor~driver`. Raises ValueError."""
    parts = driver.split("/")
    if len(parts) > 2 or any(part.startswith(".") for part in parts) or "~" in driver:
        raise ValueError(f'"{driver}" is no name of a FlexVolume driver')
    for part in parts:
        safe_name("FlexVolume driver", part)
    if parts[0] == "kubernetes.io":
        raise ValueError(f'"{driver}" is no name of a FlexVolume driver: that vendor is reserved')
    return "~".join(parts)


def _options(spec: VolumeSpec, extra: Mapping[str, str] | None = None) -> str:
    """Return a volume's options as JSON, its own last (NewOptionsForDriver)."""
    options = {
        f"{_OPTION}fsType": spec.source.fsType or "",
        f"{_OPTION}readwrite": "ro" if spec.read_only else "rw",
        f"{_OPTION}pvOrVolumeName": spec.disk_name,
        **(extra or {}),
        **(spec.source.options or {}),
    }
    # Sorted and without spaces, as Go writes a map.
    return json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _pod_options(spec: VolumeSpec) -> dict[str, str]:
    """Return the options that tell a driver about the pod. Raises `ObjectError`, ValueError."""
    key = pod_key(spec.pod)
    options = {
        f"{_OPTION}pod.name": key.name,
        f"{_OPTION}pod.namespace": key.namespace,
        f"{_OPTION}pod.uid": spec.uid,
        f"{_OPTION}serviceAccount.name": pod_spec(spec.pod).serviceAccountName or "",
        **dict(_secret_options(spec)),
    }
    if spec.fs_group is not None:
        options[f"{_OPTION}mounterArgs.FsGroup"] = str(spec.fs_group)
    return options


def _secret_options(spec: VolumeSpec) -> Iterator[tuple[str, str]]:
    found = spec.source.secretRef
    if found is None or not found.name:
        return
    namespace = getattr(found, "namespace", None) or spec.namespace
    secret = spec.objects.get(secret_key(namespace, found.name), Secret)
    if secret.type != spec.source.driver:
        # GetSecretForPV: only secrets that were made for the driver.
        raise ObjectError(
            f"couldn't get secret {namespace}/{found.name} err: cannot get secret of type "
            f"{spec.source.driver}"
        )
    for name, value in secret_content(secret).items():
        yield f"{_OPTION}secret/{name}", base64.b64encode(value).decode()


def _targets(pod_dir: Path) -> list[Path]:
    """Return the directories of a pod's FlexVolumes."""
    found = directories(volumes_dir(pod_dir), "*/*")
    return [target for target in found if is_flex_directory(target.parent.name)]


def _remove_parents(pod_dir: Path) -> None:
    for driver in directories(volumes_dir(pod_dir), "*"):
        if is_flex_directory(driver.name):
            remove_empty(driver)


def _teardown_error(target: Path, cause: Exception) -> VolumeError:
    return VolumeError(
        target.name, f'UnmountVolume.TearDown failed for volume "{target.name}" : {cause}'
    )


def is_flex_directory(name: str) -> bool:
    """Whether a directory of a pod's volumes is that of a FlexVolume driver."""
    return not name.startswith(_OWN)


def flex_unique_name(spec: VolumeSpec) -> str:
    """Return the volume's name in a node's `volumesInUse` and `volumesAttached`."""
    return f"{spec.source.driver}/{spec.disk_name}"


def flex_on_disk(base: Path) -> frozenset[str]:
    """Return the unique names of the volumes whose device has a place. Blocks; raises OSError."""
    return frozenset(f"{driver}/{place.name}" for driver, place in _places(base))


def _places(base: Path) -> list[tuple[str, Path]]:
    # The driver's name has a slash or none.
    found = [p for depth in ("*", "*/*") for p in directories(base, f"{depth}/mounts/*")]
    return [(str(p.parent.parent.relative_to(base)), p) for p in found]


def make_flex(context: PluginContext) -> FlexVolumes:
    """Return the plugin of FlexVolumes."""
    return FlexVolumes(context)
