"""A whole agent with its HTTPS port, in a process of its own, for tests that attack the port.

`python -m tests.harness.besieged DIRECTORY` prints a line of JSON once it serves: where. When its
stdin ends it prints another one, `Report`, and ends.

Tokens: `admin` may do anything, `watcher` reads metrics, `runner` may run commands, `nobody` may
do nothing.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import structlog
import trio
from lightkube.models.coordination_v1 import Lease
from lightkube.models.core_v1 import Container, HTTPGetAction, Pod, PodSpec, PodStatus, Probe
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.agent import (
    Agent,
    AgentSettings,
    ApiServer,
    ClusterSettings,
    NodeApiSettings,
    ReviewApis,
    Seams,
    make_agent,
)
from kubelet_trio.agent.node_api import NodeApi
from kubelet_trio.containers import NodeSettings
from kubelet_trio.kube.limits import TokenBucket
from kubelet_trio.model import SystemClock, pod_uid, thread_offload
from kubelet_trio.node import NodeIdentity, NodeResources
from kubelet_trio.server import Port, open_tcp
from kubelet_trio.testing import FakeKube, FakeMounter, FakeRuntime
from tests.agent.node import Cgroups
from tests.node.make import AMOUNTS, INFO
from tests.server.streams.test_local import Local

T = TypeVar("T")
NAME = "node"
LEASE = 12  # seconds of the node's lease; renewed every quarter of it
LOG_LINES = 200
FILES = 8192  # descriptors
_REVIEW = 0.2  # seconds that an API server takes for one


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What became of the agent. `longest` is between two renewals of the lease, in seconds."""

    renewals: int
    longest: float
    restarts: int
    unready: int  # how often the pod was not ready
    failed_probes: list[str]
    crashed: list[str]  # the parts of the tree that were restarted


class _Slow:
    """An API server that takes its time over reviews and has a client with a rate."""

    def __init__(self, kube: FakeKube) -> None:
        self._kube, self._bucket = kube, TokenBucket()

    async def create(self, obj: T, /) -> T:
        await self._bucket.take()
        await trio.sleep(_REVIEW)
        return await self._kube.create(obj)


def _may(spec: dict[str, Any]) -> bool:
    asked = spec["resourceAttributes"]["subresource"]
    allowed = {"watcher": ("metrics", "stats"), "runner": ("proxy",)}
    return spec["user"] == "admin" or asked in allowed.get(spec["user"], ())


def _pod(port: int) -> Pod:
    """Return a pod that is asked every second whether it lives and is ready."""
    get = HTTPGetAction(path="/", port=port, host="127.0.0.1")
    probe = Probe(httpGet=get, periodSeconds=1, timeoutSeconds=10, failureThreshold=1)
    web = Container(
        name="web",
        image="web",
        imagePullPolicy="IfNotPresent",
        livenessProbe=probe,
        readinessProbe=probe,
    )
    spec = PodSpec(containers=[web], nodeName=NAME)
    return Pod(metadata=ObjectMeta(name="web", namespace="default"), spec=spec)


class Besieged:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.kube = FakeKube(clock=SystemClock())
        self.runtime = FakeRuntime(write_logs=True)
        self.local = Local()
        self.runtime.local_streams = self.local
        self.renewals: list[float] = []
        self.unready = 0
        for user in ("admin", "watcher", "runner", "nobody"):
            self.kube.server.reviews.users[user] = {"username": user}
        self.kube.server.reviews.allow = _may

    def status(self) -> PodStatus:
        found = self.kube.find(Pod, "web")
        return (found.status if found is not None else None) or PodStatus()

    def is_ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status().conditions or ())

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        api = self.kube.node(NAME)
        reviews: Any = _Slow(self.kube), _Slow(self.kube)
        cluster = ApiServer(
            api,
            ClusterSettings(
                NodeIdentity(NAME),
                NodeResources(AMOUNTS, AMOUNTS),
                lambda _runtime: INFO,
                ("127.0.0.1",),
                lease_seconds=LEASE,
            ),
            api,
            reviews=ReviewApis(*reviews),
        )
        settings = NodeSettings(
            NAME,
            NAME,
            root_dir=self.base / "root",
            pod_logs_dir=self.base / "pods",
            container_logs_dir=self.base / "containers",
            host_ips=("127.0.0.1",),
        )
        agent = make_agent(
            AgentSettings(settings, parallel_pulls=2),
            Seams(
                self.runtime,
                FakeMounter(),
                lambda _driver: Cgroups(),
                (),
                self.runtime.exit_waiter,
                cluster=cluster,
                clock=SystemClock(),
            ),
            {},
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            yield agent
            nursery.cancel_scope.cancel()

    async def run(self) -> None:
        opened: list[trio.SocketListener] = []

        async def open_any() -> list[trio.SocketListener]:
            opened.extend(await open_tcp("127.0.0.1", 0))
            return opened

        async def nobody() -> None:
            await trio.lowlevel.checkpoint()

        async with self.agent() as agent, trio.open_nursery() as nursery:
            self.local.nursery = nursery
            probed = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await nursery.start(trio.serve_listeners, _well, probed)
            pod = self.kube.add(_pod(probed[0].socket.getsockname()[1]))
            await self.kube.wait_until(lambda _kube: self.is_ready())
            (container,) = self.runtime.alive(pod_uid(pod))
            line = b"2026-01-02T15:04:05.000000000Z stdout F " + b"x" * 100 + b"\n"
            Path(container.log_path).write_bytes(line * LOG_LINES)
            settings = NodeApiSettings(
                "127.0.0.1", cert_dir=self.base / "pki", client_ca_file=str(self.base / "ca.pem")
            )
            cluster = agent.parts.setup.cluster
            assert cluster is not None
            api = NodeApi(agent, settings, cluster.reviews, thread_offload)
            await nursery.start(api.serve_https, Port("https", "", "", open_any, nobody))
            nursery.start_soon(self._watch)
            print(json.dumps({"port": opened[0].socket.getsockname()[1]}), flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
            print(json.dumps(dataclasses.asdict(self._report(agent))), flush=True)
            nursery.cancel_scope.cancel()
        for listener in (*opened, *probed):
            await listener.aclose()

    async def _watch(self) -> None:
        """Look at what the API server has of the node, as a controller would."""
        last = None
        while True:
            lease = self.kube.find(Lease, NAME, "kube-node-lease")
            renewed = lease.spec.renewTime if lease is not None and lease.spec else None
            if renewed != last:
                self.renewals.append(trio.current_time())
                last = renewed
            self.unready += not self.is_ready()
            await trio.sleep(0.1)

    def _report(self, agent: Agent) -> Report:
        times = [*self.renewals, trio.current_time()]
        statuses = self.status().containerStatuses or ()
        events = agent.events.events()
        tree = [*agent.tree().children]
        crashed = []
        while tree:
            node = tree.pop()
            tree += node.children
            if node.restarts:
                crashed.append(f"{node.name}: {node.last_error}")
        return Report(
            len(self.renewals),
            max(b - a for a, b in pairwise(times)),
            sum(status.restartCount for status in statuses),
            self.unready,
            [e.message or "" for e in events if e.reason == "Unhealthy"],
            crashed,
        )


async def _well(stream: trio.SocketStream) -> None:
    async with stream:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(Besieged(Path(sys.argv[1])).run)


if __name__ == "__main__":
    main()
