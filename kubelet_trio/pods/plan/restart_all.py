"""Restarting all containers of a pod in place, because the end of one of them asks for it.

The rule's action is RestartAllContainers (KEP-5532). Everything but ephemeral containers is killed
without a grace period or preStop hook and removed, what asked for it last; sandbox and volumes
stay. Then the pod starts from its first init container on, whatever restart policies say.

The condition AllContainersRestarting is the recorded decision: an agent that starts in between goes
on with it, though what asked for it is removed. Source: ShouldAllContainersRestart and
AllContainersRestartCleanedUp in container/helpers.go.

One difference, which the KEP asks for and the Go kubelet 1.36 has not: a pod that restarts itself
again and again waits for its crash back-off, counted for the pod as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightkube.models.core_v1 import ContainerStatus, Pod, PodSpec, PodStatus

from kubelet_trio.durations import format_milliseconds
from kubelet_trio.model import (
    ContainerKind,
    ContainerRecord,
    ContainerState,
    RuntimePod,
    pod_containers,
    pod_key,
    pod_uid,
    spec,
)
from kubelet_trio.pods.plan.backoff import BackOffPolicy
from kubelet_trio.pods.plan.restart import RESTART_ALL, matching_rule
from kubelet_trio.pods.types import (
    CRASH_LOOP,
    BackOffEntry,
    BackOffKey,
    Hold,
    PodPlan,
    StopContainer,
    WaitingReason,
)

RESTARTING_ALL = "AllContainersRestarting"  # the condition
STARTED = "RestartAllContainersStarted"
STARTED_MESSAGE = "container exited with restart policy rule"
# The reason of a container's waiting state, and of the end before it.
REMOVED = "RestartingAllContainers"
REMOVED_MESSAGE = "The container is removed because RestartAllContainers in place"


def could_restart_all(pod: PodSpec) -> bool:
    """Return whether any container of a pod has a rule that restarts all."""
    containers = (*(pod.initContainers or ()), *pod.containers)
    return any(r.action == RESTART_ALL for c in containers for r in c.restartPolicyRules or ())


def is_marked(status: PodStatus | None) -> bool:
    """Return whether a status says that the restart of all containers goes on."""
    conditions = (status.conditions or ()) if status is not None else ()
    return any(c.type == RESTARTING_ALL and c.status == "True" for c in conditions)


def was_removed(status: ContainerStatus) -> bool:
    """Return whether a container waits to start anew since all are restarted."""
    ended = status.lastState.terminated if status.lastState is not None else None
    waits = status.state is not None and status.state.waiting is not None
    return waits and ended is not None and ended.reason == REMOVED


def left_to_remove(pod: Pod, observed: RuntimePod) -> list[ContainerRecord]:
    """Return the instances that a restart of all removes; none: it may start anew."""
    names = {c.spec.name for c in pod_containers(pod) if c.kind is not ContainerKind.EPHEMERAL}
    return [record for record in observed.containers if record.name in names]


def restarts_all(pod: Pod, observed: RuntimePod, *, marked: bool) -> bool:
    """Return whether all containers are to restart; `marked`: it was said so before."""
    return could_restart_all(spec(pod)) and (marked or bool(_asking(pod, observed)))


def plan_restart_all(
    pod: Pod, observed: RuntimePod, *, marked: bool, crash: RestartBackOffs, now: float
) -> PodPlan | None:
    """Return what is left to kill and remove, None if nothing is or nobody asks for it."""
    records = left_to_remove(pod, observed)
    if not records or not restarts_all(pod, observed, marked=marked):
        return None
    asking = {record.id: record for record in _asking(pod, observed)}
    last = [record for record in records if record.id in asking]
    live = {record.id for record in observed.running()}
    return PodPlan(
        stop_containers=tuple(
            StopContainer(r.id, r.name, _message(r.name), 0) for r in records if r.id in live
        ),
        remove_containers=tuple(
            record.id for record in (*(r for r in records if r.id not in asking), *last)
        ),
        back_offs=crash.after(pod, max(r.finished_at for r in last), now) if last else (),
    )


class RestartBackOffs:
    """The back-off of a pod's restarts: read from what is kept, and what is to be kept next."""

    def __init__(self, entries: Mapping[BackOffKey, BackOffEntry], policy: BackOffPolicy) -> None:
        self._entries = entries
        self._policy = policy

    def after(
        self, pod: Pod, ended: float, now: float
    ) -> tuple[tuple[BackOffKey, BackOffEntry], ...]:
        """Return the entries to keep after a restart for a container that ended at `ended`."""
        before = self._entries.get(_next_key(pod))
        following = (_next_key(pod), self._policy.next(before, ended, now))
        if before is None or self._policy.ends(before, ended, now) is None:
            return (following,)
        return following, (_hold_key(pod), BackOffEntry(before.delay, ended))

    def hold(self, pod: Pod, now: float) -> Hold | None:
        """Return what keeps a pod whose containers were removed from starting now."""
        held = self._entries.get(_hold_key(pod))
        ends = self._policy.ends(held, held.updated, now) if held is not None else None
        if held is None or ends is None:
            return None
        key = pod_key(pod)
        text = (
            f"back-off {format_milliseconds(held.delay)} restarting all containers of "
            f"pod={key.name}_{key.namespace}({pod_uid(pod)})"
        )
        return Hold(ends, WaitingReason(CRASH_LOOP, text))


def _asking(pod: Pod, observed: RuntimePod) -> list[ContainerRecord]:
    """Return the instances whose end asks for a restart of all."""
    found = []
    for container in pod_containers(pod):
        latest = observed.latest(container.spec.name)
        if (
            container.kind is ContainerKind.EPHEMERAL
            or latest is None
            or latest.state is not ContainerState.EXITED
        ):
            continue
        rule = matching_rule(container.spec, latest.exit_code)
        if rule is not None and rule.action == RESTART_ALL:
            found.append(latest)
    return found


def _message(name: str) -> str:
    return f"Container {name} will be restarted with all containers of its pod"


# No container is named "": the keys are the pod's own.
def _next_key(pod: Pod) -> BackOffKey:
    return pod_uid(pod), "", RESTART_ALL, "next"


def _hold_key(pod: Pod) -> BackOffKey:
    return pod_uid(pod), "", RESTART_ALL, "hold"
