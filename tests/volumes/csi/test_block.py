"""CSI volumes as block devices: mapped in the Go kubelet's layout, shared, undone, found again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.models.core_v1 import SecretReference
from outcome import capture

from kubelet_trio.cri import v1
from kubelet_trio.grpc import Status
from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes import VolumeError
from tests.volumes.csi.world import InUse, World, block, driver_object, user_of
from tests.volumes.make import main

P = ParamSpec("P")
T = TypeVar("T")

A, B = PodUid("u-a"), PodUid("u-b")
BASE = "plugins/kubernetes.io/csi/volumeDevices"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.objects.put(*block())
    return made


@asynccontextmanager
async def mapped(world: World, *uids: PodUid) -> AsyncIterator[None]:
    """Run the driver and map its device into pods; inside the block they have it."""
    async with world.running():
        for uid in uids:
            await world.volumes.mount(user_of(uid))
        yield


async def undo(world: World, uid: PodUid = A) -> None:
    """Have another agent unmount the pod's volumes, the last of the node."""
    world.restart()
    async with world.running():
        await world.volumes.unmount(uid)
    world.check_clean()


def link(world: World, uid: str, name: str = "pv") -> Path:
    return world.root / f"pods/{uid}/volumeDevices/kubernetes.io~csi/{name}"


