"""Main and ephemeral containers: start, restart, replacement, removal, the end."""

from __future__ import annotations

import datetime

import pytest
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.model import ContainerState
from kubelet_trio.pods.types import Hold, WaitingReason
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
    sidecar,
    started,
)

RESTARTS, ENDS = True, False


@pytest.mark.parametrize(
    ("policy", "of", "code", "expected"),
    [
        ("Always", container("web"), 0, RESTARTS),
        ("Always", container("web"), 1, RESTARTS),
        ("OnFailure", container("web"), 0, ENDS),
        ("OnFailure", container("web"), 1, RESTARTS),
        ("Never", container("web"), 0, ENDS),
        ("Never", container("web"), 1, ENDS),
        ("Never", container("web", "Always"), 0, RESTARTS),
        ("Never", container("web", "OnFailure"), 1, RESTARTS),
        ("Never", container("web", "OnFailure"), 0, ENDS),
        ("Always", container("web", "Never"), 1, ENDS),
        ("Always", container("web", "Never", [("In", [42])]), 42, RESTARTS),
        ("Always", container("web", "Never", [("In", [42])]), 41, ENDS),
        ("Always", container("web", "Never", [("NotIn", [42])]), 41, RESTARTS),
        ("Always", container("web", "Never", [("NotIn", [42])]), 42, ENDS),
        ("Always", container("web", "Never", [("In", [1]), ("In", [2])]), 2, RESTARTS),
        ("Never", container("web", "OnFailure", [("In", [0])]), 0, RESTARTS),
    ],
)
def test_an_ended_container_starts_again_as_rules_then_its_own_then_the_pods_policy_say(
    policy: str, of: Container, code: int, expected: bool
) -> None:
    made = planned(pod(of, policy=policy), runtime(record("web", EXITED, code=code)))
    assert started(made) == ([("web", 1)] if expected else [])
    assert made.finished is not expected


def test_rules_without_an_own_policy_or_without_exit_codes_say_nothing() -> None:
    bare = container("web", None, [("In", [1])])
    codeless = container("web", "Never", [("In", [1])])
    assert codeless.restartPolicyRules is not None
    codeless.restartPolicyRules[0].exitCodes = None
    for of in (bare, codeless):
        assert planned(pod(of, policy="Never"), runtime(record("web", EXITED, code=1))).finished


def test_a_running_pod_needs_nothing() -> None:
    made = planned(pod("a", "b"), runtime(record("a"), record("b")))
    assert made.is_noop
    assert not made.finished


def test_a_pod_with_one_container_running_is_not_finished() -> None:
    made = planned(pod("a", "b", policy="Never"), runtime(record("a"), record("b", EXITED)))
    assert made.is_noop
    assert not made.finished


def test_a_pod_being_deleted_starts_nothing() -> None:
    of = pod(deleted=datetime.datetime.now(datetime.UTC))
    assert planned(of, runtime(record("web", EXITED))).finished


def test_sidecars_do_not_keep_a_pod_whose_main_containers_are_done() -> None:
    of = pod("web", init=[sidecar("s")], policy="Never", ephemeral=["e"])
    made = planned(of, runtime(record("s"), record("web", EXITED)))
    assert made.finished
    assert made.is_noop


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_changed_definition_replaces_a_running_container_whatever_the_policy(policy: str) -> None:
    running = record("web", hash="a")
    made = planned(pod(policy=policy), runtime(running), now=0, hashes={"web": 0xB})
    assert [(s.id, s.message) for s in made.stop_containers] == [
        (running.id, "Container web definition changed, will be restarted")
    ]
    assert started(made) == [("web", 1)]
    # An agent that was killed between the stop and the start goes on with the start.
    ids = frozenset(s.id for s in made.stop_containers if s.starts_again)
    left = runtime(record("web", EXITED, hash="a"))
    after = planned(pod(policy=policy), left, now=0, hashes={"web": 0xB}, restarting=ids)
    assert started(after) == [("web", 1)]


