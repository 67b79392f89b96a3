"""CSI volumes that a controller attaches first, and the node's volumesInUse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.grpc import Status
from kubelet_trio.model import PodUid
from kubelet_trio.objects import ObjectError
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes import VolumeError
from kubelet_trio.volumes.csi.data import VolumeRecord, stage_dir, write_record
from kubelet_trio.volumes.csi.types import CsiVolume
from kubelet_trio.volumes.errors import AttachLimitError
from tests.volumes.csi.world import (
    DRIVER,
    InUse,
    World,
    block,
    claimed,
    driver_object,
    inline,
    persistent,
    pod_of,
    user_of,
)

A, B = PodUid("u-a"), PodUid("u-b")
NAME = "kubernetes.io/csi/fake.csi.example.org^vol-1"


@dataclass
class Controller(InUse):
    """`Attachments` and `VolumesInUse` of a controller that keeps its rules.

    It attaches what a test tells it to, once the volume is listed as in use.
    """

    attached: bool = False
    error: str = ""
    exhausted: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    def attach(self) -> None:
        self.attached = True
        self.changed.set()

    async def wait_attached(self, driver: str, handle: str) -> Mapping[str, str]:
        assert f"kubernetes.io/csi/{driver}^{handle}" in self.names
        if self.error:
            raise ObjectError(self.error)
        if not self.attached:
            await self.changed.wait()
        return {"device": "/dev/sdx"}

    def is_attached(self, driver: str, handle: str) -> bool:
        return self.attached

    async def is_exhausted(self, driver: str, handle: str) -> bool:
        return self.exhausted


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def world(tmp_path: Path, controller: Controller) -> World:
    made = World(tmp_path, attachments=controller, in_use=controller)
    made.objects.put(driver_object(attachRequired=True), *persistent())
    return made


async def test_a_volume_is_staged_once_it_is_attached(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    async with world.running(), trio.open_nursery() as nursery:
        nursery.start_soon(world.volumes.mount, pod_of(A, claimed()))
        await trio.sleep(30)
        assert world.rules.log == []
        assert controller.names == {NAME}
        controller.attach()
    stage, publish = world.rules.log
    assert stage.publish_context == publish.publish_context == {"device": "/dev/sdx"}


async def test_a_volume_is_in_use_until_it_is_unstaged(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    controller.attach()
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.mount(pod_of(B, claimed()))
        await world.volumes.unmount(A)
        assert controller.names == {NAME}
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, status=Status.INTERNAL)
        await world.volumes.unmount(B)
        assert controller.names == {NAME}  # still staged
        await world.volumes.unused.clean()
    assert controller.names == set()


async def test_a_volume_whose_unstage_hangs_stays_in_use(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    controller.attach()
    async with world.running(), trio.open_nursery() as agent:
        agent.start_soon(world.volumes.unused.run)
        await world.volumes.mount(pod_of(A, claimed()))
        hang = world.driver.faults.add(CsiFaultKind.HANG, calls.UNSTAGE, times=None)
        await world.volumes.unmount(A)
        await trio.sleep(500)
        assert controller.names == {NAME}
        world.driver.faults.clear()
        hang.lifted.set()
        await trio.sleep(300)
        assert controller.names == set()
        agent.cancel_scope.cancel()


async def test_after_a_restart_what_is_on_disk_is_in_use(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    controller.attach()
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed(), inline("scratch")))
    controller.names.clear()
    world.restart()
    await world.volumes.prepare()
    assert controller.names == {NAME}


@pytest.mark.parametrize("is_published", [False, True])
async def test_a_restart_says_whether_the_disk_shows_all_volumes(
    world: World, controller: Controller, autojump_clock: MockClock, is_published: bool
) -> None:
    controller.attach()
    world.objects.put(*persistent("other", "vol-2"))
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.mount(pod_of(B, claimed(pv="other")))
    controller.names.clear()
    world.restart()
    assert await world.volumes.prepare()
    volume = CsiVolume(DRIVER, "vol-1")
    damaged = stage_dir(world.root, volume)
    if is_published:
        damaged = world.root / "pods" / A / "volumes/kubernetes.io~csi/pv"
    (damaged / "vol_data.json").write_text("{")
    world.restart()
    assert not await world.volumes.prepare()
    assert NAME.replace("vol-1", "vol-2") in controller.names


async def test_a_pod_that_gives_up_lets_go_of_the_volume(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    async with world.running():
        with pytest.raises(VolumeError) as caught:
            await world.volumes.mount(pod_of(A, claimed()))
        assert str(caught.value) == (
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached "
            "volumes=[data], failed to process volumes=[]: context deadline exceeded"
        )
        assert not isinstance(caught.value, AttachLimitError)
        assert controller.names == {NAME}
        await world.volumes.unmount(A)
    assert controller.names == set()
    assert world.left_on_disk() == []


async def test_a_driver_that_attaches_no_more_is_an_error_of_its_own(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    controller.exhausted = True
    async with world.running():
        with pytest.raises(AttachLimitError, match="unattached volumes=\\[data\\]"):
            await world.volumes.mount(pod_of(A, claimed()))


async def test_an_error_of_the_attachment_is_told(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    controller.error = "rpc error: code = Internal desc = no such disk"
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(pod_of(A, claimed()))
    assert world.events.texts[0] == (
        'FailedMount: MountVolume.WaitForAttach failed for volume "pv" : '
        "rpc error: code = Internal desc = no such disk"
    )


@pytest.mark.parametrize("is_inline", [False, True])
async def test_what_nobody_attaches_is_not_waited_for(
    world: World, controller: Controller, autojump_clock: MockClock, is_inline: bool
) -> None:
    if not is_inline:
        world.objects.put(driver_object(attachRequired=False))
    async with world.running():
        await world.volumes.mount(pod_of(A, inline() if is_inline else claimed()))
    assert controller.names == set()


@pytest.mark.parametrize("is_block", [False, True])
async def test_after_a_restart_what_nobody_attaches_is_not_in_use(
    world: World, controller: Controller, autojump_clock: MockClock, is_block: bool
) -> None:
    world.objects.put(driver_object(attachRequired=False), *block("dev", "vol-2"))
    pod = user_of(A, dev="/dev/xvda") if is_block else pod_of(A, claimed())
    async with world.running():
        await world.volumes.mount(pod)
    world.restart()
    await world.volumes.prepare()
    assert controller.names == set()
    async with world.running():
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE, status=Status.INTERNAL)
        await world.volumes.unmount(A)
    assert world.rules.staged()
    world.restart()
    await world.volumes.prepare()
    assert controller.names == set()


async def test_a_record_of_the_go_kubelet_counts_until_the_driver_is_known(
    world: World, controller: Controller, autojump_clock: MockClock
) -> None:
    """It does not say whether anybody attaches the volume."""
    volume = CsiVolume(DRIVER, "vol-1")
    write_record(stage_dir(world.root, volume), VolumeRecord(volume), is_published=False)
    await world.volumes.prepare()
    assert controller.names == {NAME}
    world.objects.put(driver_object(attachRequired=False))
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        assert controller.names == set()
