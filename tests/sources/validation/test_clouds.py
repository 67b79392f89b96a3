"""Volumes of the clouds' in-tree kinds, of pods and of persistent volumes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import PersistentVolume, Pod

from kubelet_trio.objects import IN_TREE_KINDS
from kubelet_trio.sources.manifest.support import check_cluster_pod
from kubelet_trio.sources.validation.object import validate_object
from tests.sources.make import manifest, problems

URI = "/subscriptions/s/resourcegroups/g/providers/microsoft.compute/disks/d"
AZURE = {"diskName": "d", "diskURI": URI, "kind": "Managed"}
FILE = {"secretName": "keys", "shareName": "share"}
GOOD: dict[str, dict[str, Any]] = {
    "awsElasticBlockStore": {
        "volumeID": "aws://us-east-1a/vol-1",
        "partition": 1,
        "fsType": "xfs",
        "readOnly": True,
    },
    "azureDisk": {**AZURE, "cachingMode": "ReadOnly", "fsType": "ext4", "readOnly": False},
    "azureFile": {**FILE, "readOnly": True},
    "cinder": {"volumeID": "1-2-3", "fsType": "ext4", "readOnly": True},
    "gcePersistentDisk": {"pdName": "d", "partition": 0, "fsType": "ext4", "readOnly": True},
    "portworxVolume": {"volumeID": "1", "fsType": "ext4", "readOnly": True},
    "vsphereVolume": {
        "volumePath": "[store] a/b.vmdk",
        "fsType": "ext4",
        "storagePolicyID": "1",
        "storagePolicyName": "gold",
    },
}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("awsElasticBlockStore", {"volumeID": ""}, ".volumeID: Required value"),
    (
        "awsElasticBlockStore",
        {"volumeID": "v", "partition": 256},
        ".partition: Invalid value: 256: must be between 0 and 255",
    ),
    ("awsElasticBlockStore", {"volumeID": "v", "fsType": "-V"}, '.fsType: Invalid value: "-V"'),
    (
        "awsElasticBlockStore",
        {"volumeID": "aws://us-east-1a/disk"},
        ": Forbidden: failed to translate in-tree pv to CSI: failed to translate Kubernetes ID",
    ),
    ("azureDisk", {**AZURE, "diskName": ""}, ".diskName: Required value"),
    ("azureDisk", {**AZURE, "diskURI": ""}, ".diskURI: Required value"),
    ("azureDisk", {**AZURE, "diskURI": "https://a.blob"}, ".diskURI: Unsupported value"),
    ("azureDisk", {**AZURE, "cachingMode": "All"}, '.cachingMode: Unsupported value: "All"'),
    ("azureDisk", {**AZURE, "kind": None}, ".kind: Required value: must be Managed"),
    (
        "azureDisk",
        {**AZURE, "kind": "Dedicated"},
        '.kind: Unsupported value: "Dedicated": supported values: "Managed"',
    ),
    ("azureFile", {**FILE, "secretName": ""}, ".secretName: Required value"),
    ("azureFile", {**FILE, "secretName": "A"}, '.secretName: Invalid value: "A"'),
    ("azureFile", {**FILE, "shareName": ""}, ".shareName: Required value"),
    ("cinder", {"volumeID": ""}, ".volumeID: Required value"),
    ("gcePersistentDisk", {"pdName": ""}, ".pdName: Required value"),
    ("gcePersistentDisk", {"pdName": "d", "partition": -1}, ".partition: Invalid value: -1"),
    ("portworxVolume", {"volumeID": ""}, ".volumeID: Required value"),
    ("vsphereVolume", {"volumePath": ""}, ".volumePath: Required value"),
]


def of_pod(kind: str, source: dict[str, Any]) -> dict[str, Any]:
    return manifest(volumes=[{"name": "v", kind: source}])


def of_volume(kind: str, source: dict[str, Any], mode: str = "Filesystem") -> list[str]:
    """Return what is wrong with a persistent volume for a claim of the default namespace."""
    spec = {kind: source, "volumeMode": mode, "claimRef": {"namespace": "default", "name": "c"}}
    raw = {"metadata": {"name": "pv"}, "spec": spec}
    found = validate_object(msgspec.convert(raw, PersistentVolume))
    return [f"{error.field}: {error.message}" for error in found]


def test_every_kind_has_an_example() -> None:
    assert tuple(GOOD) == IN_TREE_KINDS


@pytest.mark.parametrize("kind", IN_TREE_KINDS)
def test_a_source_may_have_every_field(kind: str) -> None:
    assert problems(of_pod(kind, GOOD[kind])) == []
    assert of_volume(kind, GOOD[kind]) == []
    assert check_cluster_pod(msgspec.convert(of_pod(kind, GOOD[kind]), Pod)) == []


@pytest.mark.parametrize(("kind", "source", "expected"), BAD)
def test_a_source_is_checked_as_at_the_api_server(
    kind: str, source: dict[str, Any], expected: str
) -> None:
    (found,) = problems(of_pod(kind, source))
    assert found.startswith(f"spec.volumes[0].{kind}{expected}")
    (found,) = of_volume(kind, source)
    assert found.startswith(f"spec.{kind}{expected}")


@pytest.mark.parametrize("kind", IN_TREE_KINDS)
def test_disks_may_be_block_devices(kind: str) -> None:
    found = of_volume(kind, GOOD[kind], "Block")
    assert bool(found) is (kind == "azureFile")


def test_what_only_one_of_both_has_is_checked_there() -> None:
    secret = {"secretRef": {"name": "keys"}}
    assert problems(of_pod("cinder", {**GOOD["cinder"], **secret})) == []
    (found,) = of_volume("cinder", {**GOOD["cinder"], **secret})
    assert found == "spec.cinder.secretRef.namespace: Required value"
    (found,) = problems(of_pod("cinder", {**GOOD["cinder"], "secretRef": {}}))
    assert found == "spec.volumes[0].cinder.secretRef.name: Required value"
    (found,) = of_volume("azureFile", {**FILE, "secretNamespace": ""})
    assert found == "spec.azureFile.secretNamespace: Required value"


def test_a_file_share_needs_to_know_where_its_secret_is() -> None:
    raw = {"metadata": {"name": "pv"}, "spec": {"azureFile": FILE}}
    (error,) = validate_object(msgspec.convert(raw, PersistentVolume))
    assert error.field == "spec.azureFile"
    assert "could not find a secret namespace" in error.message
