"""What the simulation has found, each told again in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.manifests import Wish
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
