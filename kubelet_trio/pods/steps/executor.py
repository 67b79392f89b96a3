"""Execute a plan: the effects of one sync, in the order of the plan.

No decisions are made here. Each step is one or a few runtime calls, after which the observer reads
what they changed, so that the next plan uses the actual state. If a container cannot be started,
only that container waits; if a sandbox cannot be created, the whole pod does. A step may be
cancelled between calls; a call that changes something runs until its reply (`GuardedRuntime`), and
the next listing shows its effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import SandboxConfigError
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import (
    ContainerRecord,
    PodUid,
    RuntimePod,
    SandboxId,
    grace_period,
    pod_uid,
    spec,
)
from kubelet_trio.pods.plan import PodPlan, StopContainer
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.concurrency import run_alongside, run_together
from kubelet_trio.pods.steps.containers import ContainerStarter
from kubelet_trio.pods.steps.errors import ContainerStartError, ResizeFailedError, StepError
from kubelet_trio.pods.steps.progress import Progress
from kubelet_trio.pods.steps.resize import OnActuated, PodResizing
from kubelet_trio.pods.steps.sandbox import (
    RunningSandbox,
    count_users,
    create_sandbox,
    sandbox_spec,
)
from kubelet_trio.pods.steps.stops import ContainerStopper, stop_message
from kubelet_trio.tracing import span
from kubelet_trio.volumes import VolumeError

# Seconds from a new sandbox to the status that shows it (KEP-3085), if its containers are not all
# started by then: mostly they are, and the next status shows both.
SHOWN_AFTER = 3.0
_START_ERRORS = (StepError, RuntimeCallError)

# Containers that did not start, by name.
FailedStarts = dict[str, ContainerStartError]


class PodExecutor:
    """Executes plans of one pod. Its worker is the only caller."""

    def __init__(
        self,
        services: PodServices,
        stopper: ContainerStopper,
        on_sandbox: Callable[[Pod, PodPlan], Awaitable[None]],
        on_actuated: OnActuated,
        progress: Progress,
    ) -> None:
        """Take the seams.

        `on_sandbox` is called once if the start of containers in a new sandbox takes long,
        `on_actuated` for each container that was resized, and last for the pod.
        """
        self._services = services
        self._stopper = stopper
        self._starter = ContainerStarter(services, stopper, progress)
        self._progress = progress
        self._on_sandbox = on_sandbox
        self._on_actuated = on_actuated

    def shown(self, observed: RuntimePod) -> RuntimePod:
        """Return a pod without the container whose postStart hook has not ended."""
        hooking = self._starter.hooking
        if hooking is None:
            return observed
        known = tuple(c for c in observed.containers if c.id != hooking)
        return replace(observed, containers=known)

    async def execute(self, pod: Pod, plan: PodPlan, observed: RuntimePod) -> FailedStarts:
        """Execute the plan, and return which containers did not start.

        Raises `StepError` for a failure that concerns the whole pod; `ResizeFailedError` if only
        its resize failed; `RuntimeUnavailableError` if the runtime cannot be reached.
        """
        try:
            await self._stop(pod, plan, observed)
            self._progress.at("removing dead containers" if plan.remove_containers else "")
            # One after the other: the container whose end made all of them restart is to be
            # removed last (KEP-5532).
            for container_id in plan.remove_containers:
                await self._services.runtime.remove_container(container_id)
            for back_off in plan.back_offs:
                self._services.crash_back_off.put(*back_off)
            await self._observe_stopped(pod_uid(pod), plan)
        except RuntimeCallError as exc:
            raise StepError("FailedKillPod", f"error killing pod: {exc}") from exc
        limited = self._services.node_of(pod)
        sandbox_id, made = plan.sandbox_id, None
        if plan.create_sandbox:
            made = await create_sandbox(
                self._services, pod, limited, plan, observed, self._progress
            )
            sandbox_id = made.id
        if sandbox_id is None:
            return {}
        resizing = PodResizing(
            self._services, self._on_actuated, pod, limited, sandbox_id, observed
        )
        trouble = await self._resize(resizing, plan)
        failed: FailedStarts = {}

        async def start() -> None:
            failed.update(await self._start_all(pod, plan, resizing, made))

        await run_alongside(
            start, [partial(self._show_sandbox, pod, plan)] if made else [], _START_ERRORS
        )
        if made is not None and failed:
            count_users(self._services, pod, failed=True)
        if trouble is not None:
            raise ResizeFailedError(trouble, failed)
        return failed

    async def _show_sandbox(self, pod: Pod, plan: PodPlan) -> None:
        """Show the new sandbox in the status while its containers take long to start."""
        await trio.sleep(SHOWN_AFTER)
        await self._on_sandbox(pod, plan)

    async def _resize(self, resizing: PodResizing, plan: PodPlan) -> StepError | None:
        """Carry out the plan's resize, if it has one; return why it failed."""
        if plan.resize is None:
            return None
        try:
            self._progress.at("resizing")
            with span("resizePod"):
                await resizing.run(plan.resize, starts=bool(plan.start))
        except StepError as exc:
            return exc
        await self._on_actuated(None, spec(resizing.pod).resources)
        return None

    async def _observe_stopped(self, uid: PodUid, plan: PodPlan) -> None:
        if plan.stop_sandboxes:
            # Their containers have ended too, also those that were not observed yet.
            await self._services.observer.refresh(uid, listing=True)
        elif plan.stop_containers or plan.remove_containers:
            stopped = [stop.id for stop in plan.stop_containers]
            await self._services.observer.refresh(
                uid, containers=stopped, removed=plan.remove_containers
            )

    async def _stop(self, pod: Pod, plan: PodPlan, observed: RuntimePod) -> None:
        records = {record.id: record for record in observed.containers}
        await run_together(
            [partial(self._stop_container, pod, records[s.id], s) for s in plan.stop_containers]
            + [partial(self._stop_sandbox, pod, s, observed) for s in plan.stop_sandboxes]
        )

    async def _stop_container(self, pod: Pod, record: ContainerRecord, stop: StopContainer) -> None:
        """Stop one container within its grace period, with its hook and event."""
        grace = grace_period(pod) if stop.grace_period is None else stop.grace_period
        again = stop.starts_again
        await self._stopper.stop(pod, record, stop.message, grace, starts_again=again)

    async def _stop_sandbox(self, pod: Pod, sandbox_id: SandboxId, observed: RuntimePod) -> None:
        await run_together(
            partial(self._stopper.stop, pod, container, stop_message(container), grace_period(pod))
            for container in observed.running()
            if container.sandbox_id == sandbox_id
        )
        with self._progress.beside("stopping a sandbox"):
            await self._services.runtime.stop_pod_sandbox(sandbox_id)

    async def _start_all(
        self,
        pod: Pod,
        plan: PodPlan,
        resizing: PodResizing,
        made: RunningSandbox | None,
    ) -> FailedStarts:
        """Start the plan's containers; `made` is the sandbox if it was just created.

        Raises `StepError` and `RuntimeUnavailableError`.
        """
        failed: FailedStarts = {}
        if not plan.start:
            return failed
        sandbox_id, node = resizing.sandbox_id, self._services.node()
        observed = self._services.observer.get(pod_uid(pod))
        record = next((s for s in observed.sandboxes if s.id == sandbox_id), None)
        if made is None:
            attempt = record.attempt if record is not None else plan.sandbox_attempt
            try:
                # CRI: CreateContainer needs the config that the sandbox was created with.
                found = await sandbox_spec(self._services, pod, resizing.node, attempt)
            except (SandboxConfigError, VolumeError) as exc:
                raise StepError("FailedSync", str(exc)) from exc
            made = RunningSandbox(sandbox_id, found)
        sandbox = replace(made, ips=record.ips if record is not None else ())
        for start in plan.start:
            try:
                resizing.expect_room(start.container.spec)
                await self._starter.start(pod, node, start, sandbox)
            except ContainerStartError as exc:
                failed[start.container.spec.name] = exc
        return failed
