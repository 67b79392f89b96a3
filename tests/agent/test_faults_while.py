"""Faults that hold WHILE pods are deleted, evicted, or the node or its agent goes, in pairs.

Two pods run; then two faults begin, and in the midst of them something happens to the first,
`goes`. The other, `stays`, must not notice. A pod that is wanted from then on, `comes`, starts
at the latest when the faults are over. In the end nothing runs but what is wanted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.cri import RuntimeCallError
from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.pressure import EvictionPolicy, parse_thresholds
from kubelet_trio.shutdown import ShutdownPeriod
from kubelet_trio.testing import FakeContainer, Fault, FaultKind
from kubelet_trio.testing.objects import FakeUsage
from tests.agent.node import Node, from_api, make_pod, ready
from tests.agent.test_eviction import MI, Machine
from tests.shutdown.fake import FakeLogind
from tests.simulation.hard_world import Disk

EVICTION = EvictionPolicy(
    parse_thresholds({"memory.available": "100Mi", "nodefs.available": "100Mi"})
)
PERIODS = (ShutdownPeriod(0, 200),)

GOES = from_api(make_pod("goes", "use-300"))
STAYS = make_pod("stays", "use-50")  # static: critical, so nobody evicts it
COMES = make_pod("comes", "use-10")

UNUSED = "registry.example/unused:1"

# A slow runtime takes 30 s for each call, and to list, kill and look again takes some.
BOUND, SLOW_BOUND, AFTER = 60, 300, 600


@dataclass
class Trial:
    """A node, its disk and its signals, and the faults that hold."""

    node: Node
    disk: Disk = field(default_factory=Disk)
    machine: Machine = field(default_factory=Machine)
    logind: FakeLogind = field(default_factory=FakeLogind)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node.offload = self.disk.offload
        self.node.signals, self.node.logind = self.machine, self.logind
        self.node.runtime.usage = _usage

    def fault(self, kind: FaultKind, call: str = "", delay: float = 0.0) -> None:
        error = RuntimeCallError(call, "not now") if kind is FaultKind.ERROR else None
        faults = self.node.runtime.faults
        self.faults.append(faults.add(kind, call, times=None, delay=delay, error=error))

    def lift(self) -> None:
        for fault in self.faults:
            self.node.runtime.faults.lift(fault)
        if self.node.runtime.is_down:
            self.node.runtime.restart()
        self.node.runtime.images.busy.discard(UNUSED)
        self.disk.error = 0
        self.machine.memory = self.machine.disk = 1000 * MI

    def runs(self, pod: Pod) -> bool:
        return bool(self.node.runtime.alive(pod_uid(pod)))


def _usage(container: FakeContainer) -> FakeUsage:
    return FakeUsage(memory=int(container.image.removeprefix("use-")) * MI)


def _disk(number: int) -> Callable[[Trial], None]:
    def begin(trial: Trial) -> None:
        trial.disk.error = number

    return begin


def _image_stays(trial: Trial) -> None:
    images = trial.node.runtime.images
    images.present.add(UNUSED)
    images.busy.add(UNUSED)
    trial.machine.disk = 50 * MI


def _memory_short(trial: Trial) -> None:
    trial.machine.memory = 50 * MI


# The runtime obeys the first fault that hits a call: what hits every call comes last.
FAULTS: dict[str, Callable[[Trial], None]] = {
    "disk full": _disk(errno.ENOSPC),
    "disk read-only": _disk(errno.EROFS),
    "image stays": _image_stays,
    "dead sandbox stays": lambda trial: trial.fault(FaultKind.ERROR, "RemovePodSandbox"),
    "memory short": _memory_short,
    "runtime slow": lambda trial: trial.fault(FaultKind.SLOW, delay=30.0),
    "runtime away": lambda trial: trial.node.runtime.go_down(),
}
PAIRS = [
    pair for pair in combinations(FAULTS, 2) if pair != ("disk full", "disk read-only")
]  # a disk is one or the other


def _delete(trial: Trial) -> None:
    trial.node.feed.put(STAYS)


def _evict(trial: Trial) -> None:
    _memory_short(trial)


def _shut_down(trial: Trial) -> None:
    trial.logind.announce(True)


ACTIONS = {"delete": _delete, "evict": _evict, "shutdown": _shut_down, "restart": _delete}


async def _gone(trial: Trial, agent: Agent, bound: float) -> None:
    """Wait until the pod has stopped; nobody may say so before."""
    began = trio.current_time()
    while trial.runs(GOES):
        pod = agent.pods.value.get(pod_uid(GOES))
        told = pod.status.phase if pod is not None and pod.status is not None else None
        if told in ("Failed", "Succeeded"):
            await trio.lowlevel.checkpoint()
            assert not trial.runs(GOES), f"told as {told} while it runs"
        assert trio.current_time() - began < bound, "it runs on"
        await trio.sleep(0.5)


def _ids(trial: Trial, pod: Pod) -> list[str]:
    return [c.id for c in trial.node.runtime.containers.values() if c.uid == pod_uid(pod)]


@contextmanager
def _left_alone(trial: Trial, pod: Pod) -> Iterator[None]:
    """Whatever happens inside, this pod's container runs on, and no other is made for it."""
    before = _ids(trial, pod)
    yield
    assert _ids(trial, pod) == before
    assert trial.runs(pod)


async def _happen(trial: Trial, action: str, pair: tuple[str, str]) -> None:
    """Let an agent run, the faults begin, the action happen, the faults end."""
    is_away, is_slow = "runtime away" in pair, "runtime slow" in pair
    async with AsyncExitStack() as agents:
        enter = agents.enter_async_context
        told: dict[str, Any] = {"eviction": EVICTION, "shutdown": PERIODS}
        agent = await enter(trial.node.running(GOES, STAYS, **told))
        await trio.sleep(15)
        assert ready(trial.node.status(GOES))
        for name in pair:
            FAULTS[name](trial)
        ACTIONS[action](trial)
        await trio.sleep(0.2)
        if action == "restart":
            await agents.aclose()
            agent = await enter(trial.node.running(STAYS, **told))
        if is_away:
            await trio.sleep(60)
            trial.node.runtime.restart()
        await _gone(trial, agent, SLOW_BOUND if is_slow else BOUND)
        trial.lift()
        trial.logind.announce(False)
        # A pod that comes while the node goes is turned away; and it goes until its pods ended.
        with trio.fail_after(SLOW_BOUND):
            while agent.not_ready() == "node is shutting down":  # noqa: ASYNC110  # nobody tells
                await trio.sleep(1)
        await trio.sleep(10)
        wanted = (COMES,) if action == "shutdown" else (STAYS, COMES)
        trial.node.feed.put(*wanted)
        await trio.sleep(AFTER)
        assert _running(trial) == {pod_uid(pod) for pod in wanted}
        for pod in wanted:
            assert ready(trial.node.status(pod))
            assert trial.node.container(pod).containerID == f"fake://{_ids(trial, pod)[-1]}"


def _running(trial: Trial) -> set[PodUid]:
    return {container.uid for container in trial.node.runtime.alive()}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
async def test_a_pod_goes_another_stays_and_one_comes(
    tmp_path: Path, autojump_clock: MockClock, pair: tuple[str, str], action: str
) -> None:
    trial = Trial(Node(tmp_path))
    if action == "shutdown":
        await _happen(trial, action, pair)
    else:
        # Made before the faults, and the same after them.
        async with trial.node.running(STAYS):
            await trio.sleep(5)
        with _left_alone(trial, STAYS):
            await _happen(trial, action, pair)
    assert trial.node.runtime.violations == []
