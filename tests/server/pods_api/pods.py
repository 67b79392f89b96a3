"""Pods for tests of the Pods API, and the service on a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from lightkube.models.core_v1 import Container, Pod, PodSpec, PodStatus
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import Meter, PodUid, pod_uid
from kubelet_trio.server import PodWatches, open_unix, pods_api_server
from kubelet_trio.status import StatusStore


def pod_named(name: str, phase: str = "Pending") -> Pod:
    """Return a pod; its UID is `<name>-uid`."""
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"{name}-uid"),
        spec=PodSpec(containers=[Container(name="c", image="i")]),
        status=PodStatus(phase=phase),
    )


def uid_of(name: str) -> PodUid:
    return PodUid(f"{name}-uid")


class Node:
    """A status store as the agent has it, and the Pods API on it."""

    def __init__(self, *pods: Pod) -> None:
        self.meter = Meter()
        self.watches = PodWatches(self.meter)
        self.store = StatusStore(on_change=self.watches.changed)
        self.put(*pods)

    def put(self, *pods: Pod) -> None:
        """Publish statuses."""
        for pod in pods:
            self.store.put(pod_uid(pod), pod)
        self.store.deliver()

    def finish(self, pod: Pod) -> None:
        self.store.finish(pod_uid(pod))
        self.store.deliver()

    def forget(self, pod: Pod) -> None:
        self.store.forget(pod_uid(pod))
        self.store.deliver()

    @property
    def dropped(self) -> float:
        return dict(self.meter.counters("kubelet_pod_watch_events_dropped_total")).get((), 0)

    @asynccontextmanager
    async def served(self, directory: Path) -> AsyncIterator[Path]:
        """Serve on a socket below a directory."""
        server = pods_api_server(lambda: self.store.pods.value, self.watches)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, [open_unix(directory / "pods-api.sock")])
            yield directory / "pods-api.sock"
            nursery.cancel_scope.cancel()
