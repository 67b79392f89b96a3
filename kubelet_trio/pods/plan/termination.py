"""Decide when and how a pod ends: its deadline, its grace period, the order of stopping.

A pod has one grace period, shared by all of its containers. It starts with the decision to end
the pod and only shrinks. Sidecars stop after the main containers have ended, the last one of the
spec first, each with the time that is then left; once nothing is left, all at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import (
    ContainerKind,
    grace_period,
    is_static,
    is_terminal,
    metadata,
    pod_containers,
    pod_uid,
    spec,
)
from kubelet_trio.pods.types import EndReason, PodFailure, TerminationRequest
from kubelet_trio.probes import FAILED_LIVENESS, FAILED_STARTUP

# The least that StopContainer asks for, in seconds, however little is left: upstream's
# minimumGracePeriodInSeconds.
MINIMUM_STOP_GRACE = 2
_WHOLE = 0.001  # seconds over a whole number that do not count

_DEADLINE_REASON = "DeadlineExceeded"
_DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


def deadline_at(pod: Pod, start_time: float) -> float | None:
    """Return the Unix time at which `activeDeadlineSeconds` have passed; None without them."""
    seconds = spec(pod).activeDeadlineSeconds
    return None if seconds is None else start_time + seconds


def deadline_failure(pod: Pod, start_time: float, now: float) -> PodFailure | None:
    """Return the failure of a pod whose deadline has passed, else None."""
    deadline = deadline_at(pod, start_time)
    if deadline is None or now < deadline:
        return None
    return PodFailure(_DEADLINE_REASON, _DEADLINE_MESSAGE)


# Requests to terminate


def asked_by_api(pod: Pod) -> TerminationRequest | None:
    """Return the termination request that the pod's API object implies; None if none."""
    meta, status = metadata(pod), pod.status
    if meta.deletionTimestamp is not None:
        grace = meta.deletionGracePeriodSeconds
        return TerminationRequest(pod_uid(pod), EndReason.ASKED, grace_period=grace)
    if status is not None and is_terminal(status) and not is_static(pod):
        # A terminal phase never changes, no matter who wrote it: the pod must not run any longer.
        return TerminationRequest(pod_uid(pod), EndReason.FINISHED)
    return None


def merge_requests(first: TerminationRequest, second: TerminationRequest) -> TerminationRequest:
    """Merge a later request into an earlier one.

    The time and reason of the first stay, and so does the first failure. The grace period
    shrinks if the later request ends sooner.
    """
    later = second.grace_period
    if later is not None:
        # Counted from the time of the first: 5 s, requested after 20 s, are 25 s.
        later += max(0, int(second.requested_at - first.requested_at))
    known = [grace for grace in (first.grace_period, later) if grace is not None]
    return replace(
        first,
        grace_period=min(known) if known else None,
        failure=first.failure or second.failure,
        is_over_limit=(first if first.failure is not None else second).is_over_limit,
    )


# Grace periods


def effective_grace(pod: Pod, request: TerminationRequest | None = None) -> int:
    """Return the seconds that a pod has to end, from the time of the (merged) request.

    The API server's `deletionGracePeriodSeconds` takes precedence over the pod's own grace
    period. A request may shorten it, never lengthen it.
    """
    own, deletion = grace_period(pod), metadata(pod).deletionGracePeriodSeconds
    # At least 1, as in upstream's calculateEffectiveGracePeriod.
    if request is None or request.grace_period is None:
        return max(1, own if deletion is None else deletion)
    return max(1, min(request.grace_period, max(own, deletion or 0)))


def restart_grace(container: Container, why: str) -> int | None:
    """Return the grace period of the failed probe that causes a restart; None: the pod's applies.

    `why` is the plan's reason, such as `failed liveness probe`.
    """
    probes = {FAILED_LIVENESS: container.livenessProbe, FAILED_STARTUP: container.startupProbe}
    probe = probes.get(why)
    return probe.terminationGracePeriodSeconds if probe is not None else None


def remaining_grace(requested_at: float, grace: float, now: float) -> float:
    """Return the seconds left of a grace period, also after a restart of the agent."""
    # Never more than all of it, even if the wall clock was set back.
    return min(max(requested_at + grace - now, 0.0), grace)


def stop_timeout(remaining: float) -> int:
    """Return the timeout of a StopContainer call, in whole seconds, from the time left."""
    # Up, as upstream takes off only the whole seconds that have passed. What floats make of whole
    # seconds are those.
    return max(math.ceil(remaining - _WHOLE), MINIMUM_STOP_GRACE)


def ending_note(pod: Pod, now: float) -> str:
    """Return what `kubelet-trio tree` shows of a pod that is being deleted, else ""."""
    until = metadata(pod).deletionTimestamp
    if until is None:
        return ""
    left = until.timestamp() - now
    return f"ending, {left:.0f} s left" if left > 0 else "ending"


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The names of running containers, by when they are stopped.

    Main containers, and those for which no sidecar waits, are stopped at once: ephemeral and
    ordinary init containers, and what the spec does not name. Then one sidecar after the other.
    """

    main: tuple[str, ...]
    others: tuple[str, ...]
    sidecars: tuple[str, ...]  # the last one of the spec first (KEP-753)


def stop_order(pod: Pod, running: Iterable[str]) -> StopOrder:
    """Return the order in which the running containers are stopped."""
    names = tuple(dict.fromkeys(running))
    known = {c.spec.name: c for c in pod_containers(pod)}
    mains = {name for name, c in known.items() if c.kind is ContainerKind.MAIN}
    sidecars = [name for name, c in known.items() if c.is_sidecar and name in names]
    return StopOrder(
        main=tuple(name for name in names if name in mains),
        others=tuple(name for name in names if name not in mains and name not in sidecars),
        sidecars=tuple(reversed(sidecars)),
    )
