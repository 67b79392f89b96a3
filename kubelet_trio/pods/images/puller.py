"""Getting a container's image onto the node: policy, limits, back-off, events.

Pulls of one image by several pods each make their own call (the runtime joins them).
`serializeImagePulls` is a limit of one. A pull runs in its worker's task, so ending the
pod cancels it, and a slow one holds up only those that wait for its slot.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Pod, Secret

from kubelet_trio.credentials import (
    ImageAccess,
    Keyring,
    Login,
    Logins,
    NoKeyring,
    Puller,
    secret_logins,
)
from kubelet_trio.cri import ImagePullError, Runtime, RuntimeCallError, v1
from kubelet_trio.durations import format_milliseconds
from kubelet_trio.model import (
    PULLS,
    EventSink,
    Meter,
    PodContainer,
    PodUid,
    WallClock,
    get_logger,
    pod_key,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.objects import ObjectError, ObjectStore, secret_key
from kubelet_trio.pods.images.reference import reference_problem
from kubelet_trio.pods.plan.backoff import BackOffTable
from kubelet_trio.pods.types import WaitingReason

log = get_logger()

# Seconds to find out what a pull left behind that its pod did not live to see.
_AFTERMATH = 2.0

# imageSizeBuckets: from how many MiB, largest first.
_SIZES = (
    (100 * 1024, "GT100GB"),
    (60 * 1024, "60GB-100GB"),
    (40 * 1024, "40GB-60GB"),
    (30 * 1024, "30GB-40GB"),
    (20 * 1024, "20GB-30GB"),
    (10 * 1024, "10GB-20GB"),
    (5 * 1024, "5GB-10GB"),
    (1024, "1GB-5GB"),
    (500, "500MB-1GB"),
    (100, "100MB-500MB"),
    (10, "10MB-100MB"),
    (0, "0-10MB"),
)


class ImageError(Exception):
    """The image cannot be had now.

    `waiting` is what the container's status says; `retry_at` (Unix seconds) when to ask
    again, None where this room has no opinion.
    """

    def __init__(self, waiting: WaitingReason, retry_at: float | None = None) -> None:
        super().__init__(f"{waiting.reason}: {waiting.message}")
        self.waiting = waiting
        self.retry_at = retry_at


@dataclass(frozen=True, slots=True)
class EnsuredImage:
    """An image on the node: its ref, and what the runtime said of it, if it was asked."""

    ref: str
    image: v1.Image | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    pod: Pod
    container: PodContainer
    policy: str
    spec: v1.ImageSpec

    @property
    def image(self) -> str:
        return self.spec.image

    @property
    def puller(self) -> Puller:
        account = spec(self.pod).serviceAccountName or ""
        return Puller(pod_key(self.pod), pod_uid(self.pod), account)

    @property
    def back_off_key(self) -> tuple[PodUid, str]:
        return pod_uid(self.pod), self.image


class PullRate:
    """A bucket of tokens, one a pull. A pull that finds none is refused and does not wait."""

    def __init__(self, qps: float = 0, burst: int = 1) -> None:
        """Args:
        qps: tokens that come a second; 0 is no limit.
        burst: tokens that the bucket holds, full at first.
        """
        self._qps, self._burst = qps, burst
        self._full_at = -math.inf  # when the bucket is full again

    def try_take(self, now: float) -> bool:
        """Take a token if there is one; `now` is any clock's that never goes back."""
        if not self._qps:
            return True
        full_at = max(self._full_at, now) + 1 / self._qps
        if full_at - now > self._burst / self._qps + 1e-9:
            return False
        self._full_at = full_at
        return True


# Gives the pod's logins. Raises ValueError naming a secret that is broken.
_Lookup = Callable[[], Awaitable[Sequence[Login]]]


