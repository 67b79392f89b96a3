"""Stage volumes once on the node, and unstage them after the last pod that uses them.

Every function needs the volume's lock (`CsiNode.locks`). The users of a volume are found on disk,
and among the pods that this process is about to give it to.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from kubelet_trio.containers import make_directories
from kubelet_trio.model import get_logger, remove_empty, remove_written
from kubelet_trio.volumes.csi.client import Access, DriverClient, StageRequest
from kubelet_trio.volumes.csi.data import (
    GLOBAL_MOUNT,
    RECORD,
    Staged,
    VolumeRecord,
    published_everywhere,
    stage_dir,
    staged_at,
    staged_volumes,
    write_record,
)
from kubelet_trio.volumes.csi.inputs import VolumeUse, secret_values
from kubelet_trio.volumes.csi.node import CsiNode, failing_step
from kubelet_trio.volumes.csi.types import Capability, CsiVolume
from kubelet_trio.volumes.errors import (
    CsiCallError,
    VolumeError,
    VolumeStepError,
    other_label_error,
)
from kubelet_trio.volumes.measure import csi_plugin_name
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.selinux import mount_options
from kubelet_trio.volumes.teardown import RELEASE_PATIENCE, mounted_below

log = get_logger()

_NO_CLIENT = "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: "


@dataclass(slots=True)
class Staging:
    """The staged volumes of the node."""

    node: CsiNode
    # Staged by this process. After a restart each volume is staged again, before it is published
    # to one more pod; drivers allow that, and a reboot may have undone it.
    _done: set[CsiVolume] = field(default_factory=set)

    async def settle_label(self, use: VolumeUse) -> VolumeUse:
        """Return the use with the SELinux label that the volume can have now; unstage the volume
        if no pod has it published, and it was staged with another label.

        Raises `VolumeError` if another pod has it with another label.
        """
        wanted = use.spec.selinux_label
        if wanted is None or use.is_inline:
            return use
        labels = await self.node.offload(self._published_labels, use.volume)
        # What a pod has got it keeps: a restarted agent may have other gates.
        label = labels.get(use.spec.uid, wanted)
        if any(other != label for other in labels.values()):
            raise other_label_error(use.spec.name, use.volume.unique_name)
        directory = stage_dir(self.node.root_dir, use.volume)
        staged = (await self.node.offload(staged_at, directory)).record
        if staged is not None and staged.selinux != label and not labels:
            await self._unstage(use.volume, directory)
        return replace(use, spec=replace(use.spec, selinux_label=label))

    async def stage(self, use: VolumeUse, context: Mapping[str, str]) -> str:
        """Stage a volume, unless it is staged; return the staging path, "" if it has none.

        Raises `VolumeStepError`.
        """
        with failing_step("MountDevice", use, _NO_CLIENT):
            client = self.node.drivers.client(use.volume.driver)
            if use.is_inline or not client.can(Capability.STAGE_UNSTAGE_VOLUME):
                return ""
            directory = stage_dir(self.node.root_dir, use.volume)
            if use.volume not in self._done:
                await self._stage(use, context, client, directory)
            return str(directory / GLOBAL_MOUNT)

    async def _stage(
        self, use: VolumeUse, context: Mapping[str, str], client: DriverClient, directory: Path
    ) -> None:
        secrets = secret_values(use, use.stage_secret)
        access = await self._access(use, client, directory)
        can_group = client.can(Capability.VOLUME_MOUNT_GROUP)
        record = VolumeRecord(
            use.volume,
            selinux=use.spec.selinux_label or "",
            group=_group_text(access) if can_group else None,
            is_attachable=use.is_attachable,
        )
        request = StageRequest(
            use.volume,
            str(directory / GLOBAL_MOUNT),
            access,
            context,
            use.attributes,
            secrets,
        )
        # Or the cleaning of unused volumes could remove the directory, which has no record yet.
        async with self.node.locks.hold(str(directory)):
            is_known = await self.node.offload(_prepare, directory, record)
        try:
            await client.stage(request, is_migrated=use.spec.is_migrated)
        except CsiCallError as exc:
            failure = exc
        else:
            self._done.add(use.volume)
            return
        # Known before: another attempt, or an earlier agent, may have staged it.
        if failure.is_final and not is_known:
            await self.node.offload(_forget_stage, directory, self.node.mounter)
        raise failure

    async def _access(self, use: VolumeUse, client: DriverClient, directory: Path) -> Access:
        """Return how to stage a volume, with the group that it may be staged with already.

        A driver answers ALREADY_EXISTS to the stage of a staged volume with another group. Only
        the first pod of a volume decides about the group (MountDevice in pkg/volume/csi), and this
        process may not have seen it. Raises `CsiCallError`, and OSError.
        """
        wanted = access_of(use, client, use.spec.selinux_label)
        record = (await self.node.offload(staged_at, directory)).record
        known = None if record is None else record.group
        if known is None or known == _group_text(wanted):
            return wanted
        if await self.node.offload(self._is_used, use.volume):
            return replace(wanted, group=int(known) if known.isdecimal() else None)
        # Of a pod that has gone.
        await client.unstage(use.volume, str(directory / GLOBAL_MOUNT))
        return wanted

    async def release(self, volume: CsiVolume) -> None:
        """Unstage a volume if no pod uses it, and list it as in use no more.

        Raises `VolumeError`; the volume then stays in use, and `unused` returns it again.
        """
        node = self.node
        if node.users.uses(volume) or await node.offload(self._is_used, volume):
            return
        directory = stage_dir(node.root_dir, volume)
        if await node.offload(directory.is_dir):
            plugin = csi_plugin_name(volume.driver)
            with node.measured.operation("unmount_device", plugin):
                await self._unstage(volume, directory)
        node.in_use.drop(volume.unique_name)

    async def _unstage(self, volume: CsiVolume, directory: Path) -> None:
        path = directory / GLOBAL_MOUNT
        try:
            # From here on it counts as not staged, whatever the driver answers.
            self._done.discard(volume)
            client = node_client(self.node, volume, "attacher.UnmountDevice")
            if client.can(Capability.STAGE_UNSTAGE_VOLUME):
                try:
                    await undo_call(self.node, client.unstage, volume, path)
                except CsiCallError as exc:
                    text = f"kubernetes.io/csi: attacher.UnmountDevice failed: {exc}"
                    raise VolumeStepError(text) from exc
            await self.node.offload(undo_mounts, path, self.node.mounter)
            await self.node.offload(remove_mount_point, directory, GLOBAL_MOUNT)
            await self.node.offload(directory.rmdir)
        except FileNotFoundError:
            return
        except (VolumeStepError, OSError) as exc:
            raise VolumeError(
                volume.handle, f'UnmountDevice failed for volume "{volume.handle}" : {exc}'
            ) from exc

    async def unused(self) -> list[Staged]:
        """Return what is staged on disk for no pod. Raises OSError."""
        found = await self.node.offload(self._unused)
        return [
            staged
            for staged in found
            if staged.record is None or not self.node.users.uses(staged.record.volume)
        ]

    def _published_labels(self, volume: CsiVolume) -> dict[str, str]:
        """Return the label of each pod that has a volume published, by the pod's UID."""
        return {
            # pods/<uid>/volumes/kubernetes.io~csi/<name>
            found.directory.parents[2].name: found.record.selinux
            for found in published_everywhere(self.node.pods_dir)
            if found.record is not None and found.record.volume == volume
        }

    def _is_used(self, volume: CsiVolume) -> bool:
        return any(
            found.record is not None and found.record.volume == volume
            for found in published_everywhere(self.node.pods_dir)
        )

    def _unused(self) -> list[Staged]:
        used = {
            stage_dir(self.node.root_dir, found.record.volume)
            for found in published_everywhere(self.node.pods_dir)
            if found.record is not None
        }
        return [
            found for found in staged_volumes(self.node.root_dir) if found.directory not in used
        ]


