"""CSI volumes as file systems: published to pods by their drivers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import trio

from kubelet_trio.model import get_logger
from kubelet_trio.objects import KnownToken, ObjectError, TokenRequest
from kubelet_trio.volumes.csi.client import DriverClient, PublishRequest
from kubelet_trio.volumes.csi.data import (
    MOUNT,
    RECORD,
    Published,
    Staged,
    VolumeRecord,
    escaped_name,
    publish_dir,
    published_of,
    read_record,
    staged_at,
    write_record,
)
from kubelet_trio.volumes.csi.inputs import (
    VolumeUse,
    check_lifecycle,
    pod_attributes,
    secret_values,
    sets_group,
    token_requests_of,
    token_values,
    volume_use,
)
from kubelet_trio.volumes.csi.node import CsiNode, failing_step
from kubelet_trio.volumes.csi.staging import (
    Staging,
    access_of,
    brief,
    forget,
    node_client,
    remove_mount_point,
    undo_call,
    undo_mounts,
)
from kubelet_trio.volumes.csi.types import CsiVolume
from kubelet_trio.volumes.errors import CsiCallError, VolumeError, VolumeStepError
from kubelet_trio.volumes.measure import csi_plugin_name
from kubelet_trio.volumes.ownership import own_volume
from kubelet_trio.volumes.spec import VolumeSpec

log = get_logger()

_NO_CLIENT = "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: "
# As upstream spells it.
_NO_TOKEN = "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: "


@dataclass(slots=True)
class CsiFilesystems:
    """The plugin for CSI volumes that are file systems."""

    node: CsiNode
    staging: Staging
    managed: bool = True
    is_read_only: bool = False
    # (UID, directory's name) of volumes that this process has published completely. After a
    # restart the driver is asked again: of what is on disk, nothing shows whether the call was
    # answered.
    _done: set[tuple[str, str]] = field(default_factory=set)

    def republishes(self, spec: VolumeSpec) -> bool:
        """Whether the driver wants another NodePublishVolume from time to time."""
        return bool(volume_use(spec).driver.requiresRepublish)

    async def set_up(self, spec: VolumeSpec) -> None:
        """Publish a volume to its pod; stage it first if the driver does that.

        Raises `VolumeStepError`, `VolumeError`, OSError, ValueError, `ObjectError`.
        """
        use = volume_use(spec)
        is_again = await self.is_set_up(spec)
        if is_again and not use.driver.requiresRepublish:
            return
        check_lifecycle(use)
        node = self.node
        with failing_step("SetUp", use):
            directory = publish_dir(node.pods_dir / spec.uid, spec.disk_name)
            await node.offload(_check_record, directory, use.volume)
        node.users.add(spec.uid, use.volume)
        await node.wait_attached(use)
        async with node.locks.hold(use.volume.unique_name):
            if not is_again and await self.is_set_up(spec):
                return  # the pod has another volume of the same claim
            # Again: the teardown of another pod may have released the volume meanwhile.
            context = await node.wait_attached(use)
            use = await self.staging.settle_label(use)
            staging_path = "" if use.is_inline else await self.staging.stage(use, context)
            with failing_step("SetUp", use, _NO_CLIENT):
                client = node.drivers.client(use.volume.driver)
                await self._publish(use, client, staging_path, context)
                await self._own(use, client)
            self._done.add((spec.uid, escaped_name(spec.disk_name)))

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        """Whether this process has published the volume, and given it to the fsGroup."""
        return (spec.uid, escaped_name(spec.disk_name)) in self._done

    def path(self, spec: VolumeSpec) -> Path:
        """Return the target path."""
        return publish_dir(self.node.pods_dir / spec.uid, spec.disk_name) / MOUNT

    async def tear_down(self, pod_dir: Path) -> None:
        """Unpublish all volumes of a pod, and unstage those that no other pod uses.

        Raises `VolumeError` for the first that is still published, after the others. What cannot
        be unstaged within `RELEASE_PATIENCE` holds up no pod; `unused` returns it again.
        """
        try:
            on_disk = await self.node.offload(published_of, pod_dir)
        except OSError as exc:
            raise VolumeError("", f"reading {pod_dir} failed: {exc}") from exc
        found = self._recall(pod_dir.name, on_disk)
        errors: dict[Path, VolumeError] = {}
        async with trio.open_nursery() as volumes:
            for published in found:
                volumes.start_soon(self._end, pod_dir.name, published, errors)
        kept = {p.record.volume for p in found if p.record is not None and p.directory in errors}
        # What was tried without success has no record.
        async with trio.open_nursery() as volumes:
            for volume in self.node.users.of_pod(pod_dir.name) - kept:
                volumes.start_soon(self._give_up, pod_dir.name, volume)
        if errors:
            raise errors[min(errors)]

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what unstages each volume that no pod uses, by its directory."""
        try:
            found = await self.staging.unused()
        except OSError as exc:
            raise VolumeError("", f"reading the staged volumes failed: {exc}") from exc
        return {str(staged.directory): partial(self._undo, staged) for staged in found}

    async def _undo(self, staged: Staged) -> None:
        try:
            if staged.record is None:
                async with self.node.locks.hold(str(staged.directory)):
                    await self.node.offload(_remove_nameless, staged, self.node)
                return
            volume = staged.record.volume
            async with self.node.locks.hold(volume.unique_name):
                await self.staging.release(volume)
        except OSError as exc:
            problem = f"{staged.problem}; " if staged.problem else ""
            text = f"{problem}undoing {staged.directory} failed: {exc}"
            raise VolumeError(staged.directory.name, text) from exc

    async def _publish(
        self,
        use: VolumeUse,
        client: DriverClient,
        staging_path: str,
        context: Mapping[str, str],
    ) -> None:
        directory = publish_dir(self.node.pods_dir / use.spec.uid, use.spec.disk_name)
        request = await self._request(use, client, directory / MOUNT, staging_path, context)
        record = VolumeRecord(
            use.volume,
            use.spec.disk_name,
            self.node.node_name,
            use.lifecycle,
            use.spec.selinux_label or "",
            is_attachable=use.is_attachable or use.is_inline,  # an inline one needs no key
        )
        is_known = await self.node.offload(_prepare, directory, record)
        try:
            await client.publish(request, is_migrated=use.spec.is_migrated)
        except CsiCallError as exc:
            failure = exc
        else:
            return
        # Known before: the pod may use it already (kubernetes/kubernetes#121271).
        if failure.is_final and not is_known:
            await self.node.offload(forget, directory, MOUNT, self.node.mounter)
        raise failure

    async def _request(
        self,
        use: VolumeUse,
        client: DriverClient,
        target: Path,
        staging_path: str,
        context: Mapping[str, str],
    ) -> PublishRequest:
        """Return the request for a publish. Raises ObjectError or ValueError."""
        tokens = token_values(await self._tokens(use))
        in_secrets = bool(use.driver.serviceAccountTokenInSecrets)
        secrets = secret_values(use, use.publish_secret)
        attributes = {**use.attributes, **pod_attributes(use)}
        return PublishRequest(
            use.volume,
            str(target),
            access_of(use, client, use.spec.selinux_label),
            staging_path,
            read_only=use.read_only,
            publish_context=context,
            volume_context=attributes if in_secrets else {**attributes, **tokens},
            secrets={**secrets, **tokens} if in_secrets else secrets,
        )

    async def _tokens(self, use: VolumeUse) -> dict[TokenRequest, KnownToken]:
        """Return the tokens that the driver wants. Raises `ObjectError`."""
        try:
            return {want: await self.node.tokens.issue(want) for want in token_requests_of(use)}
        except ObjectError as exc:
            raise ObjectError(f"{_NO_TOKEN}{exc}") from exc

    async def _own(self, use: VolumeUse, client: DriverClient) -> None:
        """Give the volume to the fsGroup, unless the driver does that. Raises ValueError."""
        if access_of(use, client).group is not None or not sets_group(use):
            return
        spec, plugin = use.spec, csi_plugin_name(use.volume.driver)
        walk = partial(
            own_volume,
            self.path(spec),
            spec.fs_group,
            read_only=False,
            policy=spec.change_policy,
            walks=self.node.walks,
        )
        try:
            with self.node.measured.operation("volume_apply_access_control", plugin):
                await self.node.offload(walk)
        except OSError as exc:
            raise ValueError(f"applyFSGroup failed for vol {use.volume.handle}: {exc}") from exc

    def _recall(self, uid: str, found: list[Published]) -> list[Published]:
        """Replace a damaged record by the volume that this process has given to the pod.

        Only if that can be but one. Otherwise the driver cannot be asked: the volume is unmounted
        without it, so that the pod can end, and a driver that counts its publishes may refuse to
        unstage the volume. The Go kubelet keeps such a pod instead until somebody removes the file
        and the mount (NewUnmounter in pkg/volume/csi).
        """
        # Without a record a publish has surely failed (`forget`), or somebody removed the file.
        lost = [published for published in found if published.is_damaged]
        recorded = {p.record.volume for p in found if p.record is not None}
        unrecorded = self.node.users.of_pod(uid) - recorded if lost else frozenset()
        is_certain = len(lost) == len(unrecorded) == 1
        for published in lost:
            log.warning("csi.record_lost", problem=published.problem, asks_driver=is_certain)
        if not is_certain:
            return found
        (volume,) = unrecorded
        record = VolumeRecord(volume)
        return [replace(p, record=record) if p.is_damaged else p for p in found]

    async def _end(self, uid: str, published: Published, errors: dict[Path, VolumeError]) -> None:
        """Unpublish one volume; then unstage it, if it was the last use."""
        name = published.directory.name
        try:
            if published.record is None:
                await self.node.offload(_remove_unpublished, published, self.node)
                self._done.discard((uid, name))
                return
            volume = published.record.volume
            async with self.node.locks.hold(volume.unique_name):
                await self._unpublish(uid, volume, published)
                await self._let_go(uid, volume)
        except (VolumeStepError, OSError, ValueError) as exc:
            text = f'UnmountVolume.TearDown failed for volume "{name}" : {exc}'
            errors[published.directory] = VolumeError(name, text)

    async def _unpublish(self, uid: str, volume: CsiVolume, published: Published) -> None:
        """Undo a publish, and remove its record last. Raises `VolumeStepError` or OSError."""
        client = node_client(self.node, volume, "Unmounter.TearDownAt")
        self._done.discard((uid, published.directory.name))
        try:
            await undo_call(self.node, client.unpublish, volume, published.target)
        except CsiCallError as exc:
            text = f"kubernetes.io/csi: Unmounter.TearDownAt failed: {exc}"
            raise VolumeStepError(text) from exc
        await self.node.offload(_remove_unpublished, published, self.node)

    async def _give_up(self, uid: str, volume: CsiVolume) -> None:
        """Let go of a volume that a pod has not got."""
        # Before the wait for the lock: whoever holds it may be the last user.
        self.node.users.remove(uid, volume)
        with brief(volume):
            async with self.node.locks.hold(volume.unique_name):
                await self._let_go(uid, volume)

    async def _let_go(self, uid: str, volume: CsiVolume) -> None:
        """Note that a pod does not use a volume any more; unstage it if it was the last one.

        Needs the volume's lock. Takes no longer than `RELEASE_PATIENCE`.
        """
        self.node.users.remove(uid, volume)
        with brief(volume):
            try:
                await self.staging.release(volume)
            except (VolumeError, OSError) as exc:
                log.warning("csi.unstage_failed", driver=volume.driver, error=str(exc))


