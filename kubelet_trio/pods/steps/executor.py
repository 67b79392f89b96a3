"""Carrying out a plan: the effects of one sync, in the order that the plan gives.

Nothing here decides. Each step is one or a few runtime calls; what it made is told to the
observer at once, so that the next plan stands on what exists. A container that cannot be
started is that container's trouble (its waiting reason, retried with a growing delay);
a sandbox that cannot be made is the pod's. All of it may be cancelled between calls; one that
changes something goes on to its end, and what it did is found by the next listing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from lightkube.models.core_v1 import Pod

from kubelet_trio.cgroups import CgroupError
from kubelet_trio.containers import (
    ContainerConfigError,
    NodeSettings,
    SandboxConfigError,
    container_config,
    pod_dns,
    sandbox_config,
)
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    EventType,
    PodContainer,
    PodUid,
    RuntimePod,
    SandboxId,
    get_logger,
    grace_period,
    node_ref,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.pods.images.puller import EnsuredImage, ImageError
from kubelet_trio.pods.plan.pod_plan import PodPlan, StartContainer
from kubelet_trio.pods.records.files import PodFiles
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.concurrency import run_together
from kubelet_trio.pods.steps.endings import METERED_KINDS
from kubelet_trio.pods.steps.hooks import Hook, HookError, run_hook
from kubelet_trio.pods.steps.inputs import container_inputs
from kubelet_trio.pods.steps.stops import ContainerStopper, hook_ip
from kubelet_trio.pods.steps.surroundings import surroundings
from kubelet_trio.pods.types import WaitingReason
from kubelet_trio.volumes import VolumeError

log = get_logger()


class StepError(Exception):
    """A step for the whole pod failed: the event to show and the containers' waiting reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class ContainerStartError(Exception):
    """One container did not start; see `ImageError` for the attributes."""

    def __init__(self, waiting: WaitingReason, retry_at: float | None = None) -> None:
        super().__init__(f"{waiting.reason}: {waiting.message}")
        self.waiting = waiting
        self.retry_at = retry_at


# Containers that did not start, by name.
FailedStarts = dict[str, ContainerStartError]


