"""Compute a pod's API status: a pure function of the pod, the runtime's state and the last status.

Upstream (1.36): generateAPIPodStatus, and the status manager's mergePodStatus and TerminatePod.
Some of what was reported once never changes: a terminal phase, the start time, the addresses of
a sandbox that is gone, terminations whose records were removed.
"""

from __future__ import annotations

import datetime

import msgspec
from lightkube.models.core_v1 import ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus

from kubelet_trio.containers import pod_qos
from kubelet_trio.model import (
    TERMINAL_PHASES,
    ContainerKind,
    RuntimePod,
    is_static,
    is_terminal,
    metadata,
    pod_addresses,
    pod_containers,
    spec,
    to_datetime,
)
from kubelet_trio.pods.plan import (
    KILLED_EXIT_CODE,
    current_sandbox,
    has_initialized,
    is_restarting_all,
    was_removed,
)
from kubelet_trio.pods.status.conditions import dated, is_initialized, pod_conditions
from kubelet_trio.pods.status.container_status import container_statuses, lost_at_end
from kubelet_trio.pods.status.phase import last_exit_code, pod_phase
from kubelet_trio.pods.status.resources import with_pod_resources
from kubelet_trio.pods.types import PodStage, StatusInput


def pod_status(pod: Pod, observed: RuntimePod, given: StatusInput) -> PodStatus:
    """Return the status to report. Lists that would be empty are None."""
    previous = given.previous or pod.status or PodStatus()
    if given.rejected:
        return _rejected_status(pod, given, previous)
    ips = _pod_ips(pod, observed, given, previous)
    status = PodStatus(
        initContainerStatuses=container_statuses(
            pod, observed, given, previous, ContainerKind.INIT
        ),
        containerStatuses=container_statuses(pod, observed, given, previous, ContainerKind.MAIN),
        ephemeralContainerStatuses=container_statuses(
            pod, observed, given, previous, ContainerKind.EPHEMERAL
        ),
        qosClass=previous.qosClass or pod_qos(pod),
        startTime=_start_time(pod, given, previous),
        podIP=ips[0] if ips else None,
        podIPs=[PodIP(ip=ip) for ip in ips] or None,
        hostIP=given.host_ips[0] if given.host_ips else previous.hostIP,
        hostIPs=[HostIP(ip=ip) for ip in given.host_ips[:2]] or previous.hostIPs,
        observedGeneration=_observed_generation(pod, given, previous),
        # Owned by the scheduler and the resource claim controller; the kubelet keeps them.
        nominatedNodeName=previous.nominatedNodeName,
        resourceClaimStatuses=previous.resourceClaimStatuses,
        extendedResourceClaimStatus=previous.extendedResourceClaimStatus,
    )
    status = _with_phase(pod, observed, given, previous, status)
    if given.stage is PodStage.TERMINATED:
        status = _with_known_ends(pod, status, previous)
    reported = _without_early_end(observed, given, previous, status)
    if given.pod_level_resizes:
        reported = with_pod_resources(reported, pod, observed, given.resize)
    # mergePodStatus takes DisruptionTarget from the kubelet only in the update that makes the phase
    # terminal (KEP-3329).
    others = _other_conditions(pod, given)
    if is_terminal(reported):
        others = _with_end_conditions(others, given, previous, status)
    conditions = pod_conditions(pod, observed, status, previous, others, given)
    return msgspec.structs.replace(reported, conditions=conditions)


def _rejected_status(pod: Pod, given: StatusInput, previous: PodStatus) -> PodStatus:
    """Return the status of a pod that was not admitted, so never ran here."""
    failure = given.failure
    return PodStatus(
        phase="Failed",
        reason=failure.reason if failure is not None else None,
        message=failure.message if failure is not None else None,
        qosClass=previous.qosClass or pod_qos(pod),
        startTime=_start_time(pod, given, previous),
        observedGeneration=_observed_generation(pod, given, previous),
        conditions=_other_conditions(pod, given) or None,
        nominatedNodeName=previous.nominatedNodeName,
        resourceClaimStatuses=previous.resourceClaimStatuses,
        extendedResourceClaimStatus=previous.extendedResourceClaimStatus,
    )


