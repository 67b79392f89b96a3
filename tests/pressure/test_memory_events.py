"""What the kernel counts in containers' cgroups: the files, and what is told of them."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock
from trio_util import AsyncValue

from kubelet_trio.cgroups import CgroupHost, cgroup_host
from kubelet_trio.model import (
    ContainerId,
    EventType,
    ObjectRef,
    PodUid,
    inline_offload,
    pod_ref,
)
from kubelet_trio.pressure import (
    ContainerOomWatcher,
    MemoryEvents,
    RunningContainer,
    open_memory_events,
)
from kubelet_trio.pressure.memory_events import Kills, MemoryEventsV1, MemoryEventsV2
from tests.pressure.cgroup import go, memory_cgroup, shell_in

ONE, TWO = ContainerId("a1" * 32), ContainerId("b2" * 32)
SLICE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f_1.slice"


class Machine:
    """A small tree of version 2 and the /proc of those in it."""

    def __init__(self, base: Path) -> None:
        self.proc, self.root = base / "proc", base / "cgroup"
        self.host = CgroupHost(2, {"": self.root})

    def run(self, container_id: ContainerId, pid: int, inside: str = "") -> Path:
        path = f"{SLICE}/cri-containerd-{container_id}.scope"
        directory = self.root / path.lstrip("/")
        directory.mkdir(parents=True)
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::{path}{inside}\n")
        count(directory, 0)
        return directory


def count(directory: Path, killed: int, oom: int = 0) -> None:
    text = f"low 0\nhigh 0\nmax 7\noom {oom}\noom_kill {killed}\noom_group_kill 0\n"
    (directory / "memory.events").write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_a_change_of_memory_events_says_whose(machine: Machine) -> None:
    first, second = machine.run(ONE, 11), machine.run(TWO, 12, inside="/init.scope")
    files = open_memory_events(machine.host, machine.proc)
    assert isinstance(files, MemoryEventsV2)
    try:
        files.add(ONE, 11)
        files.add(TWO, 12)
        count(second, 2, oom=1)
        with trio.fail_after(60):
            assert set(await files.wait()) == {TWO}
        assert (files.read(ONE), files.read(TWO)) == (Kills(0), Kills(2, 1))
        files.forget(TWO)
        count(second, 3)
        count(first, 1)
        with trio.fail_after(60):
            assert set(await files.wait()) == {ONE}
        assert files.read(TWO) is None
        (first / "memory.events").unlink()
        assert files.read(ONE) is None
        files.forget(ONE)
    finally:
        files.close()


async def test_a_number_that_is_another_process_by_now_is_not_watched(machine: Machine) -> None:
    machine.run(ONE, 11)
    files = MemoryEventsV2(machine.host, machine.proc)
    try:
        for container_id, pid in ((TWO, 11), (ONE, 99)):
            with pytest.raises(FileNotFoundError):
                files.add(container_id, pid)
    finally:
        files.close()


def test_a_host_without_the_memory_controller_is_said_to_have_none() -> None:
    with pytest.raises(OSError, match="no memory controller"):
        open_memory_events(CgroupHost(1, {"cpu": Path("/nowhere")}))


# A real cgroup of version 1


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A container's process that, told to, lets a child take more than there is, and goes on."""
    with memory_cgroup(ONE) as cgroup:
        (cgroup / "memory.limit_in_bytes").write_text(str(24 << 20))
        hungry = "dd if=/dev/zero of=/dev/null bs=80M count=1; echo; exec sleep 1000"
        with shell_in(cgroup, hungry) as process:
            yield process


async def test_a_kill_in_a_cgroup_of_version_1_is_noticed(
    process: subprocess.Popen[bytes],
) -> None:
    assert process.stdout is not None
    files = open_memory_events(cgroup_host())
    assert isinstance(files, MemoryEventsV1)
    try:
        files.add(ONE, process.pid)
        assert files.read(ONE) == Kills(0)
        go(process)
        with trio.fail_after(60):
            while files.read(ONE) == Kills(0):
                assert ONE in await files.wait()
            await trio.to_thread.run_sync(process.stdout.readline)
        assert process.poll() is None  # the main process goes on
        counted = files.read(ONE)
        assert counted is not None
        assert counted.killed >= 1
    finally:
        files.close()


# What is told


