"""Publish the status of one pod, and keep its record on disk.

`pod_status` computes the status from the observed state. A changed status goes to the record
first and then to the status store, so that start time, transition times and a terminal phase
survive a restart of the agent. The pod's worker owns the reporter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import trio
from lightkube.models.core_v1 import Pod, PodCondition, PodStatus

from kubelet_trio.containers import cut_message, message_limit, read_termination_message
from kubelet_trio.managers import ClaimHealth, DeviceHealth
from kubelet_trio.model import (
    NOTHING,
    Bell,
    ContainerId,
    ContainerKind,
    ContainerState,
    LateEvent,
    Meter,
    RuntimePod,
    Waited,
    get_logger,
    is_static,
    metadata,
    pod_containers,
    pod_key,
    pod_object_ref,
    pod_uid,
    spec,
    to_datetime,
)
from kubelet_trio.pods.plan import CRASH_LOOP, effective_grace, is_restarting_all
from kubelet_trio.pods.records.record import PodRecord
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.status import pod_status, reported_ends
from kubelet_trio.pods.steps.containers import METERED_KINDS
from kubelet_trio.pods.types import (
    EndReason,
    PodResize,
    PodStage,
    StatusInput,
    TerminationRequest,
    WaitingReason,
)
from kubelet_trio.pods.worker.allocation import PodAllocation

if TYPE_CHECKING:
    from kubelet_trio.pods.worker.image_volumes import ImageVolumes

log = get_logger()

_PATIENCE = 5.0  # seconds that a termination waits for a disk that does not answer
_MADE_ROOM = "Pod was preempted by Kubelet to accommodate a critical pod."
_RETRY = 5.0  # seconds until a failed write of the record is retried


class PodReporter:
    """Publishes the status of one pod UID, and keeps its record."""

    def __init__(
        self,
        services: PodServices,
        pod: Pod,
        record: PodRecord | None,
        allocation: PodAllocation,
    ) -> None:
        self._services = services
        self._record = record
        self._allocation = allocation
        self._status: PodStatus | None = record.pod.status if record is not None else None
        # As last published. Not `_status`: a publication may be cancelled while it is recorded.
        self._shown: tuple[Pod, PodStatus] | None = None
        self._messages: dict[ContainerId, str] = {}
        self._image_volumes: ImageVolumes | None = None  # while its gate is on
        self._endings = Endings(services.meter, services.started_at)
        self._pre_stopped = record.pre_stopped if record is not None else ()
        self._restarting = record.restarting if record is not None else ()
        self._admitted = LateEvent()
        if record is not None and (record.admitted or _has_run(self._status)):
            self._admitted.set()
        self._is_removed = record is not None and record.removed
        self._returns = record.returns if record is not None else None
        self._decided = Bell()
        self._asked = 0  # how many times `wait_kept` was called
        self._kept = Waited(0)  # the last of those calls that `keep` served
        self.problem = ""  # why the last write of the record failed; "": it did not
        # Two tasks of one worker publish during a teardown: its own, and the one for probes.
        self._turn = trio.Lock()
        # Kept over restarts of the agent: activeDeadlineSeconds counts from it.
        self.start_time = _start_time(pod, record) or services.clock.time()

    def reported_ends(self, pod: Pod) -> Mapping[str, int]:
        """Return the exit codes of the containers whose end was published, by name."""
        # Until this agent publishes a status, the API server has the one of an earlier agent.
        return reported_ends(self._status or pod.status)

    def restarts_all(self, pod: Pod) -> bool:
        """Return whether the last status says that all containers are being restarted."""
        return is_restarting_all(self._status or pod.status)

    @property
    def status(self) -> PodStatus | None:
        """The status that was published last, by this agent or an earlier one."""
        return self._status

    def _shown_start(self, pod: Pod) -> float:
        """Return the time for `status.startTime`.

        That of a static pod is of the agent that runs, as after a start of the Go kubelet, which
        has its statuses in memory alone; a NodeConformance test asks for it.
        """
        began = self._services.started_at if is_static(pod) else 0.0
        return max(self.start_time, began)

    async def announce(self, pod: Pod, *, waits: bool) -> None:
        """Show the pod on this node before the runtime is listed: as last seen, or Pending.

        If it `waits` before its first round, record it now: otherwise that round does.

        This status is not sent to the API server: it may be out of date, and the pod may be running
        although nothing of it has been observed yet.
        """
        status = self._status or _last_seen(pod)
        if status is None:
            given = self._given(pod, "", PodStage.SYNC, None, {}, {}, {})
            status = pod_status(pod, RuntimePod(pod_uid(pod)), given)
        self._services.statuses.show(pod_uid(pod), msgspec.structs.replace(pod, status=status))
        if self._record is None and waits:
            # If the manifest is invalid after a restart, the source uses the pod of this record.
            async with self._turn:
                await self._try_write(pod, None)

    def show_ending(self, pod: Pod, request: TerminationRequest) -> None:
        """Show at once that a pod is being deleted: its status may not change for a while."""
        if request.reason is EndReason.DELETED:
            self.show(pod, request)

    def show(self, pod: Pod, request: TerminationRequest | None) -> None:
        """Show a new version of the pod with the status that it has."""
        if self._status is not None:
            self._put(pod, self._status, request)

    async def publish(
        self,
        pod: Pod,
        observed: RuntimePod,
        *,
        stage: PodStage,
        request: TerminationRequest | None,
        waiting: Mapping[str, WaitingReason] | None = None,
        started: Mapping[ContainerId, bool] | None = None,
        ready: Mapping[ContainerId, bool] | None = None,
        is_round: bool = True,
    ) -> None:
        """Publish the status if it has changed. A round also emits events of back-offs."""
        async with self._turn:
            self._endings.note(pod, observed)
            await self._read_messages(pod, observed)
            await self._find_image_digests(observed)
            newest = {c.id for c in observed.containers if observed.latest(c.name) is c}
            self._restarting = tuple(i for i in self._restarting if i in newest)
            given = self._given(
                pod, observed.handler, stage, request, waiting or {}, started or {}, ready or {}
            )
            status = pod_status(pod, observed, given)
            if is_round:
                self._emit_back_offs(pod, waiting or {})
            self._status = status
            # Recorded first: an agent killed in between must not take back what it published. So is
            # the admission before anything runs: a restarted agent does not decide on it again.
            if not self._is_removal_recorded:  # then most are gone the next moment
                await self._try_write(pod, request)
            # An edit of labels changes no status, but must be shown too.
            if self._shown is None or self._shown[0] is not pod or self._shown[1] != status:
                self._put(pod, status, request)

    def _emit_back_offs(self, pod: Pod, waiting: Mapping[str, WaitingReason]) -> None:
        """Emit an event for each container in crash back-off: in every round, as upstream."""
        key = pod_key(pod)
        for container in pod_containers(pod):
            held = waiting.get(container.spec.name)
            if held is not None and held.reason == CRASH_LOOP:
                text = (
                    f"Back-off restarting failed container {container.spec.name} "
                    f"in pod {key.name}_{key.namespace}({pod_uid(pod)})"
                )
                ref = pod_object_ref(pod, container.field_path)
                self._services.events.emit(ref, "Warning", "BackOff", text)

    def _given(
        self,
        pod: Pod,
        handler: str,
        stage: PodStage,
        request: TerminationRequest | None,
        waiting: Mapping[str, WaitingReason],
        started: Mapping[ContainerId, bool],
        ready: Mapping[ContainerId, bool],
    ) -> StatusInput:
        return StatusInput(
            now=self._services.clock.time(),
            stage=stage,
            previous=self._status,
            is_first=self._shown is None,
            waiting=waiting,
            failure=request.failure if request is not None else None,
            start_time=self._shown_start(pod),
            host_ips=self._services.node().host_ips,
            runtime_name=self._services.runtime_state.value.name,
            recursive_read_only=handler in self._services.runtime_state.value.recursive_read_only,
            stop_signals=self._services.node().stop_signals,
            pod_level_resizes=self._services.node().pod_level_resizes,
            image_refs=self._image_volumes.refs if self._image_volumes is not None else {},
            termination_messages=self._messages,
            started=started,
            ready=ready,
            end_conditions=_disruption(request),
            may_succeed=request is not None and request.is_by_node,
            finished=request is not None and request.reason is EndReason.FINISHED,
            rejected=request is not None and request.reason is EndReason.REJECTED,
            pending_resize=self._allocation.pending,
            resize=self._allocation.shown,
            resize_error=self._allocation.error,
            is_undecided=self._allocation.is_undecided,
            devices=self._devices(pod),
            claims=self._claims(pod),
            has_claims=self._services.claims.holds(pod_uid(pod)),
        )

    def _devices(self, pod: Pod) -> dict[str, tuple[DeviceHealth, ...]]:
        managers, uid = self._services.managers, pod_uid(pod)
        names = (container.name for container in spec(pod).containers)
        return {name: found for name in names if (found := managers.device_health(uid, name))}

    def _claims(self, pod: Pod) -> dict[str, tuple[ClaimHealth, ...]]:
        claims, containers = self._services.claims, spec(pod).containers
        return {c.name: found for c in containers if (found := claims.health(pod, c))}

    def has_pre_stopped(self, container_id: ContainerId) -> bool:
        """Whether a container's preStop hook has ended."""
        return container_id in self._pre_stopped

    async def note_pre_stopped(
        self, pod: Pod, request: TerminationRequest | None, container_id: ContainerId
    ) -> None:
        """Record that a container's preStop hook has ended."""
        self._pre_stopped = (*self._pre_stopped, container_id)
        if request is None:
            await self.save(pod, request)
        else:
            # `keep` writes it: the thread of a write that hangs cannot be cancelled, and would
            # delay the stop.
            await self.wait_kept()

    @property
    def restarting(self) -> frozenset[ContainerId]:
        """The instances that were stopped to start again, whatever the restart policy says."""
        return frozenset(self._restarting)

    async def note_restarting(self, pod: Pod, container_id: ContainerId) -> None:
        """Record that an instance is stopped to start again."""
        if container_id not in self._restarting:
            self._restarting = (*self._restarting, container_id)
        await self.save(pod, None)

    async def save(self, pod: Pod, request: TerminationRequest | None) -> None:
        """Write the record if it has changed.

        A failed write delays nothing: the disk may be full until the pod has ended.
        """
        async with self._turn:
            await self._try_write(pod, request)

    def note_decision(self) -> None:
        """Make `keep` write the termination request, which has changed."""
        self._decided.ring()

    def note_removed(self) -> None:
        """Make `keep` record that the pod's manifest is gone."""
        self._is_removed, self._returns = True, None
        self._decided.ring()

    def note_return(self, pod: Pod | None) -> None:
        """Make `keep` record that a source wants the removed pod again (None: no longer)."""
        self._returns = pod
        self._decided.ring()

    def returns(self) -> bool:
        """Return whether a source wants the removed pod again."""
        return self._returns is not None

    async def keep(self, pod: Pod, request: Callable[[], TerminationRequest | None]) -> None:
        """Write each decision about the pod as soon as it is made, until cancelled."""
        while True:
            self._decided.clear()
            if request() is not None:
                asked = self._asked  # a decision during the write needs another write
                await self.save(pod, request())
                self._kept.value = asked
            # A pod that is being removed, and takes long: `publish` leaves its status to this.
            is_due = self.problem or self._is_removal_recorded
            with trio.move_on_after(_RETRY if is_due else math.inf):
                await self._decided.wait_ring()

    async def wait_kept(self) -> None:
        """Wait until `keep`, which runs concurrently, has written the decisions, or tried to."""
        self._asked += 1
        asked = self._asked
        self._decided.ring()
        # A disk may not answer at all (EIO retries, a network disk that is gone), and ending the
        # pod may free the memory that the node is short of.
        with trio.move_on_after(_PATIENCE) as waiting:
            await self._kept.wait_value(lambda kept: kept >= asked)
        if waiting.cancelled_caught:
            log.warning("pod.record_hangs", seconds=_PATIENCE)

    @property
    def is_admitted(self) -> bool:
        """Whether the pod may run."""
        return self._admitted.is_set()

    def admit(self) -> None:
        """Let the pod run; its next `publish` records that."""
        self._admitted.set()

    async def wait_admitted(self) -> None:
        """Wait until the pod may run."""
        await self._admitted.wait()

    async def note_resize(self, pod: Pod, resize: PodResize) -> bool:
        """Record that the resources of `pod` are allocated; return whether the disk took it."""
        async with self._turn:
            await self._try_write(pod, None, resize)
            return not self.problem

    async def _try_write(
        self, pod: Pod, request: TerminationRequest | None, resize: PodResize | None = None
    ) -> None:
        """Write the record if it has changed; if the disk refuses it, log that and go on."""
        try:
            await self._write(pod, request, resize)
        except OSError as exc:
            if self.problem != str(exc):
                log.warning("pod.record_failed", error=str(exc))
            self.problem = str(exc)  # the next `publish` or `keep` tries again

    async def _write(
        self, pod: Pod, request: TerminationRequest | None, resize: PodResize | None = None
    ) -> None:
        record = PodRecord(
            uid=pod_uid(pod),
            pod=msgspec.structs.replace(self._allocation.without_added(pod), status=self._status),
            start_time=self.start_time,
            termination=request,
            pre_stopped=self._pre_stopped,
            restarting=self._restarting,
            admitted=self.is_admitted,
            removed=self._is_removed,
            returns=self._returns,
            resize=resize or self._allocation.resize,
            allocates=True,
            added=self._allocation.added,
        )
        if record != self._record:  # an unchanged one costs no write
            await self._services.records.write(record)
            self._record = record
        self.problem = ""

    @property
    def _is_removal_recorded(self) -> bool:
        """Whether the record says that nothing of the pod is to stay, whatever its status."""
        return self._record is not None and self._record.removed

    def _put(self, pod: Pod, status: PodStatus, request: TerminationRequest | None) -> None:
        self._shown = pod, status
        shown = msgspec.structs.replace(pod, status=status)
        if request is not None and request.reason is EndReason.DELETED:
            shown = _marked_deleted(shown, request)
        self._services.statuses.put(pod_uid(pod), shown)

    async def _read_messages(self, pod: Pod, observed: RuntimePod) -> None:
        """Read each ended container's termination message once."""
        ended = {c.id: c for c in observed.containers if c.state is ContainerState.EXITED}
        if self._pre_stopped:
            alive = {c.id for c in observed.containers} - ended.keys()
            self._pre_stopped = tuple(i for i in self._pre_stopped if i in alive)
        # Each is read once: the container that wrote the file has ended.
        self._messages = {i: text for i, text in self._messages.items() if i in ended}
        if len(ended) == len(self._messages):
            return
        specs = {c.spec.name: c.spec for c in pod_containers(pod)}
        limit = message_limit(pod)
        for container_id, container in ended.items():
            if container_id not in self._messages:
                message = await self._services.offload(
                    read_termination_message, container, specs.get(container.name)
                )
                self._messages[container_id] = cut_message(message, limit)

    async def _find_image_digests(self, observed: RuntimePod) -> None:
        if not self._services.node().image_digests:
            return
        if self._image_volumes is None:
            from kubelet_trio.pods.worker.image_volumes import ImageVolumes

            self._image_volumes = ImageVolumes(self._services.runtime)
        name = self._services.runtime_state.value.name
        await self._image_volumes.find(observed, name, self._status)


