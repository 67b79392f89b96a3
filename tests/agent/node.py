"""A whole agent in virtual time: FakeRuntime below it, a hand-fed source above."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from lightkube.models.core_v1 import ContainerStatus, Pod, PodStatus
from trio_util import AsyncValue

from kubelet_trio.agent import Agent, AgentSettings, Seams, make_agent
from kubelet_trio.cgroups import CgroupDriver
from kubelet_trio.containers import NodeSettings
from kubelet_trio.cri import v1
from kubelet_trio.managers import LoadedManagers
from kubelet_trio.model import (
    CONFIG_SOURCE,
    DiskSpace,
    Latest,
    Offload,
    PodUid,
    Watcher,
    disk_space,
    inline_offload,
    metadata,
    pod_uid,
)
from kubelet_trio.objects import ApiObject
from kubelet_trio.pods import CgroupOperations, load_records
from kubelet_trio.sources import Source, SourceProblem, SourceSnapshot
from kubelet_trio.supervision import TreeNode
from kubelet_trio.testing import FakeMounter, FakeRuntime, TrioClock
from kubelet_trio.tracing import Tracing
from tests.harness.pod_files import load_pods


class Feed:
    """A source whose snapshots a test writes."""

    name = "file"
    origin = "feed"

    def __init__(self) -> None:
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    def put(self, *pods: Pod, objects: Iterable[ApiObject] = ()) -> None:
        self.delivered = SourceSnapshot(self.name, pods, tuple(objects))
        self.snapshots.put(self.delivered)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


class Cgroups:
    """Pod cgroups that are gone when asked to be, with what runs in them."""

    on_kill: Callable[[], None] | None = None

    async def remove(self, uid: PodUid) -> None:
        await trio.lowlevel.checkpoint()
        if self.on_kill is not None:
            self.on_kill()


class Node:
    """What outlives an agent: the runtime, the disk, and the mounts."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.runtime = FakeRuntime(write_logs=True, status_lag=0.06)
        self.mounter = FakeMounter()
        self.cgroups = Cgroups()
        self.agent: Agent | None = None
        self.feed = Feed()
        self.offload: Offload = inline_offload
        self.logind: Any = None  # None: this machine's
        self.signals: Any = None  # None: this machine's
        self.disk_space: Callable[[str], DiskSpace] = disk_space
        self.cgroup_tree: Callable[[CgroupDriver], CgroupOperations] | None = None
        self.selinux = False
        self.node_fields: dict[str, Any] = {}  # further fields of its NodeSettings
        self.allocatable: dict[str, int] = {}  # nano-units; none: not measured
        self.source: Source | None = None  # None: the feed
        self.managers: Callable[[], LoadedManagers | None] = lambda: None
        self.plugin_watcher: Callable[[], Watcher] | None = None  # None: no plugins
        self.tracing: Tracing | None = None  # None: nothing is traced

    @asynccontextmanager
    async def running(
        self,
        *pods: Pod,
        objects: Iterable[ApiObject] = (),
        silent: bool = False,
        **told: Any,
    ) -> AsyncIterator[Agent]:
        """Run an agent, its source delivering these pods (or nothing, if silent).

        Cancelled at the end, not stopped. `told` are further fields of its settings.
        """
        settings = NodeSettings(
            "node",
            "node",
            root_dir=self.base / "root",
            pod_logs_dir=self.base / "pods",
            container_logs_dir=self.base / "containers",
            host_ips=("192.0.2.7",),
            allocatable=self.allocatable,
            selinux=self.selinux,
            **self.node_fields,
        )
        self.feed = Feed()
        if not silent:
            self.feed.put(*pods, objects=objects)
        agent = make_agent(
            AgentSettings(settings, parallel_pulls=2, **told),
            Seams(
                self.runtime,
                self.mounter,
                lambda _driver: self.cgroups,
                (self.source or self.feed,),
                self.runtime.exit_waiter,
                clock=TrioClock(),
                offload=self.offload,
                disk_space=self.disk_space,
                signals=self.signals,
                cgroup_tree=self.cgroup_tree,
                logind=self.logind,
                plugin_watcher=self.plugin_watcher,
                tracing=self.tracing,
            ),
            load_records(self.base / "root" / "pods"),
            managers=self.managers(),
        )
        self.agent = agent
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            yield agent
            nursery.cancel_scope.cancel()

    def status(self, pod: Pod) -> PodStatus:
        """Return what the agent says of a pod now."""
        assert self.agent is not None
        status: PodStatus | None = self.agent.pods.value[pod_uid(pod)].status
        assert status is not None
        return status

    def container(self, pod: Pod, name: str = "web") -> ContainerStatus:
        """Return what the agent says of a container now."""
        status = self.status(pod)
        every: list[ContainerStatus] = [
            *(status.containerStatuses or ()),
            *(status.initContainerStatuses or ()),
        ]
        return next(c for c in every if c.name == name)

    def reasons(self, pod: Pod | None = None) -> list[str]:
        """Return the reasons of events so far, of one pod if given."""
        assert self.agent is not None
        name = pod.metadata.name or "" if pod is not None and pod.metadata is not None else ""
        return [e.reason or "" for e in self.agent.events.events(name=name)]

    def calls(self, *names: str) -> list[str]:
        return [call.name for call in self.runtime.calls_of(*names)]

    def leftovers(self) -> list[str]:
        """Return what is on disk or mounted of any pod."""
        below = ("root/pods", "pods", "containers")
        found = [str(p) for d in below for p in (self.base / d).iterdir()]
        return found + [m.path for m in self.mounter.mounts()]


def make_pods(manifest: str) -> tuple[Pod, ...]:
    """Return the pods of a manifest as the file source would deliver them."""
    return load_pods(manifest.encode(), "/manifests/pod.yaml", node_name="node")


def make_pod(
    name: str = "web",
    image: str = "web",
    *,
    containers: str = "",
    spec: Iterable[str] = (),
) -> Pod:
    """Return a pod of one container `web`, or of those given as YAML list items."""
    body = containers or f"- {{name: web, image: '{image}', imagePullPolicy: IfNotPresent}}"
    lines = [
        "apiVersion: v1",
        "kind: Pod",
        f"metadata: {{name: {name}}}",
        "spec:",
        *(f"  {line}" for line in spec),
        "  containers:",
        *(f"  {line}" for line in body.splitlines()),
    ]
    (pod,) = make_pods("\n".join(lines))
    return pod


def from_api(pod: Pod) -> Pod:
    """Return the pod as an API server would have sent it: not static."""
    meta = metadata(pod)
    annotations = {**(meta.annotations or {}), CONFIG_SOURCE: "api"}
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(meta, annotations=annotations)
    )


def guaranteed(name: str, cpu: str, memory: str = "1Gi") -> Pod:
    """Return a Guaranteed pod of one container `web`."""
    return make_pod(
        name,
        containers=f"- {{name: web, image: web, resources: {{limits: "
        f'{{cpu: "{cpu}", memory: {memory}}}}}}}',
    )


def below(tree: TreeNode, *path: str) -> TreeNode:
    """Return the child of a tree of supervision whose names along the path begin so."""
    for name in path:
        tree = next(c for c in tree.children if c.name.startswith(name))
    return tree


def ready(status: PodStatus) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())


def without_start(status: PodStatus) -> PodStatus:
    """Return what outlives an agent: the start time of a static pod is of the one that runs."""
    return msgspec.structs.replace(status, startTime=None)


CONTAINER_RUNNING = v1.ContainerState.CONTAINER_RUNNING