class Files:
    """`MemoryEvents` that a test writes."""

    def __init__(self) -> None:
        self.counts: dict[ContainerId, Kills] = {}
        self.watched: set[ContainerId] = set()
        self.send, self.receive = trio.open_memory_channel[ContainerId](100)
        self.is_closed = False

    def count(self, container_id: ContainerId, killed: int, at_limit: int = 0) -> None:
        self.counts[container_id] = Kills(killed, at_limit)
        if container_id in self.watched:
            self.send.send_nowait(container_id)

    def add(self, container_id: ContainerId, pid: int) -> None:
        if container_id not in self.counts:
            raise FileNotFoundError(container_id)
        self.watched.add(container_id)

    def forget(self, container_id: ContainerId) -> None:
        self.watched.discard(container_id)

    def read(self, container_id: ContainerId) -> Kills | None:
        return self.counts.get(container_id)

    async def wait(self) -> Collection[ContainerId]:
        return {await self.receive.receive()}

    def close(self) -> None:
        self.is_closed = True


class World:
    """The watcher with all that it meets."""

    def __init__(self, *, since: float = 100.0) -> None:
        self.files = Files()
        self.told: list[tuple[str, str]] = []
        self._changes = 0
        self.containers: dict[ContainerId, RunningContainer] = {}
        self.pods: AsyncValue[Mapping[PodUid, Pod]] = AsyncValue({})
        self.logged: Counter[ContainerId] = Counter()
        self.watcher = ContainerOomWatcher(
            self,
            lambda: self.containers.values(),
            self.pods,
            self.logged,
            inline_offload,
            self.open,
            since=since,
        )

    def open(self) -> MemoryEvents:
        return self.files

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        assert (type_, reason) == ("Warning", "OOMKilling")
        self.told.append((involved.field_path, message))

    def run(self, container_id: ContainerId, *, started_at: float, killed: int = 0) -> None:
        ref = pod_ref("ns", "pod", "0f-1", "spec.containers{web}")
        self.containers[container_id] = RunningContainer(container_id, 1, started_at, ref)
        self.files.counts.setdefault(container_id, Kills(killed))
        self._change()

    def end(self, container_id: ContainerId) -> None:
        del self.containers[container_id]
        self._change()

    def _change(self) -> None:
        self._changes += 1
        self.pods.value = {PodUid(str(self._changes)): Pod()}


AT_LIMIT = "A process was killed: its memory limit was reached"


async def test_what_the_log_did_not_tell_is_told_once(autojump_clock: MockClock) -> None:
    world = World()
    world.run(ONE, started_at=101)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.watcher.run)
        await trio.sleep(5)
        assert world.told == []
        world.files.count(ONE, 0)  # it sits at its limit
        await trio.sleep(5)
        assert world.told == []
        world.files.count(ONE, 1, at_limit=1)
        await trio.sleep(5)
        assert world.told == [("spec.containers{web}", AT_LIMIT)]
        world.files.count(ONE, 3, at_limit=1)
        await trio.sleep(5)
        assert world.told[1:] == [
            ("spec.containers{web}", "2 processes were killed: there was no memory left for it")
        ]
        # The log, too, tells of the next one.
        world.logged[ONE] += 1
        world.files.count(ONE, 4, at_limit=2)
        await trio.sleep(5)
        assert len(world.told) == 2
        world.end(ONE)
        await trio.sleep(5)
        assert not world.files.watched
        nursery.cancel_scope.cancel()
    assert world.files.is_closed
    assert world.watcher.kills == 4


@pytest.mark.parametrize(("started_at", "told"), [(50.0, 0), (150.0, 1)])
async def test_only_what_has_happened_since_the_agents_start_is_news(
    started_at: float, told: int, autojump_clock: MockClock
) -> None:
    world = World(since=100.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.watcher.run)
        world.run(ONE, started_at=started_at, killed=1)
        await trio.sleep(5)
        assert len(world.told) == told
        nursery.cancel_scope.cancel()


async def test_a_container_without_a_cgroup_is_left_alone(autojump_clock: MockClock) -> None:
    world = World()
    world.run(ONE, started_at=101)
    world.run(TWO, started_at=101)
    del world.files.counts[ONE]
    async with trio.open_nursery() as nursery:
        await nursery.start(world.watcher.run)
        await trio.sleep(5)
        assert world.files.watched == {TWO}
        nursery.cancel_scope.cancel()


async def test_a_kernel_that_cannot_tell_is_no_failure(autojump_clock: MockClock) -> None:
    world = World()

    def refuse() -> MemoryEvents:
        raise OSError(24, "too many inotify instances")

    world.watcher.open = refuse
    async with trio.open_nursery() as nursery:
        await nursery.start(world.watcher.run)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
