"""Compute the API status of containers, from their newest two instances and the last status.

Upstream: convertToAPIContainerStatuses and the prober's UpdatePodStatus. What the runtime has
forgotten is kept: a termination that was reported stays. A container that was reported to run
and has no record any more terminated with exit code 137, `ContainerStatusUnknown`.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from lightkube.models import core_v1 as api

from kubelet_trio.containers import cut_message, message_limit
from kubelet_trio.model import (
    ContainerKind,
    ContainerRecord,
    ContainerState,
    PodContainer,
    RuntimePod,
    is_static,
    metadata,
    pod_containers,
    spec,
    to_datetime,
)
from kubelet_trio.pods.plan import (
    KILLED_EXIT_CODE,
    REMOVED_MESSAGE,
    REMOVED_REASON,
    is_restarting_all,
    restarts_all,
    should_start,
)
from kubelet_trio.pods.status.resources import container_resources
from kubelet_trio.pods.types import PodStage, StatusInput

_EPHEMERAL = ContainerKind.EPHEMERAL
_SUCCEEDED = (ContainerState.EXITED, 0)
_UNKNOWN = "ContainerStatusUnknown"
_HEALTH = {True: "Healthy", False: "Unhealthy"}
# Upstream's texts, with its two spaces.
_LOST_AT_END = "The container could not be located when the pod was terminated"
_LOST = (
    "The container could not be located when the pod was deleted.  The container used to be Running"
)
_INIT_GONE = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)


def container_statuses(
    pod: api.Pod,
    observed: RuntimePod,
    given: StatusInput,
    previous: api.PodStatus,
    kind: ContainerKind,
) -> list[api.ContainerStatus] | None:
    """Return the statuses of one kind of containers, None if the spec has none of it."""
    before = {
        c.name: c
        for c in (
            *(previous.initContainerStatuses or ()),
            *(previous.containerStatuses or ()),
            *(previous.ephemeralContainerStatuses or ()),
        )
    }
    restarting = given.stage is PodStage.SYNC and restarts_all(
        pod, observed, is_recorded=is_restarting_all(previous)
    )
    statuses = [
        _ContainerStatus(
            pod, observed, given, container, before.get(container.spec.name), restarting
        ).status()
        for container in pod_containers(pod)
        if container.kind is kind
    ]
    # As upstream: init containers in the order of the spec, the others by name.
    if kind is not ContainerKind.INIT:
        statuses.sort(key=lambda status: status.name)
    return statuses or None


def lost_at_end() -> api.ContainerState:
    """Return the state of a container without a record when its pod has ended."""
    return api.ContainerState(terminated=_unknown_end(_LOST_AT_END))


@dataclass(frozen=True, slots=True)
class _ContainerStatus:
    """Computes the status of one container; `before` is its last reported status."""

    pod: api.Pod
    observed: RuntimePod
    given: StatusInput
    container: PodContainer
    before: api.ContainerStatus | None
    is_restarting: bool  # all containers of the pod are being restarted

    def status(self) -> api.ContainerStatus:
        records = self.observed.of(self.container.spec.name)
        status = self._from_records(*records[:2]) if records else self._without_record()
        return self._with_devices(self._with_probes(self._with_waiting_reason(status)))

    # From the runtime's records

    def _from_records(
        self, newest: ContainerRecord, older: ContainerRecord | None = None
    ) -> api.ContainerStatus:
        state = self._state(newest)
        restarts = max(newest.attempt, self.before.restartCount if self.before else 0)
        if newest.state is ContainerState.UNKNOWN and self.before and state.terminated is not None:
            # This termination counts as one restart, once: the runtime has no record of it.
            restarts = self.before.restartCount + (self.before.state != state)
        allocated = self.container.spec.resources
        return api.ContainerStatus(
            name=newest.name,
            state=state,
            lastState=self._last_state(newest, older),
            ready=False,
            restartCount=restarts,
            image=newest.image or self.container.spec.image or "",
            imageID=newest.image_id,
            containerID=self._id(newest),
            user=_user(newest),
            volumeMounts=self._mounts(self.given.image_refs.get(newest.id, {})),
            resources=container_resources(self.container.spec, newest, self.given.resize),
            allocatedResources=allocated.requests or None if allocated is not None else None,
            stopSignal=(newest.stop_signal or None) if self.given.stop_signals else None,
        )

    def _state(self, record: ContainerRecord) -> api.ContainerState:
        if record.state is ContainerState.RUNNING:
            started = _time(record.started_at)
            return api.ContainerState(running=api.ContainerStateRunning(startedAt=started))
        if record.state is ContainerState.EXITED:
            return api.ContainerState(terminated=self._end(record))
        if record.state is ContainerState.UNKNOWN and self._has_run(record):
            return lost_at_end()
        return self._default_state()

    def _has_run(self, record: ContainerRecord) -> bool:
        """Return whether the last status reported this container as running, or as lost."""
        if self.before is None or self.before.state is None:
            return False
        lost = self.before.containerID == self._id(record) and self.before.state == lost_at_end()
        return lost or self.before.state.running is not None

    def _last_state(
        self, newest: ContainerRecord, older: ContainerRecord | None
    ) -> api.ContainerState | None:
        """Return how the instance before the newest one ended, as far as it is known."""
        if older is not None and older.state is ContainerState.EXITED:
            return api.ContainerState(terminated=self._end(older))
        if self.before is None:
            return None
        if self.before.containerID == self._id(newest) or not newest.attempt:
            return self.before.lastState
        # The last status was of the instance before, and its record is gone.
        ended = self.before.state is not None and self.before.state.terminated is not None
        return self.before.state if ended else self.before.lastState

    def _end(self, record: ContainerRecord) -> api.ContainerStateTerminated:
        own = self.given.termination_messages.get(record.id, "")
        message = ": ".join(part for part in (record.message, own) if part)
        return api.ContainerStateTerminated(
            exitCode=record.exit_code,
            reason=record.reason or ("Completed" if record.exit_code == 0 else "Error"),
            message=cut_message(message, message_limit(self.pod)) or None,
            startedAt=_time(record.started_at),
            finishedAt=_time(record.finished_at),
            containerID=self._id(record),
        )

    def _id(self, record: ContainerRecord) -> str:
        return f"{self.given.runtime_name}://{record.id}"

    # Without a record

    def _without_record(self) -> api.ContainerStatus:
        """Return the status of a container of which the runtime has no instance."""
        before = self.before
        state = before.state if before is not None else None
        is_removed = self.is_restarting and self.container.kind is not _EPHEMERAL
        if before and state and state.terminated is not None and not is_removed:
            return msgspec.structs.replace(before, ready=False, state=self._forgotten(state))
        status = api.ContainerStatus(
            name=self.container.spec.name,
            state=self._default_state(),
            lastState=before.lastState if before is not None else None,
            ready=False,
            restartCount=before.restartCount if before is not None else 0,
            image=self.container.spec.image or "",
            imageID="",
            volumeMounts=self._mounts({}),
        )
        if state is not None and state.waiting is None and is_removed:
            return _removed(status)
        if self._is_gone_init():
            end = api.ContainerStateTerminated(exitCode=0, reason="Completed", message=_INIT_GONE)
            return msgspec.structs.replace(status, state=api.ContainerState(terminated=end))
        if state is None or state.running is None:
            return status
        return self._lost(status)

    def _lost(self, status: api.ContainerStatus) -> api.ContainerStatus:
        """Add the termination of a container that ran and has no record any more."""
        if status.lastState is not None and status.lastState.terminated is not None:
            return status
        # It will start again, which counts as a restart; in a deleted pod it will not.
        is_deleted = metadata(self.pod).deletionTimestamp is not None
        return msgspec.structs.replace(
            status,
            lastState=api.ContainerState(terminated=_unknown_end(_LOST)),
            restartCount=status.restartCount + (not is_deleted),
        )

    def _forgotten(self, state: api.ContainerState) -> api.ContainerState:
        """Return the state of an ended container whose record was removed."""
        end = state.terminated
        # The Go kubelet forgets the statuses of static pods when it restarts, and says so; a
        # NodeConformance test asks for it. What is known beside that stays.
        says_so = self.given.is_first and is_static(self.pod) and self._is_gone_init()
        if not says_so or end is None or end.exitCode or end.message:
            return state
        return api.ContainerState(terminated=msgspec.structs.replace(end, message=_INIT_GONE))

    def _is_gone_init(self) -> bool:
        """Return whether this is an init container that has run and whose record was removed."""
        if self.container.kind is not ContainerKind.INIT or self.container.is_sidecar:
            return False
        mains = {c.name for c in spec(self.pod).containers}
        return any(
            c.name in mains and c.state is not ContainerState.UNKNOWN
            for c in self.observed.containers
        )

    def _default_state(self) -> api.ContainerState:
        reason = "PodInitializing" if spec(self.pod).initContainers else "ContainerCreating"
        return api.ContainerState(waiting=api.ContainerStateWaiting(reason=reason))

    # What the runtime does not know

    def _with_waiting_reason(self, status: api.ContainerStatus) -> api.ContainerStatus:
        """Show why a container that is to start must wait."""
        held = self.given.waiting.get(status.name)
        if held is None or self.given.stage is not PodStage.SYNC:
            return status
        latest = self.observed.latest(status.name)
        succeeded = latest is not None and (latest.state, latest.exit_code) == _SUCCEEDED
        is_init = self.container.kind is ContainerKind.INIT and not self.container.is_sidecar
        if is_init and succeeded:
            return status  # restart policy Always would let it start again
        if not should_start(self.pod, self.container.spec, self.observed):
            return status
        ended = status.state is not None and status.state.terminated is not None
        waiting = api.ContainerStateWaiting(reason=held.reason, message=held.message or None)
        return msgspec.structs.replace(
            status,
            state=api.ContainerState(waiting=waiting),
            lastState=status.state if ended else status.lastState,
        )

    def _with_probes(self, status: api.ContainerStatus) -> api.ContainerStatus:
        """Fill in `started` and `ready`."""
        if self.container.kind is _EPHEMERAL:
            return status  # it has no probes
        latest = self.observed.latest(status.name)
        running = status.state is not None and status.state.running is not None
        started = running and latest is not None and self.given.started.get(latest.id, True)
        if self.container.kind is ContainerKind.INIT and not self.container.is_sidecar:
            end = status.state.terminated if status.state is not None else None
            ready = end is not None and end.exitCode == 0
        else:
            ready = started and latest is not None and self.given.ready.get(latest.id, True)
        return msgspec.structs.replace(status, started=started, ready=ready)

    def _with_devices(self, status: api.ContainerStatus) -> api.ContainerStatus:
        """Show the health of the container's devices (ResourceHealthStatus, KEP-4680)."""
        name = self.container.spec.name
        statuses = [
            api.ResourceStatus(
                name=found.resource,
                resources=[
                    api.ResourceHealth(resourceID=device, health=_HEALTH[is_healthy])
                    for device, is_healthy in found.devices.items()
                ],
            )
            for found in self.given.devices.get(name, ())
        ]
        statuses += [
            api.ResourceStatus(
                name=claimed.resource,
                resources=[
                    api.ResourceHealth(resourceID=device, health=health, message=message or None)
                    for device, (health, message) in claimed.devices.items()
                ],
            )
            for claimed in self.given.claims.get(name, ())
        ]
        # An ended pod has given its devices back.
        known = self.before.allocatedResourcesStatus if self.before is not None else None
        if not statuses and not known:
            return status
        return msgspec.structs.replace(status, allocatedResourcesStatus=statuses or known)

    def _mounts(self, image_refs: Mapping[str, str]) -> list[api.VolumeMountStatus] | None:
        mounts = self.container.spec.volumeMounts or ()
        # The runtime has absolute paths.
        return [
            _mount(
                mount,
                self.given.recursive_read_only,
                image_refs.get(os.path.join("/", mount.mountPath)),
            )
            for mount in mounts
        ] or None


