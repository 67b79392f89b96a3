"""The API server is away WHILE pods end and agents come and go, beside another fault.

Three pods of an API server: `goes` is deleted, evicted, or ends with the node; `stays` must not
notice; `comes` is bound while nobody can hear of it, and runs at the latest when the server is
back. Every status that reaches the server is held against the runtime of that moment, and in the
end the server knows how each pod ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import (
    Container,
    EmptyDirVolumeSource,
    Pod,
    PodSpec,
    PodStatus,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.kube import KubeError
from kubelet_trio.model import PodUid, is_terminal, pod_uid
from kubelet_trio.testing import FakeContainer, FakeKube, KubeFaultKind
from kubelet_trio.testing.objects import FakeUsage
from tests.agent.hanging import HangingDisk
from tests.agent.test_cluster import NAME, World
from tests.agent.test_eviction import MI
from tests.agent.test_faults_while import EVICTION, FAULTS, PERIODS, Trial
from tests.simulation.manifests import SIDECAR
from tests.simulation.world import WitnessRuntime

GOES, STAYS, COMES = "goes", "stays", "comes"
CRITICAL = "system-node-critical"  # nobody evicts pods of this class, or turns them away

# Seconds from when the node can do it, and hears of it.
BOUND, SLOW_BOUND, HEARD, AFTER = 60, 300, 200, 600
_EXITS = (143, 137)  # stopped, or killed when its time was over


def _usage(container: FakeContainer) -> FakeUsage:
    return FakeUsage(memory=int(container.image.split("-")[1]) * MI)


@dataclass
class Served(Trial):
    """A node of a cluster, the faults that hold, and what its API server was told."""

    world: World = field(kw_only=True)
    disk: HangingDisk = field(default_factory=HangingDisk)
    last: dict[str, Pod] = field(default_factory=dict)  # as the server had it last, by name
    first: dict[str, set[str]] = field(default_factory=dict)  # a pod's containers, by name

    def __post_init__(self) -> None:
        super().__post_init__()
        self.node.runtime = WitnessRuntime(write_logs=True, status_lag=0.06)
        self.node.runtime.usage = _usage
        self.node.offload = self.disk

    def bind(self, name: str, image: str, *, priority: str | None = None) -> None:
        mounts = [VolumeMount(name="work", mountPath="/work")]
        main = Container(
            name="web", image=image, imagePullPolicy="IfNotPresent", volumeMounts=mounts
        )
        side = Container(
            name=SIDECAR, image="use-1", imagePullPolicy="IfNotPresent", restartPolicy="Always"
        )
        spec = PodSpec(
            containers=[main],
            initContainers=[side],
            nodeName=NAME,
            priorityClassName=priority,
            volumes=[Volume(name="work", emptyDir=EmptyDirVolumeSource())],
        )
        meta = ObjectMeta(name=name, namespace="default")
        self.last[name] = self.world.kube.add(Pod(metadata=meta, spec=spec))

    def uid(self, name: str) -> PodUid:
        return pod_uid(self.last[name])

    def lives(self, name: str) -> list[FakeContainer]:
        return list(self.node.runtime.alive(self.uid(name)))

    def lift(self) -> None:
        super().lift()
        self.disk.mend()

    async def watch(self) -> None:
        """Hold every status that reaches the server against what runs."""
        kube = self.world.kube
        while True:
            changed = kube.server.store.changed
            for name in list(self.last):
                again = {c.id for c in self.lives(name)} - self.first.get(name, set())
                assert name not in self.first or not again, f"{name} was started again"
                found = kube.find(Pod, name)
                if found is None:
                    assert not self.lives(name), f"{name} is gone from the server, and runs"
                else:
                    self.last[name] = found
                    wrong = self.wrong(name, found.status or PodStatus())
                    assert not wrong, f"{name}: {wrong}"
            await changed.wait()

    def wrong(self, name: str, status: PodStatus) -> str:
        """Return what a status says that is not so."""
        lives = {f"fake://{c.id}": c for c in self.lives(name)}
        if lives and is_terminal(status):
            return f"told as {status.phase} while it runs"
        for told in status.containerStatuses or ():
            if told.restartCount:
                return f"{told.name} is said to have been restarted"
            ended = told.state.terminated if told.state is not None else None
            if ended is not None and ended.containerID in lives:
                return f"{told.name} is said to have ended: {ended}"
            if ended is not None and ended.exitCode not in _EXITS:
                return f"{told.name} is said to have ended with {ended}"
            last = told.lastState.terminated if told.lastState is not None else None
            if last is not None:
                return f"{told.name} is said to have run before: {last}"
        return ""


def _answer(code: int, reason: str, retry_after: float | None = None) -> Callable[[FakeKube], None]:
    def begin(kube: FakeKube) -> None:
        error = KubeError(code, reason, "not now", retry_after)
        kube.faults.add(KubeFaultKind.ERROR, times=None, error=error)
        kube.cut()

    return begin


SERVERS: Mapping[str, Callable[[FakeKube], None]] = {
    "refuses": FakeKube.go_down,
    "hangs": FakeKube.hang,
    "500": _answer(500, "InternalError"),
    "429": _answer(429, "TooManyRequests", 1.0),
    "mute": FakeKube.mute,
}


def _hang_disk(trial: Trial) -> None:
    assert isinstance(trial.disk, HangingDisk)
    trial.disk.hang()


OTHERS = {**FAULTS, "disk hangs": _hang_disk}


@asynccontextmanager
async def _agent(trial: Served) -> AsyncIterator[Agent]:
    """Run an agent; in the end it is killed, if it has not stopped."""
    trial.disk.begin_threads()
    async with trial.world.running(eviction=EVICTION, shutdown=PERIODS) as agent:
        try:
            yield agent
        finally:
            trial.disk.end_threads()


async def _stop(trial: Served, agent: Agent) -> None:
    """Stop the agent as SIGTERM does."""
    agent.stop()
    with trio.move_on_after(30):
        await trial.world.ended.wait()
        return
    trial.disk.end_threads()
    with trio.fail_after(30):
        await trial.world.ended.wait()


@dataclass(frozen=True)
class Action:
    """What happens while faults hold."""

    happen: Callable[[Served], None]
    is_heard: bool = True  # False: the server is away already
    ends_agent: str = ""  # "kill" or "stop"
    told: str = ""  # the reason in the status of a pod whose object stays


def _delete(trial: Served) -> None:
    trial.world.kube.remove(Pod, GOES)


ACTIONS = {
    "delete": Action(_delete),
    "delete unheard": Action(_delete, is_heard=False),
    "delete, kill": Action(_delete, ends_agent="kill"),
    "delete, stop": Action(_delete, ends_agent="stop"),
    "evict": Action(FAULTS["memory short"], is_heard=False, told="Evicted"),
    "shutdown": Action(
        lambda trial: trial.logind.announce(True), is_heard=False, told="Terminated"
    ),
}


async def _until_gone(trial: Served, bound: float) -> None:
    began = trio.current_time()
    while trial.lives(GOES):
        assert trio.current_time() - began < bound, "it runs on"
        await trio.sleep(0.5)


async def _happen(trial: Served, server: str, other: str, action: Action) -> None:
    kube, world = trial.world.kube, trial.world
    bound = SLOW_BOUND if other == "runtime slow" else BOUND
    async with trio.open_nursery() as watching, AsyncExitStack() as agents:
        agent = await agents.enter_async_context(_agent(trial))
        trial.bind(GOES, "use-300-slow-stop-5")
        trial.bind(STAYS, "use-50", priority=CRITICAL)
        await world.wait(lambda: world.is_ready(GOES) and world.is_ready(STAYS))
        await trio.sleep(15)
        trial.first = {name: {c.id for c in trial.lives(name)} for name in (GOES, STAYS)}
        watching.start_soon(trial.watch)
        OTHERS[other](trial)
        if action.is_heard:
            action.happen(trial)
            await trio.sleep(0.2)
        SERVERS[server](kube)
        if not action.is_heard:
            action.happen(trial)
        await trio.sleep(1)
        if action.ends_agent:
            if action.ends_agent == "stop":
                await _stop(trial, agent)
            await agents.aclose()
            await agents.enter_async_context(_agent(trial))
        if other == "runtime away":
            await trio.sleep(60)
            trial.node.runtime.restart()
        is_hidden = action.happen is _delete and (
            not action.is_heard or (bool(action.ends_agent) and "disk" in other)
        )
        if action.told != "Terminated":
            trial.bind(COMES, "use-10", priority=CRITICAL)
        if not is_hidden:
            await _until_gone(trial, bound)
        await trio.sleep(120)
        kube.faults.clear()
        kube.come_back()
        if is_hidden:
            await _until_gone(trial, HEARD + bound)
        trial.lift()
        trial.logind.announce(False)
        if action.told == "Terminated":
            await trio.sleep(SLOW_BOUND)
            trial.bind(COMES, "use-10", priority=CRITICAL)
        await trio.sleep(AFTER)
        _check_end(trial, action)
        watching.cancel_scope.cancel()


def _check_end(trial: Served, action: Action) -> None:
    world = trial.world
    stay = {COMES} if action.told == "Terminated" else {STAYS, COMES}
    assert {c.uid for c in trial.node.runtime.alive()} == {trial.uid(name) for name in stay}
    for name in stay:
        assert world.is_ready(name), world.status(name)
        now = {c.id for c in trial.lives(name)}
        assert now == trial.first.get(name, now), f"{name} was started again"
    assert world.is_node_ready()
    for name in {GOES, STAYS} - stay:
        if action.told:
            assert world.status(name).reason == action.told
            assert world.status(name).phase == "Failed"
        else:
            assert world.gone(name)
        status = trial.last[name].status
        assert status is not None
        for told in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ())):
            ended = told.state.terminated if told.state is not None else None
            assert ended is not None, f"{name}: {told.name} is not said to have ended"
            assert ended.exitCode in _EXITS, f"{name}: {told.name} ended with {ended}"


CASES = [
    (server, other, action)
    for server in SERVERS
    for other in OTHERS
    for action in ACTIONS
    # No agent can start before the disk of its root directory answers.
    if other != "disk hangs" or not ACTIONS[action].ends_agent
]


@pytest.mark.parametrize(("server", "other", "action"), CASES)
async def test_the_server_is_away_while_a_pod_goes(
    tmp_path: Path, autojump_clock: MockClock, server: str, other: str, action: str
) -> None:
    world = World(tmp_path)
    trial = Served(world.host, world=world)
    await _happen(trial, server, other, ACTIONS[action])
    runtime = trial.node.runtime
    assert isinstance(runtime, WitnessRuntime)
    assert runtime.violations == []
    assert runtime.sidecars_stopped_early == set()
