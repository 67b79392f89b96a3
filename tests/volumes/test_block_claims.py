"""The kinds and modes of claimed volumes, and how containers may use them."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.models.core_v1 import (
    Container,
    CSIPersistentVolumeSource,
    FCVolumeSource,
    FlexPersistentVolumeSource,
    HostPathVolumeSource,
    ISCSIPersistentVolumeSource,
    LocalVolumeSource,
    NFSVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    Volume,
    VolumeDevice,
)
from lightkube.models.meta_v1 import ObjectMeta
from msgspec.structs import replace

from kubelet_trio.containers import PodFacts
from kubelet_trio.objects import ObjectView, claim_key, volume_key
from kubelet_trio.volumes.spec import volume_spec
from kubelet_trio.volumes.used import used_names, used_volumes
from tests.volumes.make import mount, pod

CLAIM = claim_key("default", "claim")


def claimed(*, read_only: bool = False) -> Volume:
    source = PersistentVolumeClaimVolumeSource(claimName="claim", readOnly=read_only or None)
    return Volume(name="data", persistentVolumeClaim=source)


def claimed_view(behind: PersistentVolumeSpec) -> ObjectView:
    claim = PersistentVolumeClaim(
        metadata=ObjectMeta(name="claim", namespace="default"),
        spec=PersistentVolumeClaimSpec(volumeName="pv"),
    )
    meta = ObjectMeta(name="pv")
    return ObjectView(
        {CLAIM: claim, volume_key("pv"): PersistentVolume(metadata=meta, spec=behind)}
    )


def using(*, mounts: bool = False, devices: bool = False, in_init: bool = False) -> Pod:
    """A pod with the claimed volume, used by a container or by an init container."""
    user = Container(
        name="user",
        volumeMounts=[mount("data")] if mounts else None,
        volumeDevices=[VolumeDevice(devicePath="/dev/xvda", name="data")] if devices else None,
    )
    made = pod(claimed(), mounts=[])
    assert made.spec is not None
    own = {"initContainers": [user]} if in_init else {"containers": [user]}
    return replace(made, spec=replace(made.spec, **own))


DRIVER = CSIPersistentVolumeSource(driver="csi.example.com", volumeHandle="handle", readOnly=True)


@pytest.mark.parametrize("in_init", [True, False])
@pytest.mark.parametrize(
    ("mode", "uses", "outcome"),
    [
        (None, {"mounts": True}, False),
        ("Filesystem", {"mounts": True}, False),
        ("Block", {"devices": True}, True),
        (None, {"devices": True}, "Filesystem, but is specified in volumeDevices"),
        ("Filesystem", {"devices": True}, "Filesystem, but is specified in volumeDevices"),
        ("Block", {"mounts": True}, "Block, but is specified in volumeMounts"),
        # One of the two is wrong, whatever the mode is.
        ("Block", {"mounts": True, "devices": True}, "Block, but is specified in volumeMounts"),
        (None, {"mounts": True, "devices": True}, "Filesystem, but is specified in volumeDevices"),
    ],
)
def test_a_volume_is_used_in_its_own_mode_only(
    in_init: bool, mode: str | None, uses: dict[str, bool], outcome: bool | str
) -> None:
    objects = claimed_view(PersistentVolumeSpec(csi=DRIVER, volumeMode=mode))
    user = using(in_init=in_init, **uses)
    if isinstance(outcome, str):
        with pytest.raises(ValueError, match=f"^volume data has volumeMode {outcome}$"):
            volume_spec(user, claimed(), PodFacts(), objects)
        return
    found = volume_spec(user, claimed(), PodFacts(), objects)
    assert found.is_block is outcome
    assert found.persistent is objects.get(volume_key("pv"), PersistentVolume)
    assert found.claim is objects.get(CLAIM, PersistentVolumeClaim)


SOURCES: dict[str, Any] = {
    "csi": DRIVER,
    "fc": FCVolumeSource(readOnly=True),
    "flexVolume": FlexPersistentVolumeSource("example.com/driver", readOnly=True),
    "hostPath": HostPathVolumeSource("/opt"),
    "iscsi": ISCSIPersistentVolumeSource("iqn.2026-01.com.example:a", 0, "h:1", readOnly=True),
    "local": LocalVolumeSource("/opt"),
    "nfs": NFSVolumeSource("/opt", "server", readOnly=True),
}
# Of a CSI volume the field is for the attacher: the node publishes by the claim's alone.
READ_ONLY = {"fc", "flexVolume", "iscsi", "nfs"}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_claim_leads_to_each_kind_of_volume(kind: str) -> None:
    behind = PersistentVolumeSpec(**{kind: SOURCES[kind]})
    for read_only in (False, True):
        volume = claimed(read_only=read_only)
        found = volume_spec(using(mounts=True), volume, PodFacts(), claimed_view(behind))
        assert (found.kind, found.source, found.disk_name) == (kind, SOURCES[kind], "pv")
        assert found.read_only is (read_only or kind in READ_ONLY)
        assert not found.is_block


@pytest.mark.parametrize("kind", ["flexVolume", "hostPath", "nfs"])
def test_a_kind_without_devices_is_no_block_volume(kind: str) -> None:
    behind = PersistentVolumeSpec(volumeMode="Block", **{kind: SOURCES[kind]})
    with pytest.raises(ValueError, match=f"volumes of type {kind}, as pv, cannot be block devices"):
        volume_spec(using(devices=True), claimed(), PodFacts(), claimed_view(behind))


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (["ReadWriteOncePod"], True),
        (["ReadWriteOnce"], False),
        (["ReadWriteOnce", "ReadWriteOncePod"], False),
        (["ReadOnlyMany"], False),
        (None, False),
    ],
)
def test_only_a_sole_access_mode_reserves_a_volume(modes: list[str] | None, expected: bool) -> None:
    behind = PersistentVolumeSpec(csi=DRIVER, accessModes=modes)
    found = volume_spec(using(mounts=True), claimed(), PodFacts(), claimed_view(behind))
    assert found.is_for_one_pod is expected
    # As upstream: an access mode binds claims and is told to the driver, the claim's use decides.
    assert not found.read_only


def test_a_volume_is_used_as_a_mount_or_as_a_device() -> None:
    names = [Volume(name=name) for name in ("data", "unused")]
    for uses in ({"mounts": True}, {"devices": True}):
        for in_init in (True, False):
            user = using(in_init=in_init, **uses)
            assert user.spec is not None
            user = replace(user, spec=replace(user.spec, volumes=names))
            assert [volume.name for volume in used_volumes(user)] == ["data"]
            assert used_names(user) == (
                frozenset(["data"] if "mounts" in uses else []),
                frozenset(["data"] if "devices" in uses else []),
            )
