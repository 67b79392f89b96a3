"""The state of a pod's worker that others decide by. Its worker alone changes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodUid, Waited, pod_key, pod_uid
from kubelet_trio.pods.records.record import PodRecord
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.types import EndReason, PodStage, TerminationRequest
from kubelet_trio.pods.worker.allocation import PodAllocation
from kubelet_trio.pods.worker.holds import NameTurn
from kubelet_trio.pods.worker.phases import STAGES, UNWANTED, Phase, first_phase
from kubelet_trio.pods.worker.reporter import PodReporter


class WorkerState:
    """The state of one pod's worker, for the registry and the admitter. Nothing here blocks."""

    def __init__(
        self,
        services: PodServices,
        pod: Pod,
        record: PodRecord | None,
        changed: Callable[[PodUid], None],
    ) -> None:
        """Begin with what an earlier agent has recorded; see `PodWorker`."""
        # Called after each change of what admission reads: phase, request, admission, resources.
        self._changed = partial(changed, pod_uid(pod))
        self._allocation = PodAllocation(pod, record, self._changed)
        self._phase = Waited(first_phase(record))
        self._request: TerminationRequest | None = (
            record.termination if record is not None else None
        )
        self._reporter = PodReporter(services, pod, record, self._allocation)
        self._turn = NameTurn(services, pod_key(pod), self.uid)
        self._yields = False

    @property
    def pod(self) -> Pod:
        """The pod as its source wants it, with the resources that this node has allocated."""
        return self._allocation.allocated

    @property
    def uid(self) -> PodUid:
        return pod_uid(self.pod)

    @property
    def phase(self) -> Phase:
        return self._phase.value

    @property
    def stage(self) -> PodStage:
        """The stage of the Go kubelet that its phase belongs to."""
        return STAGES[self.phase]

    @property
    def is_wanted(self) -> bool:
        """Whether a source wants the pod, as far as the registry has reported."""
        return self.phase not in UNWANTED

    @property
    def is_ending(self) -> bool:
        """Whether it is terminating or terminated."""
        return self.stage is not PodStage.SYNC

    @property
    def is_displaced(self) -> bool:
        """Whether it is being preempted by another pod."""
        return self._request is not None and self._request.reason is EndReason.PREEMPTED

    @property
    def is_only_deleted(self) -> bool:
        """Whether it ends because its deletion was asked for, and for no other reason."""
        asked = self._request
        return asked is not None and asked.reason is EndReason.ASKED and asked.failure is None

    @property
    def is_leaving(self) -> bool:
        """Whether it ends in any case: what it holds is awaited, and stands in nobody's way."""
        return self.is_displaced or not self.is_wanted

    @property
    def yields(self) -> bool:
        """Whether nobody has to wait for what an unwanted pod holds.

        Nothing of it runs any more, or a try to end it has failed: for how long is unknown.
        """
        return self._yields

    @property
    def is_admitted(self) -> bool:
        """Whether it may run: this agent or an earlier one admitted it."""
        return self._reporter.is_admitted

    @property
    def allocation(self) -> PodAllocation:
        """The resources that the pod asks for, and those that it has."""
        return self._allocation

    @property
    def asks_resize(self) -> bool:
        """Whether it runs and asks for resources that are not allocated to it."""
        return self._allocation.asked is not None and self.is_admitted and not self.is_ending

    @property
    def counted(self) -> Pod:
        """The pod with the resources that admission counts as used."""
        return self._allocation.counted
