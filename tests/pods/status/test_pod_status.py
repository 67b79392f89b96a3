"""The pod's own fields and its conditions."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from lightkube.models.core_v1 import (
    Pod,
    PodCondition,
    PodIP,
    PodReadinessGate,
    PodStatus,
    ResourceRequirements,
)

from kubelet_trio.model import ContainerRecord, RuntimePod, to_datetime
from kubelet_trio.pods.status.pod_status import pod_status
from kubelet_trio.pods.types import PodStage, StatusInput
from tests.pods.make import (
    EXITED,
    NOTHING,
    container,
    pod,
    record,
    runtime,
    sandbox,
    sidecar,
)

SYNC = PodStage.SYNC


def status(of: Pod, observed: RuntimePod = NOTHING, now: float = 1000.0, **given: Any) -> PodStatus:
    return pod_status(of, observed, StatusInput(now=now, stage=SYNC, **given))


def told(made: PodStatus) -> dict[str, tuple[str, str | None, str | None]]:
    return {c.type: (c.status, c.reason, c.message) for c in made.conditions or ()}


TRUE = ("True", None, None)


# Fields.


def test_the_start_time_is_told_once_and_stays() -> None:
    assert status(pod(), start_time=500.7).startTime == to_datetime(500)
    assert status(pod()).startTime == to_datetime(1000)
    before = PodStatus(startTime=to_datetime(5))
    assert status(pod(), start_time=500.0, previous=before).startTime == to_datetime(5)


# Upstream's StaticPod "should be ready after init container is removed and kubelet restarts".
def test_a_static_pods_start_time_is_of_the_agent_that_runs() -> None:
    static = pod(annotations={"kubernetes.io/config.source": "file"})
    before = PodStatus(startTime=to_datetime(5))
    assert status(static, start_time=500.7, previous=before).startTime == to_datetime(500)


V4, V6 = "10.0.0.1", "fd00::1"


def ips(made: PodStatus) -> list[str]:
    assert made.podIP == (made.podIPs[0].ip if made.podIPs else None)
    return [ip.ip for ip in made.podIPs or ()]


@pytest.mark.parametrize(
    ("has", "host", "expected"),
    [
        pytest.param((V4,), (), [V4], id="one"),
        pytest.param((V6, V4), (), [V4, V6], id="IPv4 first if the host's family is not known"),
        pytest.param((V4, V6), ("fe80::2",), [V6, V4], id="the host's family first"),
        pytest.param((V4, "10.0.0.2", V6), ("1.2.3.4",), [V4, V6], id="one of each family"),
        pytest.param((V6,), ("1.2.3.4",), [V6], id="only the other family"),
        pytest.param(
            ("010.000.000.001", "fd00:0:0:0:0:0:0:1"), (), [V4, V6], id="odd but clear spellings"
        ),
        pytest.param(("10.0.0.1.", V4, "soon"), (), [V4], id="no addresses are left out"),
    ],
)
def test_pod_addresses_come_in_the_nodes_order_one_a_family(
    has: tuple[str, ...], host: tuple[str, ...], expected: list[str]
) -> None:
    assert ips(status(pod(), runtime(sandboxes=[sandbox(ips=has)]), host_ips=host)) == expected


@pytest.mark.parametrize("sandboxes", [[], [sandbox(ready=False)], [sandbox(ips=())]])
def test_addresses_of_a_sandbox_that_is_gone_are_kept(sandboxes: list[Any]) -> None:
    before = PodStatus(podIP=V4, podIPs=[PodIP(ip=V4), PodIP(ip=V6)])
    assert ips(status(pod(), runtime(sandboxes=sandboxes), previous=before)) == [V4, V6]
    assert ips(status(pod(), runtime(sandboxes=sandboxes))) == []


@pytest.mark.parametrize(
    ("before", "host", "expected"),
    [
        pytest.param([], ("1.2.3.4",), ["1.2.3.4"], id="the host's"),
        pytest.param([], ("1.2.3.4", "fe80::2"), ["1.2.3.4", "fe80::2"], id="both of the host's"),
        pytest.param(["1.2.3.4"], ("5.6.7.8",), ["1.2.3.4"], id="kept once told"),
        pytest.param(
            ["1.2.3.4"], ("1.2.3.4", "fe80::2"), ["1.2.3.4", "fe80::2"], id="second later"
        ),
        pytest.param(
            ["fe80::2"], ("1.2.3.4", "fe80::3"), ["fe80::2"], id="not a second of one family"
        ),
        pytest.param([], (), [], id="not known yet"),
    ],
)
def test_on_the_hosts_network_the_addresses_are_the_hosts(
    before: list[str], host: tuple[str, ...], expected: list[str]
) -> None:
    previous = PodStatus(podIPs=[PodIP(ip=ip) for ip in before])
    of = pod(hostNetwork=True)
    observed = runtime(sandboxes=[sandbox(host=True)])
    assert ips(status(of, observed, previous=previous, host_ips=host)) == expected


def test_host_addresses() -> None:
    made = status(pod(), host_ips=("1.2.3.4", "fe80::2"))
    assert made.hostIP == "1.2.3.4"
    assert [ip.ip for ip in made.hostIPs or ()] == ["1.2.3.4", "fe80::2"]
    kept = status(pod(), previous=made)
    assert (kept.hostIP, kept.hostIPs) == (made.hostIP, made.hostIPs)
    assert status(pod()).hostIPs is None


def test_the_qos_class_is_told_once_and_stays() -> None:
    asks = ResourceRequirements(requests={"cpu": "1"})
    of = pod(container("web", resources=asks))
    assert status(of).qosClass == "Burstable"
    assert status(pod()).qosClass == "BestEffort"
    assert status(of, previous=PodStatus(qosClass="Guaranteed")).qosClass == "Guaranteed"


def test_the_observed_generation_never_goes_back() -> None:
    assert status(pod()).observedGeneration is None
    assert status(pod(generation=3)).observedGeneration == 3
    assert (
        status(pod(generation=3), previous=PodStatus(observedGeneration=4)).observedGeneration == 4
    )


def test_the_observed_generation_waits_for_the_decision_on_a_resize() -> None:
    before = PodStatus(observedGeneration=2)
    made = status(pod(generation=3), previous=before, is_undecided=True)
    assert made.observedGeneration == 2
    assert {c.observedGeneration for c in made.conditions or ()} == {2}
    # Nothing is decided any more on a pod that is ending.
    ends = StatusInput(now=1.0, stage=PodStage.TERMINATING, previous=before, is_undecided=True)
    assert pod_status(pod(generation=3), runtime(), ends).observedGeneration == 3


def test_fields_of_other_owners_are_kept() -> None:
    before = PodStatus(nominatedNodeName="n", resourceClaimStatuses=[])
    made = status(pod(), previous=before)
    assert (made.nominatedNodeName, made.resourceClaimStatuses) == ("n", [])


# Conditions.


def test_a_new_pod() -> None:
    made = status(pod("b", "a"))
    unready = ("False", "ContainersNotReady", "containers with unready status: [b a]")
    assert told(made) == {
        "PodReadyToStartContainers": ("False", None, None),
        "Initialized": TRUE,
        "Ready": unready,
        "ContainersReady": unready,
        "PodScheduled": TRUE,
    }
    assert [c.type for c in made.conditions or ()] == list(told(made))


def test_a_pod_that_is_well() -> None:
    made = status(
        pod(init=["i", sidecar("s")]), runtime(record("i", EXITED), record("s"), record("web"))
    )
    assert set(told(made).values()) == {TRUE}


@pytest.mark.parametrize(
    ("of", "records", "ready", "initialized"),
    [
        pytest.param(
            pod(policy="Never"),
            [record("web", EXITED)],
            ("False", "PodCompleted", None),
            ("True", "PodCompleted", None),
            id="succeeded",
        ),
        pytest.param(
            pod(policy="Never"),
            [record("web", EXITED, code=1)],
            ("False", "PodFailed", None),
            TRUE,
            id="failed",
        ),
        pytest.param(
            pod(init=["i", "j"]),
            [record("i")],
            ("False", "ContainersNotReady", "containers with unready status: [web]"),
            ("False", "ContainersNotInitialized", "containers with incomplete status: [i j]"),
            id="initializing",
        ),
        pytest.param(
            pod(init=[sidecar("s"), "j"]),
            [record("s")],
            ("False", "ContainersNotReady", "containers with unready status: [web]"),
            ("False", "ContainersNotInitialized", "containers with incomplete status: [j]"),
            id="a sidecar has started",
        ),
        pytest.param(
            pod(init=[sidecar("s")]),
            [record("s", EXITED), record("web")],
            ("False", "ContainersNotReady", "containers with unready status: [s]"),
            TRUE,
            id="a sidecar is down, main runs",
        ),
    ],
)
def test_readiness_and_initialization(
    of: Pod,
    records: list[ContainerRecord],
    ready: tuple[str, str | None, str | None],
    initialized: tuple[str, str | None, str | None],
) -> None:
    finished = ready[1] in ("PodCompleted", "PodFailed")
    conditions = told(status(of, runtime(*records), finished=finished))
    assert conditions["Ready"] == conditions["ContainersReady"] == ready
    assert conditions["Initialized"] == initialized


def test_what_was_initialized_stays_so() -> None:
    of = pod(init=["i"])
    before = PodStatus(conditions=[PodCondition(type="Initialized", status="True")])
    again = runtime(record("i", sandbox="s1"), sandboxes=[sandbox(1)])
    assert told(status(of, again))["Initialized"][0] == "False"
    assert told(status(of, again, previous=before))["Initialized"] == TRUE


def test_every_readiness_gate_has_to_be_true() -> None:
    gates = [PodReadinessGate(conditionType=t) for t in ("x/a", "x/b", "x/c")]
    of = pod(readinessGates=gates, status=PodStatus(conditions=[PodCondition("False", "x/b")]))
    made = status(of, runtime(record("web")), conditions=(PodCondition("True", "x/c"),))
    assert told(made)["ContainersReady"] == TRUE
    assert told(made)["Ready"] == (
        "False",
        "ReadinessGatesNotReady",
        'corresponding condition of pod readiness gate "x/a" does not exist., '
        'the status of pod readiness gate "x/b" is not "True", but False',
    )
    met = tuple(PodCondition("True", f"x/{c}") for c in "abc")
    assert told(status(of, runtime(record("web")), conditions=met))["Ready"] == TRUE


def test_conditions_of_others_are_kept_and_our_own_are_not_taken_from_them() -> None:
    theirs = PodCondition("True", "x/theirs", reason="R")
    api = PodStatus(conditions=[theirs, PodCondition("True", "Ready")])
    newer = PodCondition("False", "x/theirs", reason="N")
    assert told(status(pod(status=api)))["x/theirs"] == ("True", "R", None)
    made = status(pod(status=api), conditions=(newer,))
    assert told(made)["x/theirs"] == ("False", "N", None)
    assert told(made)["Ready"][0] == "False"
    assert len(made.conditions or ()) == 6


def when(made: PodStatus, type_: str) -> datetime.datetime | None:
    return next(c.lastTransitionTime for c in made.conditions or () if c.type == type_)


def test_a_transition_time_moves_with_the_status_alone() -> None:
    first = status(pod(), now=100.0)
    assert when(first, "Ready") == to_datetime(100)
    same = status(pod("web", "b"), now=200.0, previous=first)
    assert when(same, "Ready") == to_datetime(100)
    assert told(same)["Ready"] != told(first)["Ready"]
    up = status(pod(), runtime(record("web")), now=300.0, previous=same)
    assert when(up, "Ready") == to_datetime(300)
    assert when(up, "PodScheduled") == to_datetime(100)


def test_a_scheduled_time_of_the_api_is_kept() -> None:
    scheduled = PodCondition("True", "PodScheduled", lastTransitionTime=to_datetime(7))
    made = status(pod(status=PodStatus(conditions=[scheduled])))
    assert when(made, "PodScheduled") == to_datetime(7)


def test_conditions_carry_the_generation() -> None:
    made = status(pod(generation=3))
    assert {c.observedGeneration for c in made.conditions or ()} == {3}


def test_a_sandbox_that_is_to_be_replaced_is_not_ready_to_start_containers() -> None:
    for sandboxes, expected in (
        ([sandbox()], "True"),
        ([sandbox(ready=False)], "False"),
        ([sandbox(ips=())], "False"),
        ([sandbox(1), sandbox(0)], "False"),
    ):
        made = status(pod(), runtime(sandboxes=sandboxes))
        assert told(made)["PodReadyToStartContainers"][0] == expected