def access_of(use: VolumeUse, client: DriverClient, label: str | None = None) -> Access:
    """Return how a driver is to provide a volume, and with which SELinux label."""
    can_group = client.can(Capability.VOLUME_MOUNT_GROUP)
    return Access(
        use.access_mode,
        use.fs_type,
        mount_options(use.spec.mount_options, label),
        use.spec.fs_group if can_group else None,
        is_block=use.spec.is_block,
    )


@contextmanager
def brief(volume: CsiVolume) -> Iterator[None]:
    """Cut off the block, which undoes a volume for the end of a pod, after `RELEASE_PATIENCE`.

    `unused` then returns the volume, and its driver is asked again, with the deadline of a call.
    """
    with trio.move_on_after(RELEASE_PATIENCE) as patience:
        yield
    if patience.cancelled_caught:
        problem = f"no answer within {RELEASE_PATIENCE:g} s; the pod does not wait any longer"
        log.warning("csi.unstage_failed", driver=volume.driver, error=problem)


def _group_text(access: Access) -> str:
    return "" if access.group is None else str(access.group)


def node_client(node: CsiNode, volume: CsiVolume, where: str) -> DriverClient:
    """Return the client for undoing something. Raises `VolumeStepError`, with the caller's name."""
    try:
        return node.drivers.client(volume.driver)
    except VolumeStepError as exc:
        what = "create newCsiDriverClient" if where.startswith("attacher") else "get CSI client"
        raise VolumeStepError(f"kubernetes.io/csi: {where} failed to {what}: {exc}") from exc


