"""Documents of classes, slices and claims of devices, and pods that use claims."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kubelet_trio.sources import ManifestError, load_manifest
from tests.sources.make import NODE, encoded, manifest, problems

V1 = "resource.k8s.io/v1"
GPU = "gpu.example.com"


def document(kind: str, spec: Any, **meta: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": kind, "metadata": {"name": "x", **meta}, "spec": spec}


def of_claim(*requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    return document("ResourceClaim", {"devices": {"requests": list(requests), **devices}})


def exactly(name: str = "r", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": GPU, **fields}}


def of_slice(*devices: dict[str, Any], **spec: Any) -> dict[str, Any]:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    given = {"driver": GPU, "nodeName": "n1", "pool": pool, "devices": list(devices), **spec}
    return document("ResourceSlice", {k: v for k, v in given.items() if v is not None})


FULL = [
    document(
        "DeviceClass",
        {
            "selectors": [{"cel": {"expression": f'device.driver == "{GPU}"'}}],
            "config": [
                {"opaque": {"driver": GPU, "parameters": {"kind": "X", "deep": [{"a": 1}]}}}
            ],
        },
    ),
    of_slice(
        {
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "a"},
                "example.com/n": {"int": 4},
                "v": {"version": "1.2.3"},
                "ok": {"bool": True},
                "many": {"strings": ["a", "b"]},
            },
            "capacity": {"memory": {"value": 4}},
            "taints": [{"key": "example.com/bad", "effect": "NoSchedule"}],
            "consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": "4Gi"}}}],
        }
    ),
    of_slice(
        devices=None, sharedCounters=[{"name": "s", "counters": {"memory": {"value": "8Gi"}}}]
    ),
    of_claim(
        exactly("a", count=2, tolerations=[{"operator": "Exists"}]),
        {
            "name": "b",
            "firstAvailable": [{"name": "big", "deviceClassName": GPU, "allocationMode": "All"}],
        },
        constraints=[{"matchAttribute": f"{GPU}/numa", "requests": ["a", "b/big"]}],
        config=[{"requests": ["b"], "opaque": {"driver": GPU, "parameters": {}}}],
    ),
    document(
        "ResourceClaimTemplate",
        {"metadata": {"labels": {"a": "b"}}, "spec": of_claim(exactly())["spec"]},
    ),
]


def test_documents_that_are_right_are_taken() -> None:
    assert problems(*FULL) == []
    loaded = load_manifest(encoded(*FULL), "f", node_name=NODE).objects
    assert [type(value).__name__ for value in loaded] == [d["kind"] for d in FULL]
    (claim,) = (value for value in loaded if type(value).__name__ == "ResourceClaim")
    assert claim.metadata is not None
    assert claim.metadata.namespace == "default"


def test_a_status_of_elsewhere_is_nothing_here() -> None:
    other = {**of_claim(exactly()), "status": {"allocation": {"devices": {"results": []}}}}
    (loaded,) = load_manifest(encoded(other), "f", node_name=NODE).objects
    assert getattr(loaded, "status", "") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (of_claim({"name": "r"}), 'spec.devices.requests[0]: Invalid value: "": exactly one of'),
        (of_claim(exactly(), exactly()), 'requests[1].name: Duplicate value: "r"'),
        (of_claim(exactly(count=0)), "exactly.count: Invalid value: 0"),
        (of_claim(exactly(count=2, allocationMode="All")), "exactly.count: Invalid value: 2"),
        (of_claim(exactly(allocationMode="Some")), 'allocationMode: Unsupported value: "Some"'),
        (of_claim(exactly(selectors=[{}])), "exactly.selectors[0].cel: Required value"),
        (
            of_claim(exactly(selectors=[{"cel": {"expression": "x" * 10241}}])),
            "selectors[0].cel.expression: Invalid value",
        ),
        (
            of_slice({"name": "a", "attributes": {"ok": {"bool": 1}}}),
            "attributes[ok].bool: Invalid value: 1: expected true or false",
        ),
        (
            of_slice({"name": "a", "attributes": {"n": {"ints": ["1"]}}}),
            'attributes[n].ints[0]: Invalid value: "1": expected a whole number',
        ),
        (of_claim(exactly(counts=2)), 'exactly.counts: unknown field; did you mean "count"?'),
        (
            of_claim(exactly(), constraints=[{"matchAttribute": "numa"}]),
            'constraints[0].matchAttribute: Invalid value: "numa": must include a domain',
        ),
        (
            of_claim(exactly(), constraints=[{}]),
            'constraints[0]: Invalid value: "": exactly one of matchAttribute and',
        ),
        (
            of_claim(
                exactly(), config=[{"requests": ["q"], "opaque": {"driver": GPU, "parameters": {}}}]
            ),
            'config[0].requests[0]: Invalid value: "q"',
        ),
        (of_slice(nodeName=None), 'spec: Invalid value: "": exactly one of nodeName'),
        (of_slice(allNodes=True), 'spec: Invalid value: "": exactly one of nodeName'),
        (of_slice({"name": "A"}), 'spec.devices[0].name: Invalid value: "A"'),
        (of_slice({"name": "a"}, {"name": "a"}), "spec.devices[1].name: Duplicate value"),
        (
            of_slice({"name": "a", "attributes": {"m": {"string": "x", "int": 1}}}),
            'spec.devices[0].attributes[m]: Invalid value: "": exactly one value',
        ),
        (
            of_slice({"name": "a", "attributes": {"m": {"sting": "x"}}}),
            "spec.devices[0].attributes[m].sting: unknown field",
        ),
        (
            of_slice({"name": "a", "attributes": {"v": {"version": "1.0"}}}),
            "attributes[v].version: Invalid value",
        ),
        (
            of_slice({"name": "a", "capacity": {"m": {"value": "much"}}}),
            "capacity[m].value: Invalid value",
        ),
        (of_slice(*({"name": f"d{i}"} for i in range(129))), "spec.devices: Too many: 129"),
        (
            document("DeviceClass", {"config": [{"opaque": {"driver": GPU, "parameters": "x"}}]}),
            'spec.config[0].opaque.parameters: Invalid value: "x": expected an object',
        ),
        (document("DeviceClass", {}, namespace="a"), "metadata.namespace: Forbidden: a device"),
        ({**FULL[0], "apiVersion": "resource.k8s.io/v1beta1"}, "apiVersion: Unsupported value"),
        (
            manifest(resourceClaims=[{"name": "a"}]),
            'spec.resourceClaims[0]: Invalid value: "a": must specify one of: '
            "`resourceClaimName`, `resourceClaimTemplateName`",
        ),
        (
            manifest(
                containers=[{"name": "c", "image": "i", "resources": {"claims": [{"name": "b"}]}}]
            ),
            'spec.containers[0].resources.claims[0].name: Not found: "b"',
        ),
    ],
)
def test_errors_name_their_field(value: dict[str, Any], expected: str) -> None:
    found = problems(copy.deepcopy(value))
    assert any(expected in problem for problem in found), found


def test_static_pods_of_a_node_with_an_api_server_may_not_use_claims() -> None:
    raw = manifest(resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}])
    assert problems(raw) == []
    with pytest.raises(ManifestError, match="static pods may not reference resourceclaims"):
        load_manifest(encoded(raw), "f", node_name=NODE, local_claims=False)
