"""A whole agent and volumes that the attach controller attaches, or cannot attach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import (
    Container,
    CSIPersistentVolumeSource,
    Node,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import (
    CSIDriver,
    CSIDriverSpec,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from trio.testing import MockClock

from kubelet_trio.objects import attachment_name
from kubelet_trio.volumes.csi import CsiVolume
from kubelet_trio.volumes.csi.data import (
    PERSISTENT,
    VolumeRecord,
    publish_dir,
    stage_dir,
    write_record,
)
from tests.agent.test_cluster import NAME, World

DRIVER = "disk.example.com"
VOLUME = CsiVolume(DRIVER, "vol-1")
METRIC = "kubelet_admission_rejections_total"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def provide(world: World, **spec: Any) -> None:
    """Put the driver's object, and a claim bound to a volume of it."""
    kube = world.kube
    kube.add(CSIDriver(metadata=ObjectMeta(name=DRIVER), spec=CSIDriverSpec(**spec)))
    claim = kube.add(
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="data"),
            spec=PersistentVolumeClaimSpec(volumeName="pv", accessModes=["ReadWriteOnce"]),
        )
    )
    status = PersistentVolumeClaimStatus(phase="Bound")
    kube.change(PersistentVolumeClaim, "data", {"status": status}, subresource="status")
    assert claim.metadata is not None
    owner = ObjectReference(name="data", namespace="default", uid=claim.metadata.uid)
    source = CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=VOLUME.handle)
    kube.add(
        PersistentVolume(
            metadata=ObjectMeta(name="pv"),
            spec=PersistentVolumeSpec(csi=source, claimRef=owner, accessModes=["ReadWriteOnce"]),
        )
    )


def bind(world: World) -> Pod:
    claim = PersistentVolumeClaimVolumeSource(claimName="data")
    mounts = [VolumeMount(name="data", mountPath="/data")]
    container = Container(
        name="web", image="web", imagePullPolicy="IfNotPresent", volumeMounts=mounts
    )
    volumes = [Volume(name="data", persistentVolumeClaim=claim)]
    spec = PodSpec(containers=[container], nodeName=NAME, volumes=volumes)
    return world.kube.add(Pod(metadata=ObjectMeta(name="web", namespace="default"), spec=spec))


def in_use(world: World) -> list[str]:
    node = world.kube.find(Node, NAME)
    return (node.status.volumesInUse if node and node.status else None) or []


def attach_fails(world: World, code: int) -> None:
    name = attachment_name(DRIVER, VOLUME.handle, NAME)
    source = VolumeAttachmentSource(persistentVolumeName="pv")
    spec = VolumeAttachmentSpec(attacher=DRIVER, nodeName=NAME, source=source)
    world.kube.add(VolumeAttachment(metadata=ObjectMeta(name=name), spec=spec))
    error = {"errorCode": code, "message": "no more of them"}
    patch = {"status": {"attached": False, "attachError": error}}
    world.kube.change(VolumeAttachment, name, patch, subresource="status")


async def test_a_pod_waits_for_its_volume_which_is_reported_first(
    world: World, autojump_clock: MockClock
) -> None:
    provide(world)
    async with world.running():
        await world.wait(world.is_node_ready)
        bind(world)
        await world.wait(lambda: in_use(world) == [VOLUME.unique_name], 2)
        await trio.sleep(300)
        assert world.status().phase == "Pending"
        assert "FailedMount" in reasons(world)
        world.kube.remove(Pod, "web")
        await world.wait(world.gone)
        await world.wait(lambda: in_use(world) == [])


async def test_a_pod_fails_if_the_node_can_attach_no_more_volumes(
    world: World, autojump_clock: MockClock
) -> None:
    provide(world, nodeAllocatableUpdatePeriodSeconds=60)
    attach_fails(world, 8)
    async with world.running() as agent:
        await world.wait(world.is_node_ready)
        began = trio.current_time()
        bind(world)
        await world.wait(lambda: world.status().phase == "Failed", 200)
        assert 123 <= trio.current_time() - began < 130
        status = world.status()
        assert status.reason == "VolumeAttachmentLimitExceeded"
        assert status.message == (
            "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. "
            "unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: "
            "context deadline exceeded"
        )
        assert not status.containerStatuses
        assert "VolumeAttachmentLimitExceeded" in reasons(world)
        assert list(agent.meter.counters(METRIC)) == [(("VolumeAttachmentLimitExceeded",), 1)]
        await world.wait(lambda: in_use(world) == [])


@pytest.mark.parametrize(("period", "code"), [(None, 8), (60, 13)])
async def test_a_pod_goes_on_waiting_for_another_reason(
    world: World, autojump_clock: MockClock, period: int | None, code: int
) -> None:
    provide(world, nodeAllocatableUpdatePeriodSeconds=period)
    attach_fails(world, code)
    async with world.running():
        bind(world)
        await trio.sleep(400)
        assert world.status().phase == "Pending"
        assert in_use(world) == [VOLUME.unique_name]


async def test_what_an_earlier_agent_has_mounted_stays_in_use(
    world: World, autojump_clock: MockClock
) -> None:
    root = world.host.base / "root"
    published, inline = CsiVolume(DRIVER, "vol-2"), CsiVolume(DRIVER, "csi-abc")
    write_record(stage_dir(root, VOLUME), VolumeRecord(VOLUME), is_published=False)
    pod_dir = root / "pods" / "some-uid"
    for volume, life in ((published, PERSISTENT), (inline, "Ephemeral")):
        record = VolumeRecord(volume, volume.handle, NAME, life)
        write_record(publish_dir(pod_dir, volume.handle), record, is_published=True)
    async with world.running():
        await world.wait(world.is_node_ready)
        assert in_use(world) == [VOLUME.unique_name, published.unique_name]
        await trio.sleep(200)  # nobody needs them, and there is no driver to undo them
        assert in_use(world) == [VOLUME.unique_name, published.unique_name]


def reasons(world: World) -> set[str | None]:
    assert world.agent is not None
    return {event.reason for event in world.agent.events.events()}
