"""No pod starts while another of its name runs, whatever was forgotten or is not yet said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kubelet_trio.agent import Seams
from kubelet_trio.model import PodUid
from kubelet_trio.sources import FileSource
from tests.agent.node import Feed
from tests.simulation.hard_world import fed_pod
from tests.simulation.manifests import Wish
from tests.simulation.stepper import Stepper
from tests.simulation.world import NODE, World

OLD, NEW = Wish(("slow-stop-3",), note=1), Wish(("run",), note=2)
NAME = f"alpha-{NODE}"


class SharedWorld(World):
    """A node of two sources: files, and an API server."""

    def __init__(self, run: Stepper) -> None:
        super().__init__(run)
        self.server = Feed()
        self.is_silent = False

    def seams(self, files: FileSource) -> Seams:
        seams = super().seams(files)
        self.server = Feed()
        self.server.name = "api"
        if not self.is_silent:
            self.server.put()
        return replace(seams, sources=(*seams.sources, self.server))

    def alive(self) -> list[PodUid]:
        assert not self.runtime.violations
        return [container.uid for container in self.runtime.alive()]

    def lose_records(self) -> None:
        for path in (self.node.root_dir / "pods").glob("*/kubelet-trio.json"):
            path.write_bytes(b"")


@pytest.fixture
def world() -> Iterator[SharedWorld]:
    with Stepper() as run:
        world = SharedWorld(run)
        try:
            world.start()
            yield world
            world.kill()
        finally:
            world.close()


def uid(wish: Wish) -> PodUid:
    return PodUid(wish.uid("alpha"))


def go_away(world: SharedWorld, wish: Wish) -> None:
    """Run a pod of a file, and leave it behind."""
    world.write("alpha", wish)
    world.run.sleep(5)
    assert world.alive() == [uid(wish)]
    world.kill()


@pytest.mark.parametrize("is_runtime_there", [True, False])
def test_a_pod_waits_for_what_runs_of_one_that_nothing_is_remembered_of(
    world: SharedWorld, is_runtime_there: bool
) -> None:
    go_away(world, OLD)
    world.lose_records()
    world.write("alpha", NEW)
    if not is_runtime_there:  # then the new pod is known before the old one
        world.run.call(world.runtime.go_down)
    world.start()
    world.run.sleep(5)
    world.run.call(world.runtime.restart)
    world.run.sleep(30)
    assert world.alive() == [uid(NEW)]


def test_it_waits_too_where_that_was_being_replaced(world: SharedWorld) -> None:
    world.write("alpha", OLD)
    world.run.sleep(5)
    world.write("alpha", NEW)
    world.run.sleep(1)
    assert world.alive() == [uid(OLD)]
    world.kill()
    world.lose_records()
    world.start()
    world.run.sleep(30)
    assert world.alive() == [uid(NEW)]


@pytest.mark.parametrize("is_remembered", [True, False])
def test_what_a_file_replaces_is_ended_without_the_api_servers_word(
    world: SharedWorld, is_remembered: bool
) -> None:
    """It may be the API server itself whose manifest was mended."""
    go_away(world, OLD)
    if not is_remembered:
        world.lose_records()
    world.write("alpha", NEW)
    world.is_silent = True
    world.start()
    world.run.sleep(30)
    assert world.alive() == [uid(NEW)]
    world.write("alpha", OLD)
    world.run.sleep(30)
    assert world.alive() == [uid(OLD)]


@pytest.mark.parametrize("is_remembered", [True, False])
def test_what_no_pod_replaces_ends_once_its_own_source_has_spoken(
    world: SharedWorld, is_remembered: bool
) -> None:
    go_away(world, OLD)
    if not is_remembered:
        world.lose_records()
    world.remove("alpha")
    world.is_silent = True
    world.start()
    world.run.sleep(60)
    assert world.alive() == []


@pytest.mark.parametrize("is_remembered", [True, False])
def test_a_pod_of_the_api_server_is_waited_for_until_it_has_spoken(
    world: SharedWorld, is_remembered: bool
) -> None:
    other = fed_pod(NAME, 10, "one")
    world.run.call(world.server.put, other)
    world.run.sleep(5)
    assert world.alive() == ["one"]
    world.kill()
    if not is_remembered:
        world.lose_records()
    world.write("alpha", NEW)
    world.is_silent = True
    world.start()
    world.run.sleep(60)
    assert world.alive() == ["one"]
    world.run.call(world.server.put)
    world.run.sleep(40)
    assert world.alive() == [uid(NEW)]


def test_one_that_ends_by_itself_is_not_waited_for_any_longer(world: SharedWorld) -> None:
    world.run.call(world.server.put, fed_pod(NAME, 10, "one"))
    world.run.sleep(5)
    world.kill()
    world.write("alpha", NEW)
    world.is_silent = True
    world.start()
    world.run.sleep(60)
    [sandbox] = world.runtime.sandboxes.values()
    world.run.call(world.runtime.kill_sandbox, sandbox.id)
    world.run.sleep(30)
    assert world.alive() == ["one"]
    [container] = world.runtime.alive()
    world.run.call(world.runtime.kill, container.id, 1)
    world.run.sleep(30)
    assert world.alive() == [uid(NEW)]


def test_of_two_that_are_wanted_the_one_that_runs_has_the_name(world: SharedWorld) -> None:
    """It is looked after, whichever source speaks first."""
    other = fed_pod(NAME, 10, "one")
    world.run.call(world.server.put, other)
    world.run.sleep(5)
    world.kill()
    world.write("alpha", NEW)
    world.is_silent = True
    world.start()
    world.run.sleep(30)
    world.run.call(world.server.put, other)
    world.run.sleep(30)
    [container] = world.runtime.alive()
    world.run.call(world.runtime.kill, container.id, 1)
    world.run.sleep(60)
    assert world.alive() == ["one"]
    world.run.call(world.server.put)
    world.run.sleep(40)
    assert world.alive() == [uid(NEW)]
