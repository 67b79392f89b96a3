"""Start one container: image, config, create, start, log link, hook, as the Go kubelet does.

A container that cannot be started does not affect the others: it waits with a reason, and is
retried with a growing delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from lightkube.models.core_v1 import LifecycleHandler, Pod
from structlog.contextvars import bound_contextvars

from kubelet_trio.containers import (
    ContainerConfigError,
    NodeSettings,
    container_config,
    mounts_own_hosts,
)
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.managers import (
    CheckpointError,
    ClaimError,
    ContainerShare,
    DevicePluginError,
    with_cdi,
)
from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    EventType,
    PodContainer,
    get_logger,
    grace_period,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.pods.images import ImageError
from kubelet_trio.pods.plan import StartContainer
from kubelet_trio.pods.records.files import PodFiles
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.concurrency import run_together
from kubelet_trio.pods.steps.errors import ContainerStartError, HookError
from kubelet_trio.pods.steps.hooks import Hook, run_hook
from kubelet_trio.pods.steps.inputs import ContainerImages, container_inputs
from kubelet_trio.pods.steps.progress import Progress
from kubelet_trio.pods.steps.sandbox import RunningSandbox
from kubelet_trio.pods.steps.stops import ContainerStopper, about_container, hook_ip
from kubelet_trio.pods.types import WaitingReason
from kubelet_trio.tracing import CONTAINER, Attributes, span
from kubelet_trio.volumes import VolumeError

log = get_logger()

# What keeps a container's config from being made, besides OSError.
_CONFIG_ERRORS = (
    ContainerConfigError,
    RuntimeCallError,
    VolumeError,
    CheckpointError,
    DevicePluginError,
    ClaimError,
)

# ErrImageVolumeMountFailed of cri-api's errors, somewhere in what CreateContainer says.
_MOUNT_FAILED = "ImageVolumeMountFailed"
# `container_type` of kubelet_started_containers_* and kubelet_terminated_containers_total.
METERED_KINDS = {
    ContainerKind.INIT: "init_container",
    ContainerKind.MAIN: "container",
    ContainerKind.EPHEMERAL: "ephemeral_container",
}


class ContainerStarter:
    """Starts the containers of one pod. Its executor is the only caller."""

    def __init__(
        self, services: PodServices, stopper: ContainerStopper, progress: Progress
    ) -> None:
        self._services = services
        self._stopper = stopper
        self._progress = progress
        # Its postStart hook has not ended: its status is not running yet.
        self.hooking: ContainerId | None = None

    async def start(
        self, pod: Pod, node: NodeSettings, start: StartContainer, sandbox: RunningSandbox
    ) -> None:
        """Start the next instance of a container.

        Raises `ContainerStartError`; `RuntimeUnavailableError` if the runtime cannot report images.
        """
        container = start.container
        self._count("kubelet_started_containers_total", container)
        try:
            with (
                bound_contextvars(containerName=container.spec.name),
                span("startContainer", start, _about_start),
            ):
                await self._start(pod, node, start, sandbox)
        except ContainerStartError as exc:
            reason = exc.waiting.reason or ""
            self._count("kubelet_started_containers_errors_total", container, reason)
            raise
        finally:
            self.hooking = None

    async def _start(
        self, pod: Pod, node: NodeSettings, start: StartContainer, sandbox: RunningSandbox
    ) -> None:
        container, name = start.container, start.container.spec.name
        self._progress.at(f"getting the image of container {name}")
        # The image first: the config needs its reference and its user.
        images = await self._ensure_images(pod, container, sandbox)
        self._progress.at(f"preparing container {name}")
        config, share = await self._config(pod, node, start, images, sandbox)
        self._progress.at(f"creating container {name}")
        container_id = await self._create(pod, node, container, config, sandbox)
        if _post_start_of(container) is not None:
            self.hooking = container_id
        # Not before: a start that fails earlier has a wait of its own (`Holds`).
        if start.back_off is not None:
            self._services.crash_back_off.put(*start.back_off)
        self._event(pod, container, "Normal", "Created", "Container created")
        self._progress.at(f"starting container {name}")
        try:
            await self._services.runtime.start_container(container_id)
            link = partial(self._link_log, pod, node, container, config.log_path, container_id)
            await run_together((partial(self._observe, pod, container_id), link))
        except RuntimeCallError as exc:
            raise await self._failed(pod, container, "RunContainerError", exc.message) from exc
        self._services.managers.note_started(pod, container.spec, container_id, share)
        self._event(pod, container, "Normal", "Started", "Container started")
        await self._post_start(pod, container, container_id)

    async def _ensure_images(
        self, pod: Pod, container: PodContainer, sandbox: RunningSandbox
    ) -> ContainerImages:
        images, config = self._services.images, sandbox.spec.config
        mounted: Mapping[str, v1.ImageSpec] = {}
        try:
            # Those of volumes first, as upstream: the container waits with their failure.
            if not self._services.runtime_state.value.no_image_volumes:
                mounted = await images.ensure_volumes(pod, container, config)
            return ContainerImages(await images.ensure(pod, container, config), mounted)
        except ImageError as exc:
            raise ContainerStartError(exc.waiting, exc.retry_at) from exc

    async def _config(
        self,
        pod: Pod,
        node: NodeSettings,
        start: StartContainer,
        images: ContainerImages,
        sandbox: RunningSandbox,
    ) -> tuple[v1.ContainerConfig, ContainerShare]:
        container = start.container
        try:
            inputs = await container_inputs(
                *(self._services, pod, node),
                start=start,
                images=images,
                sandbox=sandbox,
            )
            target = self._target(pod, container)
            await self._services.managers.prepare(pod, container.spec)
            # Last, when nothing is awaited any more: the shared pool may change at any time.
            share = self._services.managers.share(pod_uid(pod), container.spec.name)
            share = with_cdi(share, self._services.claims.cdi_ids(pod, container.spec))
            inputs = replace(
                inputs, target_container_id=target, users=sandbox.spec.users, share=share
            )
            return container_config(pod, container, node, inputs), share
        except (*_CONFIG_ERRORS, OSError) as exc:
            reason = "CreateContainerConfigError"
            raise await self._failed(pod, container, reason, str(exc)) from exc

    def _target(self, pod: Pod, container: PodContainer) -> ContainerId | None:
        """Return the container whose PID namespace an ephemeral container joins, if any."""
        for ephemeral in spec(pod).ephemeralContainers or ():
            if ephemeral.name == container.spec.name and ephemeral.targetContainerName:
                observed = self._services.observer.get(pod_uid(pod))
                target = observed.latest(ephemeral.targetContainerName)
                if target is None:
                    raise ContainerConfigError(
                        f'unable to find target container "{ephemeral.targetContainerName}"'
                    )
                return target.id
        return None

    async def _create(
        self,
        pod: Pod,
        node: NodeSettings,
        container: PodContainer,
        config: v1.ContainerConfig,
        sandbox: RunningSandbox,
    ) -> ContainerId:
        meter = self._services.meter
        images = sum(mount.image is not None for mount in config.mounts)
        ids: list[ContainerId] = []

        async def create() -> None:
            create = self._services.runtime.create_container
            ids.append(await create(sandbox.id, config, sandbox.spec.config))

        steps = [create]
        if container.spec.name in sandbox.files and not mounts_own_hosts(container.spec):
            # The file is there since before its addresses were known. It keeps its inode, so that
            # it does not matter when the runtime mounts it.
            hosts = PodFiles(pod, node).write_hosts
            steps.append(partial(self._services.offload, hosts, tuple(sandbox.ips)))
        try:
            await run_together(steps, (RuntimeCallError, OSError))
        except OSError as exc:
            reason = "CreateContainerConfigError"
            raise await self._failed(pod, container, reason, str(exc)) from exc
        except RuntimeCallError as exc:
            if images and _MOUNT_FAILED in exc.message:
                meter.count("kubelet_image_volume_mounted_errors_total", by=images)
            raise await self._failed(pod, container, "CreateContainerError", exc.message) from exc
        if images:
            meter.count("kubelet_image_volume_mounted_succeed_total", by=images)
        return ids[0]

    async def _post_start(
        self, pod: Pod, container: PodContainer, container_id: ContainerId
    ) -> None:
        """Run the postStart hook. No other container of the pod starts before it has ended."""
        handler = _post_start_of(container)
        if handler is None:
            return
        self._progress.at(f"running the postStart hook of container {container.spec.name}")
        observed = self._services.observer.get(pod_uid(pod))
        ip = hook_ip(self._services, observed, pod)
        hook = Hook(pod, container.spec, container_id, handler, ip)
        with span("postStartHook", hook.container, about_container) as opened:
            error = await self._hook_error(hook)
            if error is not None:
                opened.fail(str(error))
        if error is None:
            return
        log.warning(
            "container.post_start_failed", containerName=container.spec.name, error=str(error)
        )
        # Upstream keeps the text out of the event: a response to the hook may contain secrets.
        self._event(pod, container, "Warning", "FailedPostStartHook", "PostStartHook failed")
        await self._stop_unhooked(pod, container_id)
        self._stopper.told[container_id] = f"its postStart hook failed: {error}"
        raise ContainerStartError(WaitingReason("PostStartHookError", str(error))) from error

    async def _hook_error(self, hook: Hook) -> HookError | None:
        try:
            await run_hook(self._services, hook)
        except HookError as exc:
            return exc
        return None

    async def _stop_unhooked(self, pod: Pod, container_id: ContainerId) -> None:
        observed = self._services.observer.get(pod_uid(pod))
        record = next((c for c in observed.containers if c.id == container_id), None)
        if record is None:
            return
        try:
            await self._stopper.stop(pod, record, "FailedPostStartHook", grace_period(pod))
            await self._observe(pod, container_id)
        except RuntimeCallError as exc:
            log.warning("container.stop_failed", containerName=record.name, error=str(exc))

    async def _observe(self, pod: Pod, container_id: ContainerId) -> None:
        await self._services.observer.refresh(pod_uid(pod), containers=[container_id])

    async def _link_log(
        self,
        pod: Pod,
        node: NodeSettings,
        container: PodContainer,
        log_path: str,
        container_id: ContainerId,
    ) -> None:
        link = PodFiles(pod, node).link_log
        try:
            await self._services.offload(link, container.spec.name, log_path, container_id)
        except OSError as exc:
            # Only old log collectors need the link; the container runs without it.
            log.warning(
                "container.log_link_failed", containerName=container.spec.name, error=str(exc)
            )

    async def _failed(
        self, pod: Pod, container: PodContainer, reason: str, message: str
    ) -> ContainerStartError:
        self._event(pod, container, "Warning", "Failed", f"Error: {message}")
        # The runtime may have created an instance although its reply was lost.
        try:
            await self._services.observer.refresh(pod_uid(pod), listing=True)
        except RuntimeCallError as exc:
            log.info("pod.refresh_failed", error=str(exc))
        return ContainerStartError(WaitingReason(reason, message))

    def _count(self, name: str, container: PodContainer, *labels: str) -> None:
        self._services.meter.count(name, (METERED_KINDS[container.kind], *labels))

    def _event(
        self, pod: Pod, container: PodContainer, type_: EventType, reason: str, message: str
    ) -> None:
        ref = pod_object_ref(pod, container.field_path)
        self._services.events.emit(ref, type_, reason, message)


def _post_start_of(container: PodContainer) -> LifecycleHandler | None:
    lifecycle = container.spec.lifecycle
    return lifecycle.postStart if lifecycle is not None else None


def _about_start(start: StartContainer) -> Attributes:
    return {
        CONTAINER: start.container.spec.name,
        "container.image.name": start.container.spec.image or "",
        "k8s.container.restart_count": start.attempt,
    }
