"""CSI volumes through the volume manager: set up, shared, torn down, also by another agent."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from trio.testing import MockClock

from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes import VolumeError
from kubelet_trio.volumes.csi.data import stage_dir
from kubelet_trio.volumes.csi.types import CsiVolume
from tests.volumes.csi.world import (
    DRIVER,
    World,
    block,
    claimed,
    driver_object,
    inline,
    persistent,
    pod_of,
    user_of,
)
from tests.volumes.make import empty_dir, main

A, B = PodUid("u-a"), PodUid("u-b")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.objects.put(*persistent())
    return made


def target(world: World, uid: str, name: str = "pv") -> Path:
    return world.root / "pods" / uid / "volumes" / "kubernetes.io~csi" / name / "mount"


async def test_a_volume_is_staged_published_and_undone(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        handle = hashlib.sha256(b"vol-1").hexdigest()
        directory = world.root / "plugins/kubernetes.io/csi/fake.csi.example.org" / handle
        assert world.rules.staged() == {"vol-1": [str(directory / "globalmount")]}
        assert world.rules.published() == {"vol-1": [str(target(world, A))]}
        await world.volumes.unmount(A)
    world.check_clean()


async def test_records_are_the_go_kubelets(world: World, autojump_clock: MockClock) -> None:
    world.objects.put(driver_object(attachRequired=True))
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        published = (target(world, A).parent / "vol_data.json").read_text()
        staged = Path(world.rules.staged()["vol-1"][0]).with_name("vol_data.json").read_text()
    attachment = hashlib.sha256(b"vol-1fake.csi.example.orgnode").hexdigest()
    assert published == (
        f'{{"attachmentID":"csi-{attachment}","driverName":"fake.csi.example.org",'
        '"nodeName":"node","specVolID":"pv","volumeHandle":"vol-1",'
        '"volumeLifecycleMode":"Persistent"}\n'
    )
    assert staged == '{"driverName":"fake.csi.example.org","volumeHandle":"vol-1"}\n'


async def test_pods_share_a_staged_volume_until_the_last(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.mount(pod_of(B, claimed()))
        assert [call.method for call in world.rules.log].count(calls.STAGE) == 1
        await world.volumes.unmount(A)
        assert world.rules.published() == {"vol-1": [str(target(world, B))]}
        assert "vol-1" in world.rules.staged()
        await world.volumes.unmount(B)
    assert world.rules.staged() == {}
    world.rules.check()


async def test_an_inline_volume_is_published_without_a_stage(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, inline("scratch")))
        (call,) = [call for call in world.rules.log if call.method == calls.PUBLISH]
        assert call.staging_path == ""
        assert call.path == str(target(world, A, "scratch"))
        # csi-<sha256 of UID and volume name>, as makeVolumeHandle.
        assert call.volume_id.startswith("csi-")
        assert len(call.volume_id) == 68
        await world.volumes.unmount(A)
    world.check_clean()


async def test_another_agent_tears_down_what_one_has_set_up(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed(), inline("scratch"), empty_dir("tmp")))
    world.restart()
    async with world.running():
        await world.volumes.unmount(A)
    world.check_clean()


async def test_a_reboot_undoes_mounts_and_the_next_agent_makes_them_again(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    world.reboot()
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        assert {mount.path for mount in world.mounter.mounts()} >= {str(target(world, A))}
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []


async def test_containers_mount_the_target(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        made = pod_of(A, claimed())
        await world.volumes.mount(made)
        (mount,) = await world.volumes.container_mounts(made, main(made))
    assert mount.host_path == str(target(world, A))
    assert not mount.readonly


async def test_what_no_pod_needs_is_unstaged_by_a_sweep(
    world: World, autojump_clock: MockClock
) -> None:
    """An agent that died between the unpublish and the unstage leaves a staged volume."""
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        world.driver.faults.add(CsiFaultKind.ERROR, calls.UNSTAGE)
        await world.volumes.unmount(A)
        assert "vol-1" in world.rules.staged()
    world.restart()
    async with world.running():
        await world.volumes.unused.clean()
    world.check_clean()


async def test_a_sweep_spares_what_a_pod_uses(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    world.restart()
    async with world.running():
        await world.volumes.unused.clean()
        assert "vol-1" in world.rules.staged()


async def test_teardown_waits_for_the_driver(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
    world.restart()
    with pytest.raises(VolumeError, match="not found in the list of registered CSI drivers"):
        await world.volumes.unmount(A)
    async with world.running():
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []


@pytest.mark.parametrize("was_published", [False, True])
async def test_an_agent_that_died_in_a_write_leaves_nothing_behind(
    world: World, autojump_clock: MockClock, was_published: bool
) -> None:
    """The unfinished file must not keep the directory, and with it the pod."""
    world.objects.put(*block("dev", "vol-3"))
    if was_published:
        async with world.running():
            await world.volumes.mount(pod_of("u-a", claimed()))
            await world.volumes.mount(user_of("u-b", dev="/dev/xvda"))
    csi = world.root / "plugins/kubernetes.io/csi"
    for directory in (
        stage_dir(world.root, CsiVolume(DRIVER, "vol-1")),
        world.root / "pods/u-a/volumes/kubernetes.io~csi/pv",
        csi / "volumeDevices/dev/data",
    ):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".vol_data.json.new").write_text("{")
    world.restart()
    async with world.running():
        await world.volumes.unmount(PodUid("u-a"))
        await world.volumes.unmount(PodUid("u-b"))
        await world.volumes.unused.clean()
    shared = {csi / "volumeDevices" / name for name in ("staging", "publish")}
    assert set(map(Path, world.left_on_disk())) <= shared
    assert list(csi.rglob("*.new")) == []
    world.rules.check()
