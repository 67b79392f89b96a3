"""CSI volumes while agents and drivers are killed, and while many pods share them.

`KUBELET_TRIO_SEED` repeats a run's choices (not its timing); each run prints its own.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.testing.csi import CsiFaultKind, calls
from tests.containerd.conftest import MakeAgent
from tests.harness import Agent
from tests.harness.csi import CsiDriver, DriverConfig
from tests.harness.csi_documents import claimed, pod_with, put_documents, volume_documents

VOLUMES = [f"vol-{n}" for n in range(3)]
NAMES = [f"life-{n}" for n in range(5)]
KILLS = 30
CROWD, SHARED = 50, 10
CROWD_WITHIN = 300  # seconds until so many pods run, and until they are gone


@pytest.fixture
def chosen() -> random.Random:
    seed = int(os.environ.get("KUBELET_TRIO_SEED", "0")) or random.randrange(1 << 32)
    print(f"KUBELET_TRIO_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def fresh(make_agent: MakeAgent) -> Agent:
    agent = make_agent()
    for name in VOLUMES:
        put_documents(agent, *volume_documents(name), file=f"volume-{name}")
    agent.start()
    return agent


@pytest.fixture(params=[False, True], ids=["ours", "grpcio"])
def driver(fresh: Agent, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CsiDriver]:
    config = DriverConfig(is_grpcio=request.param)
    with CsiDriver(tmp_path / "driver", fresh.root, config) as running:
        yield running


class Pods:
    """Pods that come and go on a few volumes."""

    def __init__(self, agent: Agent, choose: random.Random) -> None:
        self.agent, self.choose = agent, choose
        self.wanted: dict[str, str] = {}

    def change(self) -> None:
        """Put a pod that is not there, or drop one."""
        name = self.choose.choice(NAMES)
        if self.wanted.pop(name, ""):
            self.agent.drop(name)
        else:
            self.wanted[name] = self.choose.choice(VOLUMES)
            script = f"echo {name} > /data/{name}"
            self.agent.put(pod_with(name, claimed(self.wanted[name]), script))

    def settle(self, within: float = 180) -> None:
        """Wait until exactly the wanted pods run."""
        for name in NAMES:
            if name in self.wanted:
                self.agent.wait_ready(name, within)
            else:
                self.agent.wait_gone(name, within)

    def end(self) -> None:
        for name in self.wanted:
            self.agent.drop(name)
        self.wanted.clear()
        self.settle()


def test_a_kill_at_any_moment_leaves_nothing_behind(
    fresh: Agent, driver: CsiDriver, chosen: random.Random
) -> None:
    pods = Pods(fresh, chosen)
    for _ in range(KILLS):
        for _ in range(chosen.randrange(1, 4)):
            pods.change()
        time.sleep(chosen.random() * 2)  # the moment of the kill is what is chosen
        fresh.kill()
        fresh.start()
    pods.settle()
    driver.check()
    pods.end()
    driver.wait_clean(150)


def test_a_driver_restarted_under_load_is_registered_again(
    fresh: Agent, driver: CsiDriver, chosen: random.Random
) -> None:
    pods = Pods(fresh, chosen)
    for _ in range(10):
        for _ in range(3):
            pods.change()
            time.sleep(chosen.random() / 2)  # how far the driver is when it is killed
        driver.restart()
    pods.settle()
    driver.check()
    pods.end()
    driver.wait_clean(150)


@pytest.mark.parametrize("kind", [CsiFaultKind.DIE_BEFORE, CsiFaultKind.DIE_AFTER])
@pytest.mark.parametrize("method", [calls.STAGE, calls.PUBLISH, calls.UNPUBLISH, calls.UNSTAGE])
def test_a_driver_that_dies_in_a_call_is_asked_again(
    fresh: Agent, driver: CsiDriver, method: str, kind: CsiFaultKind
) -> None:
    driver.fault(kind, method)
    fresh.put(pod_with("dies", claimed(VOLUMES[0]), "echo here > /data/file"))
    if method in (calls.UNPUBLISH, calls.UNSTAGE):
        fresh.wait_ready("dies")
        fresh.drop("dies")
        driver.wait_dead()
        driver.start()
    else:
        driver.wait_dead()
        driver.start()
        fresh.wait_ready("dies")
        fresh.drop("dies")
    fresh.wait_gone("dies", 180)
    driver.wait_clean(150)


def test_many_pods_share_volumes_and_end(
    fresh: Agent, tmp_path: Path, chosen: random.Random
) -> None:
    volumes = [f"crowd-{n}" for n in range(SHARED)]
    for name in volumes:
        put_documents(fresh, *volume_documents(name), file=f"volume-{name}")
    names = [f"crowded-{n}" for n in range(CROWD)]
    with CsiDriver(tmp_path / "driver", fresh.root) as driver:
        for name in names:
            fresh.put(pod_with(name, claimed(chosen.choice(volumes))))
        for name in names:
            fresh.wait_ready(name, CROWD_WITHIN)
        assert len(driver.calls(calls.STAGE)) == len(driver.state()["staged"])
        for name in names:
            fresh.drop(name)
        for name in names:
            fresh.wait_gone(name, CROWD_WITHIN)
        driver.wait_clean()
