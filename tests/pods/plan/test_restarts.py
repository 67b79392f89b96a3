"""Restarting all containers of a pod in place: what is removed, said, and waited for."""

from __future__ import annotations

import pytest
from lightkube.models.core_v1 import Container, ContainerStatus, Pod

from kubelet_trio.model import RESTART_ALL_CONTAINERS, ContainerRecord
from kubelet_trio.pods.plan.restarts import RESTARTING_ALL, restarts_all
from kubelet_trio.pods.types import PodStage
from tests.pods.make import (
    CREATED,
    EXITED,
    RUNNING,
    UNKNOWN,
    container,
    planned,
    pod,
    record,
    runtime,
    sidecar,
)
from tests.pods.world import LIVE, World

ASKS = [("In", [42])]


def asking(name: str, policy: str = "Never") -> Container:
    return container(name, policy, ASKS, RESTART_ALL_CONTAINERS)


def statuses(world: World) -> dict[str, ContainerStatus]:
    assert world.status is not None
    every = (*(world.status.initContainerStatuses or ()), *(world.status.containerStatuses or ()))
    return {status.name: status for status in every}


def said(world: World) -> tuple[str, str | None]:
    assert world.status is not None
    (found,) = [c for c in world.status.conditions or () if c.type == RESTARTING_ALL]
    return found.status, found.reason


@pytest.mark.parametrize(
    ("of", "observed", "marked", "expected"),
    [
        (pod(asking("a")), [record("a", EXITED, code=42)], False, True),
        (pod(asking("a")), [record("a", EXITED, code=41)], False, False),
        (pod(asking("a")), [record("a", RUNNING)], False, False),
        (pod(asking("a")), [record("a", UNKNOWN)], False, False),
        (pod(asking("a")), [record("a", RUNNING)], True, True),
        (pod("a"), [record("a", EXITED, code=42)], False, False),
        (pod("a"), [record("a", RUNNING)], True, False),  # nobody could have asked for it
        (pod("a", init=[asking("i")]), [record("i", EXITED, code=42)], False, True),
        (
            pod("a", init=[asking("s", "Always")]),
            [record("a"), record("s", EXITED, code=42)],
            False,
            True,
        ),
        (  # what ended as its rule says has been started again since
            pod(asking("a")),
            [record("a", RUNNING, 1), record("a", EXITED, 0, code=42)],
            False,
            False,
        ),
        (  # the first rule that fits is the one
            pod(container("a", "Never", [("In", [42]), ("NotIn", [0])])),
            [record("a", EXITED, code=42)],
            False,
            False,
        ),
    ],
)
def test_who_has_all_containers_restart(
    of: Pod, observed: list[ContainerRecord], marked: bool, expected: bool
) -> None:
    assert restarts_all(of, runtime(*observed), is_recorded=marked) is expected


def test_all_but_ephemeral_containers_are_killed_and_removed_the_asking_one_last() -> None:
    of = pod(asking("a"), "b", "c", init=["i", sidecar("s")], ephemeral=["e"])
    found = runtime(
        record("a", EXITED, code=42),
        record("b"),
        record("c", CREATED),
        record("s", UNKNOWN),
        record("e"),
        record("i", EXITED),
        record("b", EXITED, -1),
    )
    made = planned(of, found, now=200.0)
    assert {(s.name, s.grace_period) for s in made.stop_containers} == {("b", 0), ("s", 0)}
    assert set(made.remove_containers) == {c.id for c in found.containers if c.name != "e"}
    assert made.remove_containers[-1] == found.containers[0].id
    assert not made.start
    assert not made.create_sandbox


def test_the_pod_starts_anew_with_its_init_containers_whatever_the_policy() -> None:
    done, once = container("done", "Never"), container("once", "OnFailure")
    world = World(pod(asking("a"), done, once, init=["i", sidecar("s")], policy="Never"))
    world.settle()
    end(world, "i", 0)
    world.settle()
    assert said(world) == ("False", None)
    end(world, "done", 1)
    end(world, "once", 0)
    world.settle()
    home = world.sandboxes
    end(world, "a", 42)
    world.sync()
    assert said(world) == ("True", "RestartAllContainersStarted")
    assert not world.containers
    world.sync()
    assert said(world) == ("False", None)
    for name, status in statuses(world).items():
        assert status.state is not None
        assert status.state.waiting is not None
        assert status.lastState is not None
        ended = status.lastState.terminated
        assert ended is not None
        reasons = (status.state.waiting.reason, ended.reason, ended.exitCode)
        assert reasons == ("RestartingAllContainers", "RestartingAllContainers", 137), name
        assert status.restartCount == 1, name
    assert [(c.name, c.attempt) for c in world.containers] == [("i", 1)]
    end(world, "i", 0)
    world.settle()
    assert world.sandboxes == home
    running = {c.name: c.attempt for c in world.containers if c.state in LIVE}
    assert running == {"a": 1, "done": 1, "once": 1, "s": 1}
    assert {s.restartCount for s in statuses(world).values()} == {1}
    assert world.status is not None
    assert world.status.phase == "Running"


def test_an_agent_that_starts_in_between_goes_on_with_it() -> None:
    world = World(pod(asking("a"), container("b", "Never"), policy="Never"))
    world.settle()
    end(world, "a", 42)
    plan = planned(world.pod, world.observed(), now=world.now)
    world.report(plan)
    # It went down when the runtime had stopped everything and removed what had asked for it.
    end(world, "b", 137)
    world.containers = [c for c in world.containers if c.name == "b"]
    world.settle()
    running = {c.name for c in world.containers if c.state in LIVE}
    assert running == {"a", "b"}
    assert not world.is_over


def test_a_failed_init_container_restarts_the_pod_instead_of_failing_it() -> None:
    world = World(pod("a", init=[asking("i")], policy="Never"))
    world.settle()
    end(world, "i", 42)
    world.settle()
    assert world.status is not None
    assert world.status.phase == "Pending"
    end(world, "i", 1)
    world.settle()
    assert world.is_over
    assert world.status.phase == "Failed"


def test_a_pod_that_restarts_again_and_again_waits_longer_and_longer() -> None:
    world = World(pod(asking("a"), "b", policy="Never"))
    waits = []
    for _ in range(4):
        world.settle()
        end(world, "a", 42)
        ended = world.now
        world.sync()
        plan = world.sync()
        if plan.retry_at is not None:
            assert {w.reason for w in plan.waiting.values()} == {"CrashLoopBackOff"}
            assert plan.waiting.keys() == {"a", "b"}
            waits.append(round(plan.retry_at - ended))
    assert waits == [10, 20, 40]
    world.settle()
    world.now += 10_000
    end(world, "a", 42)
    world.sync()
    assert world.sync().start  # it had gone well for long


def test_what_is_being_ended_restarts_nothing() -> None:
    world = World(pod(asking("a"), "b", policy="Never"))
    world.settle()
    end(world, "a", 42)
    world.report(planned(world.pod, world.observed(), now=world.now), PodStage.TERMINATING)
    assert said(world) == ("False", None)


def test_a_pod_without_such_a_rule_has_no_such_condition() -> None:
    world = World(pod("a"))
    world.settle()
    assert world.status is not None
    assert RESTARTING_ALL not in {c.type for c in world.status.conditions or ()}


def end(world: World, name: str, code: int) -> None:
    (live,) = [c for c in world.containers if c.name == name and c.state in LIVE]
    world.end(live.id, code)
