"""Short ways to write device classes, slices and claims."""

from __future__ import annotations

from typing import Any

import msgspec
from lightkube.models.resource_v1 import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)

from kubelet_trio.managers.claims.allocation import (
    DeviceId,
    NodeFacts,
    Pool,
    Selectors,
    allocate,
    gather_pools,
)

NODE = NodeFacts("n1", {"zone": "a"})
DRIVER = "gpu.example.com"


def cel(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def device_class(name: str = DRIVER, *selectors: str, **spec: Any) -> DeviceClass:
    given = selectors or (f'device.driver == "{name}"',)
    body = {"metadata": {"name": name}, "spec": {"selectors": cel(*given), **spec}}
    return msgspec.convert(body, DeviceClass)


def device(name: str, **fields: Any) -> dict[str, Any]:
    """Return a device; keyword `attributes` takes plain values."""
    kinds = {bool: "bool", int: "int", str: "string"}
    given = fields.pop("attributes", {})
    attributes = {
        key: value if isinstance(value, dict) else {kinds[type(value)]: value}
        for key, value in given.items()
    }
    return {"name": name, "attributes": attributes, **fields}


def resource_slice(
    *devices: dict[str, Any] | str,
    driver: str = DRIVER,
    pool: str = "n1",
    name: str = "s1",
    generation: int = 1,
    count: int = 1,
    **spec: Any,
) -> ResourceSlice:
    listed = [device(each) if isinstance(each, str) else each for each in devices]
    where = {} if {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & spec.keys() else NAMED
    body = {
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": listed,
            **where,
            **spec,
        },
    }
    return msgspec.convert(body, ResourceSlice)


NAMED = {"nodeName": "n1"}


def exactly(name: str = "r", class_name: str = DRIVER, **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_name, **fields}}


def claim(*requests: dict[str, Any], name: str = "gpu", **devices: Any) -> ResourceClaim:
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }
    return msgspec.convert(body, ResourceClaim)


def pools(*slices: ResourceSlice) -> list[Pool]:
    return gather_pools(slices, NODE)


def run(
    claims: list[ResourceClaim],
    slices: list[ResourceSlice],
    classes: list[DeviceClass] | None = None,
    in_use: dict[DeviceId, str] | None = None,
    **settings: Any,
) -> list[AllocationResult]:
    by_name = {
        (one.metadata.name if one.metadata else "") or "": one
        for one in (classes if classes is not None else [device_class()])
    }
    return allocate(claims, pools(*slices), by_name, in_use or {}, Selectors(), **settings)


def names(result: AllocationResult) -> list[str]:
    """Return `request=device` for each result."""
    assert result.devices is not None
    return [f"{one.request}={one.device}" for one in result.devices.results or ()]
