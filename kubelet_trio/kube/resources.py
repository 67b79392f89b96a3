"""The API's resources: models and their paths.

Models are known by name, so that no model's module is loaded before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
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

    @property
    def version_path(self) -> str:
        """The path at which the server lists the resources of this group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object; of the collection if `name` is empty."""
        parts = [self.version_path]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"
_STORAGE = "storage.k8s.io"

ROUTES = {
    route.kind: route
    for route in (
        Resource("Pod", "", "v1", "pods", namespaced=True),
        Resource("Node", "", "v1", "nodes", namespaced=False),
        Resource("Event", "", "v1", "events", namespaced=True),
        Resource("Secret", "", "v1", "secrets", namespaced=True),
        Resource("ConfigMap", "", "v1", "configmaps", namespaced=True),
        Resource("Service", "", "v1", "services", namespaced=True),
        Resource("ServiceAccount", "", "v1", "serviceaccounts", namespaced=True),
        Resource("Namespace", "", "v1", "namespaces", namespaced=False),
        Resource("PersistentVolume", "", "v1", "persistentvolumes", namespaced=False),
        Resource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims", namespaced=True),
        Resource("Lease", "coordination.k8s.io", "v1", "leases", namespaced=True),
        Resource("TokenReview", _AUTHENTICATION, "v1", "tokenreviews", namespaced=False),
        Resource("SubjectAccessReview", _AUTHORIZATION, "v1", "subjectaccessreviews", False),
        Resource("CertificateSigningRequest", "certificates.k8s.io", "v1",
              "certificatesigningrequests", namespaced=False),
        # Gates that are off by default; upstream's kubelet reads this version of both.
        Resource("ClusterTrustBundle", "certificates.k8s.io", "v1beta1",
              "clustertrustbundles", namespaced=False),
        Resource("PodCertificateRequest", "certificates.k8s.io", "v1beta1",
              "podcertificaterequests", namespaced=True),
        Resource("RuntimeClass", "node.k8s.io", "v1", "runtimeclasses", namespaced=False),
        Resource("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", namespaced=False),
        Resource("CSINode", _STORAGE, "v1", "csinodes", namespaced=False),
        Resource("CSIDriver", _STORAGE, "v1", "csidrivers", namespaced=False),
        Resource("StorageClass", _STORAGE, "v1", "storageclasses", namespaced=False),
        Resource("VolumeAttachment", _STORAGE, "v1", "volumeattachments", namespaced=False),
        Resource("ResourceClaim", "resource.k8s.io", "v1", "resourceclaims", namespaced=True),
        Resource("ResourceSlice", "resource.k8s.io", "v1", "resourceslices", namespaced=False),
        # Not read by a node: for fakes, which play the scheduler and the controllers of claims.
        Resource("DeviceClass", "resource.k8s.io", "v1", "deviceclasses", namespaced=False),
        Resource("ResourceClaimTemplate", "resource.k8s.io", "v1", "resourceclaimtemplates",
              namespaced=True),
    )
}  # fmt: skip

# Kinds without a route of their own: they are posted below another object.
SUBRESOURCE_KINDS = {
    "Binding": ("v1", "binding"),
    "Eviction": ("policy/v1", "eviction"),
    "TokenRequest": ("authentication.k8s.io/v1", "token"),
}
_PARENTS = {"Binding": "Pod", "Eviction": "Pod", "TokenRequest": "ServiceAccount"}


def route_of(model: type) -> Resource:
    """Return a model's route; of a TokenRequest and the like, the route of its parent's kind.

    Raises:
        LookupError: the agent does not use that resource.
    """
    kind = model.__name__
    route = ROUTES.get(_PARENTS.get(kind, kind))
    if route is None:
        raise LookupError(f"no route for {kind}; known kinds: {', '.join(ROUTES)}")
    return route
