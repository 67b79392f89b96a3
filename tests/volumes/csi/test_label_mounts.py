"""CSI volumes that are mounted with an SELinux label: what the driver is told, and on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod, PodSecurityContext, SELinuxOptions
from trio.testing import MockClock

from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import calls
from kubelet_trio.volumes.selinux import SELinuxContext
from tests.volumes.csi.world import World, claimed, driver_object, persistent, pod_of
from tests.volumes.make import main
from tests.volumes.test_selinux import FEDORA, LABEL_A

A, B = PodUid("u-a"), PodUid("u-b")
LABEL_B = LABEL_A.replace("c1,c2", "c3,c4")


def world_of(root: Path, *modes: str, mounts: bool = True) -> World:
    world = World(root, selinux=FEDORA)
    world.objects.put(driver_object(seLinuxMount=mounts), *persistent(modes=modes))
    return world


def pod_with(uid: PodUid, level: str, policy: str | None = None) -> Pod:
    security = PodSecurityContext(
        seLinuxOptions=SELinuxOptions(level=level), seLinuxChangePolicy=policy
    )
    return pod_of(uid, claimed(), securityContext=security)


def flags(world: World, method: str) -> list[tuple[str, ...]]:
    asked = [call.capability for call in world.rules.log if call.method == method]
    return [each.mount_flags for each in asked if each is not None]


def recorded(world: World) -> list[str]:
    """The label in each record, by path."""
    found = sorted(world.root.rglob("vol_data.json"))
    return [json.loads(path.read_text()).get("seLinuxMountContext", "") for path in found]


async def relabels(world: World, pod: Pod) -> list[bool]:
    mounts = await world.volumes.container_mounts(pod, main(pod))
    return [mount.selinux_relabel for mount in mounts]


async def test_the_driver_mounts_with_the_label_and_the_runtime_relabels_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world, pod = world_of(tmp_path, "ReadWriteOncePod"), pod_with(A, "s0:c1,c2")
    async with world.running():
        await world.volumes.mount(pod)
        expected = [(f'context="{LABEL_A}"',)]
        assert flags(world, calls.STAGE) == flags(world, calls.PUBLISH) == expected
        assert recorded(world) == [LABEL_A, LABEL_A]
        assert await relabels(world, pod) == [False]
        await world.volumes.unmount(A)
    assert world.left_on_disk() == []


@pytest.mark.parametrize(
    ("mode", "mounts", "policy"),
    [
        ("ReadWriteOnce", True, None),
        ("ReadWriteOncePod", False, None),
        ("ReadWriteOncePod", True, "Recursive"),
    ],
)
async def test_other_volumes_are_relabelled_by_the_runtime(
    tmp_path: Path, autojump_clock: MockClock, mode: str, mounts: bool, policy: str | None
) -> None:
    world, pod = world_of(tmp_path, mode, mounts=mounts), pod_with(A, "s0:c1,c2", policy)
    async with world.running():
        await world.volumes.mount(pod)
        assert flags(world, calls.STAGE) == flags(world, calls.PUBLISH) == [()]
        assert recorded(world) == ["", ""]
        assert await relabels(world, pod) == [True]


async def test_a_volume_that_was_left_staged_with_another_label_is_unstaged_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = world_of(tmp_path, "ReadWriteOncePod")
    async with world.running():
        await world.volumes.mount(pod_with(A, "s0:c1,c2"))
    record = next((tmp_path / "plugins").rglob("vol_data.json"))
    left = record.read_text()
    async with world.running():
        await world.volumes.unmount(A)
        # As after a crash between the two calls of a teardown.
        record.parent.joinpath("globalmount").mkdir(parents=True)
        record.write_text(left)
        world.restart()
    async with world.running():
        await world.volumes.mount(pod_with(B, "s0:c3,c4"))
    assert [c.method for c in world.rules.log if c.method in (calls.STAGE, calls.UNSTAGE)] == [
        calls.STAGE,
        calls.UNSTAGE,
        calls.UNSTAGE,
        calls.STAGE,
    ]
    assert recorded(world) == [LABEL_B, LABEL_B]
    assert world.rules.violations == []


async def test_a_pod_waits_for_the_unmount_of_one_with_another_label(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = world_of(tmp_path, "ReadWriteOncePod")
    async with world.running():
        await world.volumes.mount(pod_with(A, "s0:c1,c2"))
        ready = next((tmp_path / "pods/u-a/plugins").rglob("ready"))
        ready.unlink()  # the reservation for one pod, which would refuse it first
        world.restart()
    async with world.running(), trio.open_nursery() as nursery:
        nursery.start_soon(world.volumes.mount, pod_with(B, "s0:c3,c4"))
        await trio.sleep(10)
        text = (
            "FailedMount: Unable to attach or mount volumes: unmounted volumes=[data], unattached "
            "volumes=[], failed to process volumes=[]: waiting for unmount of volume "
            '"kubernetes.io/csi/fake.csi.example.org^vol-1", because it is already mounted to a '
            "different pod with a different SELinux label"
        )
        assert set(world.events.texts) == {text}
        await world.volumes.unmount(A)
    assert flags(world, calls.PUBLISH)[-1] == (f'context="{LABEL_B}"',)
    assert recorded(world) == [LABEL_B, LABEL_B]
    assert world.rules.violations == []


async def test_a_restarted_agent_keeps_the_label_of_a_running_pod(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world, pod = world_of(tmp_path, "ReadWriteOncePod"), pod_with(A, "s0:c1,c2")
    async with world.running():
        await world.volumes.mount(pod)
    world.selinux = SELinuxContext("other_u", "object_r", "other_t", "s0")
    world.restart()
    async with world.running():
        assert await relabels(world, pod) == [False]
    assert set(flags(world, calls.STAGE)) == {(f'context="{LABEL_A}"',)}
    assert recorded(world) == [LABEL_A, LABEL_A]
    assert world.rules.violations == []


async def test_a_volume_that_is_read_only_is_not_relabelled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = world_of(tmp_path, "ReadWriteOnce")
    pod = pod_of(A, claimed(readOnly=True))
    async with world.running():
        await world.volumes.mount(pod)
        assert await relabels(world, pod) == [False]