class ImagePuller:
    """Ensures images. Shared by all pod workers of a node."""

    def __init__(
        self,
        runtime: Runtime,
        events: EventSink,
        clock: WallClock,
        *,
        parallel_pulls: int | None = 1,
        rate: PullRate | None = None,
        back_off: BackOffTable | None = None,
        keyring: Keyring | None = None,
        objects: ObjectStore | None = None,
        access: ImageAccess | None = None,
        meter: Meter | None = None,
    ) -> None:
        """Log in with what the pods' secrets in `objects` hold, and what `keyring` has.

        `access` says who may use what is there; without it everybody may.
        """
        self._runtime = runtime
        self._events = events
        self._clock = clock
        self._slots = trio.CapacityLimiter(parallel_pulls or float("inf"))
        self._rate = rate or PullRate()
        self._back_off = back_off or BackOffTable()
        self._keyring = keyring or NoKeyring()
        self._objects = objects
        self._access = access
        self._meter = meter or Meter()

    async def ensure(
        self, pod: Pod, container: PodContainer, sandbox: v1.PodSandboxConfig
    ) -> EnsuredImage:
        """Return the container's image, pulled if its policy asks for it.

        Raises `ImageError`; `RuntimeUnavailableError` and the like for the runtime's own trouble
        come out as `ImageInspectError` waiting reasons too, as upstream reports them.
        """
        return await self._ensure(_wanted(pod, container), sandbox)

    async def ensure_volumes(
        self, pod: Pod, container: PodContainer, sandbox: v1.PodSandboxConfig
    ) -> None:
        """Ensure the images that a container mounts as volumes. Raises as `ensure` does."""
        mounted = {mount.name for mount in container.spec.volumeMounts or ()}
        for volume in spec(pod).volumes or ():
            if volume.image is not None and volume.name in mounted:
                image = v1.ImageSpec(image=volume.image.reference or "")
                policy = volume.image.pullPolicy or "IfNotPresent"
                self._meter.count("kubelet_image_volume_requested_total")
                await self._ensure(_Wanted(pod, container, policy, image), sandbox)

    async def _ensure(self, wanted: _Wanted, sandbox: v1.PodSandboxConfig) -> EnsuredImage:
        try:
            return await self._look_or_pull(wanted, sandbox)
        except ImageError as exc:
            # Whatever it was, and each time: upstream's container start says so, not its images.
            self._event(wanted, "Warning", "Failed", f"Error: {exc.waiting.reason}")
            raise

    async def _look_or_pull(self, wanted: _Wanted, sandbox: v1.PodSandboxConfig) -> EnsuredImage:
        if problem := reference_problem(wanted.image):
            raise self._refuse(wanted, "InspectFailed", _invalid_name(wanted.image, problem))
        logins = self._lookup(wanted)
        try:
            present = await self._present(wanted)
        except ImageError:
            self._count(wanted, "unknown", "unknown")
            raise
        is_usable = present is not None and (
            wanted.policy != "Always" and not await self._must_pull(wanted, present.id, logins)
        )
        is_due = not is_usable and wanted.policy != "Never"
        self._count(wanted, _go_bool(present is not None), _go_bool(is_due))
        if present is not None and is_usable:
            self._event(
                wanted,
                "Normal",
                "Pulled",
                f'Container image "{wanted.image}" already present on machine '
                "and can be accessed by the pod",
            )
            return EnsuredImage(present.id, present)
        if wanted.policy == "Never":
            # Whoever may not have it is not told that it is there.
            text = f'Container image "{wanted.image}" is not present with pull policy of Never'
            raise self._refuse(
                wanted, "ErrImageNeverPull", WaitingReason("ErrImageNeverPull", text)
            )
        return await self._pull(wanted, sandbox, logins, present)

    def _count(self, wanted: _Wanted, present: str, pull: str) -> None:
        labels = (present, wanted.policy.lower(), pull)
        self._meter.count("kubelet_image_manager_ensure_image_requests_total", labels)

    def forget(self, uid: PodUid) -> None:
        """Drop the back-offs of a pod that is gone."""
        self._back_off.forget(uid)

    async def _present(self, wanted: _Wanted) -> v1.Image | None:
        try:
            return await self._runtime.image_status(wanted.spec)
        except RuntimeCallError as exc:
            text = f'Failed to inspect image "{wanted.image}": {exc}'
            raise self._refuse(
                wanted, "InspectFailed", WaitingReason("ImageInspectError", text)
            ) from exc

    async def _must_pull(self, wanted: _Wanted, ref: str, logins: _Lookup) -> bool:
        if self._access is None:
            return False
        try:
            return await self._access.must_pull(wanted.image, ref, logins)
        except ValueError:
            return True  # a broken secret: the pull says so

    async def _pull(
        self,
        wanted: _Wanted,
        sandbox: v1.PodSandboxConfig,
        logins: _Lookup,
        present: v1.Image | None,
    ) -> EnsuredImage:
        now = self._clock.time()
        if self._back_off.is_active(wanted.back_off_key, now):
            text = f'Back-off pulling image "{wanted.image}"'
            self._event(wanted, "Normal", "BackOff", text)
            entry = self._back_off[wanted.back_off_key]
            message = f"{text}: {entry.note}" if entry.note else text
            raise ImageError(
                WaitingReason("ImagePullBackOff", message), entry.updated + entry.delay
            )
        asked = trio.current_time()
        async with self._slots:
            started = trio.current_time()
            self._event(wanted, "Normal", "Pulling", f'Pulling image "{wanted.image}"')
            try:
                if not self._rate.try_take(started):
                    raise ImagePullError("PullImage", "pull QPS exceeded")
                ref = await self._pull_and_note(wanted, sandbox, logins, present)
            except RuntimeCallError as exc:
                raise self._pull_failed(wanted, exc) from exc
        self._back_off.reset(wanted.back_off_key)
        ended = trio.current_time()
        image = await self._pulled(ref)
        size = image.size if image is not None else 0
        self._event(
            wanted,
            "Normal",
            "Pulled",
            f'Successfully pulled image "{wanted.image}" in {format_milliseconds(ended - started)} '
            f"({format_milliseconds(ended - asked)} including waiting). Image size: {size} bytes.",
        )
        labels = (size_label(size),)
        self._meter.observe("kubelet_image_pull_duration_seconds", ended - asked, labels, PULLS)
        return EnsuredImage(ref, image)

    async def _pulled(self, ref: str) -> v1.Image | None:
        """Return what the runtime says of an image; None if it does not, and is asked again."""
        try:
            return await self._runtime.image_status(v1.ImageSpec(image=ref))
        except RuntimeCallError:
            return None

    async def _pull_and_note(
        self,
        wanted: _Wanted,
        sandbox: v1.PodSandboxConfig,
        logins: _Lookup,
        present: v1.Image | None,
    ) -> str:
        """Pull, and keep the records of who may use the image. Raises `RuntimeCallError`."""
        access = self._access
        if access is None:
            return (await self._pull_with_logins(wanted, sandbox, logins))[0]
        try:
            await access.begin(wanted.image)
        except OSError as exc:
            text = f'Failed to record image pull intent for container image "{wanted.image}"'
            raise ImagePullError("PullImage", f"{text}: {exc}") from exc
        try:
            ref, login = await self._pull_with_logins(wanted, sandbox, logins)
        except RuntimeCallError as exc:
            failure = exc
        except trio.Cancelled:
            # The runtime may have been done with it: then it stays noted as begun.
            with trio.move_on_after(_AFTERMATH, shield=True):
                if await self._is_unchanged(wanted, present):
                    await access.failed(wanted.image)
            raise
        else:
            await access.pulled(wanted.image, ref, login)
            return ref
        await access.failed(wanted.image)
        raise failure

    async def _is_unchanged(self, wanted: _Wanted, before: v1.Image | None) -> bool:
        try:
            after = await self._runtime.image_status(wanted.spec)
        except RuntimeCallError:
            return False
        return after is None or (before is not None and before.id == after.id)

    async def _pull_with_logins(
        self, wanted: _Wanted, sandbox: v1.PodSandboxConfig, logins: _Lookup
    ) -> tuple[str, Login | None]:
        """Try what there is to log in with, one after the other; anonymously if nothing.

        Return the image's ref and what it was had with.
        """
        try:
            known = await logins()
        except ValueError as exc:
            raise ImagePullError("PullImage", str(exc)) from exc
        failure: RuntimeCallError | None = None
        for login in known:
            auth = v1.AuthConfig(username=login.username, password=login.password)
            try:
                return await self._runtime.pull_image(wanted.spec, auth, sandbox), login
            except RuntimeCallError as exc:
                failure = exc
        if failure is not None:
            raise failure
        return await self._runtime.pull_image(wanted.spec, None, sandbox), None

    def _lookup(self, wanted: _Wanted) -> _Lookup:
        """Return what gives the logins for an image; they are looked up once, when asked for."""
        known: list[Sequence[Login]] = []

        async def logins() -> Sequence[Login]:
            if not known:
                own = await self._own_logins(wanted)
                known.append(await self._keyring.logins(wanted.image, own, wanted.puller))
            return known[0]

        return logins

    async def _own_logins(self, wanted: _Wanted) -> list[Logins]:
        """Return what the pod's own secrets hold. Raises ValueError naming a broken one."""
        names = [ref.name or "" for ref in spec(wanted.pod).imagePullSecrets or ()]
        logins, missing = [], []
        for name in dict.fromkeys(names):
            key = secret_key(pod_key(wanted.pod).namespace, name)
            try:
                uid = pod_uid(wanted.pod)
                found = await self._objects.get(key, uid) if self._objects is not None else None
            except ObjectError:
                found = None
            if isinstance(found, Secret):
                logins.append(secret_logins(found))
            else:
                missing.append(name)
        if missing:
            text = (
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); "
                "attempting to pull the image may not succeed."
            )
            ref = pod_object_ref(wanted.pod)
            self._events.emit(ref, "Warning", "FailedToRetrieveImagePullSecret", text)
        return logins

    def _pull_failed(self, wanted: _Wanted, exc: RuntimeCallError) -> ImageError:
        reason = exc.reason if isinstance(exc, ImagePullError) else "ErrImagePull"
        self._event(
            wanted, "Warning", "Failed", f'Failed to pull image "{wanted.image}": {exc.go_text}'
        )
        now = self._clock.time()
        entry = self._back_off.next(wanted.back_off_key, now, note=f"{reason}: {exc.go_text}")
        # Halfway through, the status turns from the error to ImagePullBackOff, as upstream's does.
        return ImageError(WaitingReason(reason, exc.go_text), now + entry.delay / 2)

    def _refuse(self, wanted: _Wanted, event: str, waiting: WaitingReason) -> ImageError:
        self._event(wanted, "Warning", event, waiting.message)
        return ImageError(waiting)

    def _event(self, wanted: _Wanted, type_: str, reason: str, message: str) -> None:
        ref = pod_object_ref(wanted.pod, wanted.container.field_path)
        self._events.emit(ref, "Warning" if type_ == "Warning" else "Normal", reason, message)


def _go_bool(value: bool) -> str:
    return "true" if value else "false"


def size_label(size: int) -> str:
    """Return the label of an image's size in bytes, 0 where it is not known."""
    return next((label for least, label in _SIZES if size > least * 1024 * 1024), "N/A")


def _wanted(pod: Pod, container: PodContainer) -> _Wanted:
    image = container.spec.image or ""
    return _Wanted(
        pod, container, container.spec.imagePullPolicy or "IfNotPresent", v1.ImageSpec(image=image)
    )


def _invalid_name(image: str, problem: str) -> WaitingReason:
    return WaitingReason(
        "InvalidImageName",
        f'Failed to apply default image tag "{image}": '
        f'couldn\'t parse image name "{image}": {problem}',
    )
