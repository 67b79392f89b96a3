"""A whole agent of a cluster, and volumes of a cloud's in-tree kind that a CSI driver mounts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Node, PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.models.storage_v1 import CSIDriver, VolumeAttachment
from trio.testing import MockClock

from kubelet_trio.model import open_watcher
from kubelet_trio.objects import attachment_name
from kubelet_trio.testing.csi import CsiDriverFacts, CsiRules, FakeCsiDriver, FakeStorage
from tests.agent.test_cluster import NAME, World
from tests.harness.csi_services import serving

DRIVER = "ebs.csi.aws.com"
UNIQUE = f"kubernetes.io/csi/{DRIVER}^vol-1"
POD = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "nodeName": NAME,
        "containers": [
            {
                "name": "web",
                "image": "web",
                "imagePullPolicy": "IfNotPresent",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}],
    },
}


@pytest.fixture
def world(short_path: Path) -> World:
    made = World(short_path)
    made.plugin_watcher = open_watcher
    return made


def provide(world: World) -> None:
    """Add the driver's object, a claim, its volume of the in-tree kind, and a pod."""
    kube = world.kube
    driver = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}}
    kube.add(msgspec.convert(driver, CSIDriver))
    claim = {
        "metadata": {"name": "claim", "namespace": "default"},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]},
    }
    made = kube.add(msgspec.convert(claim, PersistentVolumeClaim))
    kube.change(
        PersistentVolumeClaim, "claim", {"status": {"phase": "Bound"}}, subresource="status"
    )
    assert made.metadata is not None
    volume = {
        "metadata": {"name": "pv"},
        "spec": {
            "awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1", "fsType": "ext4"},
            "claimRef": {"namespace": "default", "name": "claim", "uid": made.metadata.uid},
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
        },
        "status": {"phase": "Bound"},
    }
    kube.add(msgspec.convert(volume, PersistentVolume))
    kube.add(msgspec.convert(POD, Pod))


def attach(world: World) -> None:
    """Do what the attach controller and the driver's attacher do."""
    attachment = {
        "metadata": {"name": attachment_name(DRIVER, "vol-1", NAME)},
        "spec": {"attacher": DRIVER, "nodeName": NAME, "source": {"persistentVolumeName": "pv"}},
    }
    made = world.kube.add(msgspec.convert(attachment, VolumeAttachment))
    assert made.metadata is not None
    status = {"attached": True, "attachmentMetadata": {"devicePath": "/dev/xvdba"}}
    name = made.metadata.name or ""
    world.kube.change(VolumeAttachment, name, {"status": status}, subresource="status")
    attached = {"volumesAttached": [{"name": UNIQUE, "devicePath": ""}]}
    world.kube.change(Node, NAME, {"status": attached}, subresource="status")


def in_use(world: World) -> list[str]:
    node = world.kube.find(Node, NAME)
    return (node.status.volumesInUse if node and node.status else None) or []


async def test_an_in_tree_volume_is_attached_mounted_and_undone(
    world: World, autojump_clock: MockClock
) -> None:
    rules = CsiRules(("STAGE_UNSTAGE_VOLUME",))
    driver = FakeCsiDriver(
        rules, FakeStorage(world.host.mounter), CsiDriverFacts(name=DRIVER, endpoint="")
    )
    path = world.host.base / "root" / "plugins_registry" / "ebs-reg.sock"
    async with world.running() as agent:
        await world.wait(world.is_node_ready)
        async with serving(driver, path):
            await driver.registered.wait()
            provide(world)
            await world.wait(lambda: in_use(world) == [UNIQUE])
            await trio.sleep(5)
            assert rules.staged() == {}
            attach(world)
            await world.wait(world.is_ready, 300)
            (target,) = rules.published()["vol-1"]
            assert target.endswith("/volumes/kubernetes.io~csi/pv/mount")
            (container,) = world.host.runtime.instances("web")
            assert [(m.host_path, m.container_path) for m in container.config.mounts][:1] == [
                (target, "/data")
            ]
            assert rules.log[0].publish_context == {"devicePath": "/dev/xvdba"}
            page = await agent.metrics.page()
            labels = (
                'migrated="true",operation_name="volume_mount",status="success",'
                f'volume_plugin="kubernetes.io/csi:{DRIVER}"'
            )
            assert f"storage_operation_duration_seconds_count{{{labels}}} 1" in page
            world.kube.remove(Pod, "web")
            await world.wait(world.gone)
            await world.wait(lambda: in_use(world) == [])
            assert rules.published() == rules.staged() == {}
            rules.check()