class Endings:
    """Counts the ended containers of one pod, each once."""

    def __init__(self, meter: Meter, since: float) -> None:
        """Count in `meter` the containers that ended at `since` (Unix seconds) or later.

        An earlier agent has counted those that ended before.
        """
        self._meter, self._since = meter, since
        self._counted: frozenset[ContainerId] = NOTHING

    def note(self, pod: Pod, observed: RuntimePod) -> None:
        """Count the containers that have ended since the last call."""
        kinds = {c.spec.name: METERED_KINDS[c.kind] for c in pod_containers(pod)}
        ended = {c.id: c for c in observed.containers if c.state is ContainerState.EXITED}
        for container_id, record in ended.items():
            if container_id in self._counted or record.finished_at < self._since:
                continue
            # A container that is not in the spec any more was most likely a main one.
            kind = kinds.get(record.name, METERED_KINDS[ContainerKind.MAIN])
            reason = record.reason or ("Completed" if record.exit_code == 0 else "Error")
            labels = (kind, str(record.exit_code), reason)
            self._meter.count("kubelet_terminated_containers_total", labels)
        self._counted = frozenset(ended) or NOTHING


def _start_time(pod: Pod, record: PodRecord | None) -> float | None:
    """Return when an earlier agent first saw the pod."""
    if record is not None:
        return record.start_time
    published = pod.status.startTime if pod.status is not None else None
    return published.timestamp() if published is not None else None


