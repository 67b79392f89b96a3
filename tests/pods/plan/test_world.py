"""Plans carried out one after the other, whatever happens in between.

The world asserts the rules of every plan and status; here things happen to it in any
order, and once they stop, every pod must come to what its policy says.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import (
    RESTART_ALL_CONTAINERS,
    ContainerKind,
    ContainerState,
    pod_containers,
    spec,
)
from kubelet_trio.pods.plan.backoff import BackOffTable
from kubelet_trio.pods.status import reported_ends
from tests.pods.make import container, pod, sidecar
from tests.pods.world import LIVE, World

policies = st.sampled_from(["Always", "OnFailure", "Never"])
own = st.sampled_from([None, None, "Always", "OnFailure", "Never"])


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    mains = [container(f"m{i}", draw(own)) for i in range(draw(st.integers(1, 3)))]
    inits = [
        sidecar(f"i{i}") if draw(st.booleans()) else container(f"i{i}")
        for i in range(draw(st.integers(0, 3)))
    ]
    if draw(st.booleans()):
        rule = container("x", "Never", [("In", [2])], RESTART_ALL_CONTAINERS).restartPolicyRules
        one = draw(st.sampled_from([*mains, *inits]))
        one.restartPolicyRules, one.restartPolicy = rule, one.restartPolicy or "Never"
    ephemeral = [f"e{i}" for i in range(draw(st.integers(0, 1)))]
    return pod(*mains, init=inits, ephemeral=ephemeral, policy=draw(policies))


class Event(NamedTuple):
    """Something that happens: to the container `which` counts to, and how many syncs follow."""

    kind: str
    which: int
    number: int
    syncs: int


KINDS = ("exit", "exit", "unknown", "vanish", "sandbox", "pause", "pass", "fail", "heal", "forget")
events = st.builds(
    Event, st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 3), st.integers(0, 2)
)
happenings = st.lists(events, max_size=30)


def happen(world: World, event: Event) -> None:
    live = [c for c in world.containers if c.state in LIVE]
    dead = [c for c in world.containers if c.state not in LIVE]
    if event.kind == "exit" and live:
        world.end(live[event.which % len(live)].id, event.number)
    elif event.kind == "unknown" and live:
        world.change(live[event.which % len(live)].id, state=ContainerState.UNKNOWN)
    elif event.kind == "vanish" and dead:
        world.containers.remove(dead[event.which % len(dead)])
    elif event.kind == "sandbox" and world.sandboxes:
        world.sandbox_dies(world.sandboxes[0].id)
    elif event.kind == "pause" and world.sandboxes:
        world.pause_dies(world.sandboxes[0].id)
    elif event.kind == "pass":
        world.now += [1, 15, 400, 1000][event.number]
    elif event.kind in ("fail", "heal"):
        world.starts_fail = event.kind == "fail"
    elif event.kind == "forget":
        world.crash = BackOffTable()
    for _ in range(event.syncs):
        if not world.is_over:
            world.sync()


def finish_inits(world: World) -> None:
    """Let ordinary init containers succeed, one after the other, and the pod come up."""
    ordinary = {
        c.spec.name
        for c in pod_containers(world.pod)
        if c.kind is ContainerKind.INIT and not c.is_sidecar
    }
    for _ in range(10):
        world.settle()
        running = [c for c in world.containers if c.name in ordinary and c.state in LIVE]
        if not running or world.is_over:
            return
        for one in running:
            world.end(one.id, 0)


def disturbed(of: Pod, what: list[Event]) -> World:
    """A pod that things happened to, which they have stopped doing."""
    world = World(of)
    world.sync()
    for event in what:
        if not world.is_over:
            happen(world, event)
    world.starts_fail = False
    return world


@settings(deadline=None, max_examples=300)
@given(of=pods(), what=happenings)
def test_a_pod_comes_to_what_its_policy_says_once_things_stop_happening(
    of: Pod, what: list[Event]
) -> None:
    world = disturbed(of, what)
    finish_inits(world)
    assert world.status is not None
    if world.is_over:
        assert world.status.phase in ("Succeeded", "Failed")
        return
    assert world.status.phase == "Running"
    running = {c.name for c in world.containers if c.state in LIVE}
    for one in pod_containers(of):
        latest = world.observed().latest(one.spec.name)
        if one.is_sidecar:
            assert one.spec.name in running
        elif one.kind is ContainerKind.MAIN and one.spec.name not in running:
            ended = latest is not None and latest.state is ContainerState.EXITED
            assert ended or one.spec.name in reported_ends(world.status)
    assert any(c.spec.name in running for c in pod_containers(of) if c.kind is ContainerKind.MAIN)
    assert len(running) == sum(c.state in LIVE for c in world.containers)


@settings(deadline=None, max_examples=300)
@given(of=pods(), what=happenings)
def test_a_settled_pod_has_nothing_to_do(of: Pod, what: list[Event]) -> None:
    world = disturbed(of, what)
    finish_inits(world)
    if not world.is_over:
        before = list(world.containers)
        for _ in range(3):
            assert world.sync().is_noop
        assert world.containers == before


@settings(deadline=None, max_examples=300)
@given(of=pods(), what=happenings)
def test_dead_instances_do_not_pile_up(of: Pod, what: list[Event]) -> None:
    world = disturbed(of, what)
    finish_inits(world)
    if not world.is_over:
        dead = [c.name for c in world.containers if c.state not in LIVE]
        assert len(dead) == len(set(dead))


@settings(deadline=None, max_examples=200)
@given(of=pods(), what=happenings)
def test_a_pod_whose_every_container_may_restart_is_never_over(of: Pod, what: list[Event]) -> None:
    always = all(
        (c.spec.restartPolicy or spec(of).restartPolicy) == "Always"
        for c in pod_containers(of)
        if c.kind is not ContainerKind.EPHEMERAL
    )
    world = disturbed(of, what)
    finish_inits(world)
    assert not (always and world.is_over)


@settings(deadline=None)
@given(code=st.integers(0, 3), runs=st.integers(1, 500), crashes=st.integers(1, 12))
def test_a_crash_looping_container_waits_as_long_with_and_without_a_restart_of_the_agent(
    code: int, runs: int, crashes: int
) -> None:
    def waits(*, forgets: bool) -> list[float]:
        world, told = World(pod()), []
        world.settle()
        for _ in range(crashes):
            world.now += runs
            if forgets:
                world.crash = BackOffTable()
            world.end(world.containers[0].id, code)
            ended = world.now
            world.settle()
            told.append(world.containers[0].created_at - ended)
        return told

    for remembered, retold in zip(waits(forgets=False), waits(forgets=True), strict=True):
        assert abs(remembered - retold) < 1.0
