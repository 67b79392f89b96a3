"""An API server in memory that keeps the rules of a real one, in virtual time."""

from kubelet_trio.testing.kube.client import FakeKubeClient
from kubelet_trio.testing.kube.fake import FakeKube
from kubelet_trio.testing.kube.faults import KubeFault, KubeFaultKind, KubeFaults, KubeRequest

__all__ = ["FakeKube", "FakeKubeClient", "KubeFault", "KubeFaultKind", "KubeFaults", "KubeRequest"]
