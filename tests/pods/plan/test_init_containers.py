"""Init containers one after the other, and sidecars that stay."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import ContainerRecord, ContainerState
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
)

I2 = ["i", "j"]


def plan(of: Pod, *records: ContainerRecord, **more: Any) -> PodPlan:
    return planned(of, runtime(*records), now=100_000.0, **more)


def started(made: PodPlan) -> list[str]:
    return [s.container.spec.name for s in made.start]


@pytest.mark.parametrize(
    ("init", "records", "expected"),
    [
        pytest.param(I2, [], ["i"], id="none has run"),
        pytest.param(I2, [record("i")], [], id="the first runs"),
        pytest.param(I2, [record("i", EXITED)], ["j"], id="the first is done"),
        pytest.param(I2, [record("i", EXITED), record("j")], [], id="the last runs"),
        pytest.param(I2, [record("i", EXITED), record("j", EXITED)], ["web"], id="all are done"),
        pytest.param(I2, [record("j", EXITED)], ["web"], id="done, the first record gone"),
        pytest.param(I2, [record("j")], [], id="the last runs, the first record gone"),
        pytest.param(I2, [record("i", EXITED, code=1)], ["i"], id="the first failed"),
        pytest.param(I2, [record("i", CREATED)], ["i"], id="the first was made and never ran"),
        pytest.param(
            I2,
            [record("i", EXITED, reason="OOMKilled")],
            ["i"],
            id="OOM-killed is failed, even with 0",
        ),
        pytest.param(I2, [record("web")], [], id="main runs, all init records gone"),
        pytest.param(I2, [record("web", EXITED)], ["web"], id="main ended, all init records gone"),
        pytest.param(
            I2,
            [record("i", EXITED, code=1), record("web")],
            [],
            id="main runs: a failed one is past",
        ),
    ],
)
def test_init_containers_run_one_after_the_other(
    init: list[str], records: list[ContainerRecord], expected: list[str]
) -> None:
    made = plan(pod(init=init), *records)
    assert started(made) == expected
    assert not made.finished
    assert not made.stop_containers


S = sidecar("s")
T = sidecar("t")


@pytest.mark.parametrize(
    ("init", "records", "expected"),
    [
        pytest.param([S, "j"], [], ["s"], id="sidecar first"),
        pytest.param([S, "j"], [record("s")], ["j"], id="next once the sidecar has started"),
        pytest.param([S, T], [record("s")], ["t"], id="sidecars in order"),
        pytest.param([S, T], [record("s"), record("t")], ["web"], id="both sidecars run"),
        pytest.param(["i", S], [record("i", EXITED), record("s")], ["web"], id="sidecar last"),
        pytest.param([S, "j"], [record("s", EXITED)], ["s"], id="sidecar ended: it first"),
        pytest.param([S, "j"], [record("s", CREATED)], ["s"], id="sidecar made and never ran"),
        pytest.param(
            [S, "j"], [record("s", EXITED), record("j")], ["s"], id="restarts while the next runs"
        ),
        pytest.param(
            [S, "j"],
            [record("s", EXITED), record("j", EXITED)],
            ["s", "web"],
            id="a later init container done: initialized, whether or not the sidecar runs",
        ),
        pytest.param(
            [S, T],
            [record("s", EXITED), record("t", EXITED), record("web")],
            ["s", "t"],
            id="restart while main runs, in order",
        ),
        pytest.param([S, "j"], [record("web")], ["s"], id="record gone while main runs"),
        pytest.param([S, "j"], [record("j")], ["s"], id="record gone while a later one runs"),
    ],
)
def test_sidecars_stay_and_come_back(
    init: list[str | Container], records: list[ContainerRecord], expected: list[str]
) -> None:
    for policy in ("Always", "OnFailure", "Never"):
        made = plan(pod(init=init, policy=policy), *records)
        assert started(made) == expected
        assert not made.finished


def test_the_next_container_waits_until_the_sidecar_has_started() -> None:
    running = record("s")
    assert not started(plan(pod(init=[S, "j"]), running, started={running.id: False}))
    assert not started(plan(pod(init=[S]), running, started={running.id: False}))
    assert started(plan(pod(init=[S, "j"]), running, started={running.id: True})) == ["j"]


@pytest.mark.parametrize(
    ("of", "code", "expected"),
    [
        (pod(init=I2, policy="Never"), 1, True),
        (pod(init=I2, policy="OnFailure"), 1, False),
        (pod(init=I2, policy="Always"), 1, False),
        (pod(init=[container("i", "Never"), "j"]), 1, True),
        (pod(init=[container("i", "OnFailure"), "j"], policy="Never"), 1, False),
        (pod(init=[container("i", "Never", [("In", [42])]), "j"]), 42, False),
        (pod(init=[container("i", "Never", [("In", [42])]), "j"]), 43, True),
    ],
)
def test_a_failed_init_container_that_may_not_run_again_ends_the_pod(
    of: Pod, code: int, expected: bool
) -> None:
    made = plan(of, record("i", EXITED, code=code))
    assert made.finished is expected
    assert started(made) == ([] if expected else ["i"])


def test_a_failed_init_container_ends_the_pod_beside_running_sidecars() -> None:
    made = plan(pod(init=[S, "j"], policy="Never"), record("s"), record("j", EXITED, code=1))
    assert made.finished
    assert made.is_noop


@pytest.mark.parametrize("name", ["i", "s"])
def test_one_in_unknown_state_is_stopped_before_it_runs_again(name: str) -> None:
    init = [S if name == "s" else "i", "j"]
    unknown = record(name, UNKNOWN)
    made = plan(pod(init=init), unknown)
    assert [(s.id, s.message) for s in made.stop_containers] == [
        (unknown.id, 'Init container is in "unknown" state, try killing it before restart')
    ]
    assert started(made) == [name]


def test_an_init_container_in_unknown_state_ends_a_pod_that_never_restarts() -> None:
    assert plan(pod(init=["i"], policy="Never"), record("i", UNKNOWN)).finished


def test_a_sidecar_whose_definition_changed_is_replaced() -> None:
    made = plan(
        pod(init=[S], policy="Never"), record("s", hash="a"), record("web"), hashes={"s": 0xB}
    )
    assert [s.message for s in made.stop_containers] == ["Init container s definition changed"]
    assert started(made) == ["s"]


@pytest.mark.parametrize("policy", ["Never", "Always"])
def test_no_sidecar_comes_back_once_the_last_main_container_is_stopped_for_good(
    policy: str,
) -> None:
    # As at the end of upstream's computePodActions: it would keep a dead pod alive.
    ended, sick = record("s", EXITED, code=1), record("web")
    of = pod(init=[S, T], policy=policy)
    why = {sick.id: "failed liveness probe", record("t").id: "failed liveness probe"}
    made = plan(of, ended, record("t"), sick, unhealthy=why)
    goes_on = policy == "Always"
    assert started(made) == (["s", "t", "web"] if goes_on else [])
    assert [s.name for s in made.stop_containers] == (["web", "t"] if goes_on else ["web"])
    assert not made.finished


def test_an_unhealthy_sidecar_is_replaced() -> None:
    sick = record("s")
    made = plan(pod(init=[S]), sick, record("web"), unhealthy={sick.id: "failed startup probe"})
    assert [s.message for s in made.stop_containers] == ["Init container s failed startup probe"]
    assert started(made) == ["s"]


def test_old_instances_of_init_containers_are_removed() -> None:
    dead = [record("i", EXITED, n, code=1) for n in range(3)]
    made = plan(pod(init=["i"]), *dead)
    assert set(made.remove_containers) == {dead[0].id, dead[1].id}
    assert [s.attempt for s in made.start] == [3]


def test_an_init_container_that_failed_for_good_ends_the_pod_even_if_its_record_is_gone() -> None:
    of = pod(init=["i", "j"], policy="Never")
    assert plan(of, ended={"i": 1}).finished
    assert planned(of, NOTHING, now=0, ended={"i": 137}).finished
    assert started(plan(of, ended={"i": 0})) == ["i"]
    assert started(plan(pod(init=["i"]), ended={"i": 1})) == ["i"]


@pytest.mark.parametrize("state", [RUNNING, EXITED, UNKNOWN])
def test_an_init_container_that_fails_with_its_sandbox_for_good_ends_the_pod(
    state: ContainerState,
) -> None:
    down = [sandbox(ready=False)]
    of = pod(container("web", "Always"), init=["i"], policy="Never")
    assert planned(of, runtime(record("i", state, code=1), sandboxes=down), now=0).finished
    fine = pod(init=["i"])
    assert planned(fine, runtime(record("i", state, code=1), sandboxes=down), now=0).create_sandbox


def test_an_init_container_that_is_done_or_never_ran_does_not() -> None:
    of = pod(container("web", "Always"), init=["i", "j"], policy="Never")
    records = [record("i", EXITED), record("j", CREATED)]
    observed = runtime(*records, sandboxes=[sandbox(ready=False)])
    assert planned(of, observed, now=0).create_sandbox
