"""What the simulation has found, each told again in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import metadata, pod_uid
from tests.simulation.hard_world import HardWorld
from tests.simulation.manifests import Wish
from tests.simulation.resizes import PENDING, condition
from tests.simulation.sizes import Ask, Asks
from tests.simulation.stepper import Stepper
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with Stepper() as run:
        world = World(run)
        try:
            world.start()
            yield world
            world.kill()
        finally:
            world.close()


def wait_call(world: World, name: str) -> None:
    """Go on until a call has been made."""
    while not world.runtime.calls_of(name):
        world.run.sleep(0.01)


def test_a_start_whose_reply_was_lost_with_the_runtime_is_not_done_again(world: World) -> None:
    """The runtime is back before anything is known of the container: nobody may act yet."""
    world.write("alpha", Wish(("run",)))
    wait_call(world, "StartContainer")
    world.run.sleep(0.1)  # it has taken effect
    world.run.call(world.runtime.go_down)
    world.run.sleep(7)  # long enough for the agent to notice
    world.run.call(world.runtime.restart)
    world.run.sleep(10)
    assert list(world.runtime.starts.values()) == [1]
    assert not world.runtime.violations
    [pod] = world.pods().values()
    assert pod.status is not None
    assert pod.status.phase == "Running"


def test_a_broken_edit_keeps_the_newest_pod_that_was_good_across_a_restart(world: World) -> None:
    """Even if the one before it could not be ended by then, and has a record of its own."""
    world.write("alpha", Wish(("run",), note=1))
    world.run.sleep(5)
    world.run.call(world.runtime.go_down)
    world.write("alpha", Wish(("run",), note=2))
    world.run.sleep(5)
    world.write("alpha", None)
    world.run.sleep(1)
    world.kill()
    world.run.call(world.runtime.restart)
    world.start()
    world.run.sleep(60)
    [pod] = world.pods().values()
    assert pod.metadata is not None
    assert pod.metadata.labels == {"note": "2"}
    assert not world.runtime.violations


def restart_agent(world: World) -> None:
    """Kill the agent, let the runtime come back, start it again and give it time."""
    world.kill()
    world.run.call(world.runtime.restart)
    world.start()
    world.run.sleep(60)


def _pods(world: World) -> list[Pod]:
    assert world.agent is not None
    return list(world.agent.pods.value.values())


def notes(world: World) -> list[str]:
    """Return the labels by which the pods there are can be told apart."""
    return [(metadata(pod).labels or {})["note"] for pod in _pods(world)]


def test_a_pod_that_comes_back_is_remembered_while_it_is_being_ended(world: World) -> None:
    """Edited there and back: its record says that it was removed, and no other pod is wanted."""
    world.write("alpha", Wish(("run",), note=1))
    world.run.sleep(5)
    world.run.call(world.runtime.go_down)
    world.write("alpha", Wish(("run",), note=2))
    world.run.sleep(5)
    world.write("alpha", Wish(("run",), note=1))
    world.run.sleep(5)
    world.write("alpha", None)
    world.run.sleep(1)
    restart_agent(world)
    assert notes(world) == ["1"]
    assert not world.runtime.violations


def test_a_removal_is_remembered_before_the_runtime_was_ever_read(world: World) -> None:
    world.write("alpha", Wish(("run",), note=1))
    world.run.sleep(5)
    world.kill()
    world.run.call(world.runtime.go_down)
    world.start()
    world.run.sleep(5)
    world.write("alpha", Wish(("run",), note=2))
    world.run.sleep(5)
    world.write("alpha", None)
    world.run.sleep(1)
    restart_agent(world)
    assert notes(world) == ["2"]
    assert not world.runtime.violations


def test_a_pod_that_ended_and_was_then_edited_does_not_come_back(world: World) -> None:
    """The first reason of an end stays; that nobody wants the pod is remembered beside it."""
    world.write("alpha", Wish(("exit-0",), policy="Never", note=1))
    world.run.sleep(5)
    world.run.call(world.runtime.go_down)
    world.write("alpha", Wish(("run",), note=2))
    world.run.sleep(5)
    world.write("alpha", None)
    world.run.sleep(1)
    restart_agent(world)
    assert notes(world) == ["2"]


def test_a_pod_that_was_removed_while_it_came_back_stays_away(world: World) -> None:
    world.write("alpha", Wish(("run",), note=1))
    world.run.sleep(5)
    world.run.call(world.runtime.go_down)
    world.remove("alpha")
    world.run.sleep(5)
    world.write("alpha", Wish(("run",), note=1))
    world.run.sleep(5)
    world.remove("alpha")
    world.run.sleep(5)
    world.write("alpha", None)
    world.run.sleep(1)
    restart_agent(world)
    assert notes(world) == []


def test_a_pod_that_waits_for_its_name_and_for_room_only_waits(world: World) -> None:
    """What it asks for is decided on again in each round, and starts no round by itself."""
    asks = Asks((("m0", Ask("requests")),))
    world.write("alpha", Wish(("stubborn",), grace=30, note=1))
    world.run.sleep(5)
    world.write("alpha", Wish(("run",), note=2, asks=asks))
    world.run.sleep(1)
    world.kill()
    world.start()
    world.run.sleep(1)
    world.write("alpha", Wish(("run",), note=2, asks=asks.resized({"m0": (2000, 32)})))
    world.run.sleep(60)
    assert notes(world) == ["2"]
    assert len(world.runtime.alive()) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_was_too_large_runs_once_it_asks_for_less(world: World, restarts: bool) -> None:
    """It is the same pod by its UID, but it never ran: there is nothing to resize."""
    large = Wish(("run",), asks=Asks((("m0", Ask("requests", 2000, 32)),)))
    world.write("alpha", large)
    world.run.sleep(5)
    assert [pod.status.phase for pod in _pods(world) if pod.status] == ["Failed"]
    world.write("alpha", large.resized({"m0": (100, 32)}))
    if restarts:
        world.run.sleep(0.1)
        world.kill()
        world.start()
    world.run.sleep(10)
    assert [pod.status.phase for pod in _pods(world) if pod.status] == ["Running"]
    assert len(world.runtime.alive()) == 1


def test_a_pod_has_no_more_after_a_shutdown_of_the_node_than_before() -> None:
    """It starts anew, with what was allocated to it: what it asks for does not fit."""
    pod = Wish(("run",), asks=Asks((("m0", Ask("requests")),)))
    with Stepper() as run:
        world = HardWorld(run)
        try:
            world.start()
            world.write("alpha", pod)
            run.sleep(5)
            world.write("alpha", pod.resized({"m0": (2000, 32)}))
            run.sleep(5)
            run.call(world.logind.announce, True)
            run.sleep(60)
            assert not world.runtime.alive()
            world.kill()
            run.call(world.logind.announce, False)
            world.start()
            run.sleep(60)
            [container] = world.runtime.alive()
            assert container.resources.cpu_shares == 51
            [shown] = _pods(world)
            pending = condition(shown, PENDING)
            assert pending is not None
            assert pending.reason == "Infeasible"
            world.kill()
        finally:
            world.close()


@pytest.mark.parametrize("shape", ["limits", "memory", "equal"])
@pytest.mark.parametrize("level", ["", "limits"])
@pytest.mark.parametrize(
    ("before", "after"), [((300, 200), (100, 64)), ((100, 64), (300, 200)), ((100, 64), (100, 64))]
)
def test_a_pod_whose_record_is_lost_is_resized_from_what_it_has(
    world: World, shape: str, level: str, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Its manifest was edited meanwhile: neither the manifest nor the disk says what it has."""
    asks = Asks((("m0", Ask(shape, *before)), ("m1", Ask(shape, 50, 32))), level=level)
    wish = Wish(("run", "run"), asks=asks)
    world.write("alpha", wish)
    world.run.sleep(5)
    world.kill()
    for path in (world.node.root_dir / "pods").glob("*/kubelet-trio.json"):
        path.write_bytes(b"{")
    world.write("alpha", wish.resized({"m0": after}))
    world.start()
    world.run.sleep(30)
    (pod,) = _pods(world)
    assert condition(pod, PENDING) is None
    world.resizes.check_done(pod, world.node, world.cgroups.of_pod(pod_uid(pod)))
    (resized,) = (c for c in world.runtime.alive() if c.name == "m0")
    factor = 1 if shape == "equal" else 2
    assert resized.resources.memory_limit_in_bytes == factor * after[1] << 20
    assert world.runtime.starts[pod_uid(pod), "m0"] == 1
    assert world.cgroups.exceeded == []
