"""A failure of the simulation is a recording, which is replayed as that of a node."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kubelet_trio.model import ContainerId
from kubelet_trio.recorder import write_recording
from kubelet_trio.replay import replay_recording
from tests.simulation.agent_machine import AgentMachine
from tests.simulation.manifests import NAMES, Wish
from tests.simulation.profile import run_machine
from tests.simulation.recorded import SIZE
from tests.simulation.stepper import Stepper
from tests.simulation.world import WitnessRuntime, World


class _Doubled(WitnessRuntime):
    """Finds fault with every start."""

    async def start_container(self, container_id: ContainerId) -> None:
        await super().start_container(container_id)
        self.node.violations.append("planted")


def test_a_failure_says_where_its_recording_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBELET_TRIO_SIMULATION_RECORDINGS", str(tmp_path))

    class Machine(AgentMachine):
        make_runtime = _Doubled

    with pytest.raises(AssertionError) as failure:
        run_machine(Machine, examples=5, shrink=False)
    said = "\n".join(getattr(failure.value, "__notes__", []))
    found = re.search(r"kubelet-trio replay (\S+)", said)
    assert found is not None
    (path,) = tmp_path.iterdir()
    assert found[1] == str(path)
    replay_recording(path).check()


class _DoubledLate(WitnessRuntime):
    """Finds fault when much has happened."""

    async def start_container(self, container_id: ContainerId) -> None:
        await super().start_container(container_id)
        if len(self.calls) > 500:
            self.node.violations.append("planted")


def test_the_run_that_is_kept_is_the_one_that_failed() -> None:
    """Hypothesis calls a machine flaky whose last run differs."""
    runs: list[list[object]] = []

    class Machine(AgentMachine):
        make_runtime = _DoubledLate

        def teardown(self) -> None:
            runs.append([*self.world.runtime.calls])
            super().teardown()

    with pytest.raises(AssertionError, match="planted"):
        run_machine(Machine, examples=60, shrink=False)
    *_, failed, reported = runs
    assert failed
    assert failed == reported


def replayed(tmp_path: Path, story: Callable[[World], None]) -> int:
    """Let something happen to a world, replay it, and return how many agents there were."""
    path = tmp_path / "world.rec"
    with Stepper() as run:
        world = World(run)
        world.recorder_size = SIZE
        try:
            world.start()
            story(world)
            world.kill()
            write_recording(path, world.recording())
        finally:
            world.close()
    found = replay_recording(path)
    found.check()
    return found.starts


def test_kills_of_the_agent(tmp_path: Path) -> None:
    def story(world: World) -> None:
        world.write("alpha", Wish(("run",)))
        world.run.sleep(0.5)
        world.kill()
        world.start()
        world.run.sleep(5)
        world.write("beta", Wish(("run", "run")))
        world.run.sleep(0.4)
        world.kill()
        world.run.sleep(3)
        world.start()
        world.run.sleep(10)
        world.remove("alpha")
        world.run.sleep(0.3)
        world.kill()
        world.start()
        world.run.sleep(40)

    assert replayed(tmp_path, story) == 4


def test_a_runtime_that_goes_down(tmp_path: Path) -> None:
    def story(world: World) -> None:
        world.write("alpha", Wish(("run",)))
        world.run.sleep(1.5)
        world.run.call(world.runtime.go_down)
        world.run.sleep(7)
        world.run.call(world.runtime.restart)
        world.run.sleep(10)

    assert replayed(tmp_path, story) == 1


def test_containers_that_die(tmp_path: Path) -> None:
    def story(world: World) -> None:
        world.write("alpha", Wish(("run",), sidecar=True))
        world.run.sleep(5)
        for _ in range(3):
            for container in world.runtime.alive():
                world.run.call(world.runtime.kill, container.id, 1)
            world.run.sleep(7)
        world.run.sleep(30)

    assert replayed(tmp_path, story) == 1


def test_a_sandbox_that_dies_is_found_by_a_relist(tmp_path: Path) -> None:
    """Also soon after the pod has started, when its calls could explain a change."""

    def story(world: World) -> None:
        for after in (3.0, 12.0, 31.0):
            world.write("alpha", Wish(("run",), sidecar=True, note=int(after)))
            world.run.sleep(after)
            (sandbox,) = (s for s in world.runtime.sandboxes.values() if s.ready)
            world.run.call(world.runtime.kill_sandbox, sandbox.id)
            world.run.sleep(40)

    assert replayed(tmp_path, story) == 1


@pytest.mark.parametrize("down_at", [1.30, 1.45, 1.55, 1.95, 2.05, 2.15])
def test_a_start_that_an_outage_cuts_off(tmp_path: Path, down_at: float) -> None:
    """Whether the container started is seen when the runtime is back."""

    def story(world: World) -> None:
        world.write("alpha", Wish(("run",), sidecar=True))
        world.run.sleep(down_at)
        world.run.call(world.runtime.go_down)
        world.run.sleep(7)
        world.run.call(world.runtime.restart)
        world.run.sleep(40)

    assert replayed(tmp_path, story) == 1


WISHES = (
    Wish(("run",)),
    Wish(("run",), sidecar=True),
    Wish(("run", "exit-1-after-3")),
    Wish(("exit-0-after-2",), policy="OnFailure"),
    Wish(("run",), init="exit-0-after-2", grace=2),
    Wish(("missing",)),
    Wish(("stubborn",), grace=2),
)


def anything(world: World, seed: int) -> None:
    """Let a few things happen that happen on nodes."""
    draw = random.Random(seed)

    def write() -> None:
        world.write(draw.choice(NAMES), replace(draw.choice(WISHES), note=draw.randrange(3)))

    def container_dies() -> None:
        if alive := world.runtime.alive():
            world.run.call(world.runtime.kill, draw.choice(alive).id, draw.choice((0, 1, 137)))

    def sandbox_dies() -> None:
        if ready := [s for s in world.runtime.sandboxes.values() if s.ready]:
            world.run.call(world.runtime.kill_sandbox, draw.choice(ready).id)

    def runtime_goes_down() -> None:
        world.run.call(world.runtime.go_down)
        world.run.sleep(draw.choice((0.5, 4.0, 25.0)))
        world.run.call(world.runtime.restart)

    def agent_is_killed() -> None:
        world.kill()
        world.run.sleep(draw.choice((0.0, 1.0, 40.0)))
        world.start()

    def remove() -> None:
        world.remove(draw.choice(NAMES))

    things = (write, write, write, container_dies, sandbox_dies, runtime_goes_down)
    for _ in range(8):
        draw.choice((*things, agent_is_killed, remove))()
        world.run.sleep(draw.choice((0.5, 1.5, 5.0, 12.0, 35.0)))


# The first ones, and those that once differed.
OFTEN = "0-5,10,18,25,35,38,43,55,71,72,88,97,108,110,118,144,163,187,203,205,217,218,235,244"


def seeds(told: str) -> Iterator[int]:
    """Yield the numbers of a list of numbers and ranges: `3,10-19`."""
    for part in told.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


SEEDS = tuple(seeds(os.environ.get("KUBELET_TRIO_REPLAY_SEEDS", OFTEN)))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_agent_decides_again_as_it_did(tmp_path: Path, seed: int) -> None:
    replayed(tmp_path, partial(anything, seed=seed))