class PodExecutor:
    """Executes plans of one pod. Its worker is the only caller."""

    def __init__(
        self,
        services: PodServices,
        stopper: ContainerStopper,
        on_sandbox: Callable[[Pod, PodPlan], Awaitable[None]],
    ) -> None:
        """Take the seams; `on_sandbox` is told of a new sandbox before anything starts in it."""
        self._services = services
        self._stopper = stopper
        self._on_sandbox = on_sandbox

    async def execute(self, pod: Pod, plan: PodPlan, observed: RuntimePod) -> FailedStarts:
        """Do what the plan says.

        Raises `StepError` for what stops the whole pod; `RuntimeUnavailableError` where the
        runtime is away.
        """
        uid = pod_uid(pod)
        try:
            await self._stop(pod, plan, observed)
            for container_id in plan.remove_containers:
                await self._services.runtime.remove_container(container_id)
            for back_off in plan.back_offs:
                self._services.crash_back_off.put(*back_off)
            await self._observe_stopped(uid, plan)
        except RuntimeCallError as exc:
            raise StepError("FailedKillPod", f"error killing pod: {exc}") from exc
        node = self._services.node()
        sandbox_id = plan.sandbox_id
        if plan.create_sandbox:
            sandbox_id = await self._create_sandbox(pod, node, plan, observed)
            await self._on_sandbox(pod, plan)
        if sandbox_id is None:
            return {}
        return await self._start_all(pod, node, sandbox_id, plan)

    async def _observe_stopped(self, uid: PodUid, plan: PodPlan) -> None:
        if plan.stop_sandboxes:
            # All that was in them ended with them, whatever it was.
            await self._services.observer.refresh(uid, listing=True)
        elif plan.stop_containers or plan.remove_containers:
            stopped = [stop.id for stop in plan.stop_containers]
            await self._services.observer.refresh(
                uid, containers=stopped, removed=plan.remove_containers
            )

    async def _stop(self, pod: Pod, plan: PodPlan, observed: RuntimePod) -> None:
        records = {record.id: record for record in observed.containers}
        await run_together(
            [
                partial(self._stop_container, pod, records[s.id], s.message, s.grace_period)
                for s in plan.stop_containers
            ]
            + [partial(self._stop_sandbox, pod, s, observed) for s in plan.stop_sandboxes]
        )

    async def _stop_container(
        self, pod: Pod, record: ContainerRecord, message: str, grace: int | None = None
    ) -> None:
        """Stop one container within its grace (None: its pod's), with its hook and event."""
        grace = grace_period(pod) if grace is None else grace
        await self._stopper.stop(pod, record, message, grace)

    async def _stop_sandbox(self, pod: Pod, sandbox_id: SandboxId, observed: RuntimePod) -> None:
        await run_together(
            partial(self._stop_container, pod, container, stop_message(container))
            for container in observed.running()
            if container.sandbox_id == sandbox_id
        )
        await self._services.runtime.stop_pod_sandbox(sandbox_id)

    async def _create_sandbox(
        self, pod: Pod, node: NodeSettings, plan: PodPlan, observed: RuntimePod
    ) -> SandboxId:
        if observed.sandboxes:
            self._event(
                pod,
                None,
                "Normal",
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.",
            )
        for warning in pod_dns(pod, node).warnings:
            self._event(pod, None, "Warning", warning.reason, warning.message)
            if warning.node_message:
                whose = node_ref(node.node_name)
                self._services.events.emit(whose, "Warning", warning.reason, warning.node_message)
        try:
            around = await surroundings(self._services, pod)
            config = sandbox_config(pod, node, attempt=plan.sandbox_attempt, users=around.users)
            await self._services.cgroups.ensure(pod)
            await self._services.offload(PodFiles(pod, node).prepare)
            await self._services.volumes.mount(pod)
            sandbox_id = await self._services.runtime.run_pod_sandbox(config, around.handler)
        except CgroupError as exc:
            message = f"unable to ensure pod container exists: {exc}"
            raise StepError("FailedCreatePodContainer", message) from exc
        except VolumeError as exc:
            raise StepError("FailedMount", str(exc)) from exc
        except OSError as exc:
            raise StepError("Failed", f"error making pod data directories: {exc}") from exc
        except (RuntimeCallError, SandboxConfigError) as exc:
            cause = exc.go_text if isinstance(exc, RuntimeCallError) else exc
            raise StepError(
                "FailedCreatePodSandBox", f"Failed to create pod sandbox: {cause}"
            ) from exc
        try:
            await self._services.observer.refresh(pod_uid(pod), sandboxes=[sandbox_id])
        except RuntimeCallError as exc:
            text = f"Unable to get pod sandbox status: {exc.go_text}"
            raise StepError("FailedPodSandBoxStatus", text) from exc
        return sandbox_id

    async def _start_all(
        self, pod: Pod, node: NodeSettings, sandbox_id: SandboxId, plan: PodPlan
    ) -> FailedStarts:
        """Start what the plan starts. Raises `StepError` and `RuntimeUnavailableError`."""
        failed: FailedStarts = {}
        if not plan.start:
            return failed
        observed = self._services.observer.get(pod_uid(pod))
        sandbox = next((s for s in observed.sandboxes if s.id == sandbox_id), None)
        ips = sandbox.ips if sandbox is not None else ()
        attempt = sandbox.attempt if sandbox is not None else plan.sandbox_attempt
        # The same config that the sandbox was run with, as CRI asks.
        try:
            around = await surroundings(self._services, pod)
            config = sandbox_config(pod, node, attempt=attempt, users=around.users)
        except SandboxConfigError as exc:
            raise StepError("FailedSync", str(exc)) from exc
        for start in plan.start:
            try:
                await self._start(pod, node, start, sandbox_id, config, ips)
            except ContainerStartError as exc:
                failed[start.container.spec.name] = exc
                kind = METERED_KINDS[start.container.kind]
                labels = kind, exc.waiting.reason or ""
                self._services.meter.count("kubelet_started_containers_errors_total", labels)
        return failed

    async def _start(
        self,
        pod: Pod,
        node: NodeSettings,
        start: StartContainer,
        sandbox_id: SandboxId,
        sandbox: v1.PodSandboxConfig,
        ips: Sequence[str],
    ) -> None:
        """Image, config, create, start, log link: upstream's order of a container start.

        Raises `ContainerStartError`; `RuntimeUnavailableError` where the image cannot be asked for.
        """
        container = start.container
        kind = METERED_KINDS[container.kind]
        self._services.meter.count("kubelet_started_containers_total", (kind,))
        try:
            image = await self._services.images.ensure(pod, container, sandbox)
            if not self._services.runtime_state.value.no_image_volumes:
                await self._services.images.ensure_volumes(pod, container, sandbox)
        except ImageError as exc:
            raise ContainerStartError(exc.waiting, exc.retry_at) from exc
        users = _own_users(sandbox)
        config = await self._container_config(pod, node, start, image, ips, users)
        meter, images = (
            self._services.meter,
            sum(mount.image is not None for mount in config.mounts),
        )
        try:
            container_id = await self._services.runtime.create_container(
                sandbox_id, config, sandbox
            )
        except RuntimeCallError as exc:
            if images:
                meter.count("kubelet_image_volume_mounted_errors_total", by=images)
            raise await self._failed(pod, container, "CreateContainerError", exc.message) from exc
        if images:
            meter.count("kubelet_image_volume_mounted_succeed_total", by=images)
        if start.back_off is not None:
            self._services.crash_back_off.put(*start.back_off)
        self._event(pod, container, "Normal", "Created", "Container created")
        try:
            await self._services.runtime.start_container(container_id)
            await self._observe(pod, container_id)
        except RuntimeCallError as exc:
            raise await self._failed(pod, container, "RunContainerError", exc.message) from exc
        self._event(pod, container, "Normal", "Started", "Container started")
        await self._link_log(pod, node, container, start.attempt, container_id)
        await self._post_start(pod, container, container_id)

    async def _post_start(
        self, pod: Pod, container: PodContainer, container_id: ContainerId
    ) -> None:
        """Run the postStart hook: no other container of the pod starts before it is over."""
        lifecycle = container.spec.lifecycle
        if lifecycle is None or lifecycle.postStart is None:
            return
        observed = self._services.observer.get(pod_uid(pod))
        ip = hook_ip(self._services, observed, pod)
        failure: HookError | None = None
        try:
            hook = Hook(pod, container.spec, container_id, lifecycle.postStart, ip)
            await run_hook(self._services, hook)
        except HookError as exc:
            failure = exc
        if failure is not None:
            name, text = container.spec.name, str(failure)
            log.warning("container.post_start_failed", container=name, error=text)
            # Upstream keeps the text out of the event: a server's words may hold secrets.
            self._event(pod, container, "Warning", "FailedPostStartHook", "PostStartHook failed")
            await self._stop_unhooked(pod, container_id)
            raise ContainerStartError(WaitingReason("PostStartHookError", text)) from failure

    async def _stop_unhooked(self, pod: Pod, container_id: ContainerId) -> None:
        observed = self._services.observer.get(pod_uid(pod))
        record = next((c for c in observed.containers if c.id == container_id), None)
        if record is None:
            return
        try:
            await self._stop_container(pod, record, "FailedPostStartHook")
            await self._observe(pod, container_id)
        except RuntimeCallError as exc:
            log.warning("container.stop_failed", container=record.name, error=str(exc))

    async def _container_config(
        self,
        pod: Pod,
        node: NodeSettings,
        start: StartContainer,
        image: EnsuredImage,
        ips: Sequence[str],
        users: v1.UserNamespace | None,
    ) -> v1.ContainerConfig:
        container = start.container
        try:
            inputs = await container_inputs(
                self._services,
                pod,
                container,
                node,
                attempt=start.attempt,
                image=image,
                ips=ips,
            )
            inputs = replace(inputs, target_container_id=self._target(pod, container), users=users)
            return container_config(pod, container, node, inputs)
        except (ContainerConfigError, RuntimeCallError, VolumeError, OSError) as exc:
            raise await self._failed(
                pod, container, "CreateContainerConfigError", str(exc)
            ) from exc

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

    async def _observe(self, pod: Pod, container_id: ContainerId) -> None:
        await self._services.observer.refresh(pod_uid(pod), containers=[container_id])

    async def _link_log(
        self,
        pod: Pod,
        node: NodeSettings,
        container: PodContainer,
        attempt: int,
        container_id: ContainerId,
    ) -> None:
        try:
            await self._services.offload(
                PodFiles(pod, node).link_log, container.spec.name, attempt, container_id
            )
        except OSError as exc:
            # The link is for log collectors of old; the container runs without it.
            log.warning("container.log_link_failed", container=container.spec.name, error=str(exc))

    async def _failed(
        self, pod: Pod, container: PodContainer, reason: str, message: str
    ) -> ContainerStartError:
        self._event(pod, container, "Warning", "Failed", f"Error: {message}")
        # A lost reply may have left an instance behind: only the runtime knows.
        try:
            await self._services.observer.refresh(pod_uid(pod), listing=True)
        except RuntimeCallError as exc:
            log.info("pod.refresh_failed", error=str(exc))
        return ContainerStartError(WaitingReason(reason, message))

    def _event(
        self,
        pod: Pod,
        container: PodContainer | str | None,
        type_: EventType,
        reason: str,
        message: str,
    ) -> None:
        if isinstance(container, str):
            path = f"spec.containers{{{container}}}"
        else:
            path = container.field_path if container is not None else ""
        self._services.events.emit(pod_object_ref(pod, path), type_, reason, message)


def stop_message(container: ContainerRecord) -> str:
    """What is said of a container that stops because its pod or sandbox ends."""
    return f"Stopping container {container.name}"


def _own_users(sandbox: v1.PodSandboxConfig) -> v1.UserNamespace | None:
    """Return the user namespace that a sandbox has for itself."""
    security = sandbox.linux.security_context if sandbox.linux is not None else None
    options = security.namespace_options if security is not None else None
    users = options.userns_options if options is not None else None
    return users if users is not None and users.mode == v1.NamespaceMode.POD else None
