"""A node for the pod resources API, as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from lightkube.models.core_v1 import Pod
from msgspec import structs

from kubelet_trio.managers.podresources import (
    NOTHING,
    DeviceUse,
    MemoryUse,
    ResourceUse,
    pod_resources_server,
)
from kubelet_trio.model import Meter, PodUid, metadata, pod_uid
from kubelet_trio.server import open_unix
from tests.agent.node import make_pods

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: ns}
spec:
  initContainers:
  - {name: once, image: i}
  - {name: sidecar, image: i, restartPolicy: Always}
  containers:
  - {name: main, image: i}
  - {name: other, image: i}
"""
GIB = 1 << 30
FULL = ResourceUse(
    cpus=(2, 3, 10),
    memory=(MemoryUse("memory", GIB, (0,)), MemoryUse("hugepages-1Gi", 2 * GIB, (0, 1))),
    devices=(
        DeviceUse("example.com/disk", "d0"),
        DeviceUse("example.com/net", "n1", (1,)),
        DeviceUse("example.com/net", "n7", (0, 1)),
    ),
)


def pod_named(name: str) -> Pod:
    """Return a pod with an init container, a sidecar and two main containers."""
    (pod,) = make_pods(MANIFEST.replace("NAME", name))
    # A manifest's pod has the node's name in its own.
    return structs.replace(pod, metadata=structs.replace(metadata(pod), name=name))


class FakeNode:
    """A `ResourcesView` that is written to."""

    def __init__(self, *pods: Pod) -> None:
        self.desired = {pod_uid(pod): pod for pod in pods}
        self.ended: set[PodUid] = set()
        self.held: dict[tuple[PodUid, str], ResourceUse] = {}
        self.free = NOTHING
        self.meter = Meter()

    def pods(self, *, active_only: bool) -> Iterator[Pod]:
        for uid, pod in self.desired.items():
            if not active_only or uid not in self.ended:
                yield pod

    def active_pod(self, namespace: str, name: str) -> Pod | None:
        for pod in self.pods(active_only=True):
            if (metadata(pod).namespace, metadata(pod).name) == (namespace, name):
                return pod
        return None

    def container_use(self, uid: PodUid, container: str) -> ResourceUse:
        return self.held.get((uid, container), NOTHING)

    def allocatable(self) -> ResourceUse:
        return self.free

    def counted(self, name: str, version: str = "v1") -> float:
        counters = dict(self.meter.counters(f"kubelet_pod_resources_endpoint_{name}"))
        return counters.get((version,), 0)

    @asynccontextmanager
    async def served(self, path: Path, *, use_active_pods: bool = True) -> AsyncIterator[Path]:
        """Serve both versions on a socket below a directory."""
        server = pod_resources_server(self, self.meter, use_active_pods=use_active_pods)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [open_unix(path / "kubelet.sock")])
            yield path / "kubelet.sock"
            nursery.cancel_scope.cancel()
