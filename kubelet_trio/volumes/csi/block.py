"""CSI volumes as block devices: published by their drivers as device files, mapped into pods.

The record of a volume exists before the first call of its driver, a pod's entry and link before its
publish: the disk (`block_paths`) shows what a driver may have done. The volume is unstaged when no
pod has an entry or a target.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from kubelet_trio.containers import make_directories
from kubelet_trio.model import get_logger, remove_empty, remove_tree, remove_written
from kubelet_trio.volumes.block import DeviceMaps
from kubelet_trio.volumes.csi.block_paths import PUBLISH, STAGING, BlockPaths, block_volumes
from kubelet_trio.volumes.csi.client import DriverClient, PublishRequest, StageRequest
from kubelet_trio.volumes.csi.data import RECORD, VolumeRecord, read_record, write_record
from kubelet_trio.volumes.csi.inputs import VolumeUse, pod_attributes, secret_values, volume_use
from kubelet_trio.volumes.csi.node import CsiNode, VolumeUsers, failing_step
from kubelet_trio.volumes.csi.staging import (
    access_of,
    brief,
    node_client,
    undo_call,
    undo_mounts,
)
from kubelet_trio.volumes.csi.types import Capability, CsiVolume
from kubelet_trio.volumes.errors import CsiCallError, VolumeError, VolumeStepError
from kubelet_trio.volumes.layout import names_in
from kubelet_trio.volumes.measure import csi_plugin_name
from kubelet_trio.volumes.spec import VolumeSpec
from kubelet_trio.volumes.teardown import mounted_below

log = get_logger()

_NO_CLIENT = "kubernetes.io/csi: blockMapper.{} failed to get CSI client: "
_NO_STAGE_SECRET = "kubernetes.io/csi: failed to get {}: "
_NO_SECRET = "kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get {}: "


@dataclass(slots=True)
class CsiBlocks:
    """The plugin for CSI volumes that are block devices."""

    node: CsiNode
    maps: DeviceMaps
    managed: bool = False
    is_read_only: bool = False
    # Apart from those of file systems, whose teardown would release a device's volume.
    users: VolumeUsers = field(default_factory=VolumeUsers)
    # What this process has completed. After a restart the driver is asked again: of what is on
    # disk, nothing shows whether a call was answered.
    _staged: set[CsiVolume] = field(default_factory=set)
    _mapped: set[tuple[str, str]] = field(default_factory=set)  # (UID, name)

    def republishes(self, spec: VolumeSpec) -> bool:
        """Whether the driver wants another NodePublishVolume from time to time."""
        return bool(volume_use(spec).driver.requiresRepublish)

    def path(self, spec: VolumeSpec) -> Path:
        """Return the pod's link to the device."""
        return self._paths(spec.disk_name).link(spec.uid)

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether this process has published and mapped the volume. Raises OSError."""
        if (spec.uid, spec.disk_name) not in self._mapped:
            return False
        paths = self._paths(spec.disk_name)
        return await self.node.offload(
            self.maps.is_mapped, paths.entries / spec.uid, paths.link(spec.uid)
        )

    async def set_up(self, spec: VolumeSpec) -> None:
        """Publish a volume and map its device; stage it first if the driver does that.

        Raises `VolumeStepError`, OSError, ValueError, `ObjectError`.
        """
        use = volume_use(spec)
        is_again = await self.is_set_up(spec)
        if is_again and not use.driver.requiresRepublish:
            return
        paths = self._paths(_checked(spec.disk_name))
        node = self.node
        self.users.add(spec.uid, use.volume)
        await node.wait_attached(use)
        async with node.locks.hold(use.volume.unique_name):
            if not is_again and await self.is_set_up(spec):
                return  # the pod has another volume of the same claim
            # Again: the teardown of another pod may have released the volume meanwhile.
            context = await node.wait_attached(use)
            staging_path = await self._stage(use, paths, context)
            with failing_step("MapPodDevice", use, _NO_CLIENT.format("MapPodDevice")):
                client = node.drivers.client(use.volume.driver)
                await self._publish(use, paths, client, staging_path, context)
            target, entry = paths.targets / spec.uid, paths.entries / spec.uid
            with failing_step("MapBlockVolume", use):
                await node.offload(self.maps.map, target, entry, paths.link(spec.uid))
            self._mapped.add((spec.uid, spec.disk_name))

    async def tear_down(self, pod_dir: Path) -> None:
        """Unmap and unpublish all volumes of a pod, and unstage those that no other pod uses.

        Raises `VolumeError` for the first that is still published, after the others. What cannot
        be unstaged within `RELEASE_PATIENCE` holds up no pod; `unused` returns it again.
        """
        uid = pod_dir.name
        try:
            found = [p for p in await self._volumes() if await self.node.offload(_is_of, p, uid)]
        except OSError as exc:
            raise VolumeError("", f"reading the block volumes of {pod_dir} failed: {exc}") from exc
        errors: dict[str, VolumeError] = {}
        async with trio.open_nursery() as volumes:
            for paths in found:
                volumes.start_soon(self._end, paths, uid, errors)
        kept = {await self._recorded(self._paths(name)) for name in errors}
        # What was tried, but not as far as an entry for the pod.
        async with trio.open_nursery() as volumes:
            for volume in self.users.of_pod(uid) - kept:
                volumes.start_soon(self._give_up, uid, volume)
        _raise_first(errors)

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what undoes each volume that a pod without a directory has, or no pod."""
        try:
            found = await self.node.offload(self._unused)
        except OSError as exc:
            raise VolumeError("", f"reading the block volumes failed: {exc}") from exc
        return {str(paths.base): partial(self._undo, paths) for paths in found}

    def _paths(self, name: str) -> BlockPaths:
        return BlockPaths(self.node.root_dir, name)

    async def _volumes(self) -> list[BlockPaths]:
        return await self.node.offload(block_volumes, self.node.root_dir)

    async def _stage(self, use: VolumeUse, paths: BlockPaths, context: Mapping[str, str]) -> str:
        """Record a volume and stage it, unless it is staged; return the staging path, or ""."""
        with failing_step("SetUpDevice", use, _NO_CLIENT.format("SetUpDevice")):
            client = self.node.drivers.client(use.volume.driver)
            record = VolumeRecord(
                use.volume,
                paths.name,
                self.node.node_name,
                is_attachable=use.is_attachable,
            )
            # Or the cleaning of unused volumes could remove the directory, which has no record yet.
            async with self.node.locks.hold(str(paths.base)):
                is_new = await self.node.offload(_write, paths, record)
            if not client.can(Capability.STAGE_UNSTAGE_VOLUME):
                return ""
            path = str(paths.staging)
            if use.volume in self._staged:
                return path
            secrets = secret_values(use, use.stage_secret, _NO_STAGE_SECRET)
            access = access_of(use, client)
            request = StageRequest(use.volume, path, access, context, use.attributes, secrets)
            await self.node.offload(make_directories, paths.staging)
            try:
                await client.stage(request, is_migrated=use.spec.is_migrated)
            except CsiCallError as exc:
                failure = exc
            else:
                self._staged.add(use.volume)
                return path
            if failure.is_final and is_new:
                await self.node.offload(_remove_volume, paths, self.node)
            raise failure

    async def _publish(
        self,
        use: VolumeUse,
        paths: BlockPaths,
        client: DriverClient,
        staging_path: str,
        context: Mapping[str, str],
    ) -> None:
        uid = use.spec.uid
        request = PublishRequest(
            use.volume,
            str(paths.targets / uid),
            access_of(use, client),
            staging_path,
            read_only=use.read_only,
            publish_context=context,
            # Without the tokens of service accounts, as in publishVolumeForBlock.
            volume_context={**use.attributes, **pod_attributes(use)},
            secrets=secret_values(use, use.publish_secret, _NO_SECRET),
        )
        is_new = await self.node.offload(_prepare_pod, paths, uid)
        try:
            await client.publish(request, is_migrated=use.spec.is_migrated)
        except CsiCallError as exc:
            failure = exc
        else:
            return
        if failure.is_final and is_new:
            await self.node.offload(self.maps.unmap, paths.entries / uid, paths.link(uid))
        raise failure

    async def _end(self, paths: BlockPaths, uid: str, errors: dict[str, VolumeError]) -> None:
        """Unmap and unpublish a pod's volume; then unstage it, if it was the last use."""
        name = paths.name
        try:
            volume = await self._recorded(paths)
            if volume is None:
                self._mapped.discard((uid, name))
                await self.node.offload(_remove_pod, paths, uid, self.node, self.maps)
                return
            async with self.node.locks.hold(volume.unique_name):
                self._mapped.discard((uid, name))
                await self._unpublish(paths, uid, volume)
                self.users.remove(uid, volume)
                with brief(volume):
                    await self._try_release(paths, volume)
        except (VolumeStepError, OSError) as exc:
            text = f'UnmapVolume.UnmapPodDevice failed for volume "{name}" : {exc}'
            errors[name] = VolumeError(name, text)

    async def _unpublish(self, paths: BlockPaths, uid: str, volume: CsiVolume) -> None:
        """Undo a pod's map and publish. Raises `VolumeStepError` or OSError."""
        target = paths.targets / uid
        client = node_client(self.node, volume, "blockMapper.UnmapPodDevice")
        # The rest stays until the driver has answered: it shows that the pod may have the volume.
        await self.node.offload(self.maps.release, paths.entries / uid)
        try:
            await undo_call(self.node, client.unpublish, volume, target)
        except CsiCallError as exc:
            text = f"kubernetes.io/csi: blockMapper.unpublishVolumeForBlock failed: {exc}"
            raise VolumeStepError(text) from exc
        await self.node.offload(_remove_pod, paths, uid, self.node, self.maps)

    async def _release(self, paths: BlockPaths, volume: CsiVolume) -> None:
        """Unstage a volume if no pod uses it, and forget it. Needs the volume's lock.

        Raises `VolumeStepError` or OSError; the volume then stays recorded and in use.
        """
        node = self.node
        pods = await node.offload(paths.pods)
        if pods or self.users.uses(volume):
            return
        if await node.offload(paths.staging.is_dir):
            # From here on it counts as not staged, whatever the driver answers.
            self._staged.discard(volume)
            plugin = csi_plugin_name(volume.driver)
            with node.measured.operation("unmap_device", plugin):
                client = node_client(node, volume, "blockMapper.TearDownDevice")
                if client.can(Capability.STAGE_UNSTAGE_VOLUME):
                    try:
                        await undo_call(node, client.unstage, volume, paths.staging)
                    except CsiCallError as exc:
                        raise VolumeStepError(
                            f"kubernetes.io/csi: blockMapper.unstageVolumeForBlock failed: {exc}"
                        ) from exc
        await node.offload(_remove_volume, paths, node)
        node.in_use.drop(volume.unique_name)

    async def _try_release(self, paths: BlockPaths, volume: CsiVolume) -> None:
        """As `_release`, but a failure is only logged: `unused` returns the volume again."""
        try:
            await self._release(paths, volume)
        except (VolumeStepError, OSError) as exc:
            log.warning("csi.unstage_failed", driver=volume.driver, error=str(exc))

    async def _give_up(self, uid: str, volume: CsiVolume) -> None:
        """Let go of a volume that a pod has not got."""
        # Before the wait for the lock: whoever holds it may be the last user.
        self.users.remove(uid, volume)
        with brief(volume):
            async with self.node.locks.hold(volume.unique_name):
                await self._forget(volume)

    async def _forget(self, volume: CsiVolume) -> None:
        """Unstage a volume, unless a pod uses it; it is not in use any more. Needs its lock."""
        try:
            all_paths = await self._volumes()
        except OSError as exc:
            log.warning("csi.unstage_failed", driver=volume.driver, error=str(exc))
            return
        for paths in all_paths:
            if await self._recorded(paths) == volume:
                await self._try_release(paths, volume)
                return
        if not self.users.uses(volume):
            self.node.in_use.drop(volume.unique_name)

    def _unused(self) -> list[BlockPaths]:
        found = block_volumes(self.node.root_dir)
        return [paths for paths in found if not paths.pods() or self._gone(paths)]

    def _gone(self, paths: BlockPaths) -> frozenset[str]:
        """Return the pods with an entry or a target, and without a directory. Blocks."""
        # In this order: a new pod has its directory before its entry.
        uids = paths.pods()
        return uids - frozenset(names_in(self.node.pods_dir))

    async def _undo(self, paths: BlockPaths) -> None:
        errors: dict[str, VolumeError] = {}
        try:
            for uid in sorted(await self.node.offload(self._gone, paths)):
                await self._end(paths, uid, errors)
            volume = await self._recorded(paths)
            if volume is None:
                async with self.node.locks.hold(str(paths.base)):
                    await self.node.offload(_remove_nameless, paths, self.node)
            else:
                async with self.node.locks.hold(volume.unique_name):
                    await self._release(paths, volume)
        except (VolumeStepError, OSError) as exc:
            text = f'UnmapDevice.TearDownDevice failed for volume "{paths.name}" : {exc}'
            raise VolumeError(paths.name, text) from exc
        _raise_first(errors)

    async def _recorded(self, paths: BlockPaths) -> CsiVolume | None:
        """Return which volume of which driver has a name; None if its record is lost."""
        try:
            return (await self.node.offload(read_record, paths.data)).volume
        except (OSError, ValueError) as exc:
            log.warning("csi.record_lost", problem=str(exc))
            return None


