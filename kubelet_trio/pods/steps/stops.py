"""Stop one container: its Killing event, its preStop hook, the stop itself.

A container that is restarted is stopped in the same way as one that stops with its pod. The hook
runs first, and the stop gets the rest of the grace period. If the hook fails, an event is emitted
and the stop continues.

A hook that has ended is recorded on disk: a teardown that is repeated, by this agent or the next,
does not run it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import trio
from lightkube.models.core_v1 import Container, LifecycleHandler, Pod
from structlog.contextvars import bound_contextvars

from kubelet_trio.containers import container_info
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    EventType,
    RuntimePod,
    get_logger,
    pod_containers,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.pods.plan import stop_timeout
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.steps.errors import HookError
from kubelet_trio.pods.steps.hooks import Hook, run_hook
from kubelet_trio.pods.steps.progress import Progress
from kubelet_trio.pods.types import TerminationRequest
from kubelet_trio.tracing import CONTAINER, Attributes, span

log = get_logger()


class HookRecord(Protocol):
    """What is kept on disk of the stops of a pod's containers."""

    async def note_restarting(self, pod: Pod, container_id: ContainerId) -> None: ...

    def has_pre_stopped(self, container_id: ContainerId) -> bool: ...

    async def note_pre_stopped(
        self, pod: Pod, request: TerminationRequest | None, container_id: ContainerId
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class ContainerStopper:
    """Stops the containers of one pod. Its worker is the only caller."""

    services: PodServices
    hooks: HookRecord
    progress: Progress
    # Why containers that the runtime still has were stopped, for `why`.
    told: dict[ContainerId, str] = field(default_factory=dict)

    async def stop(
        self,
        pod: Pod,
        record: ContainerRecord,
        message: str,
        grace: float,
        *,
        starts_again: bool = False,
    ) -> None:
        """Stop a container that has `grace` seconds. Raises `RuntimeCallError`.

        `starts_again`: the next instance starts whatever the restart policy says.
        """
        with (
            bound_contextvars(containerName=record.name),
            span("stopContainer", record, about_container),
        ):
            if starts_again:
                # Before the stop: its exit code does not tell a later agent.
                await self.hooks.note_restarting(pod, record.id)
            self.announce(pod, record, message)
            ends = trio.current_time() + grace
            await self.run_pre_stop(pod, record, grace, None)
            left = ends - trio.current_time()
            await self.stop_now(record, left)

    async def stop_now(self, record: ContainerRecord, left: float) -> None:
        """Stop a container without its hook, with `left` seconds. Raises `RuntimeCallError`."""
        named = bound_contextvars(containerName=record.name)
        with named, self.progress.beside(f"stopping container {record.name}"):
            await self.services.runtime.stop_container(record.id, stop_timeout(left))

    def announce(self, pod: Pod, record: ContainerRecord, message: str) -> None:
        """Emit the event that a container is being stopped, and remember why."""
        here = {c.id for c in self.services.observer.get(pod_uid(pod)).containers}
        for gone in self.told.keys() - here:
            del self.told[gone]
        self.told[record.id] = message
        self._event(pod, record, "Normal", "Killing", message)

    async def run_pre_stop(
        self, pod: Pod, record: ContainerRecord, grace: float, request: TerminationRequest | None
    ) -> None:
        """Run a container's preStop hook, if it has one, for `grace` s at most."""
        container, handler = self._pre_stop(pod, record)
        # Without any time left upstream runs no hook either (killContainer of pkg/kubelet).
        if handler is None or grace <= 0 or self.hooks.has_pre_stopped(record.id):
            return
        ip = hook_ip(self.services, self.services.observer.get(pod_uid(pod)), pod)
        running = self.progress.beside(f"running the preStop hook of container {record.name}")
        hooked = span("preStopHook", record, about_container)
        named = bound_contextvars(containerName=record.name)
        with trio.move_on_after(grace) as scope, named, running, hooked as opened:
            try:
                await run_hook(self.services, Hook(pod, container, record.id, handler, ip))
            except HookError as exc:
                log.warning("container.pre_stop_failed", containerName=record.name, error=str(exc))
                opened.fail(str(exc))
                # Upstream keeps the text out of the event: a response may contain secrets.
                self._event(pod, record, "Warning", "FailedPreStopHook", "PreStopHook failed")
        if scope.cancelled_caught:
            log.warning("container.pre_stop_timeout", containerName=record.name, grace=grace)
        await self.hooks.note_pre_stopped(pod, request, record.id)

    def _pre_stop(
        self, pod: Pod, record: ContainerRecord
    ) -> tuple[Container, LifecycleHandler | None]:
        """Return the container, with the ports that its hook may name, and the hook."""
        named = (c.spec for c in pod_containers(pod) if c.spec.name == record.name)
        known = next(named, Container(name=record.name))
        info = container_info(record.annotations)
        container = known if known.ports else Container(name=record.name, ports=list(info.ports))
        own = known.lifecycle.preStop if known.lifecycle is not None else None
        # The annotations keep hook and ports of the container's start: an edited manifest is for
        # the next instance, and an orphan has no manifest any more.
        return container, info.pre_stop or own

    def _event(
        self, pod: Pod, record: ContainerRecord, type_: EventType, reason: str, message: str
    ) -> None:
        named = (c for c in pod_containers(pod) if c.spec.name == record.name)
        found = next(named, None)
        path = found.field_path if found is not None else f"spec.containers{{{record.name}}}"
        self.services.events.emit(pod_object_ref(pod, path), type_, reason, message)


def about_container(container: Container | ContainerRecord) -> Attributes:
    """Return what says which container a span is about."""
    return {CONTAINER: container.name}


def hook_ip(services: PodServices, observed: RuntimePod, pod: Pod) -> str:
    """Return the address that a pod's hooks are sent to, "" if it has none."""
    newest = observed.sandboxes[0] if observed.sandboxes else None
    if newest is not None and newest.ips:
        return newest.ips[0]
    on_host = newest.host_network if newest is not None else spec(pod).hostNetwork
    return next(iter(services.node().host_ips), "") if on_host else ""


def stop_message(container: ContainerRecord) -> str:
    """Return the text of the Killing event of a container that stops with its pod or sandbox."""
    return f"Stopping container {container.name}"