async def test_a_device_is_staged_published_mapped_and_undone(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    base = world.root / BASE
    async with mapped(world, A):
        assert world.rules.staged() == {"vol-1": [str(base / "staging/pv")]}
        assert world.rules.published() == {"vol-1": [str(base / "publish/pv/u-a")]}
        assert os.readlink(link(world, A)) == str(base / "publish/pv/u-a")
        assert str(base / "pv/dev/u-a") in {mount.path for mount in world.mounter.mounts()}
        assert set(world.devices.loops) == {str(base / "pv/dev/u-a")}
        record = json.loads((base / "pv/data/vol_data.json").read_text())
        assert record | {"attachmentID": ""} == {
            "attachRequired": "false",  # the Go kubelet skips it
            "attachmentID": "",
            "driverName": "fake.csi.example.org",
            "nodeName": "node",
            "specVolID": "pv",
            "volumeHandle": "vol-1",
        }
        assert all(call.capability.is_block for call in world.rules.log if call.capability)
        await world.volumes.unmount(A)
    world.check_clean()
    assert not (world.root / "pods/u-a/volumeDevices").exists()
    assert not (base / "pv").exists()
    measured = world.meter.histograms("storage_operation_duration_seconds")
    assert {labels[1] for labels, _ in measured} == {"map_volume", "unmap_volume", "unmap_device"}


async def test_containers_get_the_link_as_a_device(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    world.objects.put(*block("second", "vol-2"))
    async with world.running():
        made = user_of(A, second="/dev/b", pv="/dev/a")
        await world.volumes.mount(made)
        assert await world.volumes.container_devices(made, main(made)) == [
            v1.Device(container_path=path, host_path=str(link(world, A, name)), permissions="mrw")
            for name, path in (("second", "/dev/b"), ("pv", "/dev/a"))
        ]
        reader = user_of(B, read_only=True, pv="/dev/a")
        await world.volumes.mount(reader)
        (device,) = await world.volumes.container_devices(reader, main(reader))
        assert device.permissions == "r"
        published = [call for call in world.rules.log if call.method == calls.PUBLISH]
        assert [call.is_read_only for call in published] == [False, False, True]


async def test_pods_share_a_staged_device_until_the_last(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A, B):
        assert [call.method for call in world.rules.log].count(calls.STAGE) == 1
        await world.volumes.unmount(A)
        assert link(world, B).exists()
        assert "vol-1" in world.rules.staged()
        await world.volumes.unmount(B)
    world.check_clean()


async def test_a_driver_that_does_not_stage_only_publishes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(tmp_path, features=())
    world.objects.put(*block())
    async with mapped(world, A):
        (call,) = world.rules.log
        assert (call.method, call.staging_path) == (calls.PUBLISH, "")
        await world.volumes.unmount(A)
    world.check_clean()


async def test_another_agent_undoes_what_one_has_mapped(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A):
        pass
    await undo(world)


async def test_a_restarted_agent_goes_on_with_what_is_mapped(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    made = user_of(A)
    async with world.running():
        await world.volumes.mount(made)
    world.restart()
    async with world.running():
        await world.volumes.unused.clean()
        (device,) = await world.volumes.container_devices(made, main(made))
        assert Path(device.host_path).exists()
        assert len(world.devices.loops) == 1
        await world.volumes.unmount(A)
    world.check_clean()


async def test_after_a_reboot_the_device_is_mapped_again(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A):
        pass
    world.reboot()
    async with mapped(world, A):
        assert link(world, A).exists()
        assert len(world.devices.loops) == 1
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_failed_unpublish_holds_the_teardown_and_no_device(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A):
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNPUBLISH)
        with pytest.raises(VolumeError, match=r"UnmapVolume.UnmapPodDevice failed for volume .pv."):
            await world.volumes.unmount(A)
        # The driver could not unpublish a device that is still open.
        assert not world.devices.loops
    await undo(world)


async def test_a_device_that_its_driver_does_not_know_was_not_published(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    faults = world.driver.faults
    publish = faults.add(CsiFaultKind.ERROR, calls.PUBLISH, times=None)
    unpublish = faults.add(
        CsiFaultKind.REFUSE, calls.UNPUBLISH, times=None, status=Status.NOT_FOUND
    )
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(user_of(A))
        await world.volumes.unmount(A)
        world.check_clean()
        faults.lift(publish)
        await world.volumes.mount(user_of(A))
        # What is published stays until the driver knows it again.
        with pytest.raises(VolumeError, match="code = NotFound"):
            await world.volumes.unmount(A)
        assert "vol-1" in world.rules.published()
        faults.lift(unpublish)
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_device_that_does_not_exist_was_not_staged(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    world.driver.faults.add(CsiFaultKind.ERROR, calls.STAGE, times=2)
    for method in (calls.STAGE, calls.UNSTAGE):
        world.driver.faults.add(CsiFaultKind.REFUSE, method, times=None, status=Status.NOT_FOUND)
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(user_of(A))
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_failed_unstage_is_left_to_the_sweep(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A):
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE)
        await world.volumes.unmount(A)
        assert "vol-1" in world.rules.staged()
    world.restart()
    async with world.running():
        await world.volumes.unused.clean()
    world.check_clean()


async def test_volumes_of_a_lost_pod_are_undone(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A, B):
        shutil.rmtree(world.root / "pods/u-a")
        world.restart()
    async with world.running():
        await world.volumes.unused.clean()
        assert [Path(path).name for path in world.rules.published()["vol-1"]] == ["u-b"]
        assert link(world, B).exists()
        await world.volumes.unmount(B)
    world.check_clean()


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (calls.STAGE, 'MapVolume.SetUpDevice failed for volume "pv" : rpc error: code = '),
        (calls.PUBLISH, 'MapVolume.MapPodDevice failed for volume "pv" : rpc error: code = '),
    ],
)
async def test_a_failed_step_is_an_event_and_is_tried_again(
    world: World, autojump_clock: trio.testing.MockClock, method: str, text: str
) -> None:
    async with world.running():
        world.driver.faults.add(CsiFaultKind.ERROR, method)
        await world.volumes.mount(user_of(A))
        assert any(event.startswith(f"FailedMapVolume: {text}") for event in world.events.texts)
        assert link(world, A).exists()
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_driver_that_publishes_no_device_is_told_so(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    world.devices.forget(Path("/dev/null"))
    async with world.running():
        with pytest.raises(VolumeError, match=r"unmounted volumes=.pv."):
            await world.volumes.mount(user_of(A))
        assert any("is no block device" in event for event in world.events.texts)
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_name_that_still_has_another_volume_waits_for_its_end(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A):
        world.objects.put(*block("pv", "vol-2"))
        with pytest.raises(VolumeError):
            await world.volumes.mount(user_of(B))
        assert any("vol-1 of driver" in event for event in world.events.texts)
        await world.volumes.unmount(A)
        await world.volumes.mount(user_of(B))
        assert "vol-2" in world.rules.published()
        await world.volumes.unmount(B)
    world.check_clean()


async def test_a_lost_record_is_cleaned_up_without_the_driver(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with mapped(world, A):
        (world.root / BASE / "pv/data/vol_data.json").write_text("{")
        await world.volumes.unmount(A)
        await world.volumes.unused.clean()
    assert world.left_on_disk() == []
    assert not world.devices.loops


FAULTS = st.tuples(
    st.sampled_from([CsiFaultKind.ERROR, CsiFaultKind.LOST_REPLY, CsiFaultKind.REFUSE]),
    st.sampled_from([calls.STAGE, calls.PUBLISH, calls.UNPUBLISH, calls.UNSTAGE]),
)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["mount", "unmount"]), st.sampled_from([A, B])),
    st.tuples(st.just("fault"), FAULTS),
    st.tuples(st.sampled_from(["restart", "clean"]), st.none()),
)


@given(st.lists(ACTIONS, max_size=10))
@settings(max_examples=40)
def test_whatever_fails_everything_is_undone_in_order(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, Any]]
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(_live_through, tmp_path_factory.mktemp("node"), actions, clock=clock)