async def undo_call(
    node: CsiNode, call: Callable[[CsiVolume, str], Awaitable[None]], volume: CsiVolume, path: Path
) -> None:
    """Have a driver undo a stage or a publish, whether it has done it or not.

    NOT_FOUND while nothing is mounted at the path is a success: there is nothing to undo. Drivers
    answer so about a volume that was never staged because it does not exist, and about an inline
    one that they have not created yet or whose unpublish they have done without being heard. The
    Go kubelet would ask for ever.

    Args:
        node: the node.
        call: the client's `unstage` or `unpublish`.
        volume: the volume.
        path: where it is staged or published.

    Raises `CsiCallError`, and OSError.
    """
    try:
        await call(volume, str(path))
    except CsiCallError as exc:
        failure = exc
    else:
        return
    if failure.code != "NotFound":
        raise failure
    left = await node.offload(mounted_below, path, node.mounter)
    if left:
        raise failure
    log.info("csi.volume_unknown", driver=volume.driver, handle=volume.handle, path=str(path))


def undo_mounts(path: Path, mounter: Mounter) -> None:
    """Unmount what a driver has left at a path although its call succeeded. Raises OSError."""
    for left in reversed(mounted_below(path, mounter)):
        log.warning("csi.left_mounted", path=left)
        mounter.unmount(Path(left))


def forget(directory: Path, name: str, mounter: Mounter) -> None:
    """Remove mount point and record after a call that surely failed.

    Both stay where something is mounted nevertheless: teardown asks the driver to undo it.
    """
    if mounted_below(directory / name, mounter):
        return
    try:
        remove_mount_point(directory, name)
    except OSError as exc:
        log.warning("csi.mount_point_stays", path=str(directory / name), error=str(exc))


def _forget_stage(directory: Path, mounter: Mounter) -> None:
    """Remove what a stage that surely failed has on disk, so that nobody undoes it."""
    forget(directory, GLOBAL_MOUNT, mounter)
    try:
        remove_empty(directory)
    except OSError as exc:
        log.warning("csi.stage_directory_stays", path=str(directory), error=str(exc))


def remove_mount_point(directory: Path, name: str) -> None:
    """Remove a mount point and its record, but not their directory. Raises OSError.

    The caller makes sure that nothing is mounted there; a directory with content stays, with
    ENOTEMPTY.
    """
    try:
        (directory / name).rmdir()
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        os.unlink(directory / name)  # a driver may publish a link or a file
    remove_written(directory / RECORD)


def _prepare(directory: Path, record: VolumeRecord) -> bool:
    """Make a staging path and write its record; return whether it had one. Raises OSError."""
    make_directories(directory / GLOBAL_MOUNT)
    is_known = (directory / RECORD).exists()
    write_record(directory, record, is_published=False)
    return is_known
