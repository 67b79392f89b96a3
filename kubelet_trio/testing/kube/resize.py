"""The subresource `resize` of pods (KEP-1287, KEP-5419), as API server 1.36 serves it.

    prepare_resize     what of a request counts: podResizeStrategy in pkg/registry/core/pod
    rules/resize.py    which changes are valid: ValidatePodResize
    check_declared     which of them need a feature of the pod's node (KEP-5328): the admission
                       plugin NodeDeclaredFeatureValidator

A plain update of a pod cannot change its resources, and a node may not resize any pod.
"""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.kube import Resource, from_json, to_json
from kubelet_trio.sources import default_pod
from kubelet_trio.testing.kube.kinds import forbidden
from kubelet_trio.testing.kube.rules.resize import LISTS
from kubelet_trio.testing.kube.store import Json, Store


def prepare_resize(old: Json, body: Json) -> Json:
    """Return a pod's new state: the old one with the resources that a request has.

    Decoding sets defaults: without a request of its own, a limit is also the request.
    """
    sent = body.get("spec") or {}
    decoded = from_json({"spec": {**sent, "containers": sent.get("containers") or []}}, Pod)
    wanted: Json = to_json(default_pod(decoded))["spec"]
    spec = {**old["spec"]}
    _put(spec, "resources", wanted)
    for field in LISTS:
        before, after = spec.get(field) or [], wanted.get(field) or []
        names = [container.get("name") for container in after]
        if names != [container["name"] for container in before]:
            spec[field] = after  # dropNonResizeUpdates leaves that to the validation
        elif before:
            spec[field] = [_resized(*pair) for pair in zip(before, after, strict=True)]
    meta = {**old["metadata"]}
    # KEP-5067: the status reports this generation as observedGeneration.
    if spec != old["spec"]:
        meta["generation"] = meta.get("generation", 0) + 1
    return {**old, "metadata": meta, "spec": spec}


def check_declared(store: Store, route: Resource, old: Json, new: Json) -> None:
    """Refuse a resize for which the pod's node lacks a feature.

    Raises:
        KubeError: 403; the node does not declare the feature, or does not exist.
    """
    was, now, name = old["spec"], new["spec"], old["metadata"]["name"]
    needed = []
    if was.get("resources") != now.get("resources"):
        needed.append("InPlacePodLevelResourcesVerticalScaling")
    if _ordinary_inits(was) != _ordinary_inits(now):
        needed.append("InPlacePodVerticalScalingInitContainers")
    if not needed or not now.get("nodeName"):
        return
    node = store.get("Node", "", now["nodeName"])
    if node is None:
        raise forbidden(route, name, f'node "{now["nodeName"]}" not found')
    declared = (node.get("status") or {}).get("declaredFeatures") or ()
    if lacking := [feature for feature in needed if feature not in declared]:
        problem = (
            f"pod update requires features {', '.join(lacking)} which are not available on node "
            f'"{now["nodeName"]}"'
        )
        raise forbidden(route, name, problem)


def _ordinary_inits(spec: Json) -> list[Json]:
    """Return the init containers that are not sidecars."""
    return [c for c in spec.get("initContainers") or () if c.get("restartPolicy") != "Always"]


def _resized(before: Json, after: Json) -> Json:
    container = {**before}
    _put(container, "resources", after)
    _put(container, "resizePolicy", after)
    return container


def _put(target: Json, field: str, source: Json) -> None:
    target.pop(field, None)
    if source.get(field) is not None:
        target[field] = source[field]