def _checked(name: str) -> str:
    """Return the name of a volume that may have a directory here. Raises ValueError."""
    if name in (STAGING, PUBLISH):
        raise ValueError(f'a block volume of a CSI driver cannot have the name "{name}"')
    return name


def _raise_first(errors: Mapping[str, VolumeError]) -> None:
    if errors:
        raise errors[min(errors)]


def _is_of(paths: BlockPaths, uid: str) -> bool:
    return uid in paths.pods() or paths.link(uid).is_symlink()


def _write(paths: BlockPaths, record: VolumeRecord) -> bool:
    """Write the record of a volume; return whether it is new. Raises OSError and ValueError."""
    try:
        known = read_record(paths.data).volume
    except (FileNotFoundError, ValueError):
        known = None  # one that is damaged is written anew
    if known is not None and known != record.volume:
        # A persistent volume that was deleted and created again, with the old one still staged.
        raise ValueError(
            f"the volume {known.handle} of driver {known.driver} still has the name {paths.name}"
        )
    write_record(paths.data, record, is_published=True)
    return known is None


def _prepare_pod(paths: BlockPaths, uid: str) -> bool:
    """Make a pod's entry and link, and the directory of the target; return whether they are new.

    The driver creates the target (NodePublishVolume in the specification). Raises OSError.
    """
    link, entry = paths.link(uid), paths.entries / uid
    for directory in (link.parent, paths.entries, paths.targets):
        make_directories(directory)
    if not link.is_symlink():
        link.symlink_to(paths.targets / uid)
    is_new = not entry.exists()
    entry.touch(0o640)
    return is_new