async def _live_through(root: Path, actions: list[tuple[str, Any]]) -> None:
    world = World(root)
    world.objects.put(*block())
    for kind, what in actions:
        if kind == "restart":
            world.restart()
        elif kind == "fault":
            world.driver.faults.add(what[0], what[1])
        else:
            async with world.running():
                if kind == "mount":
                    await world.volumes.mount(user_of(what))
                    assert link(world, what).exists()
                else:
                    await _ignoring_failures(world, kind, what)
        world.rules.check()
    world.driver.faults.clear()
    async with world.running():
        for uid in (A, B):
            await world.volumes.unmount(uid)
        await world.volumes.unused.clean()
    world.check_clean()


async def _ignoring_failures(world: World, kind: str, uid: PodUid) -> None:
    # What failed wrongly is found at the end: then nothing may fail.
    with suppress(VolumeError):
        await (world.volumes.unused.clean() if kind == "clean" else world.volumes.unmount(uid))


@dataclass
class Stalling:
    """An `Offload` that stalls with the result of its n-th call."""

    left: int
    stalled: trio.Event = field(default_factory=trio.Event)
    go_on: trio.Event = field(default_factory=trio.Event)

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.lowlevel.checkpoint()
        found = capture(fn, *args, **kwargs)
        self.left -= 1
        if self.left == 0:
            self.stalled.set()
            await self.go_on.wait()
        return found.unwrap()


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("is_staging", [True, False])
async def test_cleaning_up_takes_nothing_from_a_pod_that_starts_meanwhile(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, call: int, is_staging: bool
) -> None:
    """Neither the directory before it has a record, nor the entry of a new pod."""
    offload = Stalling(call)
    world = World(tmp_path, offload=offload)
    world.objects.put(*block())
    (tmp_path / BASE / "pv/data").mkdir(parents=True)  # of an attempt that failed
    async with world.running(), trio.open_nursery() as nursery:

        async def clean() -> None:
            await world.volumes.unused.clean()
            offload.stalled.set()  # it has fewer calls

        nursery.start_soon(clean)
        await offload.stalled.wait()
        hang = world.driver.faults.add(CsiFaultKind.HANG, calls.STAGE) if is_staging else None
        nursery.start_soon(world.volumes.mount, user_of(A))
        await trio.sleep(1)
        offload.go_on.set()
        await trio.sleep(1)
        assert (tmp_path / BASE / "pv/data/vol_data.json").exists()
        if hang is not None:
            hang.lifted.set()
    assert link(world, A).exists()
    assert "vol-1" in world.rules.published()
    async with world.running():
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_mapped_device_is_two_events(world: World) -> None:
    async with mapped(world, A, A):
        pass
    text = 'SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume "pv"'
    pod_map = link(world, A).parent
    assert world.events.texts == [
        f'{text} globalMapPath "{world.root}/{BASE}/pv/dev"',
        f'{text} volumeMapPath "{pod_map}"',
    ]


async def test_a_device_is_in_use_until_it_is_unstaged(world: World) -> None:
    world.objects.put(driver_object(attachRequired=True))
    name = "kubernetes.io/csi/fake.csi.example.org^vol-1"
    world.in_use = in_use = InUse()
    world.restart()
    async with mapped(world, A):
        assert in_use.names == {name}
    # The next agent announces it before it reports its first status.
    world.in_use = in_use = InUse()
    world.restart()
    await world.volumes.prepare()
    assert in_use.names == {name}
    async with world.running():
        await world.volumes.unmount(A)
    assert in_use.names == set()
    world.check_clean()


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("Stage", 'SetUpDevice failed for volume "pv" : kubernetes.io/csi: failed to get '),
        (
            "Publish",
            'MapPodDevice failed for volume "pv" : kubernetes.io/csi: '
            "blockMapper.publishVolumeForBlock failed to get ",
        ),
    ],
)
async def test_a_missing_secret_is_named(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, field: str, text: str
) -> None:
    world = World(tmp_path, ("STAGE_UNSTAGE_VOLUME",))
    source: Any = {f"node{field}SecretRef": SecretReference(name="gone", namespace="vault")}
    world.objects.put(*block(**source))
    async with world.running():
        with pytest.raises(VolumeError):
            await world.volumes.mount(user_of(A))
    assert world.events.texts[0] == (
        f"FailedMapVolume: MapVolume.{text}Node{field}SecretRef vault/gone: kubernetes.io/csi: "
        'failed to find the secret gone in the namespace vault with error: secret "gone" not found'
    )


async def test_a_device_for_one_pod_is_refused_to_a_second(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(tmp_path)
    world.objects.put(*block(modes=("ReadWriteOncePod",)))
    async with mapped(world, A):
        with pytest.raises(VolumeError) as caught:
            await world.volumes.mount(user_of(B))
        await world.volumes.unmount(A)
    assert (caught.value.reason, str(caught.value)) == (
        "FailedMapVolume",
        'MapVolume.SetUpDevice failed for volume "pv" : volume uses the ReadWriteOncePod access '
        "mode and is already in use by another pod",
    )
