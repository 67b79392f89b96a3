"""Which containers may start again: the pod's restart policy, the container's own, its rules.

The rules come first, then the container's `restartPolicy`, then the pod's
(KEP-5307, on in Kubernetes 1.36). A sidecar is an init container whose own policy is Always.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightkube.models.core_v1 import Container, ContainerRestartRule, Pod, PodSpec

from kubelet_trio.model import ContainerRecord, ContainerState, RuntimePod, metadata, spec

# What a container is taken to have ended with when it goes down with its sandbox.
KILLED = 137
# The action of a rule that restarts all containers of the pod (`restart_all`).
RESTART_ALL = "RestartAllContainers"


def exit_code(record: ContainerRecord) -> int:
    """Return what an instance ended with, or will if it is killed now."""
    return record.exit_code if record.state is ContainerState.EXITED else KILLED


def matching_rule(container: Container, exit_code: int) -> ContainerRestartRule | None:
    """Return the first rule for an end with `exit_code`, if there is one."""
    rules = container.restartPolicyRules or ()
    return next((rule for rule in rules if _matches(rule, exit_code)), None)


def restarts_after(container: Container, pod: PodSpec, exit_code: int) -> bool:
    """Return whether a container that ended with `exit_code` is to start again."""
    if container.restartPolicy is not None:
        rule = matching_rule(container, exit_code)
        if rule is not None and rule.action in ("Restart", RESTART_ALL):
            return True
    policy = container.restartPolicy or pod.restartPolicy
    if policy == "Never":
        return False
    return policy != "OnFailure" or exit_code != 0


def restarts_when_killed(container: Container, pod: PodSpec) -> bool:
    """Return whether a container that is killed while it runs is to start again.

    Rules are left out: they speak of exit codes, and there is none yet.
    """
    return (container.restartPolicy or pod.restartPolicy) != "Never"


def is_restartable(container: Container, pod: PodSpec) -> bool:
    """Return whether any end of the container may be followed by another start."""
    if container.restartPolicy is not None and any(
        rule.action in ("Restart", RESTART_ALL) for rule in container.restartPolicyRules or ()
    ):
        return True
    return restarts_when_killed(container, pod)


def should_start(
    pod: Pod, container: Container, observed: RuntimePod, ended: Mapping[str, int] | None = None
) -> bool:
    """Return whether a container that does not run is to be started, a first time or again.

    Source: ShouldContainerBeRestarted. One that was made but never ran, or of which the
    runtime knows nothing, has not run; `ended` has the exit codes of those that are known to
    have run all the same. One in unknown state counts as killed: with restart policy Never it
    does not run twice, where upstream starts it again.
    """
    if metadata(pod).deletionTimestamp is not None:
        return False
    latest = observed.latest(container.name)
    if latest is None:
        code = (ended or {}).get(container.name)
        return code is None or restarts_after(container, spec(pod), code)
    if latest.state is ContainerState.CREATED:
        return True
    is_running = latest.state is ContainerState.RUNNING
    return not is_running and restarts_after(container, spec(pod), exit_code(latest))


def _matches(rule: ContainerRestartRule, exit_code: int) -> bool:
    if rule.exitCodes is None:
        return False
    among = exit_code in (rule.exitCodes.values or ())
    return among if rule.exitCodes.operator == "In" else not among