@pytest.mark.parametrize(
    ("recorded", "hashes"),
    [
        pytest.param("b", {"web": 0xB}, id="same"),
        pytest.param("", {"web": 0xB}, id="none recorded"),
        pytest.param("a", {}, id="none wanted"),
    ],
)
def test_a_definition_that_cannot_be_shown_to_differ_restarts_nothing(
    recorded: str, hashes: dict[str, int]
) -> None:
    made = planned(pod(), runtime(record("web", hash=recorded)), now=0, hashes=hashes)
    assert made.is_noop


def test_a_changed_definition_of_an_ended_container_is_for_its_policy_to_restart() -> None:
    made = planned(
        pod(policy="Never"), runtime(record("web", EXITED, hash="a")), now=0, hashes={"web": 0xB}
    )
    assert made.finished


@pytest.mark.parametrize(
    ("of", "message", "restarts"),
    [
        (pod(), "Container web failed liveness probe, will be restarted", True),
        (pod(policy="Never"), "Container web failed liveness probe", False),
        (
            pod(container("web", "Never"), policy="Always"),
            "Container web failed liveness probe",
            False,
        ),
        (
            pod(container("web", "OnFailure"), policy="Never"),
            "Container web failed liveness probe, will be restarted",
            True,
        ),
    ],
)
def test_an_unhealthy_container_is_stopped_and_restarted_as_its_policy_says(
    of: Pod, message: str, restarts: bool
) -> None:
    sick = record("web")
    made = planned(of, runtime(sick), now=0, unhealthy={sick.id: "failed liveness probe"})
    assert [s.message for s in made.stop_containers] == [message]
    assert started(made) == ([("web", 1)] if restarts else [])
    assert not made.finished


UNKNOWN_STATE = 'Container is in "unknown" state, try killing it before restart'


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_a_container_in_unknown_state_is_stopped_before_it_starts_again(policy: str) -> None:
    unknown = record("web", UNKNOWN)
    made = planned(pod(policy=policy), runtime(unknown))
    assert [(s.id, s.message) for s in made.stop_containers] == [(unknown.id, UNKNOWN_STATE)]
    assert started(made) == [("web", 1)]


def test_a_container_in_unknown_state_that_may_not_run_twice_is_stopped() -> None:
    unknown = record("a", UNKNOWN)
    made = planned(pod("a", "b", policy="Never"), runtime(unknown, record("b")))
    assert [s.id for s in made.stop_containers] == [unknown.id]
    assert not made.start
    assert planned(pod("a", policy="Never"), runtime(unknown)).finished


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_container_that_was_made_but_never_ran_is_removed_and_made_anew(policy: str) -> None:
    stuck = record("web", CREATED, 3)
    made = planned(pod(policy=policy), runtime(stuck))
    assert made.remove_containers == (stuck.id,)
    assert started(made) == [("web", 4)]
    assert not made.stop_containers


def test_dead_instances_but_the_newest_are_removed() -> None:
    dead = [record("web", EXITED, n) for n in range(3)]
    made = planned(pod(), runtime(*dead, record("web", attempt=3)))
    assert set(made.remove_containers) == {dead[0].id, dead[1].id}
    assert not made.start


@pytest.mark.parametrize(
    ("state", "stopped", "removed"),
    [
        (RUNNING, True, False),
        (UNKNOWN, True, True),
        (CREATED, False, True),
        (EXITED, False, False),
    ],
)
def test_of_two_instances_of_a_container_the_newest_stays(
    state: ContainerState, stopped: bool, removed: bool
) -> None:
    older, newest = record("web", state), record("web", attempt=1)
    made = planned(pod(), runtime(older, newest))
    assert [s.id for s in made.stop_containers] == [older.id] * stopped
    assert made.remove_containers == (older.id,) * removed
    assert not made.start


def test_a_container_that_the_spec_does_not_name_is_stopped() -> None:
    stranger = record("stranger")
    made = planned(pod(), runtime(stranger, record("web")))
    assert [s.id for s in made.stop_containers] == [stranger.id]


def test_the_restart_count_follows_the_highest_that_was_ever_used() -> None:
    dead = [record("web", EXITED, 4, created=1.0), record("web", EXITED, 2, created=9.0)]
    assert started(planned(pod(), runtime(*dead))) == [("web", 5)]


