"""All probes of one pod: one supervised task each, below the pod's worker.

The worker passes in what it observes (`update`), is woken when a result changes, and reads which
containers have started, are ready or must be restarted. Results are kept here by container
instance; a probe task that crashes is restarted and continues from them, without effect on the
worker.

After a restart of the agent `started` and `ready` come from the last status in the pod's record
(`Adopted`): a container that was ready stays ready until its probe fails. A liveness probe starts
with success again, as upstream's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Pod, PodStatus, Probe

from kubelet_trio.model import (
    NOTHING,
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
from kubelet_trio.probes.state import INITIAL, ProbeKind, ProbeResult, ProbeState
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor

# The reason in a plan for restarting a container, after its name.
FAILED_LIVENESS = "failed liveness probe"
FAILED_STARTUP = "failed startup probe"

_FAILED = {ProbeKind.LIVENESS: FAILED_LIVENESS, ProbeKind.STARTUP: FAILED_STARTUP}


@dataclass(frozen=True, slots=True)
class Adopted:
    """The last reported state of a container instance."""

    is_started: bool
    is_ready: bool


def adopted_from(status: PodStatus | None) -> dict[ContainerId, Adopted]:
    """Return the containers' states in a reported status, by instance."""
    if status is None:
        return {}
    statuses = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return {
        ContainerId(one.containerID.partition("://")[2]): Adopted(bool(one.started), one.ready)
        for one in statuses
        if one.containerID
    }


class PodProbes:
    """The probes of one pod UID, owned by its worker. Only `run` blocks."""

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
        self._stopped: frozenset[ProbeKind] = NOTHING
        self._reconcile()

    @property
    def is_empty(self) -> bool:
        """Whether the pod has no probe, so that `run` is not needed."""
        return not self._runners

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the probes until cancelled."""
        await self._supervisor.run(task_status=task_status)

    def update(self, pod: Pod, observed: RuntimePod, pod_ip: str) -> None:
        """Store the worker's current view of the pod."""
        is_changed = pod is not self._view.pod
        self._view = PodView(pod, observed, pod_ip)
        if is_changed:
            self._reconcile()
        self._kick_unready()

    def stop(self, *kinds: ProbeKind) -> None:
        """Stop the probes of these kinds (all if none is given); their results stay."""
        self._stopped |= frozenset(kinds or ProbeKind)
        self._reconcile()

    # Results

    def started(self, observed: RuntimePod) -> dict[ContainerId, bool]:
        """Return whether containers with a startup probe have started."""
        return {
            record.id: self._result(container, ProbeKind.STARTUP, record) is ProbeResult.SUCCESS
            for container, record in self._probed(observed, ProbeKind.STARTUP)
        }

    def ready(self, observed: RuntimePod) -> dict[ContainerId, bool]:
        """Return whether containers with a readiness probe are ready."""
        return {
            record.id: self._result(container, ProbeKind.READINESS, record) is ProbeResult.SUCCESS
            for container, record in self._probed(observed, ProbeKind.READINESS)
        }

    def unhealthy(self, observed: RuntimePod) -> dict[ContainerId, str]:
        """Return the running containers that must be restarted, with the reason."""
        return {
            record.id: why
            for kind, why in reversed(_FAILED.items())
            for container, record in self._probed(observed, kind)
            if record.state is ContainerState.RUNNING
            and self._result(container, kind, record) is ProbeResult.FAILURE
        }

    def current(self, observed: RuntimePod) -> Iterator[tuple[ProbeRunner, ProbeState, Probe]]:
        """Yield each probe of a running container with its state, for `why`."""
        for (name, kind), runner in self._runners.items():
            found, record = self._view.container(name), observed.latest(name)
            probe = kind.of(found.spec) if found is not None else None
            if probe is None or record is None or record.state is not ContainerState.RUNNING:
                continue
            if self._is_started(record) is (kind is ProbeKind.STARTUP):
                continue  # it does not run now: see `is_due`
            state = runner.state
            if state is None or state.container_id != record.id:
                state = self._begin(kind, record)
            yield runner, state, probe

    def _probed(
        self, observed: RuntimePod, kind: ProbeKind
    ) -> Iterator[tuple[PodContainer, ContainerRecord]]:
        if self.is_empty:  # most pods, several times in each sync
            return
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
        """Return the initial state of an instance, which may be adopted."""
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
        """Start and stop tasks, so that there is one for each probe of the pod."""
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
        """Run the readiness probes of containers that run and are not ready.

        At every update of the pod. Source: UpdatePodStatus of prober_manager.go.
        """
        observed = self._view.observed
        ready = self.ready(observed)
        for container, record in self._probed(observed, ProbeKind.READINESS):
            is_running = record.state is ContainerState.RUNNING
            if is_running and self._is_started(record) and not ready[record.id]:
                self._runners[container.spec.name, ProbeKind.READINESS].kick()


def _probeable(pod: Pod) -> Iterator[PodContainer]:
    """Yield the containers that may have probes: main containers and sidecars."""
    for container in pod_containers(pod):
        if container.kind is ContainerKind.MAIN or container.is_sidecar:
            yield container


def _child(name: str, kind: ProbeKind) -> str:
    return f"{name}/{kind.value.lower()}"
