"""Manage the volumes of the node's pods: set up before the sandbox, mounted into containers,
refreshed while the pod runs, torn down after its containers.

Plugins of quick kinds block: all such volumes of a pod take one hop to a thread. Those of the
asynchronous kinds, which a driver or a server provides, are `async_volumes`.

The manager keeps no state. Disk and mount table show what exists, so a restarted agent, or one that
replaces the Go kubelet, continues where the other stopped, and every call may be repeated. Calls
for one pod come from its worker, one at a time. All blocking work goes through `offload`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod, Volume

from kubelet_trio.containers import (
    MAX_ENV_FILE,
    PodConfigError,
    PodFacts,
    container_env,
)
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    EventSink,
    Meter,
    Offload,
    PodContainer,
    PodUid,
    SystemClock,
    WallClock,
    get_logger,
    pod_uid,
)
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import (
    LocalObjects,
    ObjectError,
    ObjectStore,
    is_in_tree,
)
from kubelet_trio.volumes.async_volumes import MOUNT_LIMIT, REPUBLISH_LIMIT, AsyncVolumes
from kubelet_trio.volumes.claims import take_for_one_pod
from kubelet_trio.volumes.container_devices import container_devices
from kubelet_trio.volumes.container_mounts import MountContext, container_mounts
from kubelet_trio.volumes.content import content_volumes
from kubelet_trio.volumes.empty_dir import EmptyDir
from kubelet_trio.volumes.errors import SubPathError, VolumeError, set_up_error, unprocessed_error
from kubelet_trio.volumes.expansion import VolumeGrowth
from kubelet_trio.volumes.external import HostPath
from kubelet_trio.volumes.growing import GrowingVolumes
from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.issuers import Issuers
from kubelet_trio.volumes.layout import EMPTY_DIR, volume_dir
from kubelet_trio.volumes.measure import Operation, VolumeMeter, plugin_name, timed
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.node_facts import NodeFacts
from kubelet_trio.volumes.ownership import Walks, progress_events
from kubelet_trio.volumes.persistent import check_node, check_options, volume_groups
from kubelet_trio.volumes.pods_dir import PodsDirectory
from kubelet_trio.volumes.spec import (
    AsyncKind,
    VolumePlugin,
    VolumeSpec,
    is_claimed,
    volume_kind,
)
from kubelet_trio.volumes.spec_reader import SpecReader
from kubelet_trio.volumes.sub_path import read_inside
from kubelet_trio.volumes.teardown import count_volumes, plugin_directories, tear_down
from kubelet_trio.volumes.unused import UnusedVolumes
from kubelet_trio.volumes.used import names_used_late, used_volumes
from kubelet_trio.volumes.waits import QuickSetUp, VolumeWait

if TYPE_CHECKING:
    from kubelet_trio.volumes.labels import VolumeLabels

log = get_logger()

_BY_RUNTIME = ("image",)  # kinds without a plugin: the runtime mounts them


class VolumeManager:
    """Sets up, mounts, refreshes and tears down volumes."""

    def __init__(
        self,
        root_dir: Path,
        mounter: Mounter,
        offload: Offload,
        *,
        objects: ObjectStore | None = None,
        issuers: Issuers | None = None,
        clock: WallClock | None = None,
        node: NodeFacts | None = None,
        labels: VolumeLabels | None = None,
        meter: Meter | None = None,
        events: EventSink | None = None,
        async_kinds: Callable[[Walks, VolumeMeter], Sequence[AsyncKind]] = lambda *_: (),
        growth: VolumeGrowth | None = None,
    ) -> None:
        """Create a manager; it does nothing before `prepare`.

        Args:
            root_dir: the agent's; volumes are below its `pods`.
            mounter: the kernel's mounts.
            offload: runs blocking work in threads.
            objects: the config maps, secrets and claims; None: there are none.
            issuers: of the tokens and certificates of projected volumes; None: there are none.
            clock: wall time, for names of content directories.
            node: facts about the node; None: nothing is known of it.
            labels: of the volumes that are mounted with one; None: none is.
            meter: counts operations and their durations.
            events: for volumes that take long; None: no events.
            async_kinds: returns the kinds with asynchronous plugins, given what measures them.
            growth: lets volumes grow that were resized; None: none grows.
        """
        self._pods_dir = root_dir / "pods"
        self._mounter = mounter
        self._directory, self._offload = PodsDirectory(self._pods_dir, mounter), offload
        self._issuers = issuers or Issuers()
        self._node = facts = node or NodeFacts()
        self._labels = labels
        self._one_pod = trio.Lock()
        self._hung = HungCalls()
        self._walks = Walks()
        self._events = events
        self._volume_meter = VolumeMeter(meter or Meter())
        self._quick: dict[PodUid, QuickSetUp] = {}  # under way
        empty_dir = EmptyDir(self._pods_dir, mounter, facts.memory_allocatable, facts.tmpfs_noswap)
        self._plugins: Mapping[str, VolumePlugin] = {
            "emptyDir": empty_dir,
            "hostPath": HostPath(self._hung),
            **content_volumes(empty_dir, clock or SystemClock()),
        }
        kinds = async_kinds(self._walks, self._volume_meter)
        self._async = AsyncVolumes(kinds, offload, events, growth)
        self._specs = SpecReader(
            objects or LocalObjects(),
            self._issuers,
            PodFacts(allocatable=facts.allocatable),
            lambda kind: kind in (*self._plugins, *_BY_RUNTIME) or self._async.serves(kind),
        )
        self.growing = GrowingVolumes(self._specs, self._async, growth, self._volume_meter)
        self.unused = UnusedVolumes(self._async)

    async def prepare(self) -> bool:
        """Make the pods' directory, and share its mounts with containers. Once, at start.

        Without the right to do so pods still run, but `mountPropagation` has no effect. Return
        whether all volumes are known that an earlier agent has left.
        """
        await self._offload(self._directory.make)
        return await self._async.restore()

    async def release(self) -> None:
        """Undo the mount of `prepare`, unless a pod still has a directory.

        Containers outlive the agent, and so must their mounts.
        """
        await self._offload(self._directory.release)

    async def mount(self, pod: Pod) -> None:
        """Set up every volume that a container of the pod uses.

        With volumes of asynchronous kinds it tries again for 2m3s, and emits an event for each
        failure. Raises `VolumeError`; its text is for a FailedMount event.
        """
        volumes = used_volumes(pod)
        if not volumes:
            return
        uid = pod_uid(pod)
        # Before the objects are read, which can fail. Until then claims count as such.
        self._volume_meter.note_desired(uid, [volume_kind(volume) for volume in volumes])
        specs = await self._read(pod, volumes)
        self._volume_meter.note_desired(uid, [plugin_name(spec) for spec in specs])
        await self._check_claims(specs)
        if any(self._async.serves(spec.kind) for spec in specs):
            await self._mount_all(pod, specs, {volume.name: volume for volume in volumes})
        else:
            await self._set_up(pod, specs)

    def retry(self, uid: PodUid) -> None:
        """End the back-off of a pod's volumes, for example after a change of an object."""
        self._async.retry(uid)

    async def refresh(self, pod: Pod) -> None:
        """Write changed objects into the volumes of a running pod; publish volumes again whose
        driver wants that.

        Raises `VolumeError` for the first volume that failed; it keeps its old content.
        """
        volumes = [volume for volume in used_volumes(pod) if self._follows_objects(volume)]
        if volumes:
            await self._set_up(pod, await self._specs.read(pod, volumes), is_first=False)
        again = [spec async for spec in self._republished(pod)]
        if again:
            uid, rows = pod_uid(pod), list[Operation]()
            try:
                await self._async.set_up_all(uid, again, rows, REPUBLISH_LIMIT)
            finally:
                self._volume_meter.note_mounted(uid, rows, is_first=False)

    async def _read(self, pod: Pod, volumes: Sequence[Volume]) -> list[VolumeSpec]:
        """Return the specs of volumes, with their SELinux labels. Raises `VolumeError`."""
        specs = await self._specs.read(pod, volumes)
        return specs if self._labels is None else await self._labels.label(specs)

    def waits(self, uid: PodUid) -> list[VolumeWait]:
        """Return the volumes of a pod that are being set up now, or tried again later."""
        quick = self._quick.get(uid)
        own = [VolumeWait(quick.name, quick.since)] if quick is not None else []
        return [*own, *self._async.waits(uid)]

    async def _set_up(
        self, pod: Pod, specs: Sequence[VolumeSpec], *, is_first: bool = True
    ) -> None:
        """Set up volumes of quick kinds, in one hop to a thread. Raises `VolumeError`."""
        rows: list[Operation] = []
        self._quick[pod_uid(pod)] = at = QuickSetUp(specs[0].name if len(specs) == 1 else "")
        try:
            async with self._progress_events(pod, specs):
                await self._offload(self._set_up_all, specs, rows, at)
        finally:
            self._quick.pop(pod_uid(pod), None)
            self._volume_meter.note_mounted(pod_uid(pod), rows, is_first=is_first)

    async def _mount_all(
        self, pod: Pod, specs: Sequence[VolumeSpec], volumes: Mapping[str, Volume]
    ) -> None:
        """Set up volumes of all kinds side by side; read them again for each attempt."""
        rows: list[Operation] = []

        async def set_up_quick(names: Sequence[str]) -> None:
            again = await self._specs.read(pod, [volumes[name] for name in names])
            await self._offload(self._set_up_all, again, rows)

        async def read(name: str) -> VolumeSpec:
            (spec,) = await self._read(pod, [volumes[name]])
            return spec

        try:
            async with self._progress_events(pod, specs):
                await self._async.mount(pod, specs, read, set_up_quick, rows)
        finally:
            self._volume_meter.note_mounted(pod_uid(pod), rows)

    async def _republished(self, pod: Pod) -> AsyncIterator[VolumeSpec]:
        """Yield the volumes of a running pod whose driver wants them published from time to time.

        What cannot be read now keeps what it has.
        """
        for volume in used_volumes(pod) if self._async.kinds else ():
            if not (
                is_claimed(volume) or is_in_tree(volume) or self._async.serves(volume_kind(volume))
            ):
                continue
            try:
                (spec,) = await self._read(pod, [volume])
                if not self._async.serves(spec.kind):
                    continue
                if self._async.plugin(spec.kind).republishes(spec):
                    yield spec
            except (VolumeError, ObjectError, ValueError) as exc:
                log.debug("volume.not_republished", volume=volume.name, error=str(exc))

    def _progress_events(
        self, pod: Pod, specs: Iterable[VolumeSpec]
    ) -> AbstractAsyncContextManager[None]:
        if self._events is None or all(spec.fs_group is None for spec in specs):
            return nullcontext()
        return progress_events(self._walks, pod, self._pods_dir / pod_uid(pod), self._events)

    async def _check_claims(self, specs: Sequence[VolumeSpec]) -> None:
        """Check that a pod may begin to use its claims, and reserve them. Raises `VolumeError`."""
        # kubernetes.io/pvc-protection: no new pod may use a claim that is being deleted
        # (getPVCExtractPV in the volume manager's populator).
        deleting = {spec.name: spec.deleting for spec in specs if spec.deleting}
        if deleting:
            raise unprocessed_error(deleting)
        self._check_persistent(specs)
        for spec in specs:
            if spec.is_for_one_pod:
                uid, name, is_block = spec.uid, spec.disk_name, spec.is_block
                async with self._one_pod:
                    await self._offload(
                        take_for_one_pod, self._pods_dir, uid, name, is_block=is_block
                    )

    def _check_persistent(self, specs: Iterable[VolumeSpec]) -> None:
        """Check that volumes may be mounted on this node. Raises `VolumeError` for the first."""
        for spec in specs:
            if spec.persistent is not None:
                check_node(spec.persistent, self._node.labels(), is_block=spec.is_block)
                check_options(spec.persistent, spec.kind)

    async def groups(self, pod: Pod) -> tuple[int, ...]:
        """Return the supplemental groups that volumes add to all containers of a pod.

        Raises `VolumeError` if the volume of a claim cannot be read.
        """
        claimed = [volume for volume in used_volumes(pod) if is_claimed(volume)]
        specs = await self._specs.read(pod, claimed) if claimed else ()
        return volume_groups(pod, (s.persistent for s in specs if s.persistent is not None))

    async def _set_up_missing(self, pod: Pod, specs: Sequence[VolumeSpec]) -> None:
        """Set up volumes that no container used so far: an ephemeral container can be the first.

        After a restart of the agent this also completes what the last one may not have completed.
        """
        late = names_used_late(pod)
        await self._check_claims([spec for spec in specs if spec.name in late])
        uid, rows = pod_uid(pod), list[Operation]()
        quick = [spec for spec in specs if not self._async.serves(spec.kind)]
        try:
            if quick:
                await self._offload(self._set_up_all, quick, rows, missing=True)
            slow = [
                spec
                for spec in specs
                if self._async.serves(spec.kind)
                and not await self._async.plugin(spec.kind).is_set_up(spec)
            ]
            if slow:
                await self._async.set_up_all(uid, slow, rows, MOUNT_LIMIT)
        except (OSError, ValueError, ObjectError) as exc:
            raise VolumeError("", f"looking at the pod's volumes failed: {exc}") from exc
        finally:
            self._volume_meter.note_mounted(uid, rows, is_first=False)

    async def container_mounts(
        self,
        pod: Pod,
        container: PodContainer,
        variables: Mapping[str, str] | None = None,
        *,
        handler: str = "",
        images: Mapping[str, v1.ImageSpec] | None = None,
    ) -> list[v1.Mount]:
        """Return the CRI mounts for a container's `volumeMounts`, in their order.

        Raises `VolumeError`. Its text is for the container's status and reveals nothing about the
        host.

        Args:
            pod: the pod.
            container: one of its containers.
            variables: the container's environment, for `subPathExpr`; None: what its spec says.
            handler: the runtime handler of the pod's sandbox.
            images: the images of its image volumes, by volume.
        """
        if not container.spec.volumeMounts:
            return []
        names = {mount.name for mount in container.spec.volumeMounts}
        wanted = [volume for volume in pod_spec(pod).volumes or () if volume.name in names]
        try:
            if variables is None:
                variables = container_env(pod, container.spec).variables
        except PodConfigError as exc:
            raise VolumeError("", str(exc)) from exc
        specs = await self._read(pod, wanted)
        await self._set_up_missing(pod, specs)
        context = MountContext(
            self._pods_dir,
            self._mounter,
            {spec.name: spec for spec in specs},
            {**self._plugins, **self._async.plugins},
            variables,
            self._hung,
            selinux=self._node.selinux,
            recursive_read_only=self._node.recursive_read_only(handler),
            no_image_volumes=self._node.no_image_volumes(),
            images=images or {},
        )
        return await self._offload(container_mounts, container, context)

    async def container_devices(self, pod: Pod, container: PodContainer) -> list[v1.Device]:
        """Return the CRI devices for a container's `volumeDevices`, in their order.

        Raises `VolumeError`. Its text is for the container's status and reveals nothing about the
        host.
        """
        names = {device.name for device in container.spec.volumeDevices or ()}
        if not names:
            return []
        wanted = [volume for volume in pod_spec(pod).volumes or () if volume.name in names]
        specs = await self._specs.read(pod, wanted)
        await self._set_up_missing(pod, specs)
        return await self._offload(container_devices, container, specs, self._pods_dir)

    async def read_file(self, uid: PodUid, volume: str, path: str) -> bytes | None:
        """Return the content of a file in an emptyDir; None if it does not exist.

        Raises `VolumeError` if it is no regular file of the volume, or too large.
        """
        where = volume_dir(self._pods_dir / uid, EMPTY_DIR, volume)
        try:
            return await self._offload(read_inside, where, path, MAX_ENV_FILE)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (SubPathError, OSError) as exc:
            log.warning("volume.file_unreadable", volume=volume, path=path, error=str(exc))
            raise VolumeError(volume, f"cannot read file {path} in volume {volume}") from exc

    async def unmount(self, uid: PodUid) -> None:
        """Unmount and remove all volumes of a pod that are on disk. Idempotent.

        Raises `VolumeError` for the first that failed. A mount's content is never removed.
        """
        self._issuers.forget(uid)
        if self._labels is not None:
            self._labels.forget(uid)
        pod_dir = self._pods_dir / uid
        with self._volume_meter.unmounting(uid):
            others, failure = await self._offload(self._tear_down, pod_dir)
            if others or self._async.is_user(uid):
                # After the mounts of subPaths, which keep the volumes busy.
                await self._async.tear_down(uid, pod_dir, others)
                failure = await self._offload(self._finish, pod_dir)
            if failure is not None:
                raise failure

    def totals(self) -> Mapping[tuple[str, str], int]:
        """Return the number of desired and of actual volumes, by plugin and state."""
        return self._volume_meter.totals()

    async def pods_on_disk(self) -> frozenset[PodUid]:
        """Return the pods that have a directory, orphans included."""
        return await self._offload(self._directory.pods)

    async def volumes_on_disk(self) -> tuple[int, int]:
        """Return the number of volumes in pods' directories, and of those that are unreadable."""
        return await self._offload(count_volumes, self._pods_dir)

    def _tear_down(self, pod_dir: Path) -> tuple[frozenset[str], VolumeError | None]:
        """Tear down the volumes of quick kinds; return the plugins of other kinds on disk."""
        try:
            names = plugin_directories(pod_dir)
            others = frozenset(name for name in names if self._async.owns(name))
        except OSError as exc:
            return frozenset(), VolumeError("", f"reading {pod_dir} failed: {exc}")
        return others, self._finish(pod_dir, others)

    def _finish(self, pod_dir: Path, others: frozenset[str] = frozenset()) -> VolumeError | None:
        """Tear down all but `others`, and what is left empty; return the first error."""
        try:
            tear_down(pod_dir, self._mounter, others)
        except VolumeError as exc:
            return exc
        return None

    def _follows_objects(self, volume: Volume) -> bool:
        return any(
            plugin.follows_objects and getattr(volume, kind, None) is not None
            for kind, plugin in self._plugins.items()
        )

    def _set_up_all(
        self,
        specs: Iterable[VolumeSpec],
        rows: list[Operation],
        at: QuickSetUp | None = None,
        *,
        missing: bool = False,
    ) -> None:
        """Set up all volumes, also after a failure. Raises `VolumeError` for the first one.

        Args:
            specs: the volumes.
            rows: gets a row for each.
            at: told which one is being set up.
            missing: skip those that are set up.
        """
        failure: VolumeError | None = None
        for spec in specs:
            if at is not None:
                at.name = spec.name
            try:
                if missing and self._is_set_up(spec):
                    continue
                with timed(rows, spec.kind):
                    if spec.kind not in _BY_RUNTIME:
                        self._plugins[spec.kind].set_up(spec)
            except (OSError, ValueError, ObjectError, PodConfigError) as exc:
                if failure is None:
                    failure = set_up_error(spec.disk_name, exc)
                    # The loop goes on, so `raise ... from` comes too late to set it.
                    failure.__cause__ = exc
        if failure is not None:
            raise failure

    def _is_set_up(self, spec: VolumeSpec) -> bool:
        return spec.kind in _BY_RUNTIME or self._plugins[spec.kind].is_set_up(spec)