def _check_record(directory: Path, volume: CsiVolume) -> None:
    """Raise ValueError if another volume is published there, of which nothing else is known.

    A persistent volume may have been deleted and created again while a pod has the old one.
    Raises OSError, too.
    """
    try:
        known = read_record(directory).volume
    except (FileNotFoundError, ValueError):
        return  # one that is damaged is written anew
    if known != volume:
        raise ValueError(
            f"the volume {known.handle} of driver {known.driver} is still published here: "
            f"{directory}"
        )


def _prepare(directory: Path, record: VolumeRecord) -> bool:
    """Write the record of a publish; return whether there was one. Raises OSError.

    The driver creates the target path (NodePublishVolume in the specification).
    """
    is_known = (directory / RECORD).exists()
    write_record(directory, record, is_published=True)
    return is_known


def _remove_unpublished(published: Published, node: CsiNode) -> None:
    """Remove what a volume that is not published any more has on disk. Raises OSError."""
    undo_mounts(published.target, node.mounter)
    remove_mount_point(published.directory, MOUNT)
    published.directory.rmdir()


def _remove_nameless(staged: Staged, node: CsiNode) -> None:
    """Remove a staging directory whose record is lost, so that no driver can be asked.

    Raises OSError.
    """
    if staged_at(staged.directory).record is not None:
        return  # staged since it was listed
    log.warning("csi.record_lost", problem=staged.problem)
    undo_mounts(staged.path, node.mounter)
    remove_mount_point(staged.directory, staged.path.name)
    staged.directory.rmdir()
