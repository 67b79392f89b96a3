"""iSCSI, Fibre Channel and FlexVolume sources, of pods and of persistent volumes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import PersistentVolume, Pod

from kubelet_trio.sources.manifest.support import check_cluster_pod
from kubelet_trio.sources.validation.object import validate_object
from tests.sources.make import manifest, problems

IQN = "iqn.2026-01.com.example:disk"
ISCSI = {"targetPortal": "10.0.0.1:3260", "iqn": IQN, "lun": 0}
FC = {"targetWWNs": ["500a0982991b8dc5"], "lun": 2}
FLEX = {"driver": "example.com/lvm"}
GOOD: dict[str, list[dict[str, Any]]] = {
    "iscsi": [
        ISCSI,
        {**ISCSI, "lun": 255, "portals": ["10.0.0.2"], "fsType": "xfs", "readOnly": True},
        {**ISCSI, "chapAuthSession": True, "secretRef": {"name": "chap"}},
        {**ISCSI, "iqn": f"eui.{'0' * 16}", "initiatorName": f"naa.{'a' * 32}"},
        {**ISCSI, "iscsiInterface": "default", "initiatorName": IQN},
    ],
    "fc": [
        FC,
        {"wwids": ["3600508b400105e210000900000490000"], "fsType": "ext4", "readOnly": True},
        {"wwids": ["3600508b400105e210000900000490000"], "lun": 999},  # not used with wwids
    ],
    "flexVolume": [
        FLEX,
        {
            **FLEX,
            "fsType": "ext4",
            "options": {"size": "1G", "example.com/k8s.io": "x", "notkubernetes.io": "y"},
            "secretRef": {"name": "keys"},
        },
    ],
}
FORMAT = "must be valid format"
RESERVED = "kubernetes.io and k8s.io namespaces are reserved"
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("iscsi", {**ISCSI, "targetPortal": ""}, "targetPortal: Required value"),
    ("iscsi", {**ISCSI, "iqn": ""}, "iqn: Required value"),
    (
        "iscsi",
        {**ISCSI, "iqn": "disk"},
        f'iqn: Invalid value: "disk": {FORMAT} starting with iqn, eui, or naa',
    ),
    *(
        ("iscsi", {**ISCSI, "iqn": name}, f'iqn: Invalid value: "{name}": {FORMAT}')
        for name in (
            "iqn.2026-01.com.example",
            "iqn.26-01.com.example:a",
            "iqn.2026-01.com.example:a,b",
            "iqn.2026-01.com.example:a b",
            "iqn.2026-01.com.ex\u00e4mple:a",
            f"eui.{'0' * 15}",
            f"naa.{'0' * 33}",
        )
    ),
    ("iscsi", {**ISCSI, "lun": 256}, "lun: Invalid value: 256: must be between 0 and 255"),
    ("iscsi", {**ISCSI, "lun": -1}, "lun: Invalid value: -1: must be between 0 and 255"),
    ("iscsi", {**ISCSI, "chapAuthDiscovery": True}, "secretRef: Required value"),
    ("iscsi", {**ISCSI, "chapAuthSession": True}, "secretRef: Required value"),
    ("iscsi", {**ISCSI, "secretRef": {}}, "secretRef.name: Required value"),
    ("iscsi", {**ISCSI, "initiatorName": "me"}, 'initiatorName: Invalid value: "me"'),
    ("iscsi", {**ISCSI, "fsType": "-V"}, 'fsType: Invalid value: "-V"'),
    ("fc", {}, "targetWWNs: Required value: must specify either targetWWNs or wwids"),
    ("fc", {**FC, "wwids": ["3600508"]}, "targetWWNs: Invalid value"),
    ("fc", {"targetWWNs": ["5"]}, "lun: Required value: lun is required if targetWWNs is"),
    ("fc", {**FC, "lun": 256}, "lun: Invalid value: 256: must be between 0 and 255"),
    ("fc", {**FC, "fsType": "a b"}, 'fsType: Invalid value: "a b"'),
    ("flexVolume", {"driver": ""}, "driver: Required value"),
    *(
        ("flexVolume", {**FLEX, "options": {key: ""}}, f'options[{key}]: Invalid value: "{key}": ')
        for key in ("kubernetes.io/fsType", "k8s.io", "A.Kubernetes.IO/secret", "x.k8s.io/a/b")
    ),
    ("flexVolume", {**FLEX, "secretRef": {"name": "A"}}, 'secretRef.name: Invalid value: "A"'),
]


def of_pod(kind: str, source: dict[str, Any]) -> dict[str, Any]:
    return manifest(volumes=[{"name": "v", kind: source}])


def of_volume(kind: str, source: dict[str, Any], name: str = "pv") -> list[str]:
    """Return what is wrong with a persistent volume."""
    raw = {"metadata": {"name": name}, "spec": {kind: source, "volumeMode": "Filesystem"}}
    found = validate_object(msgspec.convert(raw, PersistentVolume))
    return [f"{error.field}: {error.message}" for error in found]


@pytest.mark.parametrize(("kind", "source"), [(k, s) for k, all_ in GOOD.items() for s in all_])
def test_a_source_may_have_every_field(kind: str, source: dict[str, Any]) -> None:
    assert problems(of_pod(kind, source)) == []
    assert of_volume(kind, source) == []
    assert check_cluster_pod(msgspec.convert(of_pod(kind, source), Pod)) == []


@pytest.mark.parametrize(("kind", "source", "expected"), BAD)
def test_a_source_is_checked_as_at_the_api_server(
    kind: str, source: dict[str, Any], expected: str
) -> None:
    (found,) = problems(of_pod(kind, source))
    assert found.startswith(f"spec.volumes[0].{kind}.{expected}")
    (found,) = of_volume(kind, source)
    assert found.startswith(f"spec.{kind}.{expected}")


def test_the_reserved_namespaces_of_options_are_named() -> None:
    (found,) = problems(of_pod("flexVolume", {**FLEX, "options": {"kubernetes.io/a": "b"}}))
    assert found.endswith(RESERVED)


@pytest.mark.parametrize("kind", ["iscsi", "flexVolume"])
def test_the_secret_of_a_persistent_volume_may_have_a_namespace(kind: str) -> None:
    base = GOOD[kind][0]
    secret = {"name": "keys", "namespace": "storage"}
    assert of_volume(kind, {**base, "secretRef": secret}) == []
    (found,) = of_volume(kind, {**base, "secretRef": {**secret, "namespace": "a.b"}})
    assert found.startswith(f'spec.{kind}.secretRef.namespace: Invalid value: "a.b"')


@pytest.mark.parametrize(("length", "count"), [(50, 0), (51, 1)])
def test_an_interface_of_a_volumes_own_has_a_short_name(length: int, count: int) -> None:
    # `<volume>:<portal>` is the name of the interface: 64 bytes at most.
    source = {**ISCSI, "initiatorName": IQN}
    found = of_volume("iscsi", source, "v" * length)
    assert len(found) == count
    assert all(each.startswith("spec.iscsi.targetPortal: Invalid value") for each in found)
    assert of_volume("iscsi", ISCSI, "v" * length) == []
    assert problems(of_pod("iscsi", source)) == []


@pytest.mark.parametrize("kind", ["iscsi", "fc"])
def test_a_disk_may_be_a_block_device(kind: str) -> None:
    raw = {"metadata": {"name": "pv"}, "spec": {kind: GOOD[kind][0], "volumeMode": "Block"}}
    assert validate_object(msgspec.convert(raw, PersistentVolume)) == []


def test_the_type_of_a_persistent_host_path_is_checked() -> None:
    (found,) = of_volume("hostPath", {"path": "/a", "type": "Pipe"})
    assert found.startswith('spec.hostPath.type: Unsupported value: "Pipe"')
    assert of_volume("hostPath", {"path": "/a", "type": "Directory"}) == []
