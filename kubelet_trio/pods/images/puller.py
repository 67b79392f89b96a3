"""Bring a container's image onto the node: pull policy, limits, back-off, events.

A pull runs in its pod worker's task: the termination of the pod cancels it, and a slow pull delays
only those that wait for its slot. If several pods pull one image, each makes its own call; the
runtime joins them. Upstream: images/image_manager.go.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import trio
from lightkube.models.core_v1 import Pod, Secret

from kubelet_trio.credentials import (
    ImageAccess,
    Keyring,
    Login,
    Logins,
    NoKeyring,
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
from kubelet_trio.pods.images.failures import joined, pull_failure
from kubelet_trio.pods.images.labels import request_labels, size_label
from kubelet_trio.pods.images.rate import PullRate
from kubelet_trio.pods.images.request import (
    ImageRequest,
    container_request,
    reference_problem,
    volume_requests,
)
from kubelet_trio.pods.images.under_way import Pull, PullsUnderWay
from kubelet_trio.pods.plan import BackOffTable
from kubelet_trio.pods.types import WaitingReason
from kubelet_trio.status import PullTimes
from kubelet_trio.tracing import CONTAINER, Attributes, current_span, span

log = get_logger()

# Seconds to find out whether a cancelled pull was completed.
_AFTERMATH = 2.0
# Seconds for which an image that was there is taken to be there: a burst of pods asks once. If it
# is removed meanwhile, CreateContainer fails, and its next try asks again.
_FRESH = 2.0


class ImageError(Exception):
    """The image is not available now.

    `waiting` is the waiting state of the container; `retry_at` (Unix seconds) when to try again,
    None: the caller decides.
    """

    def __init__(self, waiting: WaitingReason, retry_at: float | None = None) -> None:
        super().__init__(f"{waiting.reason}: {waiting.message}")
        self.waiting = waiting
        self.retry_at = retry_at


@dataclass(frozen=True, slots=True)
class EnsuredImage:
    """An image on the node: its ref, and the runtime's ImageStatus if that call succeeded."""

    ref: str
    image: v1.Image | None = None


# Returns the pod's logins. Raises ValueError naming a broken secret.
_Lookup = Callable[[], Awaitable[Sequence[Login]]]