def _observed_generation(pod: Pod, given: StatusInput, previous: PodStatus) -> int | None:
    """Return the generation that this status is of; it never goes back."""
    # Without a condition of the resize that it asks for, a new one would say that this is complete.
    waits = given.is_undecided and given.stage is PodStage.SYNC
    generation = 0 if waits else metadata(pod).generation or 0
    return max(generation, previous.observedGeneration or 0) or None


def reported_ends(status: PodStatus | None) -> dict[str, int]:
    """Return exit codes by container name from the last status, for containers without a record.

    `plan_pod` needs them (`PlanInput.ended`). A container that was reported as running and has no
    record any more counts as killed.
    """
    if status is None:
        return {}
    statuses = [*(status.ephemeralContainerStatuses or ())]
    if not is_restarting_all(status):  # a container removed by a restart of all has not ended
        reported = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
        statuses += [one for one in reported if not was_removed(one)]
    codes = {one.name: last_exit_code(one) for one in statuses}
    codes |= {
        one.name: KILLED_EXIT_CODE
        for one in statuses
        if one.state and one.state.running is not None
    }
    return {name: code for name, code in codes.items() if code is not None}


def _other_conditions(pod: Pod, given: StatusInput) -> list[PodCondition]:
    """Return the conditions of other owners; those given replace the API object's."""
    api = pod.status.conditions or () if pod.status is not None else ()
    return list({c.type: c for c in (*api, *given.conditions)}.values())


def _with_end_conditions(
    others: list[PodCondition], given: StatusInput, previous: PodStatus, status: PodStatus
) -> list[PodCondition]:
    """Add the conditions of the pod's end, or replace others by them."""
    before = {c.type: c for c in previous.conditions or ()}
    now = to_datetime(given.now)
    ends = (dated(c, before.get(c.type), status, now) for c in given.end_conditions)
    return list({c.type: c for c in (*others, *ends)}.values())


def _with_phase(
    pod: Pod, observed: RuntimePod, given: StatusInput, previous: PodStatus, status: PodStatus
) -> PodStatus:
    """Fill in phase, reason and message: a terminal phase stays; then the pod's failure counts.

    A pod whose containers all ended with exit code 0 when the node needed its room, or shut down,
    has succeeded: a later status of the Go kubelet (generateAPIPodStatus) takes the failure of
    such a pod back.
    """
    phase, reason, message = _computed_phase(pod, observed, given, status), None, None
    has_succeeded = given.may_succeed and phase == "Succeeded"
    if is_terminal(previous):
        phase = previous.phase or phase
    if phase == previous.phase:
        reason, message = previous.reason, previous.message
    if given.failure is not None and not is_terminal(previous) and not has_succeeded:
        phase, reason, message = "Failed", given.failure.reason, given.failure.message
    return msgspec.structs.replace(status, phase=phase, reason=reason, message=message)


def _computed_phase(pod: Pod, observed: RuntimePod, given: StatusInput, status: PodStatus) -> str:
    sandbox = current_sandbox(pod, observed)
    phase = pod_phase(
        pod,
        status,
        is_ending=given.stage is not PodStage.SYNC,
        has_initialized=sandbox is not None and has_initialized(pod, observed, sandbox.id),
    )
    # A pod that was taken down is over in whatever state its containers ended. A static one may
    # start again with its file.
    ended = given.stage is PodStage.TERMINATED and (given.finished or not is_static(pod))
    return "Failed" if ended and phase not in TERMINAL_PHASES else phase


