"""The volumes of the node's pods: set up before a pod's sandbox, handed to its containers,
brought up to date while it runs, taken down after them.

The manager remembers nothing. What exists is what the disk and the kernel's mount table
say, so a restarted agent, or one that follows the Go kubelet, carries on where the other
left off, and every call may be made again. Calls for one pod come from its worker, one
at a time. Objects are read first; all blocking work goes through `offload`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from lightkube.models.core_v1 import PersistentVolumeClaim, Pod, Volume

from kubelet_trio.containers import (
    MAX_ENV_FILE,
    ConfigError,
    PodFacts,
    container_env,
    make_directories,
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
    pod_containers,
    pod_key,
    pod_uid,
)
from kubelet_trio.model import spec as pod_spec
from kubelet_trio.objects import (
    LocalObjects,
    NoTokens,
    ObjectError,
    ObjectStore,
    ObjectView,
    TokenRequest,
    TokenRequester,
    read_objects,
    volume_key,
    volume_references,
)
from kubelet_trio.volumes.container_mounts import MountContext, container_mounts
from kubelet_trio.volumes.content import content_volumes
from kubelet_trio.volumes.empty_dir import EmptyDir
from kubelet_trio.volumes.errors import VolumeError, set_up_error, unprocessed_error
from kubelet_trio.volumes.host_path import HostPath
from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.layout import EMPTY_DIR, volume_dir
from kubelet_trio.volumes.measure import Row, VolumeMeter, timed
from kubelet_trio.volumes.mounted import LocalVolume, NfsVolume
from kubelet_trio.volumes.mounter import Mounter, is_bound_to_itself
from kubelet_trio.volumes.one_pod import take_for_one_pod
from kubelet_trio.volumes.payloads import token_requests
from kubelet_trio.volumes.plugin import VolumePlugin
from kubelet_trio.volumes.progress import Walks, tell_progress
from kubelet_trio.volumes.spec import VolumeSpec, is_claimed, volume_kind, volume_spec
from kubelet_trio.volumes.sub_path import SubPathError, read_inside
from kubelet_trio.volumes.teardown import tear_down

log = get_logger()

# What the manager has no plugin for because the runtime mounts it.
_BY_RUNTIME = ("image",)


class VolumeManager:
    """Sets up, hands out, refreshes and takes down volumes."""

    def __init__(
        self,
        root_dir: Path,
        mounter: Mounter,
        offload: Offload,
        *,
        objects: ObjectStore | None = None,
        tokens: TokenRequester | None = None,
        clock: WallClock | None = None,
        allocatable: Mapping[str, int] | None = None,
        memory_allocatable: int = 0,
        tmpfs_noswap: bool = False,
        selinux: bool = False,
        meter: Meter | None = None,
        events: EventSink | None = None,
        recursive_read_only: Callable[[str], bool] = lambda _handler: False,
        no_image_volumes: Callable[[], str] = lambda: "",
    ) -> None:
        """Use `root_dir/pods`.

        Args:
            objects: where config maps, secrets and claims are; None: there are none.
            tokens: gives service account tokens; None: nobody does.
            allocatable: what pods may use of the node, in nano-units by resource name.
            memory_allocatable: bytes that pods may use of the node; 0 where not known.
            tmpfs_noswap: whether the kernel's tmpfs takes `noswap`.
            selinux: whether the node labels files for containers.
            meter: told how long volumes take.
            events: told which take long; None: nobody is.
            recursive_read_only: whether a handler of the runtime can mount whole trees
                read-only; "" is the default one.
            no_image_volumes: why the runtime cannot mount images; "" where it can.
        """
        self._pods_dir = root_dir / "pods"
        self._mounter = mounter
        self._offload = offload
        self._objects = objects or LocalObjects()
        self._tokens = tokens or NoTokens()
        self._facts = PodFacts(allocatable=allocatable or {})
        self._selinux = selinux
        self._taking = trio.Lock()
        self._hung = HungCalls()
        self._walks = Walks()
        self._events = events
        self._measured = VolumeMeter(meter or Meter())
        self._recursive_read_only = recursive_read_only
        self._no_image_volumes = no_image_volumes
        empty_dir = EmptyDir(self._pods_dir, mounter, memory_allocatable, tmpfs_noswap)
        self._plugins: Mapping[str, VolumePlugin] = {
            "emptyDir": empty_dir,
            "hostPath": HostPath(self._hung),
            "local": LocalVolume(self._pods_dir, mounter, self._walks),
            "nfs": NfsVolume(self._pods_dir, mounter),
            **content_volumes(empty_dir, clock or SystemClock()),
        }

    async def prepare(self) -> None:
        """Make the pods' directory, once at start, its mounts shared with containers.

        Where the kernel does not allow that, pods run all the same: only mounts made later
        are then not seen across (`mountPropagation`).
        """
        await self._offload(self._prepare)

    async def release(self) -> None:
        """Take back what `prepare` mounted, once no pod has a directory any more.

        Left in place while there is one: its containers run on, and so do their mounts.
        """
        await self._offload(self._release)

    async def mount(self, pod: Pod) -> None:
        """Set up every volume that a container of the pod mounts.

        Raises `VolumeError`, whose text is a FailedMount event's.
        """
        volumes = _used_volumes(pod)
        if volumes:
            await self._set_up(pod, volumes)

    async def refresh(self, pod: Pod) -> None:
        """Bring what changed since into the volumes of a running pod.

        Raises `VolumeError` naming the first that could not be; it stays as it was.
        """
        volumes = [volume for volume in _used_volumes(pod) if self._follows_objects(volume)]
        if volumes:
            await self._set_up(pod, volumes, is_first=False)

    async def _set_up(self, pod: Pod, volumes: list[Volume], *, is_first: bool = True) -> None:
        uid = pod_uid(pod)
        if is_first:
            self._measured.wants(uid, [volume_kind(volume) for volume in volumes])
        specs = await self._specs(pod, volumes)
        if is_first:
            self._measured.wants(uid, [spec.kind for spec in specs])
        if is_first:
            await self._take(specs)
        rows: list[Row] = []
        try:
            async with self._telling(pod, specs):
                await self._offload(self._set_up_all, specs, rows)
        finally:
            self._measured.mounted(uid, rows, is_first=is_first)

    @asynccontextmanager
    async def _telling(self, pod: Pod, specs: Sequence[VolumeSpec]) -> AsyncIterator[None]:
        """Around a set-up: events of the pod tell what takes long."""
        if self._events is None or all(spec.fs_group is None for spec in specs):
            yield
            return
        pod_dir, failure = self._pods_dir / pod_uid(pod), None
        async with trio.open_nursery() as telling:
            telling.start_soon(tell_progress, self._walks, pod, pod_dir, self._events)
            try:
                yield
            except VolumeError as exc:  # as it is, not in a group
                failure = exc
            telling.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _take(self, specs: Sequence[VolumeSpec]) -> None:
        """See that a pod that starts may use its claims. Raises `VolumeError`."""
        going = {spec.name: spec.going for spec in specs if spec.going}
        if going:
            raise unprocessed_error(going)
        for spec in specs:
            if not spec.is_for_one_pod:
                continue
            try:
                async with self._taking:
                    await self._offload(take_for_one_pod, self._pods_dir, spec)
            except (OSError, ValueError) as exc:
                raise set_up_error(spec.disk_name, exc) from exc

    async def _set_up_missing(self, pod: Pod, specs: Sequence[VolumeSpec]) -> None:
        """Set up what no container of the pod used so far: an ephemeral one may be the first."""
        rows: list[Row] = []
        try:
            await self._offload(self._set_up_all, specs, rows, missing=True)
        finally:
            self._measured.mounted(pod_uid(pod), rows, is_first=False)

    async def container_mounts(
        self,
        pod: Pod,
        container: PodContainer,
        variables: Mapping[str, str] | None = None,
        *,
        handler: str = "",
    ) -> list[v1.Mount]:
        """Return the CRI mounts of a container's `volumeMounts`, in their order.

        Raises `VolumeError`, whose text is for the container's status: it tells nothing
        of the host that the pod's owner could not know.

        Args:
            variables: the container's environment, for `subPathExpr`; None: what its
                manifest alone tells.
            handler: the runtime handler of the pod's sandbox.
        """
        if not container.spec.volumeMounts:
            return []
        names = {mount.name for mount in container.spec.volumeMounts}
        wanted = [volume for volume in pod_spec(pod).volumes or () if volume.name in names]
        try:
            if variables is None:
                variables = container_env(pod, container.spec).variables
        except ConfigError as exc:
            raise VolumeError("", str(exc)) from exc
        specs = await self._specs(pod, wanted)
        await self._set_up_missing(pod, specs)
        context = MountContext(
            self._pods_dir,
            self._mounter,
            {spec.name: spec for spec in specs},
            self._plugins,
            variables,
            self._hung,
            selinux=self._selinux,
            recursive_read_only=self._recursive_read_only(handler),
            no_image_volumes=self._no_image_volumes(),
        )
        return await self._offload(container_mounts, container, context)

    async def read_file(self, uid: PodUid, volume: str, path: str) -> bytes | None:
        """Return what a container wrote to a file of an emptyDir; None where there is none.

        Raises `VolumeError` for what is no file of the volume.
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
        """Take down all that is on disk of a pod's volumes; none is no error.

        Raises `VolumeError` naming what is still mounted. Nothing mounted is ever removed.
        """
        self._tokens.forget(uid)
        with self._measured.unmounting(uid):
            await self._offload(partial(tear_down, self._pods_dir / uid, self._mounter))

    def totals(self) -> Mapping[tuple[str, str], int]:
        """Return how many volumes this agent was to set up, and has, by plugin and state."""
        return self._measured.totals()

    async def pods_on_disk(self) -> frozenset[PodUid]:
        """Return the pods that have a directory: what orphans are looked for among."""
        return await self._offload(self._list_pods)

    def _prepare(self) -> None:
        root_dir = self._pods_dir.parent
        make_directories(self._pods_dir)
        try:
            self._mounter.share(root_dir)
        except OSError as exc:
            log.warning("volumes.root_not_shared", path=str(root_dir), error=str(exc))

    def _release(self) -> None:
        root_dir = self._pods_dir.parent
        if self._list_pods() or not is_bound_to_itself(root_dir, self._mounter.mounts()):
            return
        try:
            self._mounter.unmount(root_dir)
        except OSError as exc:
            log.warning("volumes.root_not_released", path=str(root_dir), error=str(exc))

    async def _specs(self, pod: Pod, volumes: Iterable[Volume]) -> list[VolumeSpec]:
        """Read what the volumes are made from. Raises `VolumeError`."""
        volumes = list(volumes)
        objects = await self._read(pod, volumes)
        specs: list[VolumeSpec] = []
        unclaimed: dict[str, str] = {}
        for volume in volumes:
            try:
                spec = volume_spec(pod, volume, self._facts, objects)
                tokens = {r: await self._token(r) for r in token_requests(spec)}
                if tokens:
                    spec = volume_spec(pod, volume, self._facts, objects, tokens)
            except (ObjectError, ValueError) as exc:
                if not is_claimed(volume):
                    raise set_up_error(volume.name, exc) from exc
                unclaimed[volume.name] = str(exc)
                continue
            if spec.kind not in (*self._plugins, *_BY_RUNTIME):
                raise set_up_error(volume.name, f"volumes of type {spec.kind} are not supported")
            specs.append(spec)
        if unclaimed:
            raise unprocessed_error(unclaimed)
        return specs

    async def _read(self, pod: Pod, volumes: Iterable[Volume]) -> ObjectView:
        keys = [key for volume in volumes for key in volume_references(pod_key(pod), volume)]
        objects = await read_objects(self._objects, keys, pod_uid(pod))
        bound = [
            volume_key(claim.spec.volumeName)
            for claim in objects.found.values()
            if isinstance(claim, PersistentVolumeClaim) and claim.spec is not None
        ]
        if not bound:
            return objects
        self._objects.hold(pod_uid(pod), bound)
        behind = await read_objects(self._objects, bound, pod_uid(pod))
        return ObjectView({**objects.found, **behind.found})

    async def _token(self, request: TokenRequest) -> str | ObjectError:
        try:
            return await self._tokens.token(request)
        except ObjectError as exc:
            return exc

    def _follows_objects(self, volume: Volume) -> bool:
        return any(
            plugin.follows_objects and getattr(volume, kind, None) is not None
            for kind, plugin in self._plugins.items()
        )

    def _set_up_all(
        self, specs: Iterable[VolumeSpec], rows: list[Row], *, missing: bool = False
    ) -> None:
        """Set up all that can be; the first that cannot is the one that is told.

        Args:
            missing: leave what is there as it is.
        """
        failure: VolumeError | None = None
        for spec in specs:
            try:
                if missing and self._is_set_up(spec):
                    continue
                with timed(rows, spec.kind):
                    if spec.kind not in _BY_RUNTIME:
                        self._plugins[spec.kind].set_up(spec)
            except (OSError, ValueError, ObjectError, ConfigError) as exc:
                if failure is None:
                    failure = set_up_error(spec.disk_name, exc)
                    failure.__cause__ = exc
        if failure is not None:
            raise failure

    def _is_set_up(self, spec: VolumeSpec) -> bool:
        return spec.kind in _BY_RUNTIME or self._plugins[spec.kind].is_set_up(spec)

    def _list_pods(self) -> frozenset[PodUid]:
        try:
            with os.scandir(self._pods_dir) as entries:
                return frozenset(PodUid(e.name) for e in entries if e.is_dir())
        except FileNotFoundError:
            return frozenset()


def _used_volumes(pod: Pod) -> list[Volume]:
    names = {m.name for c in pod_containers(pod) for m in c.spec.volumeMounts or ()}
    return [volume for volume in pod_spec(pod).volumes or () if volume.name in names]
