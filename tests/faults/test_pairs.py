"""Two faults at once WHILE a pod is deleted or the agent goes in the midst of it, on real runtimes.

The agent is a node of a `FakeKube`, on a root directory whose disk is a small tmpfs. `goes` is
deleted, `stays` must not notice, `comes` is bound while the faults hold and runs at the latest
after them. tests/simulation/test_faults_without_server.py has all pairs in virtual time.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.daemon import Apis
from kubelet_trio.kube import ROUTES
from kubelet_trio.model import SystemClock, is_terminal
from tests.agent.test_taken_over import WatchedKube
from tests.faults.bed import HostProcesses, Marked
from tests.harness import Containerd, CriClient, Json, leftovers, missing
from tests.harness.hang import hang, resume
from tests.harness.inside import cluster_agent
from tests.harness.machine import PATIENCE

GOES, STAYS, COMES = "goes", "stays", "comes"
# By the defaults a full disk is disk pressure: `stays` would be evicted, and `comes` turned away.
CONFIG: Json = {"evictionHard": {"memory.available": "1Mi"}}
OUTAGE = 4.0  # seconds that the runtime hangs, or is away
BOUND, RUNS = 40.0, 90.0


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


@dataclass
class Trial:
    """A node, its API server, and the processes of its pods."""

    base: Path
    containerd: Containerd | None
    kube: WatchedKube = field(default_factory=lambda: WatchedKube(clock=SystemClock()))
    pods: Marked = field(default_factory=Marked)

    @property
    def root(self) -> Path:
        return self.base / "root"

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        """Run an agent, which goes in the end without a word."""
        api = self.kube.node("node")
        apis = Apis(api, api, "fake")
        if self.containerd is None:
            none: Containerd = HostProcesses()  # type: ignore[assignment]  # has what is asked of it
            agent = cluster_agent(none, self.base, CONFIG, apis, "--process-allow-root")
        else:
            agent = cluster_agent(self.containerd, self.base, CONFIG, apis)
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            yield
            nursery.cancel_scope.cancel()

    def bind(self, name: str) -> None:
        body = self.pods.pod(name, stop_takes=3 if name == GOES else 0)
        body["metadata"] = {"name": name}
        body["spec"]["nodeName"] = "node"
        self.kube.server.create(ROUTES["Pod"], body, "default")

    def is_ready(self, name: str) -> bool:
        found = self.kube.find(Pod, name)
        conditions = (found.status.conditions if found and found.status else None) or ()
        return any(c.type == "Ready" and c.status == "True" for c in conditions)

    def runs(self, *names: str) -> bool:
        return self.pods.runs(dict.fromkeys(names, 0))

    async def wait(self, check: Callable[[], bool], within: float, what: str) -> None:
        with trio.move_on_after(within * PATIENCE):
            while not check():  # noqa: ASYNC110  # processes tell nobody
                await trio.sleep(0.2)
            return
        raise AssertionError(f"not within {within:g} s: {what}; {self.pods.shells()}")

    def wrong(self) -> Iterator[str]:
        """Yield what was told of the pods and was not so."""
        for name, status in self.kube.told:
            for told in status.containerStatuses or ():
                if told.restartCount or (told.lastState and told.lastState.terminated):
                    yield f"{name}: said to have been restarted: {told}"
                ended = told.state.terminated if told.state is not None else None
                if ended is not None and (name != GOES or ended.exitCode != 0):
                    yield f"{name}: said to have ended: {ended}"
            if name != GOES and is_terminal(status):
                yield f"{name}: {status.phase}"


@contextmanager
def _disk_full(trial: Trial) -> Iterator[None]:
    ballast = trial.root / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\0" * 65536):
            pass
    yield
    ballast.unlink()


@contextmanager
def _disk_read_only(trial: Trial) -> Iterator[None]:
    pods = str(trial.root / "pods")
    _run("mount", "--bind", pods, pods)
    try:
        _run("mount", "-o", "remount,bind,ro", pods)
        yield
    finally:
        _run("umount", "--lazy", pods)


@contextmanager
def _server_away(trial: Trial) -> Iterator[None]:
    trial.kube.go_down()
    yield
    trial.kube.come_back()


async def _runtime_hangs(trial: Trial) -> None:
    assert trial.containerd is not None
    hang(trial.containerd.pid)
    try:
        await trio.sleep(OUTAGE)
    finally:
        resume(trial.containerd.pid)


async def _runtime_away(trial: Trial) -> None:
    assert trial.containerd is not None
    await trio.to_thread.run_sync(trial.containerd.stop)
    try:
        await trio.sleep(OUTAGE)
    finally:
        with trio.move_on_after(60, shield=True):
            await trio.to_thread.run_sync(trial.containerd.start)


DISKS = {"disk full": _disk_full, "disk read-only": _disk_read_only}
OUTAGES = {"runtime hangs": _runtime_hangs, "runtime away": _runtime_away}
SERVER = "server away"
# A disk is one or the other, and so is a runtime.
PAIRS: list[tuple[str, str]] = [
    *((disk, SERVER) for disk in DISKS),
    *((disk, outage) for disk in DISKS for outage in OUTAGES),
    *((SERVER, outage) for outage in OUTAGES),
]


# The embedded runtime is part of the agent: it is not away without it.
CASES = [
    (runtime, pair, action)
    for runtime in ("process", "containerd")
    for pair in PAIRS
    for action in ("delete", "delete, restart")
    if runtime == "containerd" or not set(pair) & OUTAGES.keys()
]


@pytest.fixture
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    if os.getuid() != 0:
        pytest.skip("mounts need root")
    containerd: Containerd | None = None
    if request.param == "containerd":
        if lacks := missing():
            pytest.skip(f"no real containers here: {', '.join(lacks)}")
        containerd = request.getfixturevalue("containerd")
    made = Trial(tmp_path, containerd)
    made.root.mkdir()
    options = ["-t", "tmpfs", "-o", "size=16m", "tmpfs"]
    if subprocess.run(["mount", *options, str(made.root)], check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        yield made
    finally:
        if containerd is not None:
            with CriClient(containerd.socket) as cri:
                cri.remove_all()
        made.pods.kill_all()
        leftovers.unmount_under(tmp_path)
        subprocess.run(["umount", "--lazy", str(made.root)], check=False)


@pytest.mark.parametrize(
    ("trial", "pair", "action"),
    CASES,
    ids=[f"{runtime}, {' and '.join(pair)}, {action}" for runtime, pair, action in CASES],
    indirect=["trial"],
)
async def test_a_pod_goes_another_stays_and_one_comes(
    trial: Trial, pair: tuple[str, str], action: str
) -> None:
    outage = next((OUTAGES[fault] for fault in pair if fault in OUTAGES), None)
    async with AsyncExitStack() as agents:
        await agents.enter_async_context(trial.agent())
        trial.bind(GOES)
        trial.bind(STAYS)
        await trial.wait(
            lambda: trial.is_ready(GOES) and trial.is_ready(STAYS), RUNS, "both are ready"
        )
        stays = trial.pods.pid_of(STAYS)
        with ExitStack() as faults:
            for fault in pair:
                if fault in DISKS:
                    faults.enter_context(DISKS[fault](trial))
            trial.kube.remove(Pod, GOES)
            await trio.sleep(0.5)
            if SERVER in pair:
                faults.enter_context(_server_away(trial))
            trial.bind(COMES)
            if action == "delete, restart":
                await agents.aclose()
                await agents.enter_async_context(trial.agent())
            if outage is not None:
                await outage(trial)
            # Where it could not be written down, the next agent is to be told once more.
            is_lost = action == "delete, restart" and SERVER in pair and pair[0] in DISKS
            if not is_lost:
                await trial.wait(
                    lambda: GOES not in _names(trial), BOUND, "the deleted pod has stopped"
                )
            assert trial.pods.pid_of(STAYS) == stays
        await trial.wait(lambda: trial.kube.find(Pod, GOES) is None, RUNS, "it is gone")
        await trial.wait(lambda: trial.is_ready(COMES), RUNS, "the new pod is ready")
        await trial.wait(lambda: trial.runs(STAYS, COMES), RUNS, "these two run, and no more")
        assert trial.pods.pid_of(STAYS) == stays
        assert list(trial.wrong()) == []


def _names(trial: Trial) -> set[str]:
    return {name for name, _ in trial.pods.shells().values()}