class ImagePuller:
    """Ensures that images are on the node. Shared by all pod workers."""

    def __init__(
        self,
        runtime: Runtime,
        events: EventSink,
        clock: WallClock,
        *,
        parallel_pulls: int | None = 1,
        rate: PullRate | None = None,
        keyring: Keyring | None = None,
        objects: ObjectStore | None = None,
        access: ImageAccess | None = None,
        meter: Meter | None = None,
        times: PullTimes | None = None,
    ) -> None:
        """Take what pulls need.

        Args:
            runtime: pulls.
            events: takes the pods' events.
            clock: the clock of back-offs.
            parallel_pulls: `maxParallelImagePulls`, 1 for `serializeImagePulls`; None: no limit.
            rate: how often a pull may begin.
            keyring: logins of the node.
            objects: has the pods' imagePullSecrets.
            access: decides which pods may use images that are on the node; without it all may.
            meter: counts requests and measures pulls.
            times: is told when a pod begins to wait for an image, and when that is there.
        """
        self._runtime = runtime
        self._events = events
        self._clock = clock
        self._slots = trio.CapacityLimiter(parallel_pulls or float("inf"))
        self._rate = rate or PullRate()
        self._back_off = BackOffTable()
        self._keyring = keyring or NoKeyring()
        self._objects = objects
        self._access = access
        self._meter = meter or Meter()
        self._times = times or PullTimes()
        self._under_way = PullsUnderWay(clock)
        self._seen: dict[str, tuple[float, v1.Image]] = {}  # by name, with the time of the query

    async def ensure(
        self, pod: Pod, container: PodContainer, sandbox: v1.PodSandboxConfig
    ) -> EnsuredImage:
        """Return the container's image, pulled if its policy asks for it.

        Raises:
            ImageError: the image is not available. Failed calls of the runtime end here, too, as
                ErrImagePull or ImageInspectError.
        """
        return await self._ensure(container_request(pod, container), sandbox)

    async def ensure_volumes(
        self, pod: Pod, container: PodContainer, sandbox: v1.PodSandboxConfig
    ) -> dict[str, v1.ImageSpec]:
        """Ensure the images that a container mounts as volumes; return them by the volumes' names.

        Each names its image as the runtime does: a tag may move before the image is mounted.

        Raises:
            ImageError: of the last mount whose image is not available; all others were tried.
        """
        ensured: dict[str, v1.ImageSpec] = {}
        failure: ImageError | None = None
        for volume, request in volume_requests(pod, container).items():
            try:
                image = await self._ensure(request, sandbox)
            except ImageError as exc:
                failure = exc  # toKubeContainerImageVolumes shows the last one
            else:
                ensured[volume] = request.mounted(image.ref)
        if failure is not None:
            raise failure
        if ensured:  # not those of failed tries: as incrementImageVolumeMetrics upstream
            self._meter.count("kubelet_image_volume_requested_total", by=len(ensured))
        return ensured

    @property
    def pulls(self) -> Sequence[Pull]:
        """The pulls under way, the oldest first."""
        return self._under_way.pulls

    def forget(self, uid: PodUid) -> None:
        """Drop the back-offs of a pod that is gone."""
        self._back_off.forget(uid)

    async def _ensure(self, request: ImageRequest, sandbox: v1.PodSandboxConfig) -> EnsuredImage:
        try:
            return await self._use_or_pull(request, sandbox)
        except ImageError as exc:
            # After each failure, whatever its reason: upstream's startContainer emits this event.
            of_container = replace(request, field_path=request.container.field_path)
            self._event(of_container, "Warning", "Failed", f"Error: {exc.waiting.reason}")
            raise

    async def _use_or_pull(
        self, request: ImageRequest, sandbox: v1.PodSandboxConfig
    ) -> EnsuredImage:
        if problem := reference_problem(request.image):
            self._count(request, None, None)
            raise self._refuse(request, "InspectFailed", _invalid_name(request.image, problem))
        logins = self._lookup(request)
        present, must_pull = await self._present(request), None
        if present is not None and request.policy != "Always":
            must_pull = await self._must_pull(request, present.id, logins)
        elif request.policy != "Never":
            must_pull = True
        self._count(request, present is not None, must_pull)
        if present is not None and must_pull is False:
            self._times.end(pod_uid(request.pod))  # another pod pulled it
            text = f'Container image "{request.image}" already present on machine'
            if self._access is not None:
                text += " and can be accessed by the pod"
            self._event(request, "Normal", "Pulled", text)
            return EnsuredImage(present.id, present)
        if request.policy == "Never":
            # Even if it is present: a pod without access must not learn that it is.
            text = f'Container image "{request.image}" is not present with pull policy of Never'
            raise self._refuse(
                request, "ErrImageNeverPull", WaitingReason("ErrImageNeverPull", text)
            )
        return await self._pull(request, sandbox, logins, present)

    def _count(
        self, request: ImageRequest, is_present: bool | None, must_pull: bool | None
    ) -> None:
        labels = request_labels(request.policy, is_present=is_present, must_pull=must_pull)
        self._meter.count("kubelet_image_manager_ensure_image_requests_total", labels)

    async def look(self, pod: Pod, container: PodContainer) -> None:
        """Ask for a container's image ahead of `ensure`, which then need not; never fails."""
        request = container_request(pod, container)
        if not reference_problem(request.image) and self._recent(request) is None:
            with contextlib.suppress(RuntimeCallError):
                await self._ask(request)

    def _recent(self, request: ImageRequest) -> v1.Image | None:
        asked, image = self._seen.get(request.image, (-math.inf, None))
        # An image that is pulled always may change with each pull.
        is_recent = request.policy != "Always" and trio.current_time() - asked <= _FRESH
        return image if is_recent else None

    async def _ask(self, request: ImageRequest) -> v1.Image | None:
        asked = trio.current_time()
        image = await self._runtime.image_status(request.spec)
        self._seen = {k: seen for k, seen in self._seen.items() if asked - seen[0] <= _FRESH}
        if image is not None:
            self._seen[request.image] = asked, image
        return image

    async def _present(self, request: ImageRequest) -> v1.Image | None:
        if (recent := self._recent(request)) is not None:
            return recent
        try:
            return await self._ask(request)
        except RuntimeCallError as exc:
            # The pull does not depend on the answer: imagePullPrecheck does not even ask.
            if request.policy == "Always":
                return None
            self._count(request, None, None)
            text = f'Failed to inspect image "{request.image}": {exc}'
            raise self._refuse(
                request, "InspectFailed", WaitingReason("ImageInspectError", text)
            ) from exc

    async def _must_pull(self, request: ImageRequest, ref: str, logins: _Lookup) -> bool | None:
        """Return whether the pod must prove its access; None: a secret is broken."""
        if self._access is None:
            return False
        try:
            return await self._access.must_pull(request.image, ref, logins)
        except ValueError:
            return None  # the pull reports it

    async def _pull(
        self,
        request: ImageRequest,
        sandbox: v1.PodSandboxConfig,
        logins: _Lookup,
        present: v1.Image | None,
    ) -> EnsuredImage:
        self._check_back_off(request)
        asked = trio.current_time()
        self._times.begin(pod_uid(request.pod), request.image)
        with self._under_way.shown(request) as begin, span("pullImage", request, _about_pull):
            return await self._pull_in_turn(request, sandbox, logins, present, asked, begin)

    async def _pull_in_turn(
        self,
        request: ImageRequest,
        sandbox: v1.PodSandboxConfig,
        logins: _Lookup,
        present: v1.Image | None,
        asked: float,
        begin: Callable[[], None],
    ) -> EnsuredImage:
        self._seen.pop(request.image, None)  # its name may be another image's soon
        # Before the pull's turn, as upstream: `Pulled` tells how long it has waited for that.
        self._event(request, "Normal", "Pulling", f'Pulling image "{request.image}"')
        async with self._slots:
            begin()
            started = trio.current_time()
            current_span().set("kubelet_trio.queued_seconds", started - asked)
            try:
                # Only with a slot: upstream limits the calls, not the queue (throttleImagePulling).
                if not self._rate.try_take(started):
                    raise ImagePullError("PullImage", "pull QPS exceeded")
                ref = await self._pull_and_note(request, sandbox, logins, present)
            except RuntimeCallError as exc:
                raise self._pull_failed(request, exc) from exc
        self._back_off.reset(request.back_off_key)
        self._times.end(pod_uid(request.pod))
        ended = trio.current_time()
        image = await self._pulled_image(ref)
        size = image.size if image is not None else 0
        self._report_pulled(request, size, took=ended - started, waited=ended - asked)
        return EnsuredImage(ref, image)

    def _check_back_off(self, request: ImageRequest) -> None:
        """Raise `ImageError` while the back-off of the last failed pull runs."""
        if not self._back_off.is_active(request.back_off_key, self._clock.time()):
            return
        text = f'Back-off pulling image "{request.image}"'
        self._event(request, "Normal", "BackOff", text)
        entry = self._back_off[request.back_off_key]
        message = f"{text}: {entry.note}" if entry.note else text
        raise ImageError(WaitingReason("ImagePullBackOff", message), entry.updated + entry.delay)

    async def _pulled_image(self, ref: str) -> v1.Image | None:
        """Return the status of an image that was just pulled, None if the call fails."""
        try:
            return await self._runtime.image_status(v1.ImageSpec(image=ref))
        except RuntimeCallError:
            return None  # its user asks again

    def _report_pulled(
        self, request: ImageRequest, size: int, *, took: float, waited: float
    ) -> None:
        """Emit the event of a successful pull, and measure it with its wait for a slot."""
        self._event(
            request,
            "Normal",
            "Pulled",
            f'Successfully pulled image "{request.image}" in {format_milliseconds(took)} '
            f"({format_milliseconds(waited)} including waiting). Image size: {size} bytes.",
        )
        labels = (size_label(size),)
        self._meter.observe("kubelet_image_pull_duration_seconds", waited, labels, PULLS)

    async def _pull_and_note(
        self,
        request: ImageRequest,
        sandbox: v1.PodSandboxConfig,
        logins: _Lookup,
        present: v1.Image | None,
    ) -> str:
        """Pull, and record which pods may use the image (KEP-2535). Raises `RuntimeCallError`."""
        access = self._access
        if access is None:
            return (await self._pull_with_logins(request, sandbox, logins))[0]
        try:
            # Before the pull: after a crash the image counts as pulled by unknown credentials.
            await access.begin(request.image)
        except OSError as exc:
            text = f'Failed to record image pull intent for container image "{request.image}"'
            raise ImagePullError("PullImage", f"{text}: {exc}") from exc
        try:
            ref, login = await self._pull_with_logins(request, sandbox, logins)
        except RuntimeCallError as exc:
            failure = exc  # `failed` is called below: a cancellation here would lose it (ASYNC120)
        except trio.Cancelled:
            # The runtime may have completed the pull. Then the intent stays on disk, so that the
            # image counts as pulled by unknown credentials.
            with trio.move_on_after(_AFTERMATH, shield=True):
                if await self._is_unchanged(request, present):
                    await access.failed(request.image)
            raise
        else:
            await access.pulled(request.image, ref, login)
            return ref
        await access.failed(request.image)
        raise failure

    async def _is_unchanged(self, request: ImageRequest, before: v1.Image | None) -> bool:
        try:
            after = await self._runtime.image_status(request.spec)
        except RuntimeCallError:
            return False
        return after is None or (before is not None and before.id == after.id)

    async def _pull_with_logins(
        self, request: ImageRequest, sandbox: v1.PodSandboxConfig, logins: _Lookup
    ) -> tuple[str, Login | None]:
        """Pull with each login in turn, anonymously if there is none.

        Return the image's ref and the login that worked.
        """
        try:
            known = await logins()
        except ValueError as exc:
            raise ImagePullError("PullImage", str(exc)) from exc
        failures: list[RuntimeCallError] = []
        for login in known:
            auth = v1.AuthConfig(username=login.username, password=login.password)
            try:
                return await self._runtime.pull_image(request.spec, auth, sandbox), login
            except RuntimeCallError as exc:
                failures.append(exc)
        # Not anonymously: PullImage (kuberuntime_image.go) does that only without any login.
        if failures:
            raise joined(failures)
        return await self._runtime.pull_image(request.spec, None, sandbox), None

    def _lookup(self, request: ImageRequest) -> _Lookup:
        """Return a function that looks up the logins for an image, once."""
        known: list[Sequence[Login]] = []

        async def logins() -> Sequence[Login]:
            if not known:
                own = await self._own_logins(request)
                known.append(await self._keyring.logins(request.image, own, request.puller))
            return known[0]

        return logins

    async def _own_logins(self, request: ImageRequest) -> list[Logins]:
        """Return the logins of the pod's imagePullSecrets. Raises ValueError naming a bad one."""
        names = [ref.name for ref in spec(request.pod).imagePullSecrets or () if ref.name]
        logins, missing = [], []
        for name in dict.fromkeys(names):
            key = secret_key(pod_key(request.pod).namespace, name)
            try:
                uid = pod_uid(request.pod)
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
            ref = pod_object_ref(request.pod)
            self._events.emit(ref, "Warning", "FailedToRetrieveImagePullSecret", text)
        return logins

    def _pull_failed(self, request: ImageRequest, exc: RuntimeCallError) -> ImageError:
        waiting = pull_failure(request.image, exc)
        self._event(
            request, "Warning", "Failed", f'Failed to pull image "{request.image}": {exc.go_text}'
        )
        now = self._clock.time()
        note = f"{waiting.reason}: {waiting.message}"
        entry = self._back_off.next(request.back_off_key, now, note=note)
        # Retried after half of the back-off: that try ends in ImagePullBackOff, the status that
        # upstream shows as well.
        return ImageError(waiting, now + entry.delay / 2)

    def _refuse(self, request: ImageRequest, event: str, waiting: WaitingReason) -> ImageError:
        self._event(request, "Warning", event, waiting.message)
        return ImageError(waiting)

    def _event(self, request: ImageRequest, type_: str, reason: str, message: str) -> None:
        ref = pod_object_ref(request.pod, request.field_path)
        self._events.emit(ref, "Warning" if type_ == "Warning" else "Normal", reason, message)


def _about_pull(request: ImageRequest) -> Attributes:
    return {CONTAINER: request.container.spec.name, "container.image.name": request.image}


def _invalid_name(image: str, problem: str) -> WaitingReason:
    return WaitingReason(
        "InvalidImageName",
        f'Failed to apply default image tag "{image}": '
        f'couldn\'t parse image name "{image}": {problem}',
    )
