"""CSI volumes while agent and driver are killed together, and over a reboot of the machine.

`KUBELET_TRIO_SEED` chooses other moments than the fixed ones.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kubelet_trio.testing.csi import CsiFaultKind, calls
from tests.containerd.conftest import MakeAgent
from tests.harness import (
    Agent,
    Containerd,
    CriClient,
    Json,
    WaitTimeoutError,
    eventually,
    leftovers,
    live_containers,
)
from tests.harness.csi import CsiDriver
from tests.harness.csi_documents import (
    claimed,
    pod_with,
    pod_with_device,
    put_documents,
    volume_documents,
)
from tests.harness.csi_storage import mount_points

# By the volumes' names: directories, ext4 on loop devices, block devices.
HANDLES = {
    "tree": "dir-tree",
    "disk": "ext4-disk",
    "raw": "block-raw",
    "left-disk": "ext4-left",
    "left-raw": "block-left",
}
NAMES = [f"life-{n}" for n in range(6)]
SHARED = ["tree", "disk", "raw"]
KILLS = 10
SEED = 19


def is_raw(volume: str) -> bool:
    return HANDLES[volume].startswith("block-")


def place(volume: str) -> str:
    """Return where a pod has its data: a device, or a file."""
    return "/dev/xvda" if is_raw(volume) else "/data/file"


def user_of(name: str, volume: str, script: str) -> Json:
    """Return a pod with a volume; `$AT` in its script is the place of its data."""
    make = pod_with_device if is_raw(volume) else pod_with
    return make(name, claimed(volume), f"AT={place(volume)}; {script}")


def reads(cri: CriClient, name: str, volume: str, wanted: str) -> bool:
    """Whether a pod runs, and its data begins so."""
    live = live_containers(cri, f"{name}-node")
    if "main" not in live:
        return False
    shown = f"head -c {len(wanted)} {place(volume)} | tr -d '\\0'"
    return cri.run(live["main"], "sh", "-c", shown) == wanted


class Used:
    """Who has volumes: by the driver's word and by the kernel's."""

    def __init__(self, agent: Agent, driver: CsiDriver) -> None:
        state = driver.state()
        self._names = {pod["metadata"]["uid"]: name for name, pod in agent.pods().items()}
        self.published = {
            (handle, self._pod_of(path))
            for handle, paths in state["published"].items()
            for path in paths
        }
        self.staged: dict[str, list[str]] = state["staged"]
        ours = [path for path in mount_points() if path.startswith(f"{agent.root}/")]
        csi = [path for path in ours if "~csi/" in path or "/csi/" in path]
        known = {path for paths in self.staged.values() for path in paths}
        self.mounted_for = {self._pod_of(path) for path in csi if path not in known}

    def _pod_of(self, path: str) -> str:
        """Return the pod in whose directories a path is; of none: the path."""
        return next((self._names[part] for part in Path(path).parts if part in self._names), path)

    def is_by(self, wanted: dict[str, str]) -> bool:
        """Whether exactly these pods (name -> volume) have their volumes."""
        return (
            self.published == {(HANDLES[volume], name) for name, volume in wanted.items()}
            and self.staged.keys() == {HANDLES[volume] for volume in wanted.values()}
            and self.mounted_for == wanted.keys()
        )

    def __str__(self) -> str:
        return f"published {self.published}, staged {self.staged}, mounted {self.mounted_for}"


def wait_used(agent: Agent, driver: CsiDriver, wanted: dict[str, str]) -> None:
    """Wait until exactly these pods (name -> volume) have their volumes, and keep the rules."""
    try:
        eventually(lambda: Used(agent, driver).is_by(wanted), 150)
    except WaitTimeoutError as exc:
        raise WaitTimeoutError(f"wanted {wanted}, but {Used(agent, driver)}") from exc
    driver.check()


def end_all(agent: Agent, driver: CsiDriver, names: Iterable[str]) -> None:
    for name in names:
        agent.drop(name)
    for name in names:
        agent.wait_gone(name, 180)
    driver.wait_clean(150)


@pytest.fixture
def machine() -> Iterator[Containerd]:
    """A containerd of the test's own: the others' pods do not survive a reboot."""
    with Containerd() as running:
        yield running


@pytest.fixture
def rebooting(machine: Containerd, brief_path: Path) -> Iterator[Agent]:
    """An agent on that containerd, not yet started."""
    agent = Agent(brief_path / "agent", machine)
    make_known(agent)
    yield agent
    agent.end()
    leftovers.detach_loops_under(agent.base)
    agent.close()


def make_known(agent: Agent) -> None:
    for name, handle in HANDLES.items():
        mode = "Block" if is_raw(name) else "Filesystem"
        put_documents(agent, *volume_documents(name, handle, mode=mode), file=f"volume-{name}")


@pytest.fixture
def fresh(make_agent: MakeAgent) -> Iterator[Agent]:
    agent = make_agent()
    make_known(agent)
    agent.start()
    yield agent
    agent.end()
    leftovers.detach_loops_under(agent.base)  # they hold devices where a test has failed


def test_agent_and_driver_killed_together_leave_data_and_nothing_else(
    fresh: Agent, cri: CriClient, tmp_path: Path
) -> None:
    chosen = random.Random(int(os.environ.get("KUBELET_TRIO_SEED", SEED)))
    agent, wanted = fresh, dict[str, str]()
    with CsiDriver(tmp_path / "driver", agent.root) as driver:
        for volume in SHARED:
            agent.put(user_of(f"first-{volume}", volume, "printf kept | dd of=$AT conv=sync"))
        for volume in SHARED:
            agent.wait_ready(f"first-{volume}")
            eventually(partial(reads, cri, f"first-{volume}", volume, "kept"))
        end_all(agent, driver, [f"first-{volume}" for volume in SHARED])

        for _ in range(KILLS):
            for name in chosen.sample(NAMES, 3):
                if wanted.pop(name, ""):
                    agent.drop(name)
                else:
                    wanted[name] = chosen.choice(SHARED)
                    check = 'test "$(head -c 4 $AT)" = kept || exit 1'
                    agent.put(user_of(name, wanted[name], check))
            time.sleep(chosen.random() * 1.5)  # the moment of the kill is what is chosen
            both: list[Agent | CsiDriver] = [agent, driver]
            chosen.shuffle(both)
            for one in both:
                one.kill()
            chosen.shuffle(both)
            for one in both:
                one.start()
        for name in NAMES:
            if name in wanted:
                agent.wait_ready(name, 180)
            else:
                agent.wait_gone(name, 180)
        wait_used(agent, driver, wanted)
        assert wanted
        for name, volume in wanted.items():
            assert reads(cri, name, volume, "kept")
        end_all(agent, driver, list(wanted))


@pytest.mark.parametrize("method", [calls.STAGE, calls.PUBLISH, calls.UNPUBLISH, calls.UNSTAGE])
@pytest.mark.parametrize("volume", ["disk", "raw"])
def test_what_both_died_in_is_undone_by_the_next_agent(
    fresh: Agent, tmp_path: Path, volume: str, method: str
) -> None:
    agent = fresh
    with CsiDriver(tmp_path / "driver", agent.root) as driver:
        # Its work is done; nobody was told.
        driver.fault(CsiFaultKind.DIE_AFTER, method, HANDLES[volume])
        agent.put(user_of("dies", volume, "true"))
        if method in (calls.UNPUBLISH, calls.UNSTAGE):
            agent.wait_ready("dies")
            agent.drop("dies")
            driver.wait_dead()
            agent.kill()
        else:
            driver.wait_dead()
            agent.kill()
            agent.drop("dies")
        driver.start()
        agent.start()
        agent.wait_gone("dies", 180)
        driver.wait_clean(150)


def reboot(agent: Agent, driver: CsiDriver, machine: Containerd) -> None:
    """Take what a reboot takes; the agent and the driver are not started again."""
    agent.kill()
    driver.reboot()
    machine.reboot()
    leftovers.detach_loops_under(agent.base)
    leftovers.unmount_under(agent.base)
    leftovers.detach_loops_under(driver.base)
    assert not leftovers.loops_under(agent.base) + leftovers.loops_under(driver.base)


@pytest.mark.parametrize("first", ["agent", "driver"])
def test_pods_have_their_data_after_a_reboot(
    rebooting: Agent, machine: Containerd, tmp_path: Path, first: str
) -> None:
    agent = rebooting
    stays = {f"stays-{volume}": volume for volume in SHARED}
    goes = {f"goes-{volume}": volume for volume in ("tree", "left-disk", "left-raw")}
    # Each life of a container counts itself.
    count = "n=$(head -c 1 $AT | tr -d '\\0'); printf $((n + 1)) | dd of=$AT conv=notrunc"
    with (
        CriClient(machine.socket) as cri,
        CsiDriver(tmp_path / "driver", agent.root) as driver,
    ):
        agent.start()
        for name, volume in stays.items():
            agent.put(user_of(name, volume, count))
        for name, volume in goes.items():
            agent.put(user_of(name, volume, "true"))
        for name, volume in stays.items():
            agent.wait_ready(name)
            eventually(partial(reads, cri, name, volume, "1"))
        for name in goes:
            agent.wait_ready(name)
        wait_used(agent, driver, stays | goes)

        reboot(agent, driver, machine)
        for name in goes:  # as if somebody had done so while it was down
            agent.drop(name)
        for one in (agent, driver) if first == "agent" else (driver, agent):
            one.start()
        for name, volume in stays.items():
            eventually(partial(reads, cri, name, volume, "2"), 120, f"{name} runs anew")
            agent.wait_ready(name)
        for name in goes:
            agent.wait_gone(name)
        wait_used(agent, driver, stays)
        end_all(agent, driver, stays)