def _last_seen(pod: Pod) -> PodStatus | None:
    """Return the status that the API server has of a pod, if a node agent has written it."""
    status = pod.status
    if status is None or not (status.containerStatuses or status.startTime):
        return None
    return status


def _has_run(status: PodStatus | None) -> bool:
    """Return whether a pod has run, so that an earlier agent must have admitted it."""
    if status is None:
        return False
    statuses = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return any(s.state is not None and s.state.waiting is None for s in statuses)


def _disruption(request: TerminationRequest | None) -> tuple[PodCondition, ...]:
    """Return the DisruptionTarget condition, by which a Job may ignore the failure (KEP-3329)."""
    if request is None or not request.is_by_node or request.is_over_limit:
        return ()
    message = request.failure.message if request.failure is not None else None
    if request.reason is EndReason.PREEMPTED:
        message = _MADE_ROOM
    return (
        PodCondition(
            type="DisruptionTarget",
            status="True",
            reason="TerminationByKubelet",
            message=message,
        ),
    )


def _marked_deleted(pod: Pod, request: TerminationRequest) -> Pod:
    """Return a pod whose manifest is gone with a deletion timestamp, as the API server would."""
    grace = effective_grace(pod, request)
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(
            metadata(pod),
            deletionTimestamp=to_datetime(request.requested_at + grace),
            deletionGracePeriodSeconds=grace,
        ),
    )