def _removed(status: api.ContainerStatus) -> api.ContainerStatus:
    """Show that a container was removed by a restart of all containers (KEP-5532)."""
    waiting = api.ContainerStateWaiting(reason=REMOVED_REASON, message=REMOVED_MESSAGE)
    end = api.ContainerStateTerminated(
        exitCode=KILLED_EXIT_CODE, reason=REMOVED_REASON, message=REMOVED_MESSAGE
    )
    return msgspec.structs.replace(
        status,
        state=api.ContainerState(waiting=waiting),
        lastState=api.ContainerState(terminated=end),
        restartCount=status.restartCount + 1,
    )


def _mount(
    mount: api.VolumeMount, supports_recursive: bool, image_ref: str | None
) -> api.VolumeMountStatus:
    read_only = bool(mount.readOnly)
    recursive = None
    if read_only:
        # KEP-3857: IfPossible becomes Enabled where the runtime handler supports it. The API
        # allows it without mount propagation only.
        asked = mount.recursiveReadOnly not in (None, "Disabled")
        is_private = mount.mountPropagation in (None, "None")
        recursive = "Enabled" if asked and is_private and supports_recursive else "Disabled"
    return api.VolumeMountStatus(
        name=mount.name,
        mountPath=mount.mountPath,
        readOnly=read_only or None,
        recursiveReadOnly=recursive,
        volumeStatus=api.VolumeStatus(image=api.ImageVolumeStatus(imageRef=image_ref))
        if image_ref
        else None,
    )


def _user(record: ContainerRecord) -> api.ContainerUser | None:
    if record.user is None:
        return None
    uid, gid, groups = record.user
    return api.ContainerUser(
        linux=api.LinuxContainerUser(uid=uid, gid=gid, supplementalGroups=list(groups) or None)
    )


def _unknown_end(message: str) -> api.ContainerStateTerminated:
    return api.ContainerStateTerminated(exitCode=KILLED_EXIT_CODE, reason=_UNKNOWN, message=message)


def _time(seconds: float) -> datetime.datetime | None:
    return to_datetime(seconds) if seconds else None