def _remove_pod(paths: BlockPaths, uid: str, node: CsiNode, maps: DeviceMaps) -> None:
    """Remove what a pod without the volume has of it on disk, the entry last. Raises OSError."""
    maps.release(paths.entries / uid)
    target = paths.targets / uid
    undo_mounts(target, node.mounter)
    try:
        target.unlink(missing_ok=True)
    except IsADirectoryError:
        target.rmdir()  # of a driver that publishes something else
    maps.unmap(paths.entries / uid, paths.link(uid))


def _remove_nameless(paths: BlockPaths, node: CsiNode) -> None:
    """Remove a volume whose record is lost, so that no driver can be asked. Raises OSError."""
    try:
        read_record(paths.data)
    except (OSError, ValueError):
        if not paths.pods():
            _remove_volume(paths, node)


def _remove_volume(paths: BlockPaths, node: CsiNode) -> None:
    """Remove what an unstaged volume has on disk, the record last. Raises OSError."""
    undo_mounts(paths.staging, node.mounter)
    # Drivers may leave files there; upstream removes them, too (unstageVolumeForBlock).
    if paths.staging.is_dir() and not mounted_below(paths.staging, node.mounter):
        remove_tree(paths.staging)
    for directory in (paths.targets, paths.entries):
        remove_empty(directory)
    remove_written(paths.data / RECORD)
    for directory in (paths.data, paths.base):
        remove_empty(directory)
