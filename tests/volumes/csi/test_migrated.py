"""Volumes of the clouds' in-tree kinds, mounted by their CSI drivers."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import PersistentVolume, Pod, Secret, Volume

from kubelet_trio.agent.volumes import VolumeNames
from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import calls
from kubelet_trio.volumes import VolumeError, list_volumes, read_listing
from tests.volumes.csi.world import World, claimed, driver_object, persistent, pod_of

EBS, AZURE_DISK, AZURE_FILE = "ebs.csi.aws.com", "disk.csi.azure.com", "file.csi.azure.com"
DISK = "/subscriptions/s/resourcegroups/g/providers/microsoft.compute/disks/d"
AWS: dict[str, Any] = {"volumeID": "aws://us-east-1a/vol-1", "fsType": "xfs"}
UID = PodUid("u-1")
OPERATION = "storage_operation_duration_seconds"
PLUGIN = f"kubernetes.io/csi:{EBS}"


def inline(kind: str, source: dict[str, Any]) -> Pod:
    return pod_of(UID, msgspec.convert({"name": "data", kind: source}, Volume))


def provide(world: World, kind: str, source: dict[str, Any], **spec: Any) -> None:
    """Put a claim, and a persistent volume of an in-tree kind for it."""
    volume, claim = persistent()
    assert isinstance(volume, PersistentVolume)
    assert volume.spec is not None
    volume.spec = msgspec.structs.replace(volume.spec, csi=None)
    raw = msgspec.to_builtins(volume)
    raw["spec"] = {**{k: v for k, v in raw["spec"].items() if k != "csi"}, kind: source, **spec}
    world.objects.put(claim, msgspec.convert(raw, PersistentVolume))


async def test_a_claimed_volume_is_staged_published_and_undone(tmp_path: Path) -> None:
    world = World(tmp_path, name=EBS)
    provide(world, "awsElasticBlockStore", AWS)
    async with world.running():
        await world.volumes.mount(pod_of(UID, claimed()))
        (stage,) = (call for call in world.rules.log if call.method == calls.STAGE)
        assert (stage.volume_id, stage.volume_context) == ("vol-1", {"partition": "0"})
        (published,) = world.rules.published()["vol-1"]
        assert published == str(tmp_path / "pods/u-1/volumes/kubernetes.io~csi/pv/mount")
        mounted = dict(world.meter.histograms(OPERATION))
        assert ("true", "volume_mount", "success", PLUGIN) in mounted
        asked = dict(world.meter.histograms("csi_operations_seconds"))
        assert (EBS, "/csi.v1.Node/NodePublishVolume", "OK", "true") in asked
        assert world.volumes.totals()[PLUGIN, "desired_state_of_world"] == 1
        await world.volumes.unmount(UID)
        world.check_clean()


async def test_a_volume_whose_name_has_slashes_is_published_and_undone_twice(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, name=AZURE_DISK)
    user = inline("azureDisk", {"diskName": "d", "diskURI": DISK, "kind": "Managed"})
    directory = f"pods/u-1/volumes/kubernetes.io~csi/{DISK.replace('/', '~')}"
    async with world.running():
        for _ in range(2):
            await world.volumes.mount(user)
            assert list(world.rules.published()[DISK]) == [str(tmp_path / directory / "mount")]
            await world.volumes.unmount(UID)
            assert world.rules.published() == {}
        world.rules.check()
        assert world.left_on_disk() == []


async def test_a_cloud_volume_is_listed_under_its_name_in_the_pod(tmp_path: Path) -> None:
    world = World(tmp_path, name=AZURE_DISK)
    user = inline("azureDisk", {"diskName": "d", "diskURI": DISK, "kind": "Managed"})
    async with world.running():
        await world.volumes.mount(user)
        names = await VolumeNames(world.objects).of_pods({UID: user})
        listing = read_listing(tmp_path, world.mounter)
        row, staged = list_volumes(listing, {UID: user}, names, {})
        assert (row.kind, row.volume, row.driver, row.handle) == ("csi", "data", AZURE_DISK, DISK)
        assert (row.state, row.lifecycle, row.persistent_volume) == ("Mounted", "Persistent", "")
        assert staged.users == ("default/pod-u-1",)
        await world.volumes.unmount(UID)


async def test_the_secret_of_an_inline_file_share_is_the_pods(tmp_path: Path) -> None:
    world = World(tmp_path, name=AZURE_FILE)
    user = inline("azureFile", {"secretName": "keys", "shareName": "s"})
    world.objects.put(
        msgspec.convert(
            {
                "metadata": {"name": "keys", "namespace": "default"},
                "data": {"azurestorageaccountkey": base64.b64encode(b"k1").decode()},
            },
            Secret,
        )
    )
    async with world.running():
        await world.volumes.mount(user)
        (stage,) = (call for call in world.rules.log if call.method == calls.STAGE)
        assert stage.secrets == {"azurestorageaccountkey": "k1"}
        await world.volumes.unmount(UID)


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_what_cannot_be_translated_is_not_processed(tmp_path: Path, is_claimed: bool) -> None:
    world = World(tmp_path, name=EBS)
    source = {"volumeID": "aws://zone/disk"}
    provide(world, "awsElasticBlockStore", source)
    user = pod_of(UID, claimed()) if is_claimed else inline("awsElasticBlockStore", source)
    async with world.running():
        with pytest.raises(VolumeError) as caught:
            await world.volumes.mount(user)
    assert str(caught.value) == (
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], "
        "failed to process volumes=[data]: failed to translate in-tree pv to CSI: failed to "
        "translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://zone/disk)"
    )


@pytest.mark.parametrize("name", ["..", "."])
async def test_a_name_that_leaves_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, name=AZURE_DISK)
    user = inline("azureDisk", {"diskName": "d", "diskURI": name, "kind": "Managed"})
    async with world.running():
        with pytest.raises(VolumeError, match="is no name of a volume"):
            await world.volumes.mount(user)
        assert world.rules.log == []


async def test_an_inline_cloud_volume_is_published_again_where_its_driver_wants_that(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, name=EBS)
    world.objects.put(driver_object(EBS, requiresRepublish=True))
    user = inline("awsElasticBlockStore", AWS)
    async with world.running():
        await world.volumes.mount(user)
        await world.volumes.refresh(user)
        published = [call for call in world.rules.log if call.method == calls.PUBLISH]
        assert len(published) == 2
        await world.volumes.unmount(UID)
        world.rules.check()
