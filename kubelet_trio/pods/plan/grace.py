"""Grace periods: how long a pod's containers have to end, and in which order they are told to.

A pod has one grace period, shared by all of its containers: it starts with the decision to
end the pod and only shrinks. Sidecars are told after the other containers have ended,
the last one first, each with what is then left. No container gets less than
`MINIMUM_STOP_GRACE`, however little is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import (
    grace_period,
    is_static,
    is_terminal,
    metadata,
    pod_containers,
    pod_uid,
)
from kubelet_trio.pods.types import EndReason, TerminationRequest
from kubelet_trio.probes import FAILED_LIVENESS, FAILED_STARTUP

MINIMUM_STOP_GRACE = 2  # seconds that a StopContainer call asks for at least


def effective_grace(pod: Pod, request: TerminationRequest | None = None) -> int:
    """Return the seconds a pod has to end, from the time of the (merged) request; 1 at least.

    The API server's `deletionGracePeriodSeconds` stands for the pod's own; a request may
    make it shorter, never longer.
    """
    own, deletion = grace_period(pod), metadata(pod).deletionGracePeriodSeconds
    if request is None or request.grace_period is None:
        return max(1, own if deletion is None else deletion)
    return max(1, min(request.grace_period, max(own, deletion or 0)))


def restart_grace(container: Container, why: str) -> int | None:
    """Return the seconds that a container has to end if a probe with a grace of its own failed.

    None: those of its pod. `why` is what a plan says of it.
    """
    probes = {FAILED_LIVENESS: container.livenessProbe, FAILED_STARTUP: container.startupProbe}
    probe = probes.get(why)
    return probe.terminationGracePeriodSeconds if probe is not None else None


def merge_requests(first: TerminationRequest, second: TerminationRequest) -> TerminationRequest:
    """Merge a later request into an earlier one.

    The first one's time and reason stay, and so does the first verdict there is. The
    grace period shrinks if the later request ends sooner; it is counted from the first
    one's time, so 5 s asked for after 20 s makes 25 s of it.
    """
    later = second.grace_period
    if later is not None:
        later += max(0, int(second.requested_at - first.requested_at))
    known = [grace for grace in (first.grace_period, later) if grace is not None]
    return replace(
        first,
        grace_period=min(known) if known else None,
        failure=first.failure or second.failure,
    )


def asked_by_api(pod: Pod) -> TerminationRequest | None:
    """Return what the API server says of a pod's end, as a request like any other."""
    meta, status = metadata(pod), pod.status
    if meta.deletionTimestamp is not None:
        grace = meta.deletionGracePeriodSeconds
        return TerminationRequest(pod_uid(pod), EndReason.ASKED, grace_period=grace)
    if is_terminal(status) and not is_static(pod):
        return TerminationRequest(pod_uid(pod), EndReason.FINISHED)
    return None


def remaining_grace(requested_at: float, grace: float, now: float) -> float:
    """Return the seconds left of a grace period, also after a restart of the agent.

    At least 0 and never more than all of it, even if the wall clock was set back.
    """
    return min(max(requested_at + grace - now, 0.0), grace)


def ending_note(pod: Pod, now: float) -> str:
    """Return what the tree shows of a pod: how long it has, if it is being ended."""
    until = metadata(pod).deletionTimestamp
    if until is None:
        return ""
    left = until.timestamp() - now
    return f"ending, {left:.0f} s left" if left > 0 else "ending"


def stop_timeout(remaining: float) -> int:
    """Return the whole seconds that a StopContainer call is given of what remains."""
    return max(round(remaining), MINIMUM_STOP_GRACE)


def stop_stages(pod: Pod, running: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the names of running containers in the order of stopping: stage after stage.

    Main, ephemeral and ordinary init containers (and what the spec does not name) first, all at
    once; then one sidecar a stage, in reverse order of the spec. No stage is empty.
    """
    names = dict.fromkeys(running)
    sidecars = [c.spec.name for c in pod_containers(pod) if c.is_sidecar and c.spec.name in names]
    first = tuple(name for name in names if name not in sidecars)
    stages = [first] if first else []
    stages += [(name,) for name in reversed(sidecars)]
    return tuple(stages)
