"""What is told of a pod, by tables of what its worker knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    PodCondition,
    PodReadinessGate,
    PodStatus,
    ResourceRequirements,
)

from kubelet_trio.pods.reasons import (
    Blocker,
    PodFacts,
    PodWhy,
    ProbeFacts,
    PullFacts,
    Reason,
    VolumeFacts,
    explain,
    sentences,
)
from kubelet_trio.pods.types import (
    Doing,
    EndReason,
    Hold,
    PendingResize,
    PodFailure,
    PodStage,
    TerminationRequest,
    WaitingReason,
)
from tests.pods.make import EXITED, NOTHING, RUNNING, UID, container, planned, pod, record, runtime

NOW = 1000.0
READY = PodStatus(
    phase="Running", conditions=[PodCondition(type="Ready", status="True")], containerStatuses=[]
)


def facts(**changes: Any) -> PodFacts:
    """Return the facts of a pod that runs and is ready."""
    known: dict[str, Any] = {
        "now": NOW,
        "pod": pod(),
        "activity": "syncing",
        "since": 900.0,
        "stage": PodStage.SYNC,
        "observed": runtime(record("web")),
        "status": READY,
        "next_round": 1060.0,
        **changes,
    }
    return PodFacts(**known)


def request(reason: EndReason, **more: Any) -> TerminationRequest:
    return TerminationRequest(UID, reason, requested_at=990.0, **more)


def hold(text: str, until: float, since: float = 0.0, reason: str = "") -> Hold:
    return Hold(until, WaitingReason(reason, text), since)


def test_a_pod_as_it_is_wanted_has_no_reason() -> None:
    found = explain(facts())
    assert (found.reasons, found.summary) == ((), "it runs and is ready")
    assert [(each.at, each.text) for each in found.next] == [
        (1060.0, "the agent looks at the pod again, if nothing happens before")
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"waits_for": (Blocker("old", "deleting", 1.0, (Doing("unmounting", 2.0),), "busy"),)},
            Reason(
                "name",
                "a pod of the same name, UID old, is still on the node "
                "(deleting: unmounting): busy",
                since=900.0,
            ),
            id="name",
        ),
        pytest.param(
            {"admission": "it waits for room"},
            Reason("admission", "it waits for room", since=900.0),
            id="admission",
        ),
        pytest.param(
            {"runtime_problem": "connection refused"},
            Reason("runtime", "the container runtime: connection refused"),
            id="runtime",
        ),
        pytest.param(
            {"network_problem": "cni config uninitialized"},
            Reason("runtime", "the network is not ready: cni config uninitialized"),
            id="network",
        ),
        pytest.param(
            {"uncertain": "deadline exceeded"},
            Reason("runtime", "what the runtime has of the pod is not certain: deadline exceeded"),
            id="uncertain",
        ),
        pytest.param(
            {"volumes": (VolumeFacts("data", 950.0, "no driver", 1010.0),)},
            Reason("volume", "volume data: no driver", since=950.0, until=1010.0),
            id="volume",
        ),
        pytest.param(
            {"volumes": (VolumeFacts("", 950.0),)},
            Reason("volume", "its volumes: not set up yet", since=950.0),
            id="volumes",
        ),
        pytest.param(
            {"hold": hold("no space left", 1004.0, 999.0)},
            Reason("step", "no space left", since=999.0, until=1004.0),
            id="step",
        ),
        pytest.param(
            {"pulls": (PullFacts("web", "web:1", 940.0),)},
            Reason("image", "its pull is under way: image web:1", "web", since=940.0),
            id="pull",
        ),
        pytest.param(
            {"pulls": (PullFacts("web", "web:1", 940.0, is_queued=True),)},
            Reason("image", "waits for other pulls to pull image web:1", "web", since=940.0),
            id="queued pull",
        ),
        pytest.param(
            {"probes": (ProbeFacts("web", "Readiness", "failure", "failure", 4, 3, "no", 990.0),)},
            Reason(
                "probe",
                "its readiness probe has not passed: 4 failures in a row: no",
                "web",
                since=990.0,
            ),
            id="readiness",
        ),
        pytest.param(
            {"probes": (ProbeFacts("web", "Startup", "unknown", "failure", 4, 30, "no", 990.0),)},
            Reason(
                "probe",
                "its startup probe has not passed: 4 failures in a row of 30: no",
                "web",
                since=990.0,
            ),
            id="startup",
        ),
        pytest.param(
            {"probes": (ProbeFacts("web", "Readiness", "failure", "unknown", 0, 3),)},
            Reason("probe", "its readiness probe has not passed yet", "web"),
            id="first probe",
        ),
        pytest.param(
            {"pod": pod(readinessGates=[PodReadinessGate(conditionType="lb")])},
            Reason("gate", "the readiness gate lb is not True"),
            id="gate",
        ),
    ],
)
def test_what_stands_between(changes: dict[str, Any], expected: Reason) -> None:
    found = explain(facts(**{"status": None, **changes}))
    assert found.reasons == (expected,)
    who = f"{expected.container}: " if expected.container else ""
    assert found.summary == f"{who}{expected.text}"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"probes": (ProbeFacts("web", "Liveness", "success", "failure", 2, 3, "no"),)},
            "its liveness probe fails, 2 failures in a row of 3 that restart it: no",
        ),
        (
            {"probes": (ProbeFacts("web", "Readiness", "success", "failure", 1, 3),)},
            "its readiness probe fails, 1 failures in a row of 3",
        ),
        (
            {"pending": PendingResize("Infeasible", "too much")},
            "its resize is Infeasible: too much",
        ),
        ({"runtime_problem": "away"}, "the container runtime: away"),
        ({"resize_error": "EBUSY"}, "its resize failed: EBUSY"),
        ({"record_problem": "EROFS"}, "the disk does not take the pod's record: EROFS"),
        (
            {"manifest_problems": ("web.yaml: bad",)},
            "the newest manifest is not in force: web.yaml: bad",
        ),
    ],
)
def test_what_is_worth_knowing_blocks_nothing(changes: dict[str, Any], text: str) -> None:
    found = explain(facts(**changes))
    assert [(reason.text, reason.blocks) for reason in found.reasons] == [(text, False)]
    assert found.summary == "it runs and is ready"
    assert list(sentences(found)) == []


def test_a_pod_on_the_hosts_network_does_not_wait_for_it() -> None:
    assert not explain(facts(pod=pod(hostNetwork=True), network_problem="no cni")).reasons


@pytest.mark.parametrize(
    ("code", "reason", "limits", "words"),
    [
        (1, "Error", None, "code 1 (Error)"),
        (1, "", None, "code 1"),
        (137, "OOMKilled", {"memory": "16Mi"}, "code 137 (OOMKilled, its memory limit is 16Mi)"),
        (137, "OOMKilled", None, "code 137 (OOMKilled)"),
    ],
)
def test_a_crash_loop_waits_as_the_planner_says(
    code: int, reason: str, limits: dict[str, str] | None, words: str
) -> None:
    of = pod(container("web", resources=ResourceRequirements(limits=limits)))
    ended: dict[str, Any] = {
        "code": code,
        "created": NOW - 12,
        "finished": NOW - 10,
        "reason": reason,
    }
    observed = runtime(record("web", EXITED, 3, **ended))
    made = planned(of, observed, now=NOW)
    assert made.retry_at is not None
    found = explain(facts(pod=of, observed=observed, plan=made, next_round=made.retry_at))
    (told,) = found.reasons
    assert (told.kind, told.container, told.since) == ("back-off", "web", NOW - 10)
    assert told.until == made.retry_at == made.holds["web"].until
    assert told.text == f"CrashLoopBackOff: it exited with {words}"
    # One moment is told once.
    assert [(each.at, each.text) for each in found.next] == [
        (made.retry_at, "container web starts again")
    ]


@pytest.mark.parametrize(
    ("reason", "kind", "coming"),
    [
        ("ImagePullBackOff", "image", "the image of web is tried again"),
        ("ErrImageNeverPull", "image", "the image of web is tried again"),
        ("CreateContainerConfigError", "start", "the start of container web is tried again"),
    ],
)
def test_a_container_that_is_held_back(reason: str, kind: str, coming: str) -> None:
    of, observed = pod(), runtime()
    held = Hold(NOW + 20, WaitingReason(reason, "because"), NOW - 5)
    made = planned(of, observed, now=NOW, pull={"web": held})
    found = explain(facts(observed=observed, plan=made, next_round=None))
    assert found.reasons == (
        Reason(kind, f"{reason}: because", "web", since=NOW - 5, until=NOW + 20),
    )
    assert [(each.at, each.text) for each in found.next] == [(NOW + 20, coming)]


def test_an_init_container_that_runs() -> None:
    found = explain(facts(pod=pod(init=["setup"]), observed=runtime(record("setup", RUNNING))))
    assert [(r.kind, r.container, r.since) for r in found.reasons] == [("init", "setup", 100.0)]


@pytest.mark.parametrize("reason", list(EndReason))
def test_each_end_is_told(reason: EndReason) -> None:
    failure = PodFailure("Why", "details")
    ending = facts(
        stage=PodStage.TERMINATING,
        activity="terminating",
        request=request(reason, failure=failure),
        grace_end=1020.0,
        doing=(Doing("stopping container web", 991.0),),
    )
    found = explain(ending)
    assert found.summary.startswith("it ends, because ")
    assert found.summary.endswith(": details")
    assert found.reasons[0].text == "it waits for this: stopping container web"
    assert [(each.at, each.text) for each in found.next] == [
        (1020.0, "the grace period is over: what still runs is killed")
    ]
    over = explain(replace(ending, stage=PodStage.TERMINATED, observed=NOTHING, doing=()))
    assert over.summary.startswith("it has ended: ")
    removed = reason in (EndReason.DELETED, EndReason.ASKED)
    assert over.wanted.state == ("removed" if removed else "ended")


def test_a_teardown_that_fails_comes_first() -> None:
    found = explain(
        facts(
            stage=PodStage.TERMINATING,
            request=request(EndReason.DELETED),
            grace_end=995.0,
            teardown=hold("target is busy", 1003.0, 996.0),
        )
    )
    assert found.summary == "it cannot be ended: target is busy"
    assert [(each.at, each.text) for each in found.next] == [(1003.0, "the next attempt to end it")]


def test_the_deadline_is_what_comes() -> None:
    found = explain(facts(deadline=1030.0))
    assert [each.at for each in found.next] == [1030.0]
    assert found.next[0].text.startswith("activeDeadlineSeconds are over")


def test_dead_remains_are_told_of_a_pod_that_has_ended() -> None:
    found = explain(
        facts(
            stage=PodStage.TERMINATED,
            request=request(EndReason.EVICTED),
            remains="sandbox s0: not found",
        )
    )
    assert "its dead containers cannot be removed: sandbox s0: not found" in [
        reason.text for reason in found.reasons
    ]


times = st.none() | st.floats(0, 2000)


@given(
    volumes=st.lists(st.builds(VolumeFacts, st.just("v"), st.floats(0, 999), st.text(), times)),
    held=st.none() | st.builds(hold, st.just("x"), st.floats(0, 2000), st.floats(0, 999)),
    due=times,
    deadline=times,
)
def test_reasons_are_newest_first_and_what_comes_soonest_first(
    volumes: list[VolumeFacts], held: Hold | None, due: float | None, deadline: float | None
) -> None:
    found: PodWhy = explain(
        facts(volumes=tuple(volumes), hold=held, next_round=due, deadline=deadline)
    )
    since = [reason.since for reason in found.reasons if reason.since is not None]
    assert since == sorted(since, reverse=True)
    ahead = [each.at for each in found.next if each.at is not None]
    assert ahead == sorted(ahead)
    assert all(at >= NOW for at in ahead)
