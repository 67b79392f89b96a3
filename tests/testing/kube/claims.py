"""Objects of dynamic resource allocation, and pods that use them, as plain JSON."""

from __future__ import annotations

from typing import Any

from lightkube.models.core_v1 import Node
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube import ROUTES
from kubelet_trio.testing import FakeKube

Json = dict[str, Any]
NODE, DRIVER = "n1", "gpu.example.com"


def exactly(name: str = "one", device_class: str = "gpu", **wish: Any) -> Json:
    """Return a request of a claim."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **wish}}


def first_of(name: str, *alternatives: Json) -> Json:
    """Return a request with alternatives, made by `exactly`."""
    return {
        "name": name,
        "firstAvailable": [{"name": one["name"], **one["exactly"]} for one in alternatives],
    }


def claim(name: str, *requests: Json, **meta: Any) -> Json:
    devices = {"requests": list(requests or (exactly(),))}
    return {"metadata": {"name": name, **meta}, "spec": {"devices": devices}}


def template(name: str, *requests: Json) -> Json:
    made = claim(name, *requests)
    return {"metadata": made["metadata"], "spec": {"spec": made["spec"]}}


def device_class(name: str = "gpu", driver: str = DRIVER, **spec: Any) -> Json:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}


def resource_slice(
    name: str, *devices: str | Json, driver: str = DRIVER, pool: Json | None = None, **where: Any
) -> Json:
    """Return a slice, of the node's own pool unless told otherwise."""
    listed = [{"name": one} if isinstance(one, str) else one for one in devices]
    spec = {
        "driver": driver,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1, **(pool or {})},
        "devices": listed,
        **(where or {"nodeName": NODE}),
    }
    return {"metadata": {"name": name}, "spec": spec}


def pod(name: str, *claims: Json, uses: list[Json] | None = None, **spec: Any) -> Json:
    """Return a pod whose container uses all of its claims, or what `uses` says."""
    named = uses if uses is not None else [{"name": one["name"]} for one in claims]
    container = {"name": "main", "image": "i", "resources": {"claims": named}}
    whole = {"containers": [container], "resourceClaims": list(claims), **spec}
    return {"metadata": {"name": name}, "spec": whole}


def by_name(name: str, claim_name: str) -> Json:
    return {"name": name, "resourceClaimName": claim_name}


def by_template(name: str, template_name: str) -> Json:
    return {"name": name, "resourceClaimTemplateName": template_name}


def cluster() -> FakeKube:
    """Return a server with a node."""
    kube = FakeKube()
    kube.add(Node(metadata=ObjectMeta(name=NODE)))
    return kube


def add(kube: FakeKube, kind: str, body: Json) -> Json:
    route = ROUTES[kind]
    return kube.server.create(route, body, "default" if route.namespaced else "")


def found(kube: FakeKube, kind: str, name: str) -> Json:
    """Return an object that exists."""
    route = ROUTES[kind]
    return kube.server.get(route, "default" if route.namespaced else "", name)


def tell(kube: FakeKube, kind: str, name: str, status: Json) -> Json:
    """Replace the status of an object."""
    body = {**found(kube, kind, name), "status": status}
    return kube.server.update(ROUTES[kind], body, subresource="status")
