"""The image garbage collector: remove unused images when their file system fills up, when they
are too old, or under disk pressure.

Every five minutes it lists images and containers and reads the file system; `removal_order`
decides. A removal logs why each image stays or goes, if that reason is new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_identity
from kubelet_trio.cri import Runtime, RuntimeCallError, RuntimeUnavailableError, v1
from kubelet_trio.gc.images import (
    NEEDED,
    ImageBook,
    ImagePolicy,
    ImageRecord,
    bytes_to_free,
    enough,
    removal_order,
    used_images,
    used_percent,
)
from kubelet_trio.gc.node_pods import NodePods
from kubelet_trio.model import (
    DiskSpace,
    EventSink,
    Offload,
    RuntimePod,
    SystemClock,
    WallClock,
    disk_space,
    get_logger,
    node_ref,
    pod_containers,
    pod_key,
    spec,
)
from kubelet_trio.tracing import span

log = get_logger()

PERIOD = 300.0  # ImageGCPeriod
_LOGGED = 50  # verdicts between two checkpoints


class ImageGCError(Exception):
    """Images could not be removed as needed; the text is for an event."""


# What a collection of containers or images raises.
RECLAIM_ERRORS = (RuntimeCallError, ImageGCError, OSError)


@dataclass(frozen=True, slots=True)
class _Look:
    """The images on the node, and the user of each image in use."""

    images: Sequence[ImageRecord]
    in_use: dict[str, str]


@dataclass(slots=True)
class ImageCollector:
    """Removes unused images. `removed` counts them, by reason."""

    runtime: Runtime
    pods: NodePods
    policy: ImagePolicy
    node_name: str
    events: EventSink
    offload: Offload
    sandbox_image: str = ""  # as configured, for runtimes that do not report theirs
    space: Callable[[str], DiskSpace] = disk_space
    # Called with the ids and names of all images, and the wall time before they were listed.
    prune: Callable[[Collection[str], float], Awaitable[None]] | None = None
    clock: WallClock = field(default_factory=SystemClock)
    removed: dict[str, int] = field(default_factory=lambda: {"age": 0, "space": 0})
    _book: ImageBook | None = None
    _logged: dict[str, str] = field(default_factory=dict)  # the reason to keep it, by image id
    _has_failed: bool = False
    _turn: trio.Lock = field(default_factory=trio.Lock)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Collect until cancelled; do nothing if the policy is off."""
        self._book = self._book or ImageBook(trio.current_time())
        task_status.started()
        if self.policy.is_off:
            await trio.sleep_forever()
        await self.pods.wait_listed()
        # What a slow source wants may be among the images. One that never answers fills the disk.
        with trio.move_on_after(PERIOD):
            await self.pods.wait_known()
        while True:
            await self._collect_and_report()
            await trio.sleep(PERIOD)

    async def _collect_and_report(self) -> None:
        """Collect; log a failure, and emit an event from the second in a row on."""
        try:
            with span("Images/GarbageCollect"):
                await self.collect()
        except RuntimeUnavailableError:
            return  # `runtime/health` reports it
        except RECLAIM_ERRORS as exc:
            log.error("gc.images_failed", error=str(exc))
            # A first failure may mean that the stats are not complete yet (StartGarbageCollection).
            if self._has_failed:
                self._event("ImageGCFailed", str(exc))
            self._has_failed = True
        else:
            self._has_failed = False

    async def collect(self) -> None:
        """Free the images' file system down to its threshold, and remove images that are too old.

        Raises `RECLAIM_ERRORS`.
        """
        async with self._turn:
            look = await self._look()
            space = await self._space()
            if space is None:
                return  # the process runtime has no images
            # As upstream. A percentage of it would divide by zero.
            if not space.capacity:
                text = "invalid capacity 0 on image filesystem"
                self._event("InvalidDiskCapacity", text)
                raise ImageGCError(text)
            to_free = bytes_to_free(space.capacity, space.available, self.policy)
            if not to_free and not self.policy.max_age:
                return
            freed = await self._remove(look, to_free)
            if freed < to_free:
                text = _not_enough(space, freed)
                self._event("FreeDiskSpaceFailed", text)
                raise ImageGCError(text)

    async def remove_unused(self) -> int:
        """Remove every unused image; return their size in bytes. Raises as `collect`."""
        async with self._turn:
            return await self._remove(await self._look(), None)

    async def _look(self) -> _Look:
        before = self.clock.time()
        listed = await self.runtime.list_images()
        # In threads, here and below: there may be thousands of images.
        images = await self.offload(lambda: list(map(_record, listed)))
        # An empty list can also come from a runtime that has not loaded its store yet.
        if self.prune is not None and images:
            await self.prune({n for i in images for n in (i.id, *i.names)}, before)
        # After the images, so that a container that was created in between protects its image.
        containers = await self.runtime.list_containers()
        wanted, now = list(self.pods.wanted()), trio.current_time()
        observed = self.pods.observed()
        book = self._book = self._book or ImageBook(now)

        def look() -> _Look:
            users = [
                *_container_users(containers),
                *_pod_users(wanted),
                *_mount_users(observed),
            ]
            in_use = used_images(images, users)
            return _Look(book.note(images, in_use, now), in_use)

        return await self.offload(look)

    async def _space(self) -> DiskSpace | None:
        answer = await self.runtime.image_fs_info()
        for usage in answer.image_filesystems:
            if usage.fs_id is not None and usage.fs_id.mountpoint:
                return await self.offload(self.space, usage.fs_id.mountpoint)
        return None

    async def _remove(self, look: _Look, to_free: int | None) -> int:
        """Remove images until `to_free` bytes are free, None: all; return the freed bytes."""
        assert self._book is not None
        decide = partial(
            removal_order,
            look.images,
            self.policy,
            trio.current_time(),
            in_use=look.in_use,
            sandbox_image=await self.runtime.sandbox_image() or self.sandbox_image,
            began=self._book.began,
        )
        freed = 0
        problems: dict[str, None] = {}  # each text once
        kept: dict[str, str] = {}
        for number, verdict in enumerate(await self.offload(decide)):
            if number % _LOGGED == 0:
                await trio.lowlevel.checkpoint()
            image, why = verdict.image, verdict.why
            if verdict.remove and enough(verdict, freed, to_free):
                why = "enough is free"
            # As upstream the next one takes the place of one that cannot be removed (freeSpace).
            elif verdict.remove and await self._remove_one(image, problems):
                freed += image.size
                self.removed["space" if why is NEEDED else "age"] += 1
                log.info("gc.image_removed", image=image.shown, id=image.id, why=why)
                continue
            elif verdict.remove:
                why = "it could not be removed"
            kept[image.id] = why
            if self._logged.get(image.id) != why:
                log.info("gc.image_kept", image=image.shown, id=image.id, why=why)
        self._logged = kept
        if problems:
            wanted = "all" if to_free is None else str(to_free)
            # The format of NewAggregate in k8s.io/apimachinery/pkg/util/errors.
            text = next(iter(problems)) if len(problems) == 1 else f"[{', '.join(problems)}]"
            raise ImageGCError(
                f"wanted to free {wanted} bytes, but freed {freed} bytes space with errors "
                f"in image deletion: {text}"
            )
        return freed

    async def _remove_one(self, image: ImageRecord, problems: dict[str, None]) -> bool:
        """Remove an image; return whether it was removed. Raises `RuntimeUnavailableError`."""
        # Checked again: removals take long, and a new pod may use the image by now.
        users = chain(_pod_users(self.pods.wanted()), _mount_users(self.pods.observed()))
        if used_images([image], users):
            return False
        try:
            # By id: a tag may by now refer to another image.
            await self.runtime.remove_image(v1.ImageSpec(image=image.id))
        except RuntimeUnavailableError:
            raise
        except RuntimeCallError as exc:
            problems[exc.go_text] = None
            return False
        return True

    def _event(self, reason: str, text: str) -> None:
        self.events.emit(node_ref(self.node_name), "Warning", reason, text)


