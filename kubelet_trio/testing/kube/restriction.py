"""The users of a fake API server: an administrator, and a node that is limited by Node
authorization and NodeRestriction.
"""

from __future__ import annotations

from kubelet_trio.kube import KubeError, Resource
from kubelet_trio.testing.kube.faults import KubeRequest
from kubelet_trio.testing.kube.kinds import forbidden
from kubelet_trio.testing.kube.references import MIRROR, references, volume_secrets
from kubelet_trio.testing.kube.store import Json, Store

LEASES = "kube-node-lease"
# Kinds of objects that a node may read if one of its pods refers to them.
_GUARDED = frozenset({
    "configmaps", "persistentvolumeclaims", "persistentvolumes", "resourceclaims", "secrets",
    "serviceaccounts", "serviceaccounts/token",
})  # fmt: skip
_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch")
_NAMED = ("get", "update", "patch", "delete")
# The verbs that the role `system:node` and the Node authorizer allow, by resource.
_VERBS: dict[str, tuple[str, ...]] = {
    # Create and delete: mirror pods.
    "pods": (*_READ, "create", "delete"),
    "pods/status": ("update", "patch"),
    "pods/eviction": ("create",),
    "nodes": (*_READ, *_WRITE),
    "nodes/status": ("update", "patch"),
    "events": _WRITE,
    "secrets": _READ,
    "configmaps": _READ,
    "services": _READ,
    "serviceaccounts": ("get",),
    "serviceaccounts/token": ("create",),
    "persistentvolumes": ("get",),
    "persistentvolumeclaims": ("get",),
    "leases": ("get", *_WRITE, "delete"),
    "tokenreviews": ("create",),
    "subjectaccessreviews": ("create",),
    "certificatesigningrequests": (*_READ, "create"),
    # With the server's gates ClusterTrustBundleProjection and PodCertificateRequest.
    "clustertrustbundles": _READ,
    "podcertificaterequests": (*_READ, "create"),
    "runtimeclasses": _READ,
    "csinodes": ("get", *_WRITE, "delete"),
    "csidrivers": _READ,
    "volumeattachments": _READ,  # one by one: see `_unauthorized`
    "resourceclaims": ("get",),
    "resourceslices": (*_READ, *_WRITE, "delete", "deletecollection"),
}
_ALLOWED_PREFIXES = ("kubelet.kubernetes.io/", "node.kubernetes.io/")
_ALLOWED_LABELS = frozenset({
    "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
    "beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region", "topology.kubernetes.io/zone",
    "beta.kubernetes.io/arch", "beta.kubernetes.io/os",
})  # fmt: skip


class Anyone:
    """A user with all permissions."""

    name = "admin"

    def check(self, request: KubeRequest, route: Resource) -> None:
        """Raise `KubeError` if the user may not make this request."""

    def check_list(self, request: KubeRequest, route: Resource, fields: str) -> None:
        """Raise `KubeError` if the user may not list, watch or delete this selection."""

    def check_create(
        self, route: Resource, namespace: str, name: str, subresource: str, body: Json
    ) -> None:
        """Raise `KubeError` if the user may not create this object."""

    def check_update(self, route: Resource, subresource: str, old: Json, new: Json) -> None:
        """Raise `KubeError` if the user may not make this change."""

    def check_delete(self, route: Resource, obj: Json) -> None:
        """Raise `KubeError` if the user may not delete this object."""


