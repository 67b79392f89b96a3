"""Decide which containers start again: by restart policy, by rule, or all containers of a pod.

A container's rules come first, then its own `restartPolicy`, then the pod's (KEP-5307).
A sidecar is an init container whose own policy is Always.

A rule with the action RestartAllContainers (KEP-5532) restarts the pod in place: every container
except the ephemeral ones is killed, without a grace period or preStop hook, and removed. Sandbox
and volumes are kept. Then the pod starts again at its first init container, whatever the restart
policies say. Upstream: ShouldContainerBeRestarted,
ShouldAllContainersRestart and AllContainersRestartCleanedUp in container/helpers.go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lightkube.models.core_v1 import (
    Container,
    ContainerRestartRule,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
)

from kubelet_trio.durations import format_milliseconds
from kubelet_trio.model import (
    RESTART_ALL_CONTAINERS,
    ContainerId,
    ContainerKind,
    ContainerRecord,
    ContainerState,
    RuntimePod,
    could_restart_all,
    metadata,
    pod_containers,
    pod_key,
    pod_uid,
    spec,
)
from kubelet_trio.pods.plan.backoff import BackOffEntry, BackOffKey
from kubelet_trio.pods.plan.pod_plan import PlanInput, PodPlan, StopContainer
from kubelet_trio.pods.types import Hold, WaitingReason

# 128 + SIGKILL: the exit code of a container that goes down with its sandbox.
KILLED_EXIT_CODE = 137

# The waiting reason of a container whose crashes hold it back.
CRASH_LOOP = "CrashLoopBackOff"

# The condition of a pod whose containers are all being restarted. It records the decision: an agent
# that starts meanwhile continues, even if the container whose exit caused it is already removed.
RESTARTING_ALL = "AllContainersRestarting"
# The reason of a removed container's waiting state, and of the termination before it.
REMOVED_REASON = "RestartingAllContainers"
REMOVED_MESSAGE = "The container is removed because RestartAllContainers in place"

_RESTARTING_ACTIONS = ("Restart", RESTART_ALL_CONTAINERS)


def exit_code(record: ContainerRecord) -> int:
    """Return the exit code of an instance, or the one it gets if it is killed now."""
    return record.exit_code if record.state is ContainerState.EXITED else KILLED_EXIT_CODE


def restarts_after(container: Container, pod: PodSpec, exit_code: int) -> bool:
    """Return whether a container that ended with `exit_code` is to start again."""
    if container.restartPolicy is not None:  # rules need a policy of the container's own
        rule = _matching_rule(container, exit_code)
        if rule is not None and rule.action in _RESTARTING_ACTIONS:
            return True
    policy = container.restartPolicy or pod.restartPolicy
    if policy == "Never":
        return False
    return policy != "OnFailure" or exit_code != 0


def restarts_when_killed(container: Container, pod: PodSpec) -> bool:
    """Return whether a container that is killed while it runs is to start again.

    Rules do not count: they match exit codes, and there is none yet.
    """
    return (container.restartPolicy or pod.restartPolicy) != "Never"


def is_restartable(container: Container, pod: PodSpec) -> bool:
    """Return whether there is an exit code after which the container starts again."""
    if container.restartPolicy is not None and any(
        rule.action in _RESTARTING_ACTIONS for rule in container.restartPolicyRules or ()
    ):
        return True
    return restarts_when_killed(container, pod)


def should_start(
    pod: Pod,
    container: Container,
    observed: RuntimePod,
    ended: Mapping[str, int] | None = None,
    restarting: Collection[ContainerId] = (),
) -> bool:
    """Return whether a container that does not run is to be started, a first time or again.

    Args:
        pod: its pod.
        container: the container.
        observed: what the runtime reports of the pod.
        ended: exit codes by name of containers that ran, for those without a record.
        restarting: instances that were stopped to start again, whatever the policy says.
    """
    if metadata(pod).deletionTimestamp is not None:
        return False
    latest = observed.latest(container.name)
    if latest is None:
        # Upstream starts it. But its record may have been removed by others, and with restart
        # policy Never it must not run twice.
        code = (ended or {}).get(container.name)
        return code is None or restarts_after(container, spec(pod), code)
    if latest.state is ContainerState.CREATED:
        return True
    if latest.id in restarting and latest.state is ContainerState.EXITED:
        return True
    is_running = latest.state is ContainerState.RUNNING
    # One in unknown state counts as killed. Upstream starts it again, even if it may have run.
    return not is_running and restarts_after(container, spec(pod), exit_code(latest))


def stop_for_resize(record: ContainerRecord) -> StopContainer:
    """Return the stop of an instance whose `resizePolicy` requires a restart (KEP-1287)."""
    message = f"Container {record.name} resize requires restart"
    return StopContainer(record.id, record.name, message, starts_again=True)


def stop_as_asked(record: ContainerRecord) -> StopContainer:
    """Return the stop of an instance whose restart was asked for by hand."""
    message = f"Container {record.name} is restarted on request"
    return StopContainer(record.id, record.name, message, starts_again=True)


# Restarting all containers


def is_restarting_all(status: PodStatus | None) -> bool:
    """Return whether a status records that all containers are being restarted."""
    conditions = (status.conditions or ()) if status is not None else ()
    return any(c.type == RESTARTING_ALL and c.status == "True" for c in conditions)


def was_removed(status: ContainerStatus) -> bool:
    """Return whether a container was removed by a restart of all, and waits for its start."""
    ended = status.lastState.terminated if status.lastState is not None else None
    waits = status.state is not None and status.state.waiting is not None
    return waits and ended is not None and ended.reason == REMOVED_REASON


def left_to_remove(pod: Pod, observed: RuntimePod) -> list[ContainerRecord]:
    """Return the instances that a restart of all containers must still remove."""
    names = {c.spec.name for c in pod_containers(pod) if c.kind is not ContainerKind.EPHEMERAL}
    return [record for record in observed.containers if record.name in names]


def restarts_all(pod: Pod, observed: RuntimePod, *, is_recorded: bool) -> bool:
    """Return whether all containers must restart; `is_recorded`: the last status says so."""
    return could_restart_all(spec(pod)) and (is_recorded or bool(_triggers(pod, observed)))


def plan_restart_all(pod: Pod, observed: RuntimePod, given: PlanInput) -> PodPlan | None:
    """Plan what a restart of all containers must still kill and remove; None if nothing."""
    records = left_to_remove(pod, observed)
    if not records or not restarts_all(pod, observed, is_recorded=given.restarting_all):
        return None
    trigger_ids = {record.id for record in _triggers(pod, observed)}
    triggers = [record for record in records if record.id in trigger_ids]
    others = [record for record in records if record.id not in trigger_ids]
    live = {record.id for record in observed.running()}
    return PodPlan(
        stop_containers=tuple(
            StopContainer(r.id, r.name, _killing_message(r.name), 0)
            for r in records
            if r.id in live
        ),
        # Triggers last: while one exists, a plan after a failure repeats this one.
        remove_containers=tuple(record.id for record in (*others, *triggers)),
        back_offs=(
            _next_back_offs(pod, max(r.finished_at for r in triggers), given) if triggers else ()
        ),
    )


def restart_all_hold(pod: Pod, given: PlanInput) -> Hold | None:
    """Return the back-off that delays the start after a restart of all; None if there is none."""
    # KEP-5532 asks for a crash back-off of the pod as a whole. The Go kubelet 1.36 has none.
    held = given.crash.get(_hold_key(pod))
    ends = given.policy.ends(held, held.updated, given.now) if held is not None else None
    if held is None or ends is None:
        return None
    key = pod_key(pod)
    text = (
        f"back-off {format_milliseconds(held.delay)} restarting all containers of "
        f"pod={key.name}_{key.namespace}({pod_uid(pod)})"
    )
    return Hold(ends, WaitingReason(CRASH_LOOP, text))


def _next_back_offs(
    pod: Pod, ended: float, given: PlanInput
) -> tuple[tuple[BackOffKey, BackOffEntry], ...]:
    """Return the entries to keep after a restart of all; `ended`: when a trigger last exited."""
    before = given.crash.get(_next_key(pod))
    following = (_next_key(pod), given.policy.next(before, ended, given.now))
    if before is None or given.policy.ends(before, ended, given.now) is None:
        return (following,)
    # Two keys: the delay of this restart, and the longer one of the next.
    return following, (_hold_key(pod), BackOffEntry(before.delay, ended))


def _triggers(pod: Pod, observed: RuntimePod) -> list[ContainerRecord]:
    """Return the newest instances that exited with a code that restarts all containers."""
    found = []
    for container in pod_containers(pod):
        latest = observed.latest(container.spec.name)
        if (
            container.kind is ContainerKind.EPHEMERAL
            or latest is None
            or latest.state is not ContainerState.EXITED
        ):
            continue
        rule = _matching_rule(container.spec, latest.exit_code)
        if rule is not None and rule.action == RESTART_ALL_CONTAINERS:
            found.append(latest)
    return found


def _matching_rule(container: Container, exit_code: int) -> ContainerRestartRule | None:
    """Return the rule for an exit code: the first that matches."""
    rules = container.restartPolicyRules or ()
    return next((rule for rule in rules if _matches(rule, exit_code)), None)


def _matches(rule: ContainerRestartRule, exit_code: int) -> bool:
    if rule.exitCodes is None:
        return False
    is_listed = exit_code in (rule.exitCodes.values or ())
    return is_listed if rule.exitCodes.operator == "In" else not is_listed


def _killing_message(name: str) -> str:
    return f"Container {name} will be restarted with all containers of its pod"


# No container has the name "": these keys are the pod's own.
def _next_key(pod: Pod) -> BackOffKey:
    return pod_uid(pod), "", RESTART_ALL_CONTAINERS, "next"


def _hold_key(pod: Pod) -> BackOffKey:
    return pod_uid(pod), "", RESTART_ALL_CONTAINERS, "hold"
