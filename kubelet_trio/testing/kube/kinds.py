"""Creation and update of objects by kind: defaults, generation, immutable fields."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_qos
from kubelet_trio.kube import KubeError, Resource, from_json, to_json
from kubelet_trio.sources import default_pod
from kubelet_trio.testing.kube.rules import (
    Problems,
    check_admin,
    check_name,
    check_new,
    default,
    invalid,
    prepare_claim_status,
)
from kubelet_trio.testing.kube.store import Json, Store

WITH_STATUS = frozenset({
    "CertificateSigningRequest", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim",
    "Pod", "PodCertificateRequest", "ResourceClaim", "Service", "VolumeAttachment",
})  # fmt: skip
# Kinds whose creation keeps the given status: a kubelet creates its node with one.
_STATUS_ON_CREATE = frozenset({"Node", "Service", "PersistentVolume"})
# Kinds whose strategy upstream has AllowUnconditionalUpdate false.
_CONDITIONAL = frozenset({"Lease", "RuntimeClass", "VolumeAttachment"})
# Kinds whose generation counts the changes of their spec.
_COUNTED = frozenset({"DeviceClass", "ResourceSlice"})
NOT_READY = "node.kubernetes.io/not-ready"
# The two classes that exist in every cluster; no object of them is in the store.
_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_SYSTEM_META = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
    "selfLink", "name", "namespace", "generateName",
)  # fmt: skip


def forbidden(route: Resource, name: str, problem: str, causes: Iterable[str] = ()) -> KubeError:
    """Return the error of an admission plugin."""
    what = f'{route.qualified} "{name}"' if name else route.qualified
    return KubeError(403, "Forbidden", f"{what} is forbidden: {problem}", causes=causes)


def prepare_create(route: Resource, body: Json, namespace: str, now: str, store: Store) -> Json:
    """Return a new object as it will be stored, without its version.

    Raises:
        KubeError: it is not valid, or not admitted.
    """
    obj = copy.deepcopy(body)
    meta = obj.setdefault("metadata", {})
    if not meta.get("name") and meta.get("generateName"):
        # names.SimpleNameGenerator appends five characters, too.
        meta["name"] = meta["generateName"] + store.next_uid()[:5]
    name = meta.get("name") or ""
    check_name(route, name)
    # Upstream it is a plain error of the storage, hence 500 and not 422.
    if meta.get("resourceVersion"):
        raise KubeError(
            500, "InternalError", "resourceVersion should not be set on objects to be created"
        )
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        meta.pop(field, None)
    meta["uid"] = store.next_uid()
    meta["creationTimestamp"] = now
    if route.namespaced:
        meta["namespace"] = namespace
    obj["apiVersion"], obj["kind"] = route.api_version, route.kind
    if route.kind in WITH_STATUS and route.kind not in _STATUS_ON_CREATE:
        obj.pop("status", None)
    if route.kind == "Pod":
        obj = _new_pod(route, obj, store)
    elif route.kind == "Node":
        _new_node(obj)
    elif route.kind == "Namespace":
        # KEP-2161: namespace selectors rely on this label.
        obj["metadata"]["labels"] = {**meta.get("labels", {}), "kubernetes.io/metadata.name": name}
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
    elif route.kind == "Secret":
        _new_secret(obj)
    elif route.kind in _COUNTED:
        obj["metadata"]["generation"] = 1
    elif route.kind in ("ResourceClaim", "ResourceClaimTemplate"):
        _check_admin(route, None, obj, store)
    default(route, obj)
    check_new(route, obj)
    return obj


def _check_admin(route: Resource, old: Json | None, new: Json, store: Store) -> None:
    problems = Problems()
    namespace = store.get("Namespace", "", new["metadata"]["namespace"])
    assert namespace is not None  # without it nothing is created in it
    check_admin(problems, old, new, namespace)
    problems.raise_for(route, new["metadata"]["name"])


def _new_pod(route: Resource, obj: Json, store: Store) -> Json:
    name = obj["metadata"]["name"]
    if not obj.get("spec", {}).get("containers"):
        raise invalid(route, name, "spec.containers: Required value")
    spec = obj["spec"]
    class_name = spec.get("priorityClassName") or ""
    priority_class = store.get("PriorityClass", "", class_name)
    if class_name and class_name not in _PRIORITIES and priority_class is None:
        raise forbidden(route, name, f"no PriorityClass with name {class_name} was found")
    # What a client sets is ignored: the admission plugin Priority computes it.
    value = priority_class.get("value", 0) if priority_class else _PRIORITIES.get(class_name, 0)
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", (priority_class or {}).get("preemptionPolicy")
                    or "PreemptLowerPriority")  # fmt: skip
    if runtime := spec.get("runtimeClassName"):
        runtime_class = store.get("RuntimeClass", "", runtime)
        if runtime_class is None:
            raise forbidden(route, name, f'pod rejected: RuntimeClass "{runtime}" not found')
        # Pod overhead (KEP-688): a client cannot choose it.
        if overhead := runtime_class.get("overhead", {}).get("podFixed"):
            spec["overhead"] = overhead
    obj["metadata"]["generation"] = 1
    pod: Json = to_json(default_pod(from_json(obj, Pod)))
    pod["spec"].setdefault("schedulerName", "default-scheduler")
    pod["status"] = {"phase": "Pending", "qosClass": pod_qos(from_json(pod, Pod))}
    return pod


def _new_node(obj: Json) -> None:
    """Taint a new node, as the admission plugin TaintNodesByCondition does."""
    # So that no pod is bound before the node controller has seen its conditions.
    spec = obj.setdefault("spec", {})
    taints = spec.get("taints") or []
    taint = {"key": NOT_READY, "effect": "NoSchedule"}
    if not any((t.get("key"), t.get("effect")) == (NOT_READY, "NoSchedule") for t in taints):
        spec["taints"] = [*taints, taint]
    obj.setdefault("status", {})


def _new_secret(obj: Json) -> None:
    import base64

    obj.setdefault("type", "Opaque")
    if plain := obj.pop("stringData", None):
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def prepare_update(route: Resource, old: Json, body: Json, subresource: str, store: Store) -> Json:
    """Return the new state of an object, with its system fields; equal to `old` if unchanged.

    Raises:
        KubeError: the change is not allowed.
    """
    new = copy.deepcopy(body)
    name = old["metadata"]["name"]
    meta = new.setdefault("metadata", {})
    if not meta.get("resourceVersion") and route.kind in _CONDITIONAL:
        raise invalid(route, name, "metadata.resourceVersion: Invalid value: 0: "
                      "must be specified for an update")  # fmt: skip
    for field in _SYSTEM_META:
        meta.pop(field, None)
        if field in old["metadata"]:
            meta[field] = old["metadata"][field]
    meta["resourceVersion"] = old["metadata"]["resourceVersion"]
    new["apiVersion"], new["kind"] = route.api_version, route.kind
    if route.kind in WITH_STATUS:
        _keep(new, old, "spec" if subresource in ("status", "approval") else "status")
    if route.kind == "Pod":
        if subresource == "status":
            # podStatusStrategy (pkg/registry/core/pod): old kubelets corrupted owner references,
            # and dropped the QoS class of a rejected pod.
            _keep(meta, old["metadata"], "ownerReferences")
            if not new.get("status", {}).get("qosClass"):
                _keep(new.setdefault("status", {}), old.get("status", {}), "qosClass")
            _keep_generations(new.setdefault("status", {}), old.get("status") or {})
        _check_pod(route, old, new)
    elif route.kind in _COUNTED and old.get("spec") != new.get("spec"):
        meta["generation"] = old["metadata"].get("generation", 0) + 1
    elif (route.kind, subresource) == ("ResourceClaim", "status"):
        prepare_claim_status(old, new)
        _check_admin(route, old, new, store)
    elif route.kind in ("Secret", "ConfigMap") and old.get("immutable"):
        for field in ("data", "binaryData", "immutable"):
            if new.get(field) != old.get(field):
                problem = f"{field}: Forbidden: field is immutable when `immutable` is set"
                raise invalid(route, name, problem)
    default(route, new)
    return new


def _keep(new: Json, old: Json, field: str) -> None:
    new.pop(field, None)
    if field in old:
        new[field] = old[field]


def _keep_generations(now: Json, was: Json) -> None:
    """Keep each `observedGeneration` that a new status of a pod lacks."""
    # preserveOldObservedGeneration: a client may not clear it. A type can occur more than once.
    old: dict[str, list[int]] = {}
    for condition in was.get("conditions") or ():
        old.setdefault(condition.get("type", ""), []).append(
            condition.get("observedGeneration") or 0
        )
    for condition in now.get("conditions") or ():
        known = old.get(condition.get("type", "")) or [0]
        if (generation := known.pop(0)) and not condition.get("observedGeneration"):
            condition["observedGeneration"] = generation
    if was.get("observedGeneration") and not now.get("observedGeneration"):
        now["observedGeneration"] = was["observedGeneration"]


def _check_pod(route: Resource, old: Json, new: Json) -> None:
    if _fixed_spec(old) != _fixed_spec(new):
        problem = (
            "spec: Forbidden: pod updates may not change fields other than "
            "`spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
            "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it "
            "was previously negative)"
        )
        raise invalid(route, old["metadata"]["name"], problem)
    # KEP-5067: the status reports this generation as observedGeneration.
    if old["spec"] != new["spec"]:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _fixed_spec(pod: Json) -> Json:
    """Return the immutable part of a pod's spec."""
    spec = {
        k: v for k, v in pod["spec"].items() if k not in ("activeDeadlineSeconds", "tolerations")
    }
    for field in ("containers", "initContainers"):
        spec[field] = [{**c, "image": ""} for c in spec.get(field) or ()]
    return spec
