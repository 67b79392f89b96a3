"""The taps at the seams besides the runtime: each notes what passes, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType

from lightkube.models.core_v1 import Node, Pod

from kubelet_trio.model import CONFIG_SOURCE, ContainerId, PodUid, pod_annotations
from kubelet_trio.objects import ApiObject, ObjectError, ObjectKey, ObjectStore
from kubelet_trio.pleg import ExitWaiter, ExitWatch
from kubelet_trio.pods import PodPlan
from kubelet_trio.recorder.bodies import Failure
from kubelet_trio.recorder.format import Kind
from kubelet_trio.recorder.masks import mask_options
from kubelet_trio.recorder.recorder import Recorder
from kubelet_trio.recorder.tape import FORGET
from kubelet_trio.sources import Desired
from kubelet_trio.volumes import Mounter, MountPoint


class RecordedExits:
    """An `ExitWaiter` that notes the ends of containers' processes."""

    def __init__(
        self, waiter: ExitWaiter, recorder: Recorder, pids: dict[int, ContainerId]
    ) -> None:
        """Take `pids`: the containers by process; those that have ended are removed from it."""
        self._waiter = waiter
        self._recorder = recorder
        self._pids = pids

    def open(self, pid: int) -> ExitWatch:
        """Watch the process that has this PID now. Raises OSError, as the waiter below."""
        try:
            watch = self._waiter.open(pid)
        except ProcessLookupError:
            self._ended(pid)
            raise
        return _RecordedWatch(watch, partial(self._ended, pid))

    def _ended(self, pid: int) -> None:
        self._recorder.note(Kind.EXIT, self._pids.pop(pid, ""), {"pid": pid})


class _RecordedWatch:
    def __init__(self, watch: ExitWatch, ended: Callable[[], None]) -> None:
        self._watch = watch
        self._ended = ended

    def __enter__(self) -> _RecordedWatch:
        self._watch.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.__exit__(exc_type, exc, traceback)

    async def wait_exited(self) -> None:
        await self._watch.wait_exited()
        self._ended()

    def is_older(self, than: float) -> bool:
        return self._watch.is_older(than)


class VolumeNotes:
    """Notes operations on volumes, each when it begins and when it ends; also in threads."""

    def __init__(self, recorder: Recorder) -> None:
        self._note = recorder.note_from_thread
        self._numbers = count(1)

    def begin(
        self, operation: str, args: Sequence[object]
    ) -> Callable[[BaseException | None], None]:
        """Note an operation without its secrets; return what is told of its end."""
        number = next(self._numbers)
        words = [list(arg) if isinstance(arg, list | tuple) else str(arg) for arg in args]
        for word in words:
            mask_options(word)
        self._note(Kind.VOLUME, operation, {"call": number, "args": words})
        return partial(self._end, operation, number)

    def _end(self, operation: str, number: int, error: BaseException | None) -> None:
        told: dict[str, object] = {"call": number}
        if error is None:
            told["ok"] = None
        else:
            told |= Failure.of(error).fields()
        if isinstance(error, OSError):
            told["errno"] = error.errno
        self._note(Kind.VOLUME, operation, told)


class RecordedMounter:
    """A `Mounter` that notes mounts and unmounts."""

    def __init__(self, mounter: Mounter, notes: VolumeNotes) -> None:
        self._mounter = mounter
        self._notes = notes

    def _do(self, operation: str, args: Sequence[object], do: Callable[[], None]) -> None:
        ended = self._notes.begin(operation, args)
        try:
            do()
        except OSError as exc:
            ended(exc)
            raise
        ended(None)

    def mount_tmpfs(self, target: Path, options: Sequence[str] = ()) -> None:
        do = partial(self._mounter.mount_tmpfs, target, options)
        self._do("mount_tmpfs", (target, options), do)

    def mount_hugetlbfs(self, target: Path, options: Sequence[str] = ()) -> None:
        do = partial(self._mounter.mount_hugetlbfs, target, options)
        self._do("mount_hugetlbfs", (target, options), do)

    def mount_nfs(self, source: str, target: Path, options: Sequence[str] = ()) -> None:
        do = partial(self._mounter.mount_nfs, source, target, options)
        self._do("mount_nfs", (source, target, options), do)

    def mount_device(
        self, source: str, target: Path, fstype: str, options: Sequence[str] = ()
    ) -> None:
        do = partial(self._mounter.mount_device, source, target, fstype, options)
        self._do("mount_device", (source, target, fstype, options), do)

    def bind(self, source: str, target: Path) -> None:
        self._do("bind", (source, target), partial(self._mounter.bind, source, target))

    def restrict(self, target: Path, options: Sequence[str]) -> None:
        do = partial(self._mounter.restrict, target, options)
        self._do("restrict", (target, options), do)

    def share(self, target: Path) -> None:
        self._do("share", (target,), partial(self._mounter.share, target))

    def unmount(self, target: Path) -> None:
        self._do("unmount", (target,), partial(self._mounter.unmount, target))

    def detach(self, target: Path) -> None:
        self._do("detach", (target,), partial(self._mounter.detach, target))

    def mounts(self) -> list[MountPoint]:
        """Return the mounts of this process' mount namespace."""
        return self._mounter.mounts()


