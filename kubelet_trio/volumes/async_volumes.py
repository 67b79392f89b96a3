"""The volumes of asynchronous plugins: loaded when needed, set up side by side, retried.

Each volume has a task, so that a driver that hangs holds up only the pods that wait for it. A
volume that fails is tried again with a back-off of its own (500 ms, doubling to 2m2s, as in
pkg/util/goroutinemap/exponentialbackoff), and at once when what it waits for may have come; each
failure is an event. Cancelling a task leaves what
the plugin's `tear_down` undoes.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    Backoff,
    Bell,
    EventSink,
    ObjectRef,
    Offload,
    PodUid,
    get_logger,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.objects import ObjectError
from kubelet_trio.tracing import Attributes, span
from kubelet_trio.volumes.errors import (
    FilesystemMismatchError,
    VolumeError,
    VolumeStepError,
    missing_driver,
    not_mounted_error,
    set_up_error,
)
from kubelet_trio.volumes.expansion import VolumeGrowth
from kubelet_trio.volumes.measure import Operation, plugin_name, timed
from kubelet_trio.volumes.spec import (
    AsyncKind,
    AsyncVolumePlugin,
    AttachablePlugin,
    GrowingPlugin,
    MappingPlugin,
    VolumeSpec,
)
from kubelet_trio.volumes.waits import VolumeWait

log = get_logger()

MOUNT_LIMIT = 123.0  # seconds for all volumes of a pod: podAttachAndMountTimeout
REPUBLISH_LIMIT = 30.0  # seconds for the volumes of a running pod, whose worker waits
_LOOK_LIMIT = 60.0  # seconds for a look for what no pod needs
_EXHAUSTED_LIMIT = 10.0  # seconds for a look at an attachment
FIRST_DELAY, LONGEST_DELAY = 0.5, 122.0
_SPANS = {"volume_mount": "mountVolume", "map_volume": "mapVolume"}


@dataclass(slots=True)
class _Retry:
    """The back-off of one volume of a pod."""

    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_DELAY, LONGEST_DELAY))
    next_at: float = 0.0  # trio time
    began: float = field(default_factory=trio.current_time)
    error: str = ""  # of the last attempt
    missing: str = ""  # the driver that the last attempt did not find
    bell: Bell = field(default_factory=Bell)  # rung when something that it waits for has changed


@dataclass(slots=True)
class AsyncVolumes:
    """The asynchronous plugins of the node, and the retries of their volumes."""

    kinds: Sequence[AsyncKind]
    offload: Offload
    events: EventSink | None = None
    growth: VolumeGrowth | None = None
    plugins: dict[str, AsyncVolumePlugin] = field(default_factory=dict)  # those in use, by kind
    # Rung after each teardown, which may leave what no pod needs any more.
    torn_down: Bell = field(default_factory=Bell)
    _users: dict[PodUid, set[str]] = field(default_factory=dict)  # kinds that a pod has tried
    _retries: dict[tuple[PodUid, str], _Retry] = field(default_factory=dict)

    def serves(self, kind: str) -> bool:
        """Whether a kind of volume has a plugin here; it is loaded with the first volume."""
        return any(known.kind == kind for known in self.kinds)

    def plugin(self, kind: str) -> AsyncVolumePlugin:
        """Return the plugin of a kind that is served."""
        found = self.plugins.get(kind)
        if found is None:
            found = next(known for known in self.kinds if known.kind == kind).make()
            self.plugins[kind] = found
        return found

    def owns(self, directory: str) -> bool:
        """Whether a directory below a pod's `volumes` is torn down here, and not by the manager."""
        return any(known.owns(directory) for known in self.kinds)

    async def set_up(self, pod: PodUid, spec: VolumeSpec, rows: list[Operation]) -> None:
        """Set up a volume once; add a row about it. Raises `VolumeError`."""
        self._users.setdefault(pod, set()).add(spec.kind)
        operation = "map_volume" if spec.is_block else "volume_mount"
        plugin = self.plugin(spec.kind)
        work = timed(rows, plugin_name(spec), operation, is_migrated=spec.is_migrated)
        try:
            with span(_SPANS[operation], spec, _about_volume), work:
                is_new = not await plugin.is_set_up(spec)
                await plugin.set_up(spec)
                if is_new:
                    self._report_map(spec, plugin)
                if self.growth is not None and isinstance(plugin, GrowingPlugin):
                    await self.growth.before_use(spec, plugin, is_new=is_new)
        except (VolumeStepError, OSError, ValueError, ObjectError) as exc:
            self._report_mismatch(spec, exc)
            raise set_up_error(spec.disk_name, exc, is_block=spec.is_block) from exc

    def _report_map(self, spec: VolumeSpec, plugin: AsyncVolumePlugin) -> None:
        """Tell the pod that its device is mapped (GenerateMapVolumeFunc).

        As upstream twice, with the paths for the node and for the pod, and for devices only.
        """
        if not spec.is_block or self.events is None or not isinstance(plugin, MappingPlugin):
            return
        paths = {"globalMapPath": plugin.map_dir(spec), "volumeMapPath": plugin.path(spec).parent}
        for name, path in paths.items():
            text = f'MapVolume.MapPodDevice succeeded for volume "{spec.disk_name}" {name} "{path}"'
            self.events.emit(pod_object_ref(spec.pod), "Normal", "SuccessfulMountVolume", text)

    def _report_mismatch(self, spec: VolumeSpec, cause: Exception) -> None:
        """Tell the owner of a persistent volume of a wrong file system (checkForFailedMount)."""
        is_mismatch = isinstance(cause.__cause__, FilesystemMismatchError)
        if is_mismatch and spec.persistent is not None and self.events is not None:
            meta = spec.persistent.metadata
            volume = ObjectRef("PersistentVolume", spec.disk_name, uid=(meta and meta.uid) or "")
            text = f'MountVolume failed for volume "{spec.disk_name}" {cause}'
            self.events.emit(volume, "Warning", "FailedMountOnFilesystemMismatch", text)

    async def set_up_all(
        self, pod: PodUid, specs: Iterable[VolumeSpec], rows: list[Operation], limit: float
    ) -> None:
        """Set up volumes side by side, each once. Raises `VolumeError` for the first that failed.

        Args:
            pod: their pod.
            specs: the volumes.
            rows: gets a row for each.
            limit: seconds for all of them; what is not done then has failed.
        """
        errors: dict[str, VolumeError] = {}

        async def one(spec: VolumeSpec) -> None:
            late = VolumeError(spec.name, "context deadline exceeded")
            errors[spec.name] = set_up_error(spec.disk_name, late, is_block=spec.is_block)
            try:
                await self.set_up(pod, spec, rows)
            except VolumeError as exc:
                errors[spec.name] = exc
            else:
                del errors[spec.name]

        with trio.move_on_after(limit):
            async with trio.open_nursery() as volumes:
                for spec in specs:
                    volumes.start_soon(one, spec)
        for exc in errors.values():
            raise exc

    async def mount(
        self,
        pod: Pod,
        specs: Sequence[VolumeSpec],
        read: Callable[[str], Awaitable[VolumeSpec]],
        set_up_quick: Callable[[Sequence[str]], Awaitable[None]],
        rows: list[Operation],
    ) -> None:
        """Set up all volumes of a pod side by side, again and again until 2m3s are over.

        Args:
            pod: the pod.
            specs: its volumes, also those of quick kinds.
            read: returns the spec of a volume, by its name in the pod, from its objects as they
                are now; raises `VolumeError`.
            set_up_quick: sets up the volumes of quick kinds, which it reads again as well.
            rows: gets a row for each set-up.

        Raises `VolumeError` with what is not set up then.
        """
        uid = pod_uid(pod)
        quick = [spec.name for spec in specs if not self.serves(spec.kind)]
        slow = [spec for spec in specs if self.serves(spec.kind)]
        unmounted: dict[str, VolumeSpec | None] = dict.fromkeys(quick)
        unmounted |= {spec.name: spec for spec in slow}

        async def all_quick() -> None:
            await set_up_quick(quick)
            for name in quick:
                del unmounted[name]

        async def one(name: str) -> None:
            unmounted[name] = spec = await read(name)
            await self.set_up(uid, spec, rows)
            del unmounted[name]

        with trio.move_on_after(MOUNT_LIMIT):
            async with trio.open_nursery() as tasks:
                if quick:
                    tasks.start_soon(self.keep_trying, pod, uid, "", all_quick)
                for spec in slow:
                    attempt = partial(one, spec.name)
                    tasks.start_soon(self.keep_trying, pod, uid, spec.name, attempt)
        if unmounted:
            raise await self.timeout_error(unmounted)

    async def keep_trying(
        self, pod: Pod, uid: PodUid, name: str, attempt: Callable[[], Awaitable[None]]
    ) -> None:
        """Repeat an attempt to set up a volume until it succeeds; emit an event for each failure.

        The back-off ends early when a missing driver registers, and with `retry`.

        Args:
            pod: the pod.
            uid: its UID.
            name: of the volume, whose back-off survives a cancellation.
            attempt: raises `VolumeError` if it fails.
        """
        retry = self._retries.setdefault((uid, name), _Retry())
        while True:
            with trio.move_on_at(retry.next_at):
                await self._news(retry)
            retry.bell.clear()
            try:
                await attempt()
            except VolumeError as exc:
                retry.missing, retry.error = missing_driver(exc), str(exc)
                retry.next_at = trio.current_time() + retry.backoff.next_delay()
                log.warning("volume.set_up_failed", volume=name, error=str(exc))
                if self.events is not None:
                    self.events.emit(pod_object_ref(pod), "Warning", exc.reason, str(exc))
            else:
                self._retries.pop((uid, name), None)
                return

    def retry(self, uid: PodUid) -> None:
        """End the back-off of a pod's volumes: the cause of their failures may be gone."""
        for (pod, _), retry in self._retries.items():
            if pod == uid:
                retry.bell.ring()

    def waits(self, uid: PodUid) -> Iterator[VolumeWait]:
        """Yield the volumes of a pod that are not set up yet."""
        for (pod, name), retry in self._retries.items():
            if pod == uid:
                yield VolumeWait(name, retry.began, retry.error, retry.next_at)

    async def _news(self, retry: _Retry) -> None:
        """Wait until the cause of the last failure may be gone."""
        waits = (known.wait_driver for known in self.kinds if known.wait_driver is not None)
        wait_driver = next(waits, None)
        if retry.missing and wait_driver is not None:
            await wait_driver(retry.missing)
        else:
            await retry.bell.wait_ring()

    async def timeout_error(self, unmounted: Mapping[str, VolumeSpec | None]) -> VolumeError:
        """Return the error for volumes that were not set up in time.

        Args:
            unmounted: their specs by their names in the pod; None: of a plugin that blocks.
        """
        unattached = [
            spec
            for _, spec in sorted(unmounted.items())
            if spec is not None and self._is_unattached(spec)
        ]
        names, without = sorted(unmounted), [spec.name for spec in unattached]
        for spec in unattached:
            if await self._is_exhausted(spec):
                return not_mounted_error(names, without, spec.name)
        return not_mounted_error(names, without)

    def _is_unattached(self, spec: VolumeSpec) -> bool:
        plugin = self.plugins.get(spec.kind)
        if not isinstance(plugin, AttachablePlugin):
            return False
        try:
            return not plugin.is_attached(spec)
        except (ObjectError, ValueError) as exc:  # also why it is not mounted
            log.info("volume.attachment_unknown", volume=spec.name, error=str(exc))
            return True

    async def _is_exhausted(self, spec: VolumeSpec) -> bool:
        plugin = self.plugins[spec.kind]
        assert isinstance(plugin, AttachablePlugin)
        with trio.move_on_after(_EXHAUSTED_LIMIT):
            try:
                return await plugin.is_exhausted(spec)
            except (ObjectError, ValueError) as exc:
                log.info("volume.attachment_unknown", volume=spec.name, error=str(exc))
        return False

    async def tear_down(self, uid: PodUid, pod_dir: Path, directories: Iterable[str]) -> None:
        """Undo the volumes of a pod, all kinds side by side.

        Args:
            uid: the pod.
            pod_dir: its directory.
            directories: the names of plugins below its `volumes` and `volumeDevices`.

        Raises `VolumeError` for the first that failed, after the others.
        """
        names = list(directories)
        kinds = self._users.get(uid, set()) | {
            known.kind for known in self.kinds if any(map(known.owns, names))
        }
        try:
            async with _first_error() as (nursery, watched):
                for kind in sorted(kinds):
                    nursery.start_soon(watched, self.plugin(kind).tear_down, pod_dir)
        finally:
            self.torn_down.ring()
        self._users.pop(uid, None)
        if self.growth is not None:
            self.growth.forget(uid)
        for key in [key for key in self._retries if key[0] == uid]:
            del self._retries[key]

    def is_user(self, uid: PodUid) -> bool:
        """Whether a pod has tried to set up such a volume, and has not been torn down since."""
        # Of a volume that could not even be read there is only the back-off.
        return uid in self._users or any(pod == uid for pod, _ in self._retries)

    async def restore(self) -> bool:
        """Let each kind announce what an earlier agent has left, before the first pod.

        Return whether that is all of it: a disk may fail, or a record be damaged.
        """
        is_complete = True
        for known in self.kinds:
            if known.restore is None:
                continue
            try:
                await known.restore()
            except OSError as exc:
                log.warning("volumes.not_restored", kind=known.kind, error=str(exc))
                is_complete = False
        return is_complete

    async def unused(
        self,
    ) -> tuple[dict[str, Callable[[], Awaitable[None]]], dict[str, VolumeError]]:
        """Return what undoes each volume that no pod needs, by a name for logs.

        Also why each kind that could not be looked at failed, by the kind. All kinds are looked at
        side by side, for at most 60 s. The functions raise `VolumeError`.
        """
        found: dict[str, Callable[[], Awaitable[None]]] = {}
        late = "looking for volumes without a pod did not end in time"
        failed = {known.kind: VolumeError("", f"{known.kind}: {late}") for known in self.kinds}

        async def look(known: AsyncKind) -> None:
            try:
                found.update(await self.plugin(known.kind).unused())
                del failed[known.kind]
            except (VolumeError, OSError) as exc:
                failed[known.kind] = _look_failed(known, exc)

        with trio.move_on_after(_LOOK_LIMIT):
            async with trio.open_nursery() as looks:
                unloaded = []
                for known in self.kinds:
                    if known.kind in self.plugins:
                        looks.start_soon(look, known)
                    else:
                        unloaded.append(known)
                # In one call: on most nodes no kind has left anything.
                for known, remains in zip(
                    unloaded, await self.offload(_remains, unloaded), strict=True
                ):
                    if isinstance(remains, OSError):
                        failed[known.kind] = _look_failed(known, remains)
                    elif remains:
                        looks.start_soon(look, known)
                    else:
                        del failed[known.kind]
        return found, failed


def _remains(kinds: Sequence[AsyncKind]) -> list[bool | OSError]:
    """Return whether the disk shows something of each kind. Blocks."""
    found: list[bool | OSError] = []
    for known in kinds:
        try:
            found.append(known.has_remains())
        except OSError as exc:
            found.append(exc)
    return found


def _look_failed(known: AsyncKind, exc: VolumeError | OSError) -> VolumeError:
    return VolumeError("", f"{known.kind}: looking for volumes without a pod failed: {exc}")


def _about_volume(spec: VolumeSpec) -> Attributes:
    return {
        "k8s.volume.name": spec.name,
        "kubelet_trio.volume.disk": spec.disk_name,
        "kubelet_trio.volume.plugin": plugin_name(spec),
    }


@asynccontextmanager
async def _first_error() -> AsyncIterator[tuple[trio.Nursery, Callable[..., Awaitable[None]]]]:
    """Run tasks side by side, and raise the first `VolumeError` after all have ended."""
    errors: list[VolumeError] = []

    async def watched(run: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            await run(*args)
        except VolumeError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        yield nursery, watched
    if errors:
        raise errors[0]