class NodeUser(Anyone):
    """`system:node:<name>`."""

    def __init__(self, node: str, store: Store) -> None:
        self.node = node
        self.name = f"system:node:{node}"
        self._store = store

    def check(self, request: KubeRequest, route: Resource) -> None:
        if request.verb not in _VERBS.get(request.resource, ()):
            raise self._denied(request, route)
        if problem := self._unauthorized(request, route):
            raise self._denied(request, route, problem)

    def _unauthorized(self, request: KubeRequest, route: Resource) -> str:
        """Return why the Node authorizer denies access to an object, "" if it allows it."""
        if request.verb in ("list", "watch", "deletecollection"):
            only_one = request.resource == "volumeattachments"
            return "can only get individual resources of this type" if only_one else ""
        name, own = request.name, request.name == self.node
        if request.resource == "nodes" and request.verb == "get" and not own:
            return f"node '{self.node}' cannot read '{name}', only its own Node object"
        if request.resource == "csinodes" and not own:
            return "can only access CSINode with the same name as the requesting node"
        if request.resource == "leases" and not (own and request.namespace == LEASES):
            return "can only access node lease with the same name as the requesting node"
        if request.resource == "volumeattachments" and not self._attaches(name):
            return self._unrelated()
        if request.resource == "resourceslices" and request.verb in _NAMED and not self._has(name):
            return self._unrelated()
        guarded = request.resource in _GUARDED and request.verb in ("get", "create")
        if guarded and not self._refers(route.kind, request.namespace, name):
            return self._unrelated()
        return ""

    def check_list(self, request: KubeRequest, route: Resource, fields: str) -> None:
        # KEP-4601: a node lists and watches only its own pods, node and slices.
        terms = set(fields.split(","))
        problem = ""
        if route.kind == "Pod" and f"spec.nodeName={self.node}" not in terms:
            problem = "can only list/watch pods with spec.nodeName field selector"
        elif route.kind == "Node" and f"metadata.name={self.node}" not in terms:
            problem = f"node '{self.node}' cannot read all nodes, only its own Node object"
        elif route.kind == "ResourceSlice" and f"spec.nodeName={self.node}" not in terms:
            problem = (
                "can only list/watch/deletecollection resourceslices with nodeName field selector"
            )
        elif route.kind == "PodCertificateRequest" and f"spec.nodeName={self.node}" not in terms:
            problem = "can only list/watch podcertificaterequests with nodeName field selector"
        elif route.kind in ("Secret", "ConfigMap"):
            # The server takes `metadata.name=` as the request's name, and so checks one object.
            named = next((t.partition("=")[2] for t in terms if t.startswith("metadata.name=")), "")
            if not named:
                problem = "can only read namespaced object of this type"
            elif not self._refers(route.kind, request.namespace, named):
                problem = self._unrelated()
        if problem:
            raise self._denied(request, route, problem)

    def check_create(
        self, route: Resource, namespace: str, name: str, subresource: str, body: Json
    ) -> None:
        # A node creates no pods of its own but mirrors of its static pods.
        if route.kind == "Pod" and not subresource:
            self._check_mirror(route, name, body)
        elif route.kind == "Pod":
            pod = self._store.get("Pod", namespace, name)
            if pod is not None and pod["spec"].get("nodeName") != self.node:
                problem = f'node "{self.node}" can only evict pods with spec.nodeName set to itself'
                raise forbidden(route, name, problem)
        elif route.kind == "ServiceAccount":
            self._check_token(route, namespace, name, body)
        elif route.kind == "PodCertificateRequest":
            self._check_certificate(route, namespace, body.get("spec") or {})
        elif route.kind in ("Node", "CSINode"):
            self._check_own(route, name)
            self._check_labels(route, name, {}, body)
        elif route.kind == "ResourceSlice":
            self._check_slice(route, name, body, "create")

    def check_update(self, route: Resource, subresource: str, old: Json, new: Json) -> None:
        name = old["metadata"]["name"]
        if route.kind == "Pod":
            if old["spec"].get("nodeName") != self.node:
                problem = (
                    f'node "{self.node}" can only update pod status for pods with '
                    "spec.nodeName set to itself"
                )
                raise forbidden(route, name, problem)
            if old["metadata"].get("labels") != new["metadata"].get("labels"):
                problem = f'node "{self.node}" cannot update labels through pod status'
                raise forbidden(route, name, problem)
            self._check_claims(route, name, old.get("status") or {}, new.get("status") or {})
        elif route.kind in ("Node", "CSINode"):
            self._check_own(route, name)
            self._check_labels(route, name, old, new)
            # A stolen node must not attract pods: by labels above, by taints here.
            was, now = old.get("spec") or {}, new.get("spec") or {}
            if not subresource and was.get("taints") != now.get("taints"):
                problem = f'node "{self.node}" is not allowed to modify taints'
                raise forbidden(route, name, problem)

    def check_delete(self, route: Resource, obj: Json) -> None:
        if route.kind == "Pod" and obj["spec"].get("nodeName") != self.node:
            problem = f'node "{self.node}" can only delete pods with spec.nodeName set to itself'
            raise forbidden(route, obj["metadata"]["name"], problem)
        if route.kind == "ResourceSlice":
            self._check_slice(route, obj["metadata"]["name"], obj, "delete")

    def _check_slice(self, route: Resource, name: str, slice_: Json, verb: str) -> None:
        if (slice_.get("spec") or {}).get("nodeName") != self.node:
            problem = f"can only {verb} ResourceSlice with the same NodeName as the requesting node"
            raise forbidden(route, name, problem)

    def _check_claims(self, route: Resource, name: str, was: Json, now: Json) -> None:
        # Else a stolen node could name claims of others there, and then read them
        # (CVE-2025-4563 was about the same in mirror pods).
        for field, words in (
            ("resourceClaimStatuses", "resource claim statuses"),
            ("extendedResourceClaimStatus", "extended resource claim status"),
        ):
            if (was.get(field) or None) != (now.get(field) or None):
                problem = f'node "{self.node}" cannot update {words}'
                raise forbidden(route, name, problem)

    def _check_mirror(self, route: Resource, name: str, body: Json) -> None:
        spec, meta = body.get("spec") or {}, body.get("metadata") or {}
        kinds = {kind for kind, _ in references(body)}
        if MIRROR in (meta.get("annotations") or {}):
            # The ServiceAccount admission plugin runs first, and refuses them in mirror pods.
            if spec.get("serviceAccountName"):
                raise forbidden(route, name, "a mirror pod may not reference service accounts")
            if any("secret" in volume for volume in spec.get("volumes") or ()):
                raise forbidden(route, name, "a mirror pod may not reference secrets")
        else:
            problem = (
                f'pod does not have "{MIRROR}" annotation, node "{self.node}" can only '
                "create mirror pods"
            )
            raise forbidden(route, name, problem)
        if spec.get("nodeName") != self.node:
            problem = f'node "{self.node}" can only create pods with spec.nodeName set to itself'
            raise forbidden(route, name, problem)
        if problem := self._owner_problem(meta.get("ownerReferences") or []):
            raise forbidden(route, name, problem)
        for kind, words in (
            ("Secret", "secrets"),
            ("ConfigMap", "configmaps"),
            ("PersistentVolumeClaim", "persistentvolumeclaims"),
            ("ResourceClaim", "resourceclaims"),
        ):
            if kind in kinds:
                problem = f'node "{self.node}" can not create pods that reference {words}'
                raise forbidden(route, name, problem)

    def _owner_problem(self, owners: list[Json]) -> str:
        """Return what is wrong with a mirror pod's owners; the only valid one is its node."""
        # So that the garbage collector removes mirror pods with their node.
        can_only = f'node "{self.node}" can only create pods with'
        if len(owners) > 1:
            return f"{can_only} a single owner reference set to itself"
        owner = owners[0] if owners else {}
        named = owner.get("apiVersion"), owner.get("kind"), owner.get("name")
        if named != ("v1", "Node", self.node):
            return f"{can_only} an owner reference set to itself"
        if not owner.get("controller"):
            return f"{can_only} a controller owner reference set to itself"
        if owner.get("blockOwnerDeletion"):
            return f'node "{self.node}" must not set blockOwnerDeletion on an owner reference'
        node = self._store.get("Node", "", self.node)
        if node is None:
            return f'node "{self.node}" not found'
        if node["metadata"]["uid"] != owner.get("uid"):
            expected = node["metadata"]["uid"]
            return f"node {self.node} UID mismatch: expected {expected} got {owner.get('uid')}"
        return ""

    def _check_token(self, route: Resource, namespace: str, name: str, body: Json) -> None:
        # The token dies with its pod, so a stolen node gets tokens for its present pods only.
        bound = (body.get("spec") or {}).get("boundObjectRef") or {}
        if bound.get("kind") != "Pod" or not bound.get("uid"):
            raise forbidden(route, name, "node requested token not bound to a pod")
        pod = self._store.get("Pod", namespace, bound.get("name", ""))
        if pod is not None and pod["spec"].get("nodeName") != self.node:
            problem = "node requested token bound to a pod scheduled on a different node"
            raise forbidden(route, name, problem)

    def _check_certificate(self, route: Resource, namespace: str, spec: Json) -> None:
        # NodeRestriction: a stolen node gets certificates for its present pods only.
        pod = self._store.get("Pod", namespace, spec.get("podName", ""))
        node = self._store.get("Node", "", self.node)
        wanted = {"nodeName": self.node, "nodeUID": node["metadata"]["uid"] if node else ""}
        if pod is not None:
            account = pod["spec"].get("serviceAccountName") or "default"
            found = self._store.get("ServiceAccount", namespace, account)
            wanted |= {"podUID": pod["metadata"]["uid"], "serviceAccountName": account}
            wanted["serviceAccountUID"] = found["metadata"]["uid"] if found else ""
        if pod is None or pod["spec"].get("nodeName") != self.node:
            problem = "node requested a certificate for a pod that is not on it"
            raise forbidden(route, "", problem)
        for field, value in wanted.items():
            if spec.get(field) != value:
                problem = f"{field} in PodCertificateRequest is not that of the pod"
                raise forbidden(route, "", problem)

    def _check_own(self, route: Resource, name: str) -> None:
        if name != self.node:
            problem = f'node "{self.node}" is not allowed to modify node "{name}"'
            raise forbidden(route, name, problem)

    def _check_labels(self, route: Resource, name: str, old: Json, new: Json) -> None:
        was = (old.get("metadata") or {}).get("labels") or {}
        now = (new.get("metadata") or {}).get("labels") or {}
        changed = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        refused = [key for key in changed if _is_reserved(key)]
        if refused:
            problem = f"is not allowed to modify labels: {', '.join(refused)}"
            raise forbidden(route, name, problem)

    def _attaches(self, name: str) -> bool:
        """Whether a VolumeAttachment is for this node."""
        # AddVolumeAttachment in plugin/pkg/auth/authorizer/node/graph.go.
        found = self._store.get("VolumeAttachment", "", name)
        return found is not None and found["spec"].get("nodeName") == self.node

    def _has(self, name: str) -> bool:
        """Whether a ResourceSlice is this node's."""
        found = self._store.get("ResourceSlice", "", name)
        return found is not None and (found.get("spec") or {}).get("nodeName") == self.node

    def _refers(self, kind: str, namespace: str, name: str) -> bool:
        """Whether a pod of this node refers to an object; to a volume through its claim."""
        if kind == "PersistentVolume":
            return any(
                self._refers("PersistentVolumeClaim", claim["metadata"]["namespace"],
                             claim["metadata"]["name"])
                for claim in self._store.all("PersistentVolumeClaim")
                if (claim.get("spec") or {}).get("volumeName") == name
            )  # fmt: skip
        if kind == "Secret" and any(
            (namespace, name) in set(volume_secrets(volume))
            and self._refers("PersistentVolume", "", volume["metadata"]["name"])
            for volume in self._store.all("PersistentVolume")
        ):
            return True
        return any(
            (kind, name) in set(references(pod))
            for pod in self._store.all("Pod", namespace)
            if pod["spec"].get("nodeName") == self.node
        )

    def _unrelated(self) -> str:
        return f"no relationship found between node '{self.node}' and this object"

    def _denied(self, request: KubeRequest, route: Resource, problem: str = "") -> KubeError:
        namespace = request.namespace if route.namespaced else ""
        where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
        message = (
            f'User "{self.name}" cannot {request.verb} resource "{request.resource}" '
            f'in API group "{route.group}"{where}' + (f": {problem}" if problem else "")
        )
        return forbidden(route, request.name, message)


def _is_reserved(label: str) -> bool:
    """Whether a label is Kubernetes' own, and not one that a node may set on itself."""
    domain = label.partition("/")[0] if "/" in label else ""
    if label in _ALLOWED_LABELS or label.startswith(_ALLOWED_PREFIXES):
        return False
    if domain.endswith((".node.kubernetes.io", ".kubelet.kubernetes.io")):
        return False
    return any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io"))
