"""When a pod gets a new sandbox, and what goes down and comes up with it."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import ContainerRecord, RuntimePod, SandboxRecord
from kubelet_trio.pods.plan.pod_plan import PodPlan
from tests.pods.make import (
    CREATED,
    EXITED,
    NOTHING,
    RUNNING,
    UNKNOWN,
    container,
    planned,
    pod,
    record,
    runtime,
    sandbox,
    sidecar,
    started,
)


def plan(of: Pod, observed: RuntimePod) -> PodPlan:
    return planned(of, observed, now=1000.0)


def test_a_new_pod_gets_a_sandbox_and_all_its_main_containers() -> None:
    made = plan(pod("a", "b"), NOTHING)
    assert made.create_sandbox
    assert made.sandbox_attempt == 0
    assert started(made) == [("a", 0), ("b", 0)]
    assert not made.stop_sandboxes
    assert not made.finished
    assert not made.is_noop


def test_a_new_pod_with_init_containers_starts_with_the_first_of_them_alone() -> None:
    made = plan(pod("a", init=["i", "j"], ephemeral=["e"]), NOTHING)
    assert made.create_sandbox
    assert started(made) == [("i", 0)]


@pytest.mark.parametrize(
    ("sandboxes", "host_network"),
    [
        pytest.param([sandbox(1, ready=False)], False, id="newest not ready"),
        pytest.param([sandbox(1, ready=False), sandbox(0)], False, id="only an older one ready"),
        pytest.param([sandbox(1), sandbox(0)], False, id="two ready"),
        pytest.param([sandbox(1, host=True)], False, id="on the host's network, should not be"),
        pytest.param([sandbox(1)], True, id="not on the host's network, should be"),
        pytest.param([sandbox(1, ips=())], False, id="no address"),
    ],
)
def test_an_unusable_sandbox_is_replaced(
    sandboxes: list[SandboxRecord], host_network: bool
) -> None:
    made = plan(
        pod(hostNetwork=host_network), runtime(record("web", sandbox="s1"), sandboxes=sandboxes)
    )
    assert made.create_sandbox
    assert made.sandbox_attempt == 2
    assert made.sandbox_id is None
    assert made.stop_sandboxes == tuple(s.id for s in sandboxes)
    assert not made.stop_containers
    assert started(made) == [("web", 1)]


@pytest.mark.parametrize(
    ("kept", "host_network"),
    [
        pytest.param(sandbox(0), False, id="ready with an address"),
        pytest.param(sandbox(0, host=True), True, id="host network needs no address"),
    ],
)
def test_a_good_sandbox_is_kept(kept: SandboxRecord, host_network: bool) -> None:
    made = plan(
        pod(hostNetwork=host_network),
        runtime(record("web"), sandboxes=[kept, sandbox(9, ready=False)]),
    )
    assert made == PodPlan(sandbox_id=kept.id)
    assert made.is_noop


DOWN = [sandbox(0, ready=False)]


@pytest.mark.parametrize(
    ("of", "records"),
    [
        pytest.param(pod(policy="Never"), [record("web", EXITED)], id="Never, ended well"),
        pytest.param(pod(policy="Never"), [record("web", EXITED, code=1)], id="Never, failed"),
        pytest.param(pod(policy="Never"), [record("web")], id="Never, still running"),
        pytest.param(pod("a", "b", policy="Never"), [record("a")], id="Never, one never made"),
        pytest.param(
            pod(init=["i"], policy="Never"), [record("i", EXITED)], id="Never, only init has run"
        ),
        pytest.param(
            pod("a", "b", policy="OnFailure"),
            [record("a", EXITED), record("b", EXITED)],
            id="OnFailure, all succeeded",
        ),
        pytest.param(
            pod(container("a", "OnFailure"), policy="Never"),
            [record("a", EXITED)],
            id="container's own OnFailure, succeeded",
        ),
        pytest.param(
            pod(container("a", "Never"), policy="Always"),
            [record("a", EXITED, code=1)],
            id="container's own Never",
        ),
    ],
)
def test_a_pod_that_is_over_gets_no_new_sandbox(of: Pod, records: list[ContainerRecord]) -> None:
    assert plan(of, runtime(*records, sandboxes=DOWN)) == PodPlan(finished=True)


@pytest.mark.parametrize(
    ("of", "records", "expected"),
    [
        pytest.param(pod(policy="Never"), [], [("web", 0)], id="Never, nothing was ever made"),
        pytest.param(
            pod(policy="Never"), [record("web", CREATED)], [("web", 1)], id="Never, never ran"
        ),
        pytest.param(
            pod("a", "b", policy="OnFailure"),
            [record("a", EXITED), record("b", EXITED, code=1)],
            [("b", 1)],
            id="OnFailure, the failed one only",
        ),
        pytest.param(
            pod(policy="OnFailure"), [record("web")], [("web", 1)], id="OnFailure, was running"
        ),
        pytest.param(
            pod(policy="OnFailure"), [record("web", UNKNOWN)], [("web", 1)], id="OnFailure, unknown"
        ),
        pytest.param(
            pod("a", "b", policy="OnFailure"),
            [record("a", EXITED)],
            [("b", 0)],
            id="OnFailure, one never made",
        ),
        pytest.param(
            pod("a", "b", policy="OnFailure"),
            [record("a", EXITED), record("b", CREATED)],
            [("b", 1)],
            id="OnFailure, one never ran",
        ),
        pytest.param(pod(), [record("web", EXITED)], [("web", 1)], id="Always"),
        pytest.param(
            pod("a", container("b", "Always"), policy="Never"),
            [record("a", EXITED), record("b", EXITED)],
            [("b", 1)],
            id="container's own Always",
        ),
        pytest.param(
            pod(container("a", "Never", [("In", [137])]), policy="Never"),
            [record("a")],
            [("a", 1)],
            id="a rule for a killed one",
        ),
    ],
)
def test_a_pod_that_may_go_on_gets_a_new_sandbox_for_what_is_left(
    of: Pod, records: list[ContainerRecord], expected: list[tuple[str, int]]
) -> None:
    made = plan(of, runtime(*records, sandboxes=DOWN))
    assert made.create_sandbox
    assert started(made) == expected


def test_initialization_starts_over_with_a_new_sandbox_and_old_records_go() -> None:
    of = pod("web", init=["i", sidecar("s")])
    old = [
        record("i", EXITED, 2),
        record("s", attempt=1),
        record("web", EXITED),
        record("x", EXITED),
    ]
    made = plan(of, runtime(*old, sandboxes=DOWN))
    assert started(made) == [("i", 3)]
    assert set(made.remove_containers) == {old[0].id, old[1].id}


def test_a_container_that_outlived_its_sandbox_record_is_stopped_by_itself() -> None:
    lost = record("web", sandbox="gone")
    made = plan(pod(), runtime(lost, sandboxes=DOWN))
    assert [s.id for s in made.stop_containers] == [lost.id]
    assert started(made) == [("web", 1)]


def test_only_the_newest_dead_instance_survives_a_new_sandbox() -> None:
    old = [record("web", EXITED, n) for n in range(3)]
    made = plan(pod(), runtime(*old, sandboxes=DOWN))
    assert set(made.remove_containers) == {old[0].id, old[1].id}


def test_a_container_running_in_a_replaced_sandbox_is_stopped_before_its_next_starts() -> None:
    stale = record("web", RUNNING)
    made = plan(pod(), runtime(stale, sandboxes=[sandbox(1), sandbox(0, ready=False)]))
    assert [s.id for s in made.stop_containers] == [stale.id]
    assert "outside of the pod's sandbox" in made.stop_containers[0].message
    assert started(made) == [("web", 1)]


def test_init_records_of_a_replaced_sandbox_do_not_count() -> None:
    of = pod("web", init=["i", sidecar("s")])
    old = [record("i", EXITED), record("s")]
    made = plan(of, runtime(*old, sandboxes=[sandbox(1), sandbox(0, ready=False)]))
    assert started(made) == [("i", 1)]
    assert [s.id for s in made.stop_containers] == [old[1].id]
