"""What of a pod's resources is desired, allocated and actuated (KEP-1287). Its worker owns it.

    desired     what the pod's source wants
    granted     what the admitter has allocated, and the worker has not recorded yet
    allocated   what the record on disk says; each round of the worker uses it
    actuated    what containers and the pod's cgroup have

The admitter grants or refuses. The worker's task then records what `accepted` returns and uses it
from `begin` on, and reports with `actuated` and `finish` what it has applied.

All three have the ephemeral containers that were added on this node (`debugging`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from lightkube.models.core_v1 import (
    ContainerStatus,
    EphemeralContainer,
    Pod,
    PodStatus,
    ResourceRequirements,
)

from kubelet_trio.containers import (
    NodeSettings,
    as_found,
    differs,
    with_allocated,
    with_larger,
    with_resources,
)
from kubelet_trio.model import (
    ContainerId,
    ContainerState,
    RuntimePod,
    metadata,
    pod_containers,
)
from kubelet_trio.pods.admission import DEFERRED, INFEASIBLE
from kubelet_trio.pods.plan import begin_resize
from kubelet_trio.pods.records.record import PodRecord
from kubelet_trio.pods.types import PendingResize, PodResize
from kubelet_trio.pods.worker.debugging import with_added, without_added

_PENDING = "PodResizePending"
_CONDITIONS = (_PENDING, "PodResizeInProgress")


class PodAllocation:
    """The resources of one pod. The methods never block."""

    def __init__(
        self,
        desired: Pod,
        record: PodRecord | None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Continue with what an earlier agent has recorded.

        `changed` is called when admission may have to count something else.
        """
        self._changed = changed
        self.added = record.added if record is not None else ()
        self.desired = desired = with_added(desired, self.added)
        self.allocated = desired
        self.granted: Pod | None = None
        self.pending: PendingResize | None = None
        self.resize: PodResize | None = None
        self.error = ""  # why the last attempt to actuate failed
        self.pending_since = 0.0  # trio time at which the pod asked for the resize
        # Earlier versions of this agent recorded what was desired, and did not allocate.
        self.is_recorded = record is not None and record.allocates
        # The pod with what it had before the resize in progress: some of that is in use still.
        self._held: Pod | None = None
        if record is not None and record.admitted:
            self.allocated = with_allocated(desired, record.pod)
            self.resize = record.resize
        elif record is None and _resizes(desired.status):
            # The Go kubelet ran it: this node allocated what the status says.
            self.allocated = _as_shown(desired)
        if self.resize is not None:
            self._held = _as_shown(record.pod if record is not None else desired, actuated=True)
        if self.asked is not None:
            # Shown until it is decided on again, so that its event and time are not new.
            self.pending = _pending(record.pod.status if record is not None else desired.status)

    @property
    def counted(self) -> Pod:
        """The pod with the resources that admission must count."""
        # Until the grant is on disk a restarted agent would find the old allocation, and until it
        # is actuated the pod uses what it had: no other pod gets it before.
        counted = self.allocated
        if self.granted is not None:
            counted = with_larger(counted, self.granted)
        return counted if self._held is None else with_larger(counted, self._held)

    @property
    def shown(self) -> PodResize | None:
        """The resize that the status shows as in progress."""
        if self.granted is None:
            return self.resize
        # It cannot be recorded yet. The status has the new generation already, and a client takes
        # that without a condition for a resize that is complete.
        generation = metadata(self.granted).generation
        return msgspec.structs.replace(self.resize or PodResize(), generation=generation)

    @property
    def asked(self) -> Pod | None:
        """The pod with the resources that the admitter is to decide on; None if none are asked."""
        if self.granted is not None and not differs(self.desired, self.granted):
            return None
        return self.desired if differs(self.desired, self.allocated) else None

    @property
    def is_undecided(self) -> bool:
        """Whether the admitter has neither granted nor refused what is asked."""
        return self.asked is not None and self.pending is None

    def adopt(
        self, observed: RuntimePod, node: NodeSettings, no_quota: Collection[str] = ()
    ) -> bool:
        """Take what the instances of an unrecorded pod have for what is allocated to it.

        `no_quota` are the containers with CPUs of their own. Returns whether the pod asks for
        something else. Raises ValueError.
        """
        self.is_recorded = True  # from now on
        latest = (observed.latest(c.spec.name) for c in pod_containers(self.desired))
        found = {
            record.name: record.resources
            for record in latest
            if record is not None
            and record.state is ContainerState.RUNNING
            and record.resources is not None  # not every runtime reports them
        }
        self.allocated = as_found(self.allocated, node, found, no_quota)
        self._changed()
        return self.asked is not None

    def update(self, desired: Pod, *, is_admitted: bool, now: float) -> None:
        """Take the newest pod of the source; `now` is trio time."""
        self._changed()
        if not is_admitted:
            self.desired = self.allocated = desired
            return
        is_other = differs(self.desired, desired)
        self.desired, self.allocated = desired, with_allocated(desired, self.allocated)
        if is_other:
            self.pending_since = now
        if self.asked is None:
            self.pending = None

    def add(self, container: EphemeralContainer) -> Pod:
        """Add an ephemeral container; return the desired pod with it, for `PodWorker.update`."""
        self.added = (*self.added, container)
        return self.with_added(self.desired)

    def with_added(self, pod: Pod) -> Pod:
        """Return a pod of the source with the containers that were added here."""
        return with_added(pod, self.added)

    def without_added(self, pod: Pod) -> Pod:
        """Return a pod as its source wants it."""
        return without_added(pod, self.added)

    def grant(self) -> None:
        """Allocate what is asked; the worker is to record it."""
        self.granted, self.pending = self.desired, None
        self._changed()

    def refuse(self, why: PendingResize) -> PendingResize | None:
        """Keep a resize pending; return why it was until now."""
        # A grant that is not recorded yet is withdrawn: the pod asks for something else by now.
        self.granted = None
        self._changed()
        was, self.pending = self.pending, why
        return was

    def accepted(self, observed: RuntimePod) -> tuple[Pod, PodResize]:
        """Return the pod with the granted resources, and the resize that this begins.

        `observed` must be certain: an instance that is not in it counts as made with the granted
        resources.
        """
        granted = self.granted
        assert granted is not None
        pod = with_allocated(self.desired, granted)
        generation = metadata(granted).generation
        return pod, begin_resize(self.allocated, pod, observed, self.resize, generation)

    def begin(self, pod: Pod, resize: PodResize) -> None:
        """Use the allocation that `accepted` returned and that is on disk now."""
        # The source may have asked for something else meanwhile.
        if self.granted is not None and not differs(self.granted, pod):
            self.granted = None
        self._held = self.counted
        self.allocated = with_allocated(self.desired, pod)
        self.resize, self.error = resize, ""
        self._changed()

    def actuated(self, container_id: ContainerId, resources: ResourceRequirements) -> None:
        """Note what an instance has now."""
        resize = self.resize
        if resize is None or container_id not in resize.actuated:
            return
        self.resize = msgspec.structs.replace(
            resize, actuated={**resize.actuated, container_id: resources}
        )

    def finish(self) -> int | None:
        """Note that all that is allocated is actuated; return the generation of the resize."""
        generation = self.resize.generation if self.resize is not None else None
        self.resize, self.error, self._held = None, "", None
        self._changed()
        return generation


def _resizes(status: PodStatus | None) -> bool:
    conditions = (status.conditions if status is not None else None) or ()
    return any(c.type in _CONDITIONS and c.status == "True" for c in conditions)


def _pending(status: PodStatus | None) -> PendingResize | None:
    """Return the pending resize that a status shows."""
    for condition in (status.conditions if status is not None else None) or ():
        if condition.type == _PENDING and condition.status == "True":
            return PendingResize(
                INFEASIBLE if condition.reason == INFEASIBLE else DEFERRED,
                condition.message or "",
                condition.observedGeneration,
            )
    return None


def _as_shown(pod: Pod, *, actuated: bool = False) -> Pod:
    """Return a pod with the resources that its status shows as allocated, or as actuated."""
    shown = {}
    for status in _shown(pod.status):
        if status.resources is not None:
            requests = status.resources.requests
            if not actuated:
                requests = status.allocatedResources or requests
            shown[status.name] = msgspec.structs.replace(status.resources, requests=requests)
    return with_allocated(pod, with_resources(pod, shown))


def _shown(status: PodStatus | None) -> list[ContainerStatus]:
    if status is None:
        return []
    return [*(status.initContainerStatuses or ()), *(status.containerStatuses or ())]
