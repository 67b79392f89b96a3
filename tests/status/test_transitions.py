"""A container that ended for good stays ended, a pod's terminal phase stays."""

from __future__ import annotations

import msgspec
import pytest
from lightkube.models.core_v1 import (
    Container,
    ContainerRestartRule,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    EphemeralContainer,
    PodSpec,
    PodStatus,
)

from kubelet_trio.status.transitions import illegal_transition

SPEC = PodSpec(
    restartPolicy="Never",
    containers=[Container(name="main")],
    initContainers=[Container(name="init")],
    ephemeralContainers=[EphemeralContainer(name="debug")],
)
RULE = ContainerRestartRule(action="Restart")
RESTART_ALL = ContainerRestartRule(action="RestartAllContainers")


def status(field: str, name: str, exit_code: int | None = None) -> PodStatus:
    """A pod's status with one container that runs, or that ended with a code."""
    state = ContainerState(running=ContainerStateRunning())
    if exit_code is not None:
        state = ContainerState(terminated=ContainerStateTerminated(exitCode=exit_code))
    one = ContainerStatus(
        name=name, state=state, image="i", imageID="i", ready=False, restartCount=0
    )
    return msgspec.structs.replace(PodStatus(phase="Running"), **{field: [one]})


LISTS = [
    ("containerStatuses", "main"),
    ("initContainerStatuses", "init"),
    ("ephemeralContainerStatuses", "debug"),
]


@pytest.mark.parametrize(("field", "name"), LISTS)
@pytest.mark.parametrize("exit_code", [0, 1])
def test_what_ended_for_good_does_not_run_again(field: str, name: str, exit_code: int) -> None:
    problem = illegal_transition(status(field, name, exit_code), status(field, name), SPEC)
    assert problem is not None
    assert name in problem


@pytest.mark.parametrize(("field", "name"), LISTS)
def test_what_runs_may_end_and_what_ended_may_be_told_again(field: str, name: str) -> None:
    running, ended = status(field, name), status(field, name, 0)
    for before, after in ((running, ended), (ended, ended), (running, running)):
        assert illegal_transition(before, after, SPEC) is None
    assert illegal_transition(ended, PodStatus(phase="Running"), SPEC) is None


@pytest.mark.parametrize(
    ("policy", "own", "rules", "exit_code", "is_legal"),
    [
        ("Always", None, None, 0, True),
        ("OnFailure", None, None, 1, True),
        ("OnFailure", None, None, 0, False),
        ("Never", "Always", None, 0, True),
        ("Never", "OnFailure", None, 1, True),
        ("Never", "OnFailure", None, 0, False),
        ("Never", "Never", [RULE], 1, True),
        ("Never", None, None, 1, False),
        ("Always", "Never", None, 1, False),
    ],
)
@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_what_may_restart_may_run_again(
    policy: str,
    own: str | None,
    rules: list[ContainerRestartRule] | None,
    exit_code: int,
    is_legal: bool,
    part: str,
) -> None:
    field, name = LISTS[part == "initContainers"]
    container = Container(name=name, restartPolicy=own, restartPolicyRules=rules)
    spec = msgspec.structs.replace(SPEC, restartPolicy=policy, **{part: [container]})
    found = illegal_transition(status(field, name, exit_code), status(field, name), spec)
    assert (found is None) is is_legal


@pytest.mark.parametrize("before", ["Succeeded", "Failed"])
def test_a_terminal_phase_is_never_left(before: str) -> None:
    for after in ("Running", "Pending", "Unknown"):
        problem = illegal_transition(PodStatus(phase=before), PodStatus(phase=after), SPEC)
        assert problem is not None
        assert before in problem
        assert after in problem
    assert illegal_transition(PodStatus(phase=before), PodStatus(phase="Failed"), SPEC) is None
    assert illegal_transition(PodStatus(phase="Running"), PodStatus(phase=before), SPEC) is None


@pytest.mark.parametrize(("field", "name"), LISTS)
def test_the_rule_of_one_container_may_restart_all_but_ephemeral_ones(
    field: str, name: str
) -> None:
    rule = Container(name="other", restartPolicy="Never", restartPolicyRules=[RESTART_ALL])
    spec = msgspec.structs.replace(SPEC, containers=[*SPEC.containers, rule])
    problem = illegal_transition(status(field, name, 0), status(field, name), spec)
    assert (problem is None) == (name != "debug")
