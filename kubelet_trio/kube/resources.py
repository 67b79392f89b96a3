"""The API's resources: models and their paths.

Models are known by name, so that no model's module is loaded before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """One resource: `/api/v1/…` where `group` is empty, `/apis/<group>/<version>/…` otherwise."""

    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The resource's name in the server's messages: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object; of the collection if `name` is empty."""
        parts = ["apis", self.group] if self.group else ["api"]
        parts.append(self.version)
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)


_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"
_STORAGE = "storage.k8s.io"

ROUTES = {
    route.kind: route
    for route in (
        Route("Pod", "", "v1", "pods", namespaced=True),
        Route("Node", "", "v1", "nodes", namespaced=False),
        Route("Event", "", "v1", "events", namespaced=True),
        Route("Secret", "", "v1", "secrets", namespaced=True),
        Route("ConfigMap", "", "v1", "configmaps", namespaced=True),
        Route("Service", "", "v1", "services", namespaced=True),
        Route("ServiceAccount", "", "v1", "serviceaccounts", namespaced=True),
        Route("Namespace", "", "v1", "namespaces", namespaced=False),
        Route("PersistentVolume", "", "v1", "persistentvolumes", namespaced=False),
        Route("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims", namespaced=True),
        Route("Lease", "coordination.k8s.io", "v1", "leases", namespaced=True),
        Route("TokenReview", _AUTHENTICATION, "v1", "tokenreviews", namespaced=False),
        Route("SubjectAccessReview", _AUTHORIZATION, "v1", "subjectaccessreviews", False),
        Route("CertificateSigningRequest", "certificates.k8s.io", "v1",
              "certificatesigningrequests", namespaced=False),
        Route("RuntimeClass", "node.k8s.io", "v1", "runtimeclasses", namespaced=False),
        Route("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", namespaced=False),
        Route("CSINode", _STORAGE, "v1", "csinodes", namespaced=False),
        Route("CSIDriver", _STORAGE, "v1", "csidrivers", namespaced=False),
        Route("VolumeAttachment", _STORAGE, "v1", "volumeattachments", namespaced=False),
        Route("ResourceClaim", "resource.k8s.io", "v1", "resourceclaims", namespaced=True),
        Route("ResourceSlice", "resource.k8s.io", "v1", "resourceslices", namespaced=False),
    )
}  # fmt: skip

# Kinds without a route of their own: they are posted below another object.
SUBRESOURCE_KINDS = {
    "Binding": ("v1", "binding"),
    "Eviction": ("policy/v1", "eviction"),
    "TokenRequest": ("authentication.k8s.io/v1", "token"),
}
_PARENTS = {"Binding": "Pod", "Eviction": "Pod", "TokenRequest": "ServiceAccount"}


def route_of(model: type) -> Route:
    """Return a model's route; of a TokenRequest and the like, the route of its parent's kind.

    Raises:
        LookupError: the agent does not use that resource.
    """
    kind = model.__name__
    route = ROUTES.get(_PARENTS.get(kind, kind))
    if route is None:
        raise LookupError(f"no route for {kind}; known kinds: {', '.join(ROUTES)}")
    return route
