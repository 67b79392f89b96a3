"""Config maps, secrets and volumes beside the pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import ConfigMap

from kubelet_trio.objects import object_key
from kubelet_trio.sources import ManifestError, SourceSnapshot, load_manifest
from kubelet_trio.sources.merge import merge
from tests.sources.make import NODE, encoded, manifest


def document(kind: str, name: str = "x", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def storage(kind: str, **fields: Any) -> dict[str, Any]:
    return {**document(kind, "d.example.com", **fields), "apiVersion": "storage.k8s.io/v1"}


def volume(**spec: Any) -> dict[str, Any]:
    return document("PersistentVolume", spec=spec)


def problem(raw: dict[str, Any]) -> str:
    with pytest.raises(ManifestError) as caught:
        load_manifest(encoded(raw), "f", node_name=NODE)
    error = caught.value.errors[0]
    return f"{error.field}: {error.message}"


def test_objects_are_loaded_beside_pods() -> None:
    listed = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            document("ConfigMap", data={"a": "1"}),
            document("Secret", data={"a": "MQ=="}, stringData={"b": "2"}, type="Opaque"),
            document("PersistentVolumeClaim", spec={"volumeName": "x"}),
            volume(capacity={"storage": 1000}, local={"path": "/data"}),
            storage("CSIDriver", spec={"attachRequired": False}),
            storage("StorageClass", provisioner="d.example.com"),
        ],
    }
    loaded = load_manifest(encoded(manifest(), listed), "f", node_name=NODE)
    assert [pod.metadata.name for pod in loaded.pods if pod.metadata] == ["web-node1"]
    assert [tuple(object_key(each)) for each in loaded.objects] == [
        ("ConfigMap", "default", "x"),
        ("Secret", "default", "x"),
        ("PersistentVolumeClaim", "default", "x"),
        ("PersistentVolume", "", "x"),
        ("CSIDriver", "", "d.example.com"),
        ("StorageClass", "", "d.example.com"),
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (document("ConfigMap", ""), "metadata.name: Required value"),
        (document("ConfigMap", "A"), 'metadata.name: Invalid value: "A"'),
        (document("ConfigMap", data={"a/b": "1"}), "data[a/b]: Invalid value"),
        (document("ConfigMap", data={"..a": "1"}), "data[..a]: Invalid value"),
        (document("ConfigMap", data={"a": 1}), "data[a]: Invalid value: 1: expected a string"),
        (document("ConfigMap", datas={}), "datas: unknown field"),
        (document("ConfigMap", binaryData={"a": "*"}), "binaryData: Invalid value"),
        (
            document("ConfigMap", binaryData={"a": ""}, data={"a": ""}),
            'data: Invalid value: "a": duplicate',
        ),
        (document("Secret", data={"a": "no!"}), "data: Invalid value"),
        (document("Secret", stringData={"a": "x" * 2**20}), "data: Forbidden: larger than"),
        (document("PersistentVolumeClaim"), "spec.volumeName: Required value"),
        (
            document("PersistentVolumeClaim", spec={"volumeName": "x", "volumeMode": "Raw"}),
            'spec.volumeMode: Unsupported value: "Raw"',
        ),
        (
            volume(volumeMode="Block", hostPath={"path": "/a"}),
            'spec.volumeMode: Invalid value: "Block": hostPath volumes are no block devices',
        ),
        (volume(), "spec: Required value: must specify a volume type"),
        (volume(nfs={"server": "", "path": "/a"}), "spec.nfs.server: Required value"),
        (volume(nfs={"server": "s", "path": "a"}), "spec.nfs.path: Invalid value"),
        (volume(local={"path": "/a/../b"}), "spec.local.path: Invalid value"),
        (
            volume(hostPath={"path": "/a"}, local={"path": "/a"}),
            "spec.local: Forbidden: may not specify more than 1 volume type",
        ),
        (
            volume(rbd={"image": "i", "monitors": ["m"]}),
            "spec.rbd: Forbidden: volumes of this type are not supported",
        ),
        (
            volume(csi={"driver": "d", "volumeHandle": "h", "nodeStageSecret": {}}),
            'spec.csi.nodeStageSecret: unknown field; did you mean "nodeStageSecretRef"?',
        ),
        (
            storage("CSIDriver", spec={"attachRequired": True}),
            "spec.attachRequired: Forbidden: no controller attaches volumes to this node",
        ),
        (
            storage("CSIDriver", spec={"attachRequired": "no"}),
            'spec.attachRequired: Invalid value: "no": expected true or false',
        ),
        (storage("CSIDriver"), "spec: Required value"),
        (storage("StorageClass"), "provisioner: Required value"),
        (
            document("CSIDriver", spec={}),
            'apiVersion: Unsupported value: "v1": supported values: "storage.k8s.io/v1"',
        ),
    ],
)
def test_what_is_no_object_is_refused_with_its_path(raw: dict[str, Any], expected: str) -> None:
    assert problem(raw).startswith(expected)


def test_a_secrets_content_is_not_in_the_error() -> None:
    assert "hunter2" not in problem(document("Secret", data={"a": "hunter2!"}))


def test_the_first_object_of_a_name_counts() -> None:
    def config_map(value: str) -> ConfigMap:
        raw = encoded(document("ConfigMap", data={"a": value}))
        (made,) = load_manifest(raw, "f", node_name=NODE).objects
        assert isinstance(made, ConfigMap)
        return made

    file = SourceSnapshot("file", objects=(config_map("1"), config_map("2")))
    url = SourceSnapshot("http", objects=(config_map("3"),))
    merged = merge(["file", "http"], {"file": file, "http": url})
    ((key, found),) = merged.desired.objects.items()
    assert found == config_map("1")
    assert merged.hidden == {key}


def test_a_broken_edit_keeps_the_objects_too(tmp_path: Path) -> None:
    from kubelet_trio.sources.files.ledger import Ledger
    from kubelet_trio.sources.files.scan import read_manifest, scan

    file = tmp_path / "config.yaml"
    ledger = Ledger(0.1)
    for text in (encoded(document("ConfigMap", data={"a": "1"})), b"kind: ["):
        file.write_bytes(text)
        read = read_manifest(str(file), NODE)
        assert read is not None
        ledger.decide(scan(str(tmp_path)), None, 0.0, 0.0)
        ledger.take(str(file), read, "now")
    assert [tuple(object_key(each)) for each in ledger.objects()] == [("ConfigMap", "default", "x")]
    assert len(ledger.errors()) == 1