class RecordedObjects:
    """An `ObjectStore` that notes the objects that pods read, while a pod holds them."""

    def __init__(self, store: ObjectStore, recorder: Recorder) -> None:
        self._store = store
        self._note = recorder.note
        self._holders: dict[ObjectKey, set[PodUid]] = {}
        self._read: dict[ObjectKey, ApiObject | None] = {}  # as last noted

    def hold(self, uid: PodUid, keys: Iterable[ObjectKey]) -> None:
        keys = tuple(keys)
        self._store.hold(uid, keys)
        for key in keys:
            self._holders.setdefault(key, set()).add(uid)

    def release(self, uid: PodUid) -> None:
        self._store.release(uid)
        for key in [key for key, holders in self._holders.items() if uid in holders]:
            self._holders[key].discard(uid)
            if not self._holders[key]:
                del self._holders[key]
                if self._read.pop(key, None) is not None:
                    self._note(Kind.OBJECT, object_name(key), FORGET)

    async def get(self, key: ObjectKey, uid: PodUid) -> ApiObject:
        """Return an object for a pod. Raises `ObjectError`."""
        try:
            found = await self._store.get(key, uid)
        except ObjectError:
            self._seen(key, None)
            raise
        self._seen(key, found)
        return found

    def _seen(self, key: ObjectKey, found: ApiObject | None) -> None:
        if key in self._read and self._read[key] is found:
            return
        if key in self._holders:
            self._read[key] = found
        self._note(Kind.OBJECT, object_name(key), found)


def object_name(key: ObjectKey) -> str:
    """Return the key of an OBJECT."""
    return f"{key.kind}/{key.namespace}/{key.name}"


class RecordedInputs:
    """Notes the desired pods, and what is decided about pods."""

    def __init__(self, recorder: Recorder) -> None:
        self._note = recorder.note
        self._desired = Desired()
        self._node: Node | None = None
        self._plans: dict[PodUid, PodPlan] = {}  # as last noted

    def desired(self, desired: Desired) -> None:
        """Note what the sources want, as far as it has changed."""
        before, self._desired = self._desired, desired
        for key, found in desired.objects.items():
            if before.objects.get(key) is not found:
                self._note(Kind.OBJECT, object_name(key), found)
        for key in before.objects.keys() - desired.objects.keys():
            self._note(Kind.OBJECT, object_name(key), None)
        for uid, pod in desired.pods.items():
            if before.pods.get(uid) is not pod:
                self._note(Kind.WANTED, wanted_name(uid, pod), pod)
        for uid in before.pods.keys() - desired.pods.keys():
            self._note(Kind.WANTED, wanted_name(uid, before.pods[uid]), None)
        now = (desired.all_ready, desired.kept)
        if now != (before.all_ready, before.kept):
            told = {"all_ready": desired.all_ready, "kept": sorted(desired.kept)}
            self._note(Kind.SOURCES, "", told)

    def statuses(self, changed: Mapping[PodUid, Pod | None]) -> None:
        """Note the statuses that are published now; None: the pod is gone."""
        for uid, pod in changed.items():
            if pod is None:
                self._plans.pop(uid, None)
            self._note(Kind.STATUS, uid, pod.status if pod is not None else None)

    def node(self, node: Node | None) -> None:
        """Note the node's object, as admission reads it."""
        if node is not self._node:
            self._node = node
            name = node.metadata.name if node is not None and node.metadata is not None else ""
            self._note(Kind.OBJECT, f"Node//{name}", node)

    def plan(self, uid: PodUid, plan: PodPlan) -> None:
        """Note what a sync has decided, if it is not the same as before."""
        if self._plans.get(uid) != plan and self._note(Kind.PLAN, uid, plan):
            self._plans[uid] = plan

    def finding(
        self, uid: PodUid, name: str, container: ContainerId, kind: str, result: str, text: str
    ) -> None:
        """Note what a probe has found: `success`, `failure` or `unknown`."""
        told = {"result": result, "container": container, "text": text}
        self._note(Kind.PROBE, f"{uid}/{name}/{kind}", told)


def wanted_name(uid: PodUid, pod: Pod) -> str:
    """Return the key of a WANTED."""
    return f"{pod_annotations(pod).get(CONFIG_SOURCE, '')}/{uid}"
