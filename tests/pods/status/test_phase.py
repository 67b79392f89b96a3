"""The phase: what containers add up to, when it binds, and when it is held back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from lightkube.models.core_v1 import Pod, PodCondition, PodStatus

from kubelet_trio.model import ContainerRecord, RuntimePod
from kubelet_trio.pods.status.pod_status import pod_status, reported_ends
from kubelet_trio.pods.types import PodFailure, PodStage, StatusInput, WaitingReason
from tests.pods.make import (
    CREATED,
    EXITED,
    NOTHING,
    UNKNOWN,
    container,
    pod,
    record,
    runtime,
    sandbox,
    sidecar,
    static_pod,
)

SYNC, TERMINATING, TERMINATED = PodStage.SYNC, PodStage.TERMINATING, PodStage.TERMINATED
LOOP = WaitingReason("CrashLoopBackOff", "back-off 10s")
DEADLINE = PodFailure("DeadlineExceeded", "too long")


def status(of: Pod, observed: RuntimePod, stage: PodStage = SYNC, **given: Any) -> PodStatus:
    return pod_status(of, observed, StatusInput(now=1000.0, stage=stage, **given))


def done(name: str, attempt: int = 0) -> ContainerRecord:
    return record(name, EXITED, attempt)


def failed(name: str, attempt: int = 0) -> ContainerRecord:
    return record(name, EXITED, attempt, code=1)


S = sidecar("s")


@pytest.mark.parametrize(
    ("of", "records", "expected"),
    [
        pytest.param(pod(), [], "Pending", id="nothing made yet"),
        pytest.param(pod(), [record("web", CREATED)], "Pending", id="made, not started"),
        pytest.param(pod(), [record("web", UNKNOWN)], "Pending", id="unknown, never seen to run"),
        pytest.param(pod(), [record("web")], "Running", id="running"),
        pytest.param(pod("a", "b"), [record("a")], "Pending", id="one not started"),
        pytest.param(pod("a", "b"), [record("a"), done("b")], "Running", id="one runs, one ended"),
        pytest.param(pod(), [done("web")], "Running", id="Always: will run again"),
        pytest.param(pod(policy="OnFailure"), [failed("web")], "Running", id="OnFailure: again"),
        pytest.param(pod(policy="OnFailure"), [done("web")], "Succeeded", id="OnFailure: done"),
        pytest.param(pod(policy="Never"), [done("web")], "Succeeded", id="Never: succeeded"),
        pytest.param(pod(policy="Never"), [failed("web")], "Failed", id="Never: failed"),
        pytest.param(
            pod("a", "b", policy="Never"),
            [done("a"), failed("b")],
            "Failed",
            id="Never: one failed",
        ),
        pytest.param(
            pod("a", "b", policy="OnFailure"),
            [done("a"), failed("b")],
            "Running",
            id="OnFailure: one left",
        ),
        pytest.param(pod(container("a", "Never")), [failed("a")], "Failed", id="own policy Never"),
        pytest.param(
            pod(container("a", "OnFailure"), policy="Never"),
            [failed("a")],
            "Running",
            id="own OnFailure",
        ),
        pytest.param(
            pod(container("a", "Never", [("In", [1])]), policy="Never"),
            [failed("a")],
            "Running",
            id="a rule restarts it",
        ),
        pytest.param(pod(init=["i"]), [], "Pending", id="init not started"),
        pytest.param(pod(init=["i"]), [record("i")], "Pending", id="init runs"),
        pytest.param(pod(init=["i"]), [done("i")], "Pending", id="init done, main not started"),
        pytest.param(pod(init=["i"]), [failed("i")], "Pending", id="init failed, will run again"),
        pytest.param(
            pod(init=["i"], policy="Never"), [failed("i")], "Failed", id="init failed, Never"
        ),
        pytest.param(
            pod(init=[container("i", "Never")]),
            [failed("i")],
            "Failed",
            id="init's own policy Never",
        ),
        pytest.param(
            pod(init=["i"]), [done("i"), record("web")], "Running", id="init done, main runs"
        ),
        pytest.param(pod(init=["i"]), [record("web")], "Running", id="init's record gone"),
        pytest.param(pod(init=[S]), [record("s")], "Pending", id="sidecar runs, main not started"),
        pytest.param(pod(init=[S]), [record("s"), record("web")], "Running", id="sidecar and main"),
        pytest.param(pod(init=[S]), [failed("s"), record("web")], "Running", id="sidecar restarts"),
        pytest.param(
            pod(init=[S], policy="Never"),
            [failed("s"), done("web")],
            "Succeeded",
            id="sidecar's end is nothing",
        ),
        pytest.param(
            pod(init=[S], policy="Never"),
            [record("s"), done("web")],
            "Running",
            id="sidecar still runs",
        ),
        pytest.param(
            pod(ephemeral=["e"]), [record("web")], "Running", id="ephemeral is not counted"
        ),
    ],
)
def test_the_phase_is_what_the_containers_add_up_to(
    of: Pod, records: list[ContainerRecord], expected: str
) -> None:
    over = expected in ("Succeeded", "Failed")
    assert status(of, runtime(*records), finished=over).phase == expected
    # As long as the pod is not being ended the phase does not bind.
    assert status(of, runtime(*records)).phase == ("Running" if over else expected)


def test_a_container_waiting_to_run_again_counts_as_ended() -> None:
    of = pod()
    made = status(of, runtime(done("web", 1)), waiting={"web": LOOP})
    assert made.phase == "Running"


def test_a_sidecar_that_is_not_far_enough_keeps_the_pod_pending_until_main_containers_ran() -> None:
    of, s = pod(init=[S]), record("s")
    assert status(of, runtime(s), started={s.id: False}).phase == "Pending"
    both = runtime(s, record("web"))
    assert status(of, both, started={s.id: False}).phase == "Running"


def test_a_new_sandbox_is_pending_until_it_is_initialized() -> None:
    old = [done("i"), record("web", EXITED, code=137)]
    again = record("i", attempt=1, sandbox="s1")
    of = pod(init=["i"])
    observed = runtime(*old, again, sandboxes=[sandbox(1), sandbox(0, ready=False)])
    assert status(of, observed).phase == "Pending"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_phase_never_changes(phase: str) -> None:
    before = PodStatus(phase=phase, reason="R", message="M")
    made = status(pod(), runtime(record("web")), previous=before, failure=DEADLINE)
    assert (made.phase, made.reason, made.message) == (phase, "R", "M")


def test_a_terminal_phase_of_the_api_counts_when_nothing_else_is_known() -> None:
    of = pod(status=PodStatus(phase="Failed", reason="Evicted"))
    made = status(of, runtime(record("web")))
    assert (made.phase, made.reason) == ("Failed", "Evicted")


def test_reason_and_message_stay_with_the_phase_and_go_with_it() -> None:
    before = PodStatus(phase="Pending", reason="R", message="M")
    assert status(pod(), runtime(), previous=before).reason == "R"
    made = status(pod(), runtime(record("web")), previous=before)
    assert (made.phase, made.reason, made.message) == ("Running", None, None)


@pytest.mark.parametrize("still", [record("web"), record("web", UNKNOWN)])
def test_a_terminal_phase_is_held_back_while_anything_runs(still: ContainerRecord) -> None:
    before = PodStatus(phase="Running")
    made = status(pod(), runtime(still), TERMINATING, previous=before, failure=DEADLINE)
    assert (made.phase, made.reason, made.message) == ("Running", None, None)
    assert {c.type: c.reason for c in made.conditions or ()}["Ready"] == "PodFailed"


def test_a_verdict_on_a_pod_never_reported_before_is_held_back_as_well() -> None:
    assert status(pod(), runtime(record("web")), failure=DEADLINE).phase == "Running"


def test_a_failed_init_container_is_held_back_while_a_sidecar_runs() -> None:
    of = pod(init=[S, "j"], policy="Never")
    before = PodStatus(phase="Pending")
    assert status(of, runtime(record("s"), failed("j")), previous=before).phase == "Pending"
    over = runtime(done("s"), failed("j"))
    assert status(of, over, previous=before).phase == "Pending"
    assert status(of, over, TERMINATING, previous=before).phase == "Failed"


def test_a_pod_that_makes_room_has_succeeded_if_all_of_it_has() -> None:
    # As in generateAPIPodStatus; upstream's test of preemption asks for it.
    disruption = PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
    given = {
        "failure": PodFailure("Preempting", "room"),
        "end_conditions": (disruption,),
        "may_succeed": True,
    }
    for ended, expected in (
        (runtime(done("web")), ("Succeeded", None, None)),
        (runtime(failed("web")), ("Failed", "Preempting", "room")),
        (runtime(), ("Failed", "Preempting", "room")),
    ):
        made = status(pod(), ended, TERMINATED, **given)
        assert (made.phase, made.reason, made.message) == expected
        assert disruption.type in [c.type for c in made.conditions or ()]


def test_a_verdict_shows_once_everything_has_stopped() -> None:
    made = status(pod(), runtime(done("web")), TERMINATING, failure=DEADLINE)
    assert (made.phase, made.reason, made.message) == ("Failed", "DeadlineExceeded", "too long")


@pytest.mark.parametrize(
    ("records", "expected"),
    [([done("a"), done("b")], "Succeeded"), ([done("a"), failed("b")], "Failed")],
)
def test_a_pod_that_is_ended_ends_as_its_containers_did_whatever_its_policy(
    records: list[ContainerRecord], expected: str
) -> None:
    for stage in (TERMINATING, TERMINATED):
        assert status(pod("a", "b"), runtime(*records), stage).phase == expected


@pytest.mark.parametrize("records", [[], [record("web", CREATED)]])
def test_a_pod_that_ended_before_it_ran_failed(records: list[ContainerRecord]) -> None:
    assert status(pod(), runtime(*records), TERMINATED).phase == "Failed"


@pytest.mark.parametrize(("records", "expected"), [([failed("web")], "Running"), ([], "Pending")])
def test_a_static_pod_keeps_its_phase_when_it_is_taken_down(
    records: list[ContainerRecord], expected: str
) -> None:
    of = static_pod()
    before = PodStatus(phase=expected)
    for stage in (TERMINATING, TERMINATED):
        assert status(of, runtime(*records), stage, previous=before).phase == expected


@pytest.mark.parametrize(
    ("policy", "records", "expected"),
    [
        ("Never", [done("web")], "Succeeded"),
        ("Never", [failed("web")], "Failed"),
        ("OnFailure", [done("web")], "Succeeded"),
        ("Never", [], "Failed"),
    ],
)
def test_a_static_pod_that_ended_by_itself_is_terminal(
    policy: str, records: list[ContainerRecord], expected: str
) -> None:
    made = status(static_pod(policy=policy), runtime(*records), TERMINATED, finished=True)
    assert made.phase == expected


def test_a_static_pod_past_its_deadline_failed() -> None:
    assert (
        status(static_pod(), runtime(done("web")), TERMINATED, failure=DEADLINE).phase == "Failed"
    )


def test_nothing_known_at_all_is_pending() -> None:
    assert status(pod(), NOTHING).phase == "Pending"


def test_the_same_input_gives_the_same_status_again() -> None:
    of = pod("a", "b", init=["i", S], ephemeral=["e"])
    observed = runtime(done("i"), record("s"), done("a", 1), failed("a"), record("b"))
    given = StatusInput(now=1000.0, stage=SYNC, waiting={"a": LOOP}, host_ips=("1.2.3.4",))
    first = pod_status(of, observed, given)
    again = pod_status(of, observed, dataclasses.replace(given, now=2000.0, previous=first))
    assert again == first


def test_a_pod_known_from_its_sandbox_alone_is_pending_and_ends_failed() -> None:
    of = pod()
    assert of.spec is not None
    of.spec.containers = []
    assert status(of, runtime()).phase == "Pending"
    assert status(of, runtime(), TERMINATED).phase == "Failed"


def test_what_the_runtime_may_forget_is_in_the_status() -> None:
    assert reported_ends(None) == {}
    assert reported_ends(PodStatus()) == {}
    of = pod("a", "b", "c", "d", init=["i"], ephemeral=["e"])
    observed = runtime(record("i"), record("a"), failed("b"), done("c"), failed("e"))
    made = status(of, observed, waiting={"c": LOOP})
    assert reported_ends(made) == {"i": 137, "a": 137, "b": 1, "c": 0, "e": 1}
