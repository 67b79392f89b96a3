"""Pods, their resizes by a fake API server, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.models.core_v1 import Node, NodeStatus, Pod
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.kube import KubeError, from_json, to_json
from kubelet_trio.testing import FakeKube

Json = dict[str, Any]

ONLY = "only cpu and memory resources"
QOS = "Pod QOS Class may not change as a result of resizing"
FEATURES = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
]
GUARANTEED = {"limits": {"cpu": "1", "memory": "1Gi"}}
BURSTABLE = {
    "requests": {"cpu": "100m", "memory": "64Mi"},
    "limits": {"cpu": "200m", "memory": "128Mi"},
}
TPU = "example.com/tpu"
CPU = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}


def container(name: str = "c", resources: Json | None = None, **more: Any) -> Json:
    return {"name": name, "image": "i", "resources": resources or {}, **more}


def pod(*containers: Json, init: list[Json] | None = None, **spec: Any) -> Json:
    meta: Json = {"name": "web"}
    if spec.pop("mirror", False):
        meta["annotations"] = {"kubernetes.io/config.mirror": "h"}
        spec["nodeName"] = "n1"
    if init is not None:
        spec["initContainers"] = init
    return {"metadata": meta, "spec": {"containers": list(containers), **spec}}


def server_with(body: Json, features: list[str] | None = None) -> FakeKube:
    kube = FakeKube()
    declared = FEATURES if features is None else features
    kube.add(Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(declaredFeatures=declared)))
    kube.add(from_json(body, Pod))
    return kube


def stored(kube: FakeKube) -> Json:
    found = kube.find(Pod, "web")
    assert found is not None
    body: Json = to_json(found)
    return body


def resize(kube: FakeKube, patch: Json) -> Json:
    """Return the spec after a resize by a strategic merge patch."""
    kube.change(Pod, "web", {"spec": patch}, subresource="resize")
    spec: Json = stored(kube)["spec"]
    return spec


def refusal(kube: FakeKube, patch: Json) -> str:
    """Return the refusal without the words that all of them have; nothing has changed."""
    before = stored(kube)
    with pytest.raises(KubeError) as refused:
        resize(kube, patch)
    assert stored(kube) == before
    assert (refused.value.code, refused.value.reason) in ((422, "Invalid"), (403, "Forbidden"))
    return refused.value.message.removeprefix('Pod "web" is invalid: ').removeprefix(
        'pods "web" is forbidden: '
    )


def of(name: str = "c", **resources: Json) -> Json:
    """Return a patch of one container."""
    return {"containers": [{"name": name, "resources": resources}]}


def of_init(**resources: Json) -> Json:
    return {"initContainers": [{"name": "i", "resources": resources}]}


def sidecar(resources: Json | None = None, **more: Any) -> list[Json]:
    return [container("i", resources or BURSTABLE, restartPolicy="Always", **more)]
