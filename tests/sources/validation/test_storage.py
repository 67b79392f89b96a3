"""CSI drivers, storage classes and CSI volumes of manifests: every rule with its field and text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeClaim, Volume
from lightkube.models.storage_v1 import CSIDriver, StorageClass

from kubelet_trio.sources.validation import default_object, validate_object
from kubelet_trio.sources.validation.field_errors import FieldErrors
from kubelet_trio.sources.validation.volume import validate_volumes

NAMES = {"CSIDriver": CSIDriver, "StorageClass": StorageClass, "PersistentVolume": PersistentVolume}


def problems(kind: str, raw: dict[str, Any], name: str = "x") -> list[str]:
    value = msgspec.convert({"metadata": {"name": name}, **raw}, NAMES[kind])
    return [f"{error.field}: {error.message}" for error in validate_object(value)]


def driver(**spec: Any) -> dict[str, Any]:
    return {"spec": {"attachRequired": False, **spec}}


def storage_class(**fields: Any) -> dict[str, Any]:
    return {"provisioner": "hostpath.csi.k8s.io", **fields}


def csi(**fields: Any) -> dict[str, Any]:
    source = {"driver": "d.example.com", "volumeHandle": "h", **fields}
    return {"spec": {"csi": {k: v for k, v in source.items() if v is not None}}}


def test_a_driver_that_needs_no_attach_controller_is_valid() -> None:
    every = driver(
        podInfoOnMount=True,
        fsGroupPolicy="File",
        volumeLifecycleModes=["Persistent", "Ephemeral"],
        requiresRepublish=True,
        seLinuxMount=True,
        storageCapacity=True,
        nodeAllocatableUpdatePeriodSeconds=10,
    )
    assert problems("CSIDriver", every, "hostpath.csi.k8s.io") == []


def test_a_driver_gets_the_api_servers_defaults() -> None:
    value = default_object(
        msgspec.convert({"metadata": {"name": "d"}, "spec": {"attachRequired": False}}, CSIDriver)
    )
    given = {k: v for k, v in msgspec.to_builtins(value)["spec"].items() if v is not None}
    assert given == {
        "attachRequired": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "podInfoOnMount": False,
        "requiresRepublish": False,
        "seLinuxMount": False,
        "storageCapacity": False,
        "volumeLifecycleModes": ["Persistent"],
    }
    assert value.metadata is not None
    assert value.metadata.namespace is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"spec": {}}, "spec.attachRequired: Required value: no controller attaches volumes"),
        (driver(attachRequired=True), "spec.attachRequired: Forbidden: no controller attaches"),
        (
            driver(tokenRequests=[{"audience": "a"}]),
            "spec.tokenRequests: Forbidden: service account tokens need an API server",
        ),
        (
            driver(serviceAccountTokenInSecrets=True),
            "spec.serviceAccountTokenInSecrets: Invalid value: true: "
            "serviceAccountTokenInSecrets is set but no tokenRequests",
        ),
        (
            driver(fsGroupPolicy="Some"),
            'spec.fsGroupPolicy: Unsupported value: "Some": supported values: "File", "None", '
            '"ReadWriteOnceWithFSType"',
        ),
        (
            driver(volumeLifecycleModes=["Persistent", "Inline"]),
            'spec.volumeLifecycleModes[1]: Unsupported value: "Inline"',
        ),
        (
            driver(nodeAllocatableUpdatePeriodSeconds=9),
            "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or "
            "equal to 10",
        ),
    ],
)
def test_a_driver_that_cannot_work_here_is_refused_with_the_reason(
    raw: dict[str, Any], expected: str
) -> None:
    (found,) = problems("CSIDriver", raw)
    assert found.startswith(expected)


@pytest.mark.parametrize("name", ["a_b", "a/b", "a" * 64, "..", ""])
def test_a_drivers_name_is_checked(name: str) -> None:
    (found,) = problems("CSIDriver", driver(), name)
    assert found.startswith("metadata.name: ")


@pytest.mark.parametrize("kind", ["CSIDriver", "StorageClass"])
def test_cluster_wide_documents_have_no_namespace(kind: str) -> None:
    raw = {"metadata": {"name": "x", "namespace": "y"}, **driver(), **storage_class()}
    (found,) = problems(kind, raw)
    assert found.startswith("metadata.namespace: Forbidden: a ")


def test_a_storage_class_may_say_everything_that_the_api_allows() -> None:
    every = storage_class(
        allowVolumeExpansion=True,
        mountOptions=["discard"],
        parameters={"type": "ssd"},
        reclaimPolicy="Retain",
        volumeBindingMode="WaitForFirstConsumer",
        allowedTopologies=[{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}],
    )
    assert problems("StorageClass", every) == []


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (storage_class(provisioner=""), "provisioner: Required value"),
        (storage_class(provisioner="a b"), 'provisioner: Invalid value: "a b"'),
        (storage_class(reclaimPolicy="Recycle"), 'reclaimPolicy: Unsupported value: "Recycle"'),
        (storage_class(volumeBindingMode="Late"), 'volumeBindingMode: Unsupported value: "Late"'),
        (storage_class(parameters={"": "a"}), 'parameters: Invalid value: ""'),
        (storage_class(parameters={"a": "b" * 262144}), "parameters: Forbidden: larger than"),
        (
            storage_class(parameters={str(n): "" for n in range(513)}),
            "parameters: Too many: 513: must have at most 512 items",
        ),
        (
            storage_class(
                allowedTopologies=[{"matchLabelExpressions": [{"key": "zone", "values": []}]}]
            ),
            "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
        ),
    ],
)
def test_a_wrong_storage_class_is_refused(raw: dict[str, Any], expected: str) -> None:
    (found,) = problems("StorageClass", raw)
    assert found.startswith(expected)


SOURCES = [
    ({"driver": ""}, "driver: Required value"),
    ({"driver": "a/../b"}, 'driver: Invalid value: "a/../b"'),
    ({"driver": "d" * 64}, "driver: Invalid value"),
    ({"fsType": "ext4,rw"}, 'fsType: Invalid value: "ext4,rw": must be the name of a file system'),
    ({"fsType": "-o"}, 'fsType: Invalid value: "-o"'),
]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *SOURCES,
        ({"volumeHandle": ""}, "volumeHandle: Required value"),
        ({"volumeHandle": "h" * 4097}, "volumeHandle: Invalid value"),
        ({"volumeHandle": "a\nb"}, "volumeHandle: Invalid value"),
        ({"nodeStageSecretRef": {"name": "a"}}, "nodeStageSecretRef.namespace: Required value"),
        (
            {"nodePublishSecretRef": {"namespace": "a", "name": "B"}},
            'nodePublishSecretRef.name: Invalid value: "B"',
        ),
    ],
)
def test_the_csi_source_of_a_volume_is_checked(fields: dict[str, Any], expected: str) -> None:
    # A node that has no CSI refuses the type as well.
    found = [p for p in problems("PersistentVolume", csi(**fields)) if "not supported by" not in p]
    assert len(found) == 1
    assert found[0].startswith(f"spec.csi.{expected}")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *SOURCES,
        ({"nodePublishSecretRef": {}}, "nodePublishSecretRef.name: Required value"),
        ({"nodePublishSecretRef": {"name": "a b"}}, "nodePublishSecretRef.name: Invalid value"),
    ],
)
def test_an_inline_csi_volume_is_checked(fields: dict[str, Any], expected: str) -> None:
    errors = FieldErrors()
    raw = {"name": "v", "csi": {"driver": "d.example.com", **fields}}
    validate_volumes(errors, [msgspec.convert(raw, Volume)])
    (error,) = errors.found
    assert f"{error.field}: {error.message}".startswith(f"spec.volumes[0].csi.{expected}")


def test_an_inline_csi_volume_may_have_every_field() -> None:
    errors = FieldErrors()
    source = {
        "driver": "Inline.Example.com",
        "fsType": "ext4",
        "readOnly": True,
        "volumeAttributes": {"size": "1Gi"},
        "nodePublishSecretRef": {"name": "keys"},
    }
    validate_volumes(errors, [msgspec.convert({"name": "v", "csi": source}, Volume)])
    assert errors.found == []


def test_the_capacity_of_a_volume_is_a_quantity() -> None:
    spec = {"hostPath": {"path": "/data"}, "capacity": {"storage": "10 GB"}}
    (found,) = problems("PersistentVolume", {"spec": spec})
    assert found.startswith('spec.capacity[storage]: Invalid value: "10 GB"')


def test_a_claim_without_a_volume_is_told_that_nothing_binds_it() -> None:
    claim = msgspec.convert(
        {"metadata": {"name": "c"}, "spec": {"storageClassName": "fast"}}, PersistentVolumeClaim
    )
    (error,) = validate_object(claim)
    assert (error.field, error.message) == (
        "spec.volumeName",
        "Required value: no controller binds claims on this node: give the name of a "
        "PersistentVolume document",
    )