def _container_users(containers: Iterable[v1.Container]) -> Iterator[tuple[str, str]]:
    for container in containers:
        name = container.metadata.name if container.metadata else container.id
        pod = pod_identity(container.labels)
        user = f"container {name}" + (f" of {pod.namespace}/{pod.name}" if pod else "")
        named = container.image.image if container.image else ""
        # Runtimes differ in which of these fields they fill in.
        for reference in (container.image_id, container.image_ref, named):
            yield reference, user


def _mount_users(pods: Iterable[RuntimePod]) -> Iterator[tuple[str, str]]:
    # A tag in a pod's spec may have moved since its container mounts the image.
    for pod in pods:
        for container in pod.containers:
            for mount in container.image_mounts:
                user = f"container {container.name} of {pod.namespace}/{pod.name}"
                yield mount.image, user


def _pod_users(pods: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    for pod in pods:
        user = f"pod {pod_key(pod)}"
        for container in pod_containers(pod):
            yield container.spec.image or "", user
        for volume in spec(pod).volumes or ():
            if volume.image is not None:
                yield volume.image.reference or "", user


def _record(image: v1.Image) -> ImageRecord:
    names = (*image.repo_tags, *image.repo_digests)
    return ImageRecord(image.id, names, image.size, image.pinned)


def _not_enough(space: DiskSpace, freed: int) -> str:
    return (
        "Insufficient free disk space on the node's image filesystem "
        f"({used_percent(space.capacity, space.available)}% of {_size(space.capacity)} used). "
        f"Failed to free sufficient space by deleting unused images (freed {freed} bytes). "
        "Investigate disk usage, as it could be used by active images, logs, volumes, "
        "or other data."
    )


def _size(count: float) -> str:
    """Format bytes as upstream does: `89.9 GiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"
