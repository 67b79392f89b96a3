"""Who asks: anybody, or a node with what Node authorisation and NodeRestriction leave it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubelet_trio.kube import KubeError, Route
from kubelet_trio.testing.kube.faults import KubeRequest
from kubelet_trio.testing.kube.kinds import forbidden
from kubelet_trio.testing.kube.store import Json, Store

MIRROR = "kubernetes.io/config.mirror"
_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch")
# What the role `system:node` and the node authoriser give, by resource.
_VERBS: dict[str, tuple[str, ...]] = {
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
    "runtimeclasses": _READ,
    "csinodes": ("get", *_WRITE, "delete"),
    "csidrivers": _READ,
    "volumeattachments": ("get",),
    "resourceclaims": ("get",),
    "resourceslices": (*_READ, *_WRITE, "delete"),
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
    """A user who may do everything."""

    name = "admin"

    def check(self, request: KubeRequest, route: Route) -> None:
        """Raise `KubeError` if the user has no right to make this request."""

    def check_list(self, route: Route, namespace: str, fields: str) -> None:
        """Raise if the user may not see that many."""

    def check_create(
        self, route: Route, namespace: str, name: str, subresource: str, body: Json
    ) -> None:
        """Raise if the user may not create this."""

    def check_update(self, route: Route, subresource: str, old: Json, new: Json) -> None:
        """Raise if the user may not change this so."""

    def check_delete(self, route: Route, obj: Json) -> None:
        """Raise if the user may not delete this."""


class NodeUser(Anyone):
    """`system:node:<name>`."""

    def __init__(self, node: str, store: Store) -> None:
        self.node = node
        self.name = f"system:node:{node}"
        self._store = store

    def check(self, request: KubeRequest, route: Route) -> None:
        if request.verb not in _VERBS.get(request.resource, ()):
            raise self._denied(request, route)
        guarded = request.resource in ("secrets", "configmaps", "persistentvolumeclaims")
        named = request.verb == "get" and guarded
        if named and not self._refers(route.kind, request.namespace, request.name):
            raise self._denied(request, route, self._unrelated())
        own = (request.namespace, request.name) == ("kube-node-lease", self.node)
        if request.resource == "leases" and not own:
            problem = "can only access node lease with the same name as the requesting node"
            raise self._denied(request, route, problem)

    def check_list(self, route: Route, namespace: str, fields: str) -> None:
        terms = set(fields.split(","))
        if route.kind == "Pod" and f"spec.nodeName={self.node}" not in terms:
            raise forbidden(route, "", "can only list/watch pods with spec.nodeName field selector")
        if route.kind == "Node" and f"metadata.name={self.node}" not in terms:
            raise forbidden(
                route, "", f"node '{self.node}' cannot read all nodes, only its own Node object"
            )
        if route.kind in ("Secret", "ConfigMap"):
            named = next((t.partition("=")[2] for t in terms if t.startswith("metadata.name=")), "")
            if not named or not self._refers(route.kind, namespace, named):
                raise forbidden(route, named, self._unrelated())

    def check_create(
        self, route: Route, namespace: str, name: str, subresource: str, body: Json
    ) -> None:
        if route.kind == "Pod" and not subresource:
            self._check_mirror(route, name, body)
        elif route.kind == "Pod":
            pod = self._store.get("Pod", namespace, name)
            if pod is not None and pod["spec"].get("nodeName") != self.node:
                problem = f'node "{self.node}" can only evict pods with spec.nodeName set to itself'
                raise forbidden(route, name, problem)
        elif route.kind == "ServiceAccount":
            self._check_token(route, namespace, name, body)
        elif route.kind in ("Node", "CSINode"):
            self._check_own(route, name)
            self._check_labels(route, name, {}, body)

    def check_update(self, route: Route, subresource: str, old: Json, new: Json) -> None:
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
        elif route.kind in ("Node", "CSINode"):
            self._check_own(route, name)
            self._check_labels(route, name, old, new)
            was, now = old.get("spec") or {}, new.get("spec") or {}
            if not subresource and was.get("taints") != now.get("taints"):
                problem = f'node "{self.node}" is not allowed to modify taints'
                raise forbidden(route, name, problem)

    def check_delete(self, route: Route, obj: Json) -> None:
        if route.kind == "Pod" and obj["spec"].get("nodeName") != self.node:
            problem = f'node "{self.node}" can only delete pods with spec.nodeName set to itself'
            raise forbidden(route, obj["metadata"]["name"], problem)

    def _check_mirror(self, route: Route, name: str, body: Json) -> None:
        spec, meta = body.get("spec") or {}, body.get("metadata") or {}
        if MIRROR not in (meta.get("annotations") or {}):
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
        kinds = {kind for kind, _ in references(body)}
        if spec.get("serviceAccountName"):
            kinds.add("ServiceAccount")
        for kind, words in (
            ("ServiceAccount", "a service account"),
            ("Secret", "secrets"),
            ("ConfigMap", "configmaps"),
            ("PersistentVolumeClaim", "persistentvolumeclaims"),
        ):
            if kind in kinds:
                problem = f'node "{self.node}" can not create pods that reference {words}'
                raise forbidden(route, name, problem)

    def _owner_problem(self, owners: list[Json]) -> str:
        """Return what is wrong with the owners of a mirror pod: its node, and nobody else."""
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

    def _check_token(self, route: Route, namespace: str, name: str, body: Json) -> None:
        bound = (body.get("spec") or {}).get("boundObjectRef") or {}
        if bound.get("kind") != "Pod" or not bound.get("uid"):
            raise forbidden(route, name, "node requested token not bound to a pod")
        pod = self._store.get("Pod", namespace, bound.get("name", ""))
        if pod is not None and pod["spec"].get("nodeName") != self.node:
            problem = "node requested token bound to a pod scheduled on a different node"
            raise forbidden(route, name, problem)

    def _check_own(self, route: Route, name: str) -> None:
        if name != self.node:
            problem = f'node "{self.node}" is not allowed to modify node "{name}"'
            raise forbidden(route, name, problem)

    def _check_labels(self, route: Route, name: str, old: Json, new: Json) -> None:
        was = (old.get("metadata") or {}).get("labels") or {}
        now = (new.get("metadata") or {}).get("labels") or {}
        changed = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        refused = [key for key in changed if _is_reserved(key)]
        if refused:
            problem = f"is not allowed to modify labels: {', '.join(refused)}"
            raise forbidden(route, name, problem)

    def _refers(self, kind: str, namespace: str, name: str) -> bool:
        return any(
            (kind, name) in set(references(pod))
            for pod in self._store.all("Pod", namespace)
            if pod["spec"].get("nodeName") == self.node
        )

    def _unrelated(self) -> str:
        return f"no relationship found between node '{self.node}' and this object"

    def _denied(self, request: KubeRequest, route: Route, problem: str = "") -> KubeError:
        where = f' in the namespace "{request.namespace}"' if request.namespace else ""
        message = (
            f'User "{self.name}" cannot {request.verb} resource "{request.resource}" '
            f'in API group "{route.group}"{where}' + (f": {problem}" if problem else "")
        )
        return forbidden(route, request.name, message)


def _is_reserved(label: str) -> bool:
    """Return whether a label is Kubernetes' own and none that a node may set on itself."""
    domain = label.partition("/")[0] if "/" in label else ""
    if label in _ALLOWED_LABELS or label.startswith(_ALLOWED_PREFIXES):
        return False
    if domain.endswith((".node.kubernetes.io", ".kubelet.kubernetes.io")):
        return False
    return any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io"))


def references(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the secrets, config maps and claims that a pod refers to."""
    spec = pod.get("spec") or {}
    for secret in spec.get("imagePullSecrets") or ():
        yield "Secret", secret.get("name", "")
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for source in container.get("envFrom") or ():
            yield from _refs(source, secret="secretRef", config_map="configMapRef")
        for variable in container.get("env") or ():
            yield from _refs(
                variable.get("valueFrom") or {}, secret="secretKeyRef", config_map="configMapKeyRef"
            )
    for volume in spec.get("volumes") or ():
        if "secret" in volume:
            yield "Secret", volume["secret"].get("secretName", "")
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"].get("claimName", "")
        if "ephemeral" in volume:
            name = f"{(pod.get('metadata') or {}).get('name', '')}-{volume.get('name', '')}"
            yield "PersistentVolumeClaim", name
        yield from _refs(volume, secret="", config_map="configMap")
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield from _refs(source, secret="secret", config_map="configMap")


def _refs(source: dict[str, Any], *, secret: str, config_map: str) -> Iterator[tuple[str, str]]:
    for field, kind in ((secret, "Secret"), (config_map, "ConfigMap")):
        if field and field in source:
            yield kind, source[field].get("name", "")