def _without_early_end(
    observed: RuntimePod, given: StatusInput, previous: PodStatus, status: PodStatus
) -> PodStatus:
    """Keep the last phase until the pod is terminating, none of its containers runs, and the
    devices that it has claimed are given back.

    Other components reuse what a pod held as soon as its phase is terminal (kubernetes PR 108366).
    And that phase never changes again: only the plan knows whether no container starts again.
    """
    is_ending = given.finished or given.stage is not PodStage.SYNC
    if is_terminal(previous) or not is_terminal(status):
        return status
    if is_ending and not any(observed.running()) and not given.has_claims:
        return status
    return msgspec.structs.replace(
        status,
        phase=previous.phase or "Running",
        reason=previous.reason,
        message=previous.message,
    )


def _with_known_ends(pod: Pod, status: PodStatus, previous: PodStatus) -> PodStatus:
    """Terminate the status of every container that was started: the pod is over.

    Upstream: the status manager's TerminatePod.
    """
    inits = status.initContainerStatuses or []
    tried = _tried(inits)
    mains = status.containerStatuses
    if mains is not None and _was_initialized(pod, status, previous):
        mains = [_ended(c) for c in mains]
    ended = [_ended(c) for c in inits[:tried]] + inits[tried:]
    return msgspec.structs.replace(
        status, initContainerStatuses=ended or None, containerStatuses=mains
    )


def _tried(inits: list[ContainerStatus]) -> int:
    """Return how many init containers were started; the first counts even if it was not."""
    for index in reversed(range(len(inits))):
        if not _is_untouched(inits[index]):
            return index + 1
    return min(1, len(inits))


def _was_initialized(pod: Pod, status: PodStatus, previous: PodStatus) -> bool:
    inits = status.initContainerStatuses
    if not inits or is_initialized(previous):
        return True
    if any(not _is_untouched(c) for c in status.containerStatuses or ()):
        return True
    last = inits[-1]
    if any(c.spec.name == last.name for c in pod_containers(pod) if c.is_sidecar):
        return False  # a sidecar that ended may never have passed its startup probe
    ends = [s.terminated for s in (last.state, last.lastState) if s is not None]
    return any(end is not None and end.exitCode == 0 for end in ends)


def _is_untouched(status: ContainerStatus) -> bool:
    """Return whether a container waits and has never run."""
    waits = status.state is not None and status.state.waiting is not None
    ran = status.lastState is not None and status.lastState.terminated is not None
    return waits and not ran


def _ended(status: ContainerStatus) -> ContainerStatus:
    if status.state is not None and status.state.terminated is not None:
        return status
    return msgspec.structs.replace(status, state=lost_at_end(), ready=False, started=False)


def _start_time(pod: Pod, given: StatusInput, previous: PodStatus) -> datetime.datetime:
    """Return the start time: the first one reported stays, but for static pods."""
    began = to_datetime(given.start_time or given.now)
    return began if is_static(pod) else previous.startTime or began


def _pod_ips(
    pod: Pod, observed: RuntimePod, given: StatusInput, previous: PodStatus
) -> tuple[str, ...]:
    """Return the pod's addresses, at most one of each IP family.

    Those of a sandbox that is gone are kept. On the host's network they are the node's.
    """
    before = tuple(ip.ip for ip in previous.podIPs or ())
    if spec(pod).hostNetwork:
        return _host_network_ips(before, given.host_ips)
    newest = observed.sandboxes[0] if observed.sandboxes else None
    if newest is None or not newest.ready or not newest.ips:
        return before
    return pod_addresses(newest.ips, given.host_ips)


def _host_network_ips(before: tuple[str, ...], host: tuple[str, ...]) -> tuple[str, ...]:
    """Return the addresses reported so far, or the node's.

    The node's second family is added if it is known later than the first.
    """
    ips = before or host[:1]
    if len(ips) == 1 and len(host) > 1 and _is_v6(host[1]) != _is_v6(ips[0]):
        return (*ips, host[1])
    return ips


def _is_v6(ip: str) -> bool:
    return ":" in ip
