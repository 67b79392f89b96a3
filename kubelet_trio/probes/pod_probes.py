"""All probes of one pod: a supervised task each, below the pod's worker.

The worker tells what it sees (`update`), is woken when a result changes, and asks for what
the results come to: which containers have started, are ready, must be restarted. Results
are kept here by container instance; a probe that crashes is started again and goes on from
them, and nothing of it reaches the worker.

Over a restart of the agent, `started` and `ready` are taken from the last status in the
pod's record (`Adopted`), so a container that was ready stays so until its probe says
otherwise. A liveness probe begins with success again, as upstream's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.model import (
    ContainerId,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    pod_containers,
    pod_uid,
)
from kubelet_trio.probes.runner import PodView, ProbeRunner, ProbeServices
from kubelet_trio.probes.thresholds import INITIAL, ProbeState
from kubelet_trio.probes.types import ProbeKind, ProbeResult
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor

# What a plan says of a container whose probe has failed, after its name.
FAILED_LIVENESS = "failed liveness probe"
FAILED_STARTUP = "failed startup probe"

_FAILED = {ProbeKind.LIVENESS: FAILED_LIVENESS, ProbeKind.STARTUP: FAILED_STARTUP}


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was last reported of a container instance."""

    is_started: bool
    is_ready: bool


def adopted_from(status: PodStatus | None) -> dict[ContainerId, Adopted]:
    """Return what a reported status says of its containers' probes, by instance."""
    if status is None:
        return {}
    statuses = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return {
        ContainerId(one.containerID.partition("://")[2]): Adopted(bool(one.started), one.ready)
        for one in statuses
        if one.containerID
    }


class PodProbes:
    """The probes of one pod UID. Owned by its worker; only `run` ever waits."""

    def __init__(
        self,
        services: ProbeServices,
        pod: Pod,
        wake: Callable[[], None],
        adopted: Mapping[ContainerId, Adopted] | None = None,
    ) -> None:
        self._services = services
        self._wake = wake
        self._adopted = dict(adopted or {})
        self._view = PodView(pod, RuntimePod(pod_uid(pod)))
        self._runners: dict[tuple[str, ProbeKind], ProbeRunner] = {}
        self._supervisor = DynamicSupervisor("probes")
        self._stopped: frozenset[ProbeKind] = frozenset()
        self._reconcile()

    @property
    def is_empty(self) -> bool:
        """Whether the pod has no probe, and `run` nothing to do."""
        return not self._runners

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the probes until cancelled."""
        await self._supervisor.run(task_status=task_status)

    def update(self, pod: Pod, observed: RuntimePod, pod_ip: str) -> None:
        """Take over what the worker sees and has told of the pod."""
        is_changed = pod is not self._view.pod
        self._view = PodView(pod, observed, pod_ip)
        if is_changed:
            self._reconcile()
        self._kick_unready()

    def stop(self, *kinds: ProbeKind) -> None:
        """End the probes of these kinds, all if none is given; results stay as they are."""
        self._stopped |= frozenset(kinds or ProbeKind)
        self._reconcile()

    # What the results come to

    def started(self, observed: RuntimePod) -> dict[ContainerId, bool]:
        """Return whether containers have started, for those with a startup probe."""
        return {
            record.id: self._result(container, ProbeKind.STARTUP, record) is ProbeResult.SUCCESS
            for container, record in self._probed(observed, ProbeKind.STARTUP)
        }

    def ready(self, observed: RuntimePod) -> dict[ContainerId, bool]:
        """Return whether containers are ready, for those with a readiness probe."""
        return {
            record.id: self._result(container, ProbeKind.READINESS, record) is ProbeResult.SUCCESS
            for container, record in self._probed(observed, ProbeKind.READINESS)
        }

    def unhealthy(self, observed: RuntimePod) -> dict[ContainerId, str]:
        """Return which running containers must be restarted, and why."""
        return {
            record.id: why
            for kind, why in reversed(_FAILED.items())
            for container, record in self._probed(observed, kind)
            if record.state is ContainerState.RUNNING
            and self._result(container, kind, record) is ProbeResult.FAILURE
        }

    def _probed(
        self, observed: RuntimePod, kind: ProbeKind
    ) -> Iterator[tuple[PodContainer, ContainerRecord]]:
        for container in _probeable(self._view.pod):
            record = observed.latest(container.spec.name)
            if record is not None and kind.of(container.spec) is not None:
                yield container, record

    def _result(
        self, container: PodContainer, kind: ProbeKind, record: ContainerRecord
    ) -> ProbeResult:
        runner = self._runners.get((container.spec.name, kind))
        state = runner.state if runner is not None else None
        if state is None or state.container_id != record.id:
            state = self._begin(kind, record)
        return state.result

    def _begin(self, kind: ProbeKind, record: ContainerRecord) -> ProbeState:
        """Return the state of an instance of which its probe knows nothing yet."""
        before = self._adopted.get(record.id)
        result = INITIAL[kind]
        if before is not None and kind is ProbeKind.READINESS and before.is_ready:
            result = ProbeResult.SUCCESS
        if before is not None and kind is ProbeKind.STARTUP and before.is_started:
            result = ProbeResult.SUCCESS
        return ProbeState(kind, record.id, result)

    def _is_started(self, record: ContainerRecord) -> bool:
        return self.started(self._view.observed).get(record.id, True)

    # The tasks

    def _reconcile(self) -> None:
        """Have a task for each probe of the pod, and none for any other."""
        wanted = {
            (container.spec.name, kind): container
            for container in _probeable(self._view.pod)
            for kind in ProbeKind
            if kind.of(container.spec) is not None
        }
        for name, kind in wanted.keys() - self._runners.keys():
            runner = self._make(name, kind)
            self._runners[name, kind] = runner
            if kind not in self._stopped:
                self._supervisor.start_child(ChildSpec(_child(name, kind), runner.run))
        for name, kind in self._runners:
            if kind in self._stopped or (name, kind) not in wanted:
                self._supervisor.stop_child(_child(name, kind))
        for gone in self._runners.keys() - wanted.keys():
            del self._runners[gone]

    def _make(self, name: str, kind: ProbeKind) -> ProbeRunner:
        return ProbeRunner(
            self._services,
            kind,
            name,
            view=lambda: self._view,
            begin=lambda record: self._begin(kind, record),
            is_started=self._is_started,
            changed=self._wake,
        )

    def _kick_unready(self) -> None:
        """Run the readiness probes of what runs and is not ready, whenever its status is told.

        Source: UpdatePodStatus of prober_manager.go, which triggers the worker by hand.
        """
        observed = self._view.observed
        ready = self.ready(observed)
        for container, record in self._probed(observed, ProbeKind.READINESS):
            is_running = record.state is ContainerState.RUNNING
            if is_running and self._is_started(record) and not ready[record.id]:
                self._runners[container.spec.name, ProbeKind.READINESS].kick()


def _probeable(pod: Pod) -> Iterator[PodContainer]:
    """Yield main containers and sidecars: no other is probed."""
    for container in pod_containers(pod):
        if container.kind is ContainerKind.MAIN or container.is_sidecar:
            yield container


def _child(name: str, kind: ProbeKind) -> str:
    return f"{name}/{kind.value.lower()}"