def test_logs_on_disk_count_for_containers_of_which_the_runtime_knows_no_instance() -> None:
    made = planned(pod("web", "lost"), runtime(record("web", EXITED, 5)), now=100_000.0)
    assert started(made) == [("web", 6), ("lost", 0)]
    assert [start.unrecorded for start in made.start] == [False, True]


def test_ephemeral_containers_start_even_before_initialization_is_done() -> None:
    made = planned(pod(init=["i"], ephemeral=["e"]), runtime(record("i")))
    assert started(made) == [("e", 0)]


@pytest.mark.parametrize("state", [RUNNING, EXITED, UNKNOWN])
def test_an_ephemeral_container_never_starts_again(state: ContainerState) -> None:
    assert planned(pod(ephemeral=["e"]), runtime(record("web"), record("e", state))).is_noop


def test_an_ephemeral_container_that_is_known_to_have_run_has_had_its_start() -> None:
    made = planned(pod(ephemeral=["e"]), runtime(record("web")), now=0, ended={"e": 0})
    assert made.is_noop


def test_an_ephemeral_container_that_never_ran_is_made_anew() -> None:
    stuck = record("e", CREATED)
    made = planned(pod(ephemeral=["e"]), runtime(record("web"), stuck))
    assert started(made) == [("e", 1)]
    assert made.remove_containers == (stuck.id,)


PULLING = WaitingReason("ImagePullBackOff", 'Back-off pulling image "web:1"')


def test_a_container_whose_pull_is_held_back_waits_and_says_why() -> None:
    made = planned(pod("web", "b"), runtime(), now=50.0, pull={"web": Hold(60.0, PULLING)})
    assert started(made) == [("b", 0)]
    assert made.waiting == {"web": PULLING}
    assert made.retry_at == 60.0


def test_a_pull_hold_ends_at_its_time() -> None:
    made = planned(pod(), runtime(), now=60.0, pull={"web": Hold(60.0, PULLING)})
    assert started(made) == [("web", 0)]
    assert not made.waiting
    assert made.retry_at is None


def test_the_earliest_hold_decides_when_to_look_again() -> None:
    holds = {"a": Hold(70.0, PULLING), "b": Hold(60.0, PULLING), "c": Hold(80.0, PULLING)}
    made = planned(pod("a", "b", "c"), runtime(), now=50.0, pull=holds)
    assert made.retry_at == 60.0
    assert made.is_noop
    assert not made.finished


def test_init_containers_and_sidecars_start_before_main_containers() -> None:
    of = pod("web", init=[sidecar("s")], ephemeral=["e"])
    made = planned(of, runtime(record("s", EXITED), record("web", EXITED)))
    assert [name for name, _ in started(made)] == ["s", "e", "web"]


def test_a_pod_known_from_its_sandbox_alone_is_over() -> None:
    of = pod()
    assert of.spec is not None
    of.spec.containers = []
    assert planned(of, runtime()).finished
    assert planned(of, NOTHING).finished


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Always", 0, [("a", 0)]),
        ("OnFailure", 0, []),
        ("OnFailure", 1, [("a", 0)]),
        ("Never", 137, []),
    ],
)
def test_a_container_that_is_known_to_have_ended_did_so_even_if_its_record_is_gone(
    policy: str, code: int, expected: list[tuple[str, int]]
) -> None:
    of = pod("a", "b", policy=policy)
    made = planned(of, runtime(record("b")), now=0, ended={"a": code})
    assert started(made) == expected
    assert not made.finished
    if not expected:
        assert planned(of, runtime(), now=0, ended={"a": 0, "b": 0}).finished
        lost = runtime(sandboxes=[])
        assert planned(of, lost, now=0, ended={"a": 0, "b": 0}).finished


def test_what_is_known_to_have_ended_does_not_matter_while_there_is_a_record() -> None:
    made = planned(
        pod(policy="OnFailure"), runtime(record("web", EXITED, code=1)), now=1e6, ended={"web": 0}
    )
    assert started(made) == [("web", 1)]
