"""What no pod uses any more is undone, volume by volume, whatever its driver does."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.grpc import Status
from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes.errors import VolumeError
from tests.volumes.csi.world import World, block, claimed, persistent, pod_of, user_of

A, B = PodUid("u-a"), PodUid("u-b")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.objects.put(*persistent(), *persistent("other", "vol-2"), *block("dev", "vol-3"))
    return made


def unstages(world: World, handle: str = "vol-1") -> int:
    return len([c for c in world.rules.log if c.method == calls.UNSTAGE and c.volume_id == handle])


@pytest.mark.parametrize(("handle", "is_block"), [("vol-1", False), ("vol-3", True)])
async def test_a_failed_unstage_is_repeated_with_the_volumes_back_off(
    world: World, autojump_clock: MockClock, handle: str, is_block: bool
) -> None:
    pod = user_of(A, dev="/dev/xvda") if is_block else pod_of(A, claimed())
    async with world.running(), trio.open_nursery() as agent:
        agent.start_soon(world.volumes.unused.run)
        await world.volumes.mount(pod)
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, times=4, status=Status.INTERNAL)
        await world.volumes.unmount(A)
        began = trio.current_time()
        await world.driver.wait_until(lambda rules: handle not in rules.staged())
        # The teardown, then three more that fail.
        assert unstages(world, handle) == 5
        assert trio.current_time() - began == pytest.approx(0.5 + 0.5 + 1 + 2)
        agent.cancel_scope.cancel()
    world.rules.check()


async def test_a_volume_that_hangs_delays_no_other(world: World, autojump_clock: MockClock) -> None:
    """The other one fails after the first hangs, so it needs another look at the disk."""
    async with world.running(), trio.open_nursery() as agent:
        await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.mount(pod_of(B, claimed("data", "other")))
        faults = world.driver.faults
        faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, "vol-1", status=Status.INTERNAL)
        await world.volumes.unmount(A)
        hang = faults.add(CsiFaultKind.HANG, calls.UNSTAGE, "vol-1", times=None)
        agent.start_soon(world.volumes.unused.run)
        await trio.sleep(5)
        began = trio.current_time()
        faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, "vol-2", status=Status.INTERNAL)
        await world.volumes.unmount(B)
        await world.driver.wait_until(lambda rules: "vol-2" not in rules.staged())
        assert trio.current_time() - began == pytest.approx(0.5)
        assert "vol-1" in world.rules.staged()
        faults.clear()
        hang.lifted.set()
        await world.driver.wait_until(lambda rules: not rules.staged())
        agent.cancel_scope.cancel()
    world.rules.check()


async def test_a_volume_that_is_used_again_is_left_alone(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running(), trio.open_nursery() as agent:
        agent.start_soon(world.volumes.unused.run)
        await world.volumes.mount(pod_of(A, claimed()))
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, status=Status.INTERNAL)
        await world.volumes.unmount(A)
        await world.volumes.mount(pod_of(B, claimed()))
        before = unstages(world)
        await trio.sleep(1000)
        assert unstages(world) == before
        await world.volumes.unmount(B)
        assert world.rules.staged() == {}
        agent.cancel_scope.cancel()
    world.check_clean()


async def test_what_an_earlier_agent_left_is_undone(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, status=Status.INTERNAL)
        await world.volumes.unmount(A)
    world.restart()
    async with trio.open_nursery() as agent:
        agent.start_soon(world.volumes.unused.run)
        await trio.sleep(3)  # its driver has not registered yet
        async with world.running():
            await world.driver.wait_until(lambda rules: not rules.staged())
            assert trio.current_time() < 10
            agent.cancel_scope.cancel()
    world.rules.check()


async def test_block_volumes_that_cannot_be_read_stop_no_file_systems(
    world: World, autojump_clock: MockClock
) -> None:
    devices = world.root / "plugins/kubernetes.io/csi/volumeDevices"
    async with world.running(), trio.open_nursery() as agent:
        await world.volumes.mount(pod_of(A, claimed()))
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, status=Status.INTERNAL)
        await world.volumes.unmount(A)
        devices.parent.mkdir(parents=True, exist_ok=True)
        devices.symlink_to(devices)
        agent.start_soon(world.volumes.unused.run)
        await world.driver.wait_until(lambda rules: not rules.staged())
        with pytest.raises(VolumeError, match="reading the block volumes failed"):
            await world.volumes.unused.clean()
        agent.cancel_scope.cancel()
    world.rules.check()


@pytest.mark.parametrize("is_block", [False, True])
async def test_the_end_of_a_pod_does_not_wait_for_an_unstage_that_hangs(
    world: World, autojump_clock: MockClock, is_block: bool
) -> None:
    handle = "vol-3" if is_block else "vol-1"
    pod = pod_of(A, claimed(), claimed("more", "other"))
    if is_block:
        pod = user_of(A, dev="/dev/xvda")
    async with world.running(), trio.open_nursery() as agent:
        agent.start_soon(world.volumes.unused.run)
        await world.volumes.mount(pod)
        hang = world.driver.faults.add(CsiFaultKind.HANG, calls.UNSTAGE, handle, times=None)
        began = trio.current_time()
        await world.volumes.unmount(A)
        assert trio.current_time() - began == pytest.approx(10)
        assert list(world.rules.staged()) == [handle]  # the other volume is unstaged
        # The sweep repeats it, with the deadline of a call and its back-off.
        await trio.sleep(0.5 + 120 + 0.5 + 120 + 1 + 1)
        assert unstages(world, handle) == 4
        assert list(world.rules.staged()) == [handle]
        world.driver.faults.clear()
        hang.lifted.set()
        await world.driver.wait_until(lambda rules: not rules.staged())
        await world.volumes.unused.clean()
        agent.cancel_scope.cancel()
    assert world.mounter.mounts() == []
    world.rules.check()


async def test_an_unstage_that_goes_on_in_the_driver_is_completed(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running(), trio.open_nursery() as agent:
        agent.start_soon(world.volumes.unused.run)
        await world.volumes.mount(pod_of(A, claimed()))
        world.driver.faults.add(CsiFaultKind.GOES_ON, calls.UNSTAGE, "vol-1", delay=25)
        await world.volumes.unmount(A)
        await trio.sleep(60)
        assert world.left_on_disk() == []
        # Its next pod can have it.
        await world.volumes.mount(pod_of(B, claimed()))
        await world.volumes.unmount(B)
        agent.cancel_scope.cancel()
    assert world.rules.staged() == {}
    world.rules.check()


async def test_a_pod_that_waits_for_an_unstage_ends_without_it(
    world: World, autojump_clock: MockClock
) -> None:
    """Its set-up waits for the lock of the volume that the last pod has left."""
    async with world.running(), trio.open_nursery() as agent:
        agent.start_soon(world.volumes.unused.run)
        await world.volumes.mount(pod_of(A, claimed()))
        hang = world.driver.faults.add(CsiFaultKind.HANG, calls.UNSTAGE, "vol-1", times=None)
        await world.volumes.unmount(A)
        await trio.sleep(1)  # the sweep asks again
        with trio.move_on_after(5):
            await world.volumes.mount(pod_of(B, claimed()))
        began = trio.current_time()
        await world.volumes.unmount(B)
        assert trio.current_time() - began <= 10
        world.driver.faults.clear()
        hang.lifted.set()
        await world.driver.wait_until(lambda rules: not rules.staged())
        agent.cancel_scope.cancel()
    world.rules.check()
