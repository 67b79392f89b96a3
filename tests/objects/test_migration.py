"""In-tree volumes of clouds as CSI volumes; expected values are those of csi-translation-lib."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import PersistentVolume, Volume

from kubelet_trio.model import PodKey
from kubelet_trio.node.csi_object import MIGRATED
from kubelet_trio.objects import (
    IN_TREE_KINDS,
    csi_driver_key,
    persistent_references,
    secret_key,
    volume_references,
)
from kubelet_trio.objects.migration import IN_TREE, migrated_inline, migrated_persistent

ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION, OLD_REGION = "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"
DISK = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d"

# Kind, source, and what differs from the defaults in the CSI source.
SOURCES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "awsElasticBlockStore",
        {"volumeID": "vol-1", "fsType": "ext4", "readOnly": True},
        {
            "driver": "ebs.csi.aws.com",
            "volumeHandle": "vol-1",
            "fsType": "ext4",
            "readOnly": True,
            "volumeAttributes": {"partition": "0"},
        },
    ),
    (
        "awsElasticBlockStore",
        {"volumeID": "aws://us-west-2b/vol-0f2", "partition": 2},
        {
            "driver": "ebs.csi.aws.com",
            "volumeHandle": "vol-0f2",
            "volumeAttributes": {"partition": "2"},
        },
    ),
    (
        "azureDisk",
        {
            "diskName": "d",
            "diskURI": DISK,
            "cachingMode": "ReadOnly",
            "fsType": "xfs",
            "kind": "managed",
        },
        {
            "driver": "disk.csi.azure.com",
            "volumeHandle": DISK,
            "fsType": "xfs",
            "volumeAttributes": {"kind": "Managed", "cachingmode": "ReadOnly", "fstype": "xfs"},
        },
    ),
    (
        "cinder",
        {"volumeID": "c-1", "fsType": "ext3"},
        {"driver": "cinder.csi.openstack.org", "volumeHandle": "c-1", "fsType": "ext3"},
    ),
    (
        "gcePersistentDisk",
        {"pdName": "pd", "fsType": "ext4", "partition": 3},
        {
            "driver": "pd.csi.storage.gke.io",
            "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd",
            "fsType": "ext4",
            "volumeAttributes": {"partition": "3"},
        },
    ),
    (
        "gcePersistentDisk",
        {"pdName": "pd"},
        {
            "driver": "pd.csi.storage.gke.io",
            "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/pd",
            "volumeAttributes": {"partition": ""},
        },
    ),
    (
        "portworxVolume",
        {"volumeID": "px", "fsType": "ext4"},
        {"driver": "pxd.portworx.com", "volumeHandle": "px", "fsType": "ext4"},
    ),
    (
        "vsphereVolume",
        {"volumePath": "[ds] kubevols/a.vmdk", "storagePolicyName": "gold", "fsType": "ext4"},
        {
            "driver": "csi.vsphere.vmware.com",
            "volumeHandle": "[ds] kubevols/a.vmdk",
            "fsType": "ext4",
            "volumeAttributes": {"storagepolicyname": "gold"},
        },
    ),
]


def persistent(kind: str, source: dict[str, Any], **fields: Any) -> PersistentVolume:
    spec = {kind: source, **fields.pop("spec", {})}
    document = {"metadata": {"name": "pv", **fields}, "spec": spec}
    return msgspec.convert(document, PersistentVolume)


def inline(kind: str, source: dict[str, Any]) -> Volume:
    return msgspec.convert({"name": "data", kind: source}, Volume)


def shown(volume: PersistentVolume | None) -> dict[str, Any]:
    """The fields of the CSI source that say something."""
    assert volume is not None
    assert volume.spec is not None
    assert all(getattr(volume.spec, kind) is None for kind in IN_TREE)
    source = msgspec.to_builtins(volume.spec.csi)
    return {name: value for name, value in source.items() if value not in (None, {}, False)}


@pytest.mark.parametrize(("kind", "source", "expected"), SOURCES)
def test_a_source_becomes_that_of_its_driver(
    kind: str, source: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert shown(migrated_persistent(persistent(kind, source))) == expected
    assert shown(migrated_inline(inline(kind, source), "default")) == expected
    assert IN_TREE[kind].driver == expected["driver"]


@pytest.mark.parametrize(
    ("kind", "source", "name", "modes"),
    [
        (
            "awsElasticBlockStore",
            {"volumeID": "aws://z/vol-1"},
            "ebs.csi.aws.com-vol-1",
            ["ReadWriteOnce"],
        ),
        ("azureDisk", {"diskName": "d", "diskURI": DISK}, DISK, ["ReadWriteOnce"]),
        ("azureFile", {"secretName": "s", "shareName": "f"}, "#s#f#data#ns", ["ReadWriteMany"]),
        ("cinder", {"volumeID": "c"}, "cinder.csi.openstack.org-c", ["ReadWriteOnce"]),
        ("gcePersistentDisk", {"pdName": "pd"}, "pd.csi.storage.gke.io-pd", ["ReadWriteOnce"]),
        (
            "gcePersistentDisk",
            {"pdName": "pd", "readOnly": True},
            "pd.csi.storage.gke.io-pd",
            ["ReadOnlyMany"],
        ),
        (
            "portworxVolume",
            {"volumeID": "p", "readOnly": True},
            "pxd.portworx.com-p",
            ["ReadOnlyMany"],
        ),
        (
            "vsphereVolume",
            {"volumePath": "[ds] a"},
            "csi.vsphere.vmware.com-[ds] a",
            ["ReadWriteOnce"],
        ),
    ],
)
def test_an_inline_volume_gets_the_name_of_its_disk(
    kind: str, source: dict[str, Any], name: str, modes: list[str]
) -> None:
    made = migrated_inline(inline(kind, source), "ns")
    assert made is not None
    assert made.metadata is not None
    assert made.spec is not None
    assert (made.metadata.name, made.spec.accessModes) == (name, modes)
    assert made.spec.volumeMode == "Filesystem"


@pytest.mark.parametrize(
    ("fields", "handle", "namespace"),
    [
        ({"spec": {"claimRef": {"namespace": "team"}}}, "#acc#share#pv#team", "team"),
        (
            {
                "annotations": {"kubernetes.io/azure-file-resource-group": "rg"},
                "spec": {"claimRef": {"namespace": "team"}},
            },
            "rg#acc#share#pv#team",
            "team",
        ),
    ],
)
def test_an_azure_file_share_is_found_by_its_account(
    fields: dict[str, Any], handle: str, namespace: str
) -> None:
    source = {"secretName": "azure-storage-account-acc-secret", "shareName": "share"}
    made = shown(migrated_persistent(persistent("azureFile", source, **fields)))
    assert made["volumeHandle"] == handle
    assert made["nodeStageSecretRef"] == {"name": source["secretName"], "namespace": namespace}
    assert made["volumeAttributes"] == {"sharename": "share"}


def test_an_azure_file_share_can_name_the_secrets_namespace() -> None:
    source = {"secretName": "plain", "shareName": "share", "secretNamespace": "vault"}
    made = shown(migrated_persistent(persistent("azureFile", source)))
    assert made["volumeHandle"] == "#plain#share#pv#vault"
    assert made["nodeStageSecretRef"] == {"name": "plain", "namespace": "vault"}


def test_a_portworx_volume_takes_its_secret_for_every_call() -> None:
    notes = {
        "openstorage.io/auth-secret-name": "token",
        "openstorage.io/auth-secret-namespace": "px",
    }
    made = shown(
        migrated_persistent(persistent("portworxVolume", {"volumeID": "p"}, annotations=notes))
    )
    secret = {"name": "token", "namespace": "px"}
    assert made["nodeStageSecretRef"] == secret
    assert made["nodePublishSecretRef"] == secret
    assert made["nodeExpandSecretRef"] == secret


@pytest.mark.parametrize(
    ("labels", "handle"),
    [
        ({ZONE: "us-central1-a"}, "zones/us-central1-a"),
        ({OLD_ZONE: "us-east1-b", ZONE: "us-central1-a"}, "zones/us-east1-b"),
        ({ZONE: "us-central1-a__us-central1-c"}, "regions/us-central1"),
    ],
)
def test_a_google_disks_place_is_in_its_handle(labels: dict[str, str], handle: str) -> None:
    volume = persistent("gcePersistentDisk", {"pdName": "pd"}, labels=labels)
    expected = f"projects/UNSPECIFIED/{handle}/disks/pd"
    assert shown(migrated_persistent(volume))["volumeHandle"] == expected


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (["ReadWriteMany"], ["ReadWriteOnce"]),
        (["ReadWriteOnce", "ReadOnlyMany"], ["ReadWriteOnce"]),
        (["ReadOnlyMany"], ["ReadOnlyMany"]),
        (["ReadWriteMany", "ReadOnlyMany"], ["ReadWriteOnce"]),
        ([], ["ReadWriteOnce"]),
    ],
)
def test_a_google_disk_has_modes_that_its_driver_accepts(
    modes: list[str], expected: list[str]
) -> None:
    volume = persistent("gcePersistentDisk", {"pdName": "pd"}, spec={"accessModes": modes})
    made = migrated_persistent(volume)
    assert made.spec is not None
    assert made.spec.accessModes == expected


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        (
            "awsElasticBlockStore",
            {"volumeID": "aws://z/disk-1"},
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://z/disk-1)",
        ),
        (
            "azureDisk",
            {"diskName": "d", "diskURI": DISK, "kind": "Shared"},
            "kind(Shared) is not supported in csi migration",
        ),
        (
            "azureFile",
            {"secretName": "s", "shareName": "f"},
            "could not find a secret namespace in PersistentVolumeSource or ClaimRef",
        ),
    ],
)
def test_what_cannot_be_translated_is_told(kind: str, source: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="failed to translate in-tree pv to CSI") as caught:
        migrated_persistent(persistent(kind, source))
    assert str(caught.value) == f"failed to translate in-tree pv to CSI: {message}"


@pytest.mark.parametrize("zones", ["us-central1-a__europe", "us-a-b__eu-c-d"])
def test_zones_of_no_region_are_refused(zones: str) -> None:
    volume = persistent("gcePersistentDisk", {"pdName": "pd"}, labels={ZONE: zones})
    with pytest.raises(ValueError, match="failed to get region from zones"):
        migrated_persistent(volume)


def affinity(*terms: dict[str, list[str]]) -> dict[str, Any]:
    selectors = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": values} for key, values in term.items()
            ]
        }
        for term in terms
    ]
    return {"required": {"nodeSelectorTerms": selectors}}


AWS_ZONE = "topology.ebs.csi.aws.com/zone"


@pytest.mark.parametrize(
    ("kind", "labels", "terms", "expected"),
    [
        (
            "awsElasticBlockStore",
            {},
            [{ZONE: ["a"], "disk": ["x"]}],
            [{AWS_ZONE: ["a"], "disk": ["x"]}],
        ),
        (
            "awsElasticBlockStore",
            {},
            [{ZONE: ["a"]}, {ZONE: ["b"]}],
            [{AWS_ZONE: ["a"]}, {AWS_ZONE: ["b"]}],
        ),
        # The volume's own affinity comes before its labels, which stand for a missing one.
        ("awsElasticBlockStore", {ZONE: "b"}, [{ZONE: ["a"]}], [{AWS_ZONE: ["a"]}]),
        ("awsElasticBlockStore", {ZONE: "b__a"}, [], [{AWS_ZONE: ["a", "b"]}]),
        (
            "awsElasticBlockStore",
            {ZONE: "a"},
            [{"disk": ["x"]}],
            [{"disk": ["x"], AWS_ZONE: ["a"]}],
        ),
        ("awsElasticBlockStore", {OLD_ZONE: "a"}, [], [{AWS_ZONE: ["a"]}]),
        (
            "awsElasticBlockStore",
            {},
            [{OLD_ZONE: ["a"], OLD_REGION: ["r"]}],
            [{AWS_ZONE: ["a"], REGION: ["r"]}],
        ),
        (
            "vsphereVolume",
            {},
            [{OLD_ZONE: ["a"], OLD_REGION: ["r"]}],
            [{"topology.csi.vmware.com/zone": ["a"], "topology.csi.vmware.com/region": ["r"]}],
        ),
        ("azureDisk", {ZONE: "a"}, [{ZONE: ["a"]}], [{ZONE: ["a"]}]),
    ],
)
def test_the_affinity_is_in_the_drivers_labels(
    kind: str,
    labels: dict[str, str],
    terms: list[dict[str, list[str]]],
    expected: list[dict[str, list[str]]],
) -> None:
    source = {
        "awsElasticBlockStore": {"volumeID": "vol-1"},
        "vsphereVolume": {"volumePath": "a"},
        "azureDisk": {"diskName": "d", "diskURI": DISK},
    }[kind]
    spec = {"nodeAffinity": affinity(*terms)} if terms else {}
    made = migrated_persistent(persistent(kind, source, labels=labels, spec=spec))
    assert made.spec is not None
    found = msgspec.to_builtins(made.spec.nodeAffinity)["required"]["nodeSelectorTerms"]
    assert [
        {each["key"]: each["values"] for each in term["matchExpressions"]} for term in found
    ] == expected


@given(st.sampled_from(SOURCES), st.text(min_size=1))
def test_a_translation_changes_nothing_that_it_was_given(
    case: tuple[str, dict[str, Any], dict[str, Any]], zone: str
) -> None:
    kind, source, _ = case
    volume = persistent(kind, source, labels={"disk": zone}, spec={"accessModes": ["ReadOnlyMany"]})
    before = msgspec.to_builtins(volume)
    made = migrated_persistent(volume)
    assert msgspec.to_builtins(volume) == before
    assert migrated_persistent(made) is made  # it is one of CSI by now


def test_other_kinds_are_no_concern_of_it() -> None:
    volume = persistent("nfs", {"server": "s", "path": "/"})
    assert migrated_persistent(volume) is volume
    assert migrated_inline(inline("emptyDir", {}), "default") is None


def test_the_kinds_are_known_without_the_translation() -> None:
    assert tuple(IN_TREE) == IN_TREE_KINDS
    assert tuple(kind.plugin for kind in IN_TREE.values()) == MIGRATED
    text = (
        "import sys\nimport kubelet_trio.objects, kubelet_trio.sources.validation.object\n"
        "print([name for name in sys.modules if name.endswith(('.migration', '.clouds'))])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_volume_refers_to_the_objects_of_its_driver() -> None:
    share = {"secretName": "keys", "shareName": "s"}
    driver = csi_driver_key("file.csi.azure.com")
    found = volume_references(PodKey("ns", "p"), inline("azureFile", share))
    assert list(found) == [driver, secret_key("ns", "keys")]
    claim = {"spec": {"claimRef": {"namespace": "other", "name": "c"}}}
    found = persistent_references(persistent("azureFile", share, **claim))
    assert list(found) == [driver, secret_key("other", "keys")]


def test_what_cannot_be_translated_refers_to_nothing() -> None:
    source = {"volumeID": "aws://zone/disk"}
    assert list(volume_references(PodKey("ns", "p"), inline("awsElasticBlockStore", source))) == []
    assert list(persistent_references(persistent("awsElasticBlockStore", source))) == []
