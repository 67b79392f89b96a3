"""What spans say of pods and containers, in OpenTelemetry's terms and those of the Go kubelet."""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import pod_key, pod_uid
from kubelet_trio.tracing.seam import Attributes

CONTAINER = "k8s.container.name"


def pod_attributes(pod: Pod) -> Attributes:
    """Return what says which pod a span is about (SyncPod in pkg/kubelet/kubelet.go)."""
    key = pod_key(pod)
    return {
        "k8s.pod.uid": pod_uid(pod),
        "k8s.pod": str(key),
        "k8s.pod.name": key.name,
        "k8s.namespace.name": key.namespace,
    }
