"""Programs of the host that hang: who is cancelled leaves them, and nobody works beside them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import FlexPersistentVolumeSource
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.model import PodUid, Purpose, busy_threads, inline_offload, thread_offload
from kubelet_trio.model.threads import BOUNDS
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes.async_volumes import AsyncVolumes
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.host import disks as host_disks
from kubelet_trio.volumes.host.disks import DiskVolumes
from kubelet_trio.volumes.host.flex import make_flex
from kubelet_trio.volumes.host.iscsi import IscsiDisks
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.keyed import KeyedLocks, LeftCalls
from kubelet_trio.volumes.spec import AsyncKind
from kubelet_trio.volumes.tools import ToolResult
from kubelet_trio.volumes.unused import UnusedVolumes
from tests.volumes.host.disk_specs import disk_spec, left_below
from tests.volumes.host.programs import Program, done
from tests.volumes.host.test_iscsi import Node, iscsi, make_node

DEVICES = thread_offload.of(Purpose.DEVICES)


class Stuck:
    """A program that hangs until the test lets it go; at most one may run at a time."""

    def __init__(self, program: Program = done) -> None:
        self._program = program
        self._begun, self._go = threading.Semaphore(0), threading.Event()
        self._running = threading.Lock()
        self.runs = 0

    def __call__(self, *arguments: str) -> ToolResult:
        assert self._running.acquire(blocking=False), "it runs twice at a time"
        try:
            self.runs += 1
            self._begun.release()
            assert self._go.wait(60), "the test did not let it go"
            return self._program(*arguments)
        finally:
            self._running.release()

    async def wait_begun(self) -> None:
        await trio.to_thread.run_sync(self._begun.acquire)

    def wait(self) -> None:
        self._go.wait(60)

    def let_go(self) -> None:
        self._go.set()


class Disks:
    """A node with one agent; calls run in threads, and time runs fast."""

    def __init__(self, node: Node) -> None:
        self.node = node
        context = PluginContext(
            node.root, node.mounter, thread_offload, node.tools, node.initiator.block
        )
        targets = KeyedLocks(context.calls)
        kind = IscsiDisks(context, node.initiator.scsi, targets=targets)
        self.plugin = DiskVolumes(context, kind)
        owns = "kubernetes.io~iscsi".__eq__
        self.volumes = AsyncVolumes(
            [AsyncKind("iscsi", owns, lambda: True, lambda: self.plugin)], inline_offload
        )
        self._stuck: list[Stuck] = []

    def hang(self, program: str) -> Stuck:
        """Let a program hang from now on."""
        stuck = Stuck(self.node.tools.programs[program])
        self.node.tools.programs[program] = stuck
        self._stuck.append(stuck)
        return stuck

    async def give_up(self, stuck: Stuck) -> None:
        """Begin a set-up, and cancel it when it hangs."""
        async with trio.open_nursery() as attempt:
            attempt.start_soon(self.plugin.set_up, iscsi())
            await stuck.wait_begun()
            attempt.cancel_scope.cancel()

    def end(self) -> None:
        for stuck in self._stuck:
            stuck.let_go()


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(600):
        while not is_so():
            await trio.to_thread.run_sync(os.sched_yield)


@pytest.fixture(autouse=True)
def ended_threads() -> Iterator[None]:
    """Let what a test has let go of end with it: others look at all threads that are busy."""
    yield
    trio.run(until, lambda: not busy_threads())


@pytest.fixture
def disks(tmp_path: Path, mock_clock: MockClock) -> Iterator[Disks]:
    mock_clock.rate = 100
    made = Disks(make_node(tmp_path))
    yield made
    made.end()


@pytest.mark.parametrize("program", ["mkfs.ext4", "iscsiadm"])
async def test_what_a_cancelled_set_up_left_is_undone_when_it_ends(
    disks: Disks, mock_clock: MockClock, program: str
) -> None:
    stuck = disks.hang(program)
    await disks.give_up(stuck)
    began = trio.current_time()
    await disks.volumes.tear_down(PodUid("u-1"), disks.node.pod_dir(), ["kubernetes.io~iscsi"])
    async with trio.open_nursery() as agent:
        agent.start_soon(UnusedVolumes(disks.volumes).run)
        with pytest.raises(OSError, match=r"of an earlier attempt still runs after \d+ s"):
            await disks.plugin.set_up(iscsi(uid="u-2"))
        assert trio.current_time() - began > 30
        assert stuck.runs == 1
        disks.end()
        place = disks.node.base / "iface-default"
        await until(lambda: not place.exists())
        agent.cancel_scope.cancel()
    disks.node.assert_nothing_left()


async def test_the_next_set_up_goes_on_from_what_was_left(
    disks: Disks, mock_clock: MockClock
) -> None:
    stuck = disks.hang("mkfs.ext4")
    await disks.give_up(stuck)
    async with trio.open_nursery() as attempts:
        attempts.start_soon(disks.plugin.set_up, iscsi())
        attempts.start_soon(disks.plugin.set_up, iscsi(uid="u-2"))
        await trio.sleep(10)
        assert not await disks.plugin.is_set_up(iscsi())
        disks.end()
    assert stuck.runs == 1
    assert len(disks.node.mounted()) == 3
    for uid in ("u-1", "u-2"):
        await disks.plugin.tear_down(disks.node.pod_dir(uid))
    disks.node.assert_nothing_left()


async def test_a_disk_that_hangs_takes_one_thread(disks: Disks, mock_clock: MockClock) -> None:
    stuck = disks.hang("mkfs.ext4")
    await disks.give_up(stuck)
    for number in range(5):
        with trio.move_on_after(20) as attempt:
            await disks.plugin.set_up(iscsi(uid=f"u-{number}"))
        assert attempt.cancelled_caught
    assert busy_threads() == ["devices: format_and_mount"]


async def test_the_end_of_a_pod_does_not_wait_for_a_detach_that_hangs(
    disks: Disks, mock_clock: MockClock
) -> None:
    await disks.plugin.set_up(iscsi())
    stuck = disks.hang("iscsiadm")
    began = trio.current_time()
    await disks.volumes.tear_down(PodUid("u-1"), disks.node.pod_dir(), ["kubernetes.io~iscsi"])
    assert 10 <= trio.current_time() - began < 30
    assert left_below(*disks.node.root.glob("pods/*/volume*")) == []
    async with trio.open_nursery() as agent:
        agent.start_soon(UnusedVolumes(disks.volumes).run)
        await trio.sleep(60)
        assert stuck.runs == 1
        disks.end()
        await until(lambda: not (disks.node.base / "iface-default").exists())
        agent.cancel_scope.cancel()
    disks.node.assert_nothing_left()


async def test_the_end_of_a_pod_waits_for_the_entry_of_a_device_that_is_still_being_made(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = host_disks._touch
    stuck = Stuck(lambda *paths: (touch(*map(Path, paths)), done())[1])
    monkeypatch.setattr(host_disks, "_touch", stuck)
    async with trio.open_nursery() as attempt:
        attempt.start_soon(disks.plugin.set_up, iscsi(is_block=True))
        await stuck.wait_begun()
        attempt.cancel_scope.cancel()
    async with trio.open_nursery() as end:
        end.start_soon(disks.plugin.tear_down, disks.node.pod_dir())
        await trio.sleep(5)
        disks.end()
        stuck.let_go()
    disks.node.assert_nothing_left()


FLEX = """#!/bin/sh
echo "$@" >> {log}
if [ "$1" = "{hangs}" ]; then
    i=0
    while [ ! -e {go} ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done
fi
echo '{{"status": "Success", "capabilities": {{"attach": false}}}}'
"""


@pytest.mark.parametrize(("hangs", "has_directory"), [("init", False), ("mount", True)])
async def test_a_pod_ends_only_after_a_driver_that_works_in_its_directory(
    tmp_path: Path, mock_clock: MockClock, hangs: str, has_directory: bool
) -> None:
    log, go, program = tmp_path / "log", tmp_path / "go", tmp_path / "flex/vendor~slow/slow"
    program.parent.mkdir(parents=True)
    program.write_text(FLEX.format(log=log, go=go, hangs=hangs))
    program.chmod(0o755)
    root, mounter = tmp_path / "root", FakeMounter()
    plugin = make_flex(PluginContext(root, mounter, thread_offload, flex_dir=tmp_path / "flex"))
    spec = disk_spec("flexVolume", FlexPersistentVolumeSource(driver="vendor/slow"))
    async with trio.open_nursery() as attempt:
        attempt.start_soon(plugin.set_up, spec)
        await until(lambda: log.exists() and hangs in log.read_text())
        attempt.cancel_scope.cancel()
    mock_clock.rate = 100
    try:
        if has_directory:
            with pytest.raises(VolumeError, match="of an earlier attempt still runs"):
                await plugin.tear_down(root / "pods/u-1")
            assert "unmount" not in log.read_text()
        else:
            await plugin.tear_down(root / "pods/u-1")
    finally:
        go.touch()
    mock_clock.rate = 1
    await plugin.tear_down(root / "pods/u-1")
    assert ("unmount" in log.read_text()) is has_directory
    assert left_below(root / "pods/u-1/volumes") == []


async def test_a_call_that_has_not_begun_is_dropped() -> None:
    """Its caller is cancelled while every thread is taken."""
    stuck, late, calls = Stuck(), Stuck(), LeftCalls()
    async with trio.open_nursery() as tasks:
        for _ in range(BOUNDS[Purpose.DEVICES].threads):
            tasks.start_soon(DEVICES, stuck.wait)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as attempt:
            attempt.start_soon(calls.run, DEVICES, late)
            await wait_all_tasks_blocked()
            attempt.cancel_scope.cancel()
        stuck.let_go()
    assert late.runs == 0


async def test_a_left_call_that_fails_is_logged() -> None:
    def fail(*_: str) -> ToolResult:
        raise OSError(5, "Input/output error")

    stuck, locks = Stuck(fail), KeyedLocks()

    async def work() -> None:
        async with locks.hold("disk"):
            await locks.calls.run(DEVICES, stuck)

    with capture_logs() as logs:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(work)
            await stuck.wait_begun()
            tasks.cancel_scope.cancel()
        assert not locks.is_held("disk")
        stuck.let_go()
        async with locks.hold("disk"):
            pass
    (entry,) = logs
    assert entry["event"] == "volume.left_call_failed"
    assert "Input/output error" in entry["error"]


def test_the_end_of_the_agent_does_not_wait_for_a_left_call() -> None:
    stuck, calls = Stuck(), LeftCalls()

    async def main() -> None:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(calls.run, DEVICES, stuck)
            await stuck.wait_begun()
            tasks.cancel_scope.cancel()

    trio.run(main)
    assert busy_threads() == ["devices: Stuck"]
    stuck.let_go()
    trio.run(until, lambda: not busy_threads())


async def test_a_left_call_holds_its_own_key_only() -> None:
    locks, hang = KeyedLocks(), Stuck()

    async def work() -> None:
        async with locks.hold("pods/u-1/pv2"):
            await locks.calls.run(DEVICES, hang)

    async with trio.open_nursery() as tasks:
        tasks.start_soon(work)
        await hang.wait_begun()
        tasks.cancel_scope.cancel()
    await locks.wait_left("pods/u-1/pv", 0)
    for wait in (
        partial(locks.wait_left, "pods/u-1/pv2"),
        partial(locks.wait_left_below, "pods/u-1/"),
    ):
        with pytest.raises(TimeoutError, match="of an earlier attempt still runs"):
            await wait(0)
    hang.let_go()
    await locks.wait_left("pods/u-1/pv2", 60)
