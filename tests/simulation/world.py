"""A node in memory: disk in a temporary directory, everything else faked, the agent on it.

Agents come and go on the same world: killed (the whole tree cancelled) or stopped as by
SIGTERM, and started again on what they left on disk and in the runtime.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import trio
import trio.testing
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent, AgentSettings, Seams, make_agent
from kubelet_trio.containers import NodeSettings
from kubelet_trio.cri import v1
from kubelet_trio.managers import LoadedManagers, load_claims
from kubelet_trio.model import (
    ContainerId,
    FileChange,
    Offload,
    PodUid,
    Purpose,
    WatchPoints,
    inline_offload,
    pod_key,
)
from kubelet_trio.pods import load_records, wanted_pods
from kubelet_trio.pods.plan.termination import MINIMUM_STOP_GRACE
from kubelet_trio.recorder import Entry, read_entries, segment_contents
from kubelet_trio.sources import FileSource
from kubelet_trio.supervision import TreeNode
from kubelet_trio.testing import FakeContainer, FakeMounter, FakeRuntime, TrioClock
from kubelet_trio.testing.objects import FakeUsage
from tests.simulation.cgroups import SimulatedTree
from tests.simulation.csi_node import CsiNode
from tests.simulation.manifests import MAINS, SIDECAR, Wish
from tests.simulation.resizes import ALLOCATABLE, ResizeWitness
from tests.simulation.stepper import Stepper

P = ParamSpec("P")
T = TypeVar("T")

NODE = "node1"
MUTATING = frozenset(
    {
        "RunPodSandbox",
        "StopPodSandbox",
        "RemovePodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "UpdateContainerResources",
        "UpdatePodSandboxResources",
    }
)
# A call that cannot be cut short is given a few seconds when the agent is killed.
DEATH_TAKES_AT_MOST = 10.0
STOP_TAKES_AT_MOST = 60.0


class NudgedWatcher:
    """Tells of the changes that the simulation makes, if it cares to."""

    def __init__(self, changes: list[FileChange]) -> None:
        self._changes = changes
        self._news = trio.Event()

    def watch(self, points: WatchPoints) -> bool:
        return False

    def nudge(self) -> None:
        self._news.set()

    async def wait_changes(self) -> list[FileChange]:
        await trio.lowlevel.checkpoint()
        while not self._changes:
            await self._news.wait()
            self._news = trio.Event()
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def close(self) -> None:
        pass


class WitnessRuntime(FakeRuntime):
    """A runtime that also sees in which order the agent ends the containers of a pod.

    A container uses what a test has said, but never more than its limit allows.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sidecars_stopped_early: set[str] = set()  # UIDs of their pods
        self.wants: dict[ContainerId, int] = {}  # memory in bytes
        self.usage = self._usage

    def _usage(self, container: FakeContainer) -> FakeUsage:
        wanted = self.wants.get(container.id, 1)
        return FakeUsage(memory=min(wanted, container.resources.memory_limit_in_bytes or wanted))

    async def stop_container(self, container_id: ContainerId, grace_period: int) -> None:
        container = self.containers.get(container_id)
        if container is not None and container.alive and container.name == SIDECAR:
            mains = {other.name for other in self.alive(container.uid)}.intersection(MAINS)
            if mains and grace_period > MINIMUM_STOP_GRACE:  # else no time is left to wait
                self.sidecars_stopped_early.add(container.uid)
        await super().stop_container(container_id, grace_period)


class Offloads:
    """The blocking calls of an agent, apart from those of its flight recorder.

    That must not draw from a machine's faults: its last run, which is kept, has to be the same.
    """

    def __init__(self, offload: Offload, recorder: Any) -> None:
        self._offload, self._recorder = offload, recorder

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._offload(fn, *args, **kwargs)

    def of(self, purpose: Purpose) -> Offload:
        found: Offload = self._recorder if purpose is Purpose.RECORDER else self._offload
        return found


class World:
    """The node. `close` it in the end."""

    def __init__(
        self, run: Stepper, make_runtime: Callable[..., WitnessRuntime] = WitnessRuntime
    ) -> None:
        self.run = run
        self.top = Path(tempfile.mkdtemp(prefix="kubelet-trio-simulation-"))
        self.manifests = self.top / "manifests"
        self.manifests.mkdir()
        self.clock = TrioClock()
        self.runtime = make_runtime(clock=self.clock, write_logs=True)
        self.runtime.status_lag = 0.06
        # Slow enough for the next step to come while a pod is being started or ended.
        self.runtime.latency = {"": 0.02, "RunPodSandbox": 0.3, "StartContainer": 0.15}
        self.runtime.images.pull_takes = 0.3
        self.mounter = FakeMounter()
        self.cgroups = SimulatedTree(self.runtime)
        self.resizes = ResizeWitness(self.runtime)
        self.runtime.on_resize = self._see_update
        self.node = NodeSettings(
            node_name=NODE,
            hostname=NODE,
            root_dir=self.top / "root",
            pod_logs_dir=self.top / "logs/pods",
            container_logs_dir=self.top / "logs/containers",
            host_ips=("192.0.2.1",),
            allocatable=ALLOCATABLE,
        )
        self.changes: list[FileChange] = []
        self.watcher = NudgedWatcher(self.changes)
        self.csi: CsiNode | None = None
        self.recorder_size = 0  # bytes; 0: nothing is recorded
        self.keeps_recording = True  # otherwise what is recorded is thrown away
        self.agent: Agent | None = None
        self._life = trio.CancelScope()
        self._dead = trio.Event()
        self._tasks_without_agent = self.tasks()

    def close(self) -> None:
        shutil.rmtree(self.top, ignore_errors=True)

    def add_driver(self, *, stages: bool = True, republishes: bool = False) -> CsiNode:
        """Let the node have a CSI driver, and volumes of it."""
        self.csi = CsiNode(
            self.run, self.node.root_dir, self.mounter, stages=stages, republishes=republishes
        )
        (self.manifests / "storage.yaml").write_text(self.csi.documents())
        self.csi.start()
        return self.csi

    # Manifests

    def write(self, name: str, wish: Wish | None, *, nudge: bool = True) -> None:
        """Put a manifest into place as one should: written aside, then renamed.

        None writes a broken one. Its times are the simulation's, not the machine's.
        """
        text = "kind: Pod\n  metadata: [" if wish is None else json.dumps(wish.manifest(name))
        self.write_text(name, text, nudge=nudge)

    def write_text(self, name: str, text: str, *, nudge: bool = True) -> None:
        """Put any manifest into place, as `write`."""
        aside, path = self.manifests / f".{name}.new", self._path(name)
        aside.write_text(text)
        os.utime(aside, (self.clock.time(), self.clock.time()))
        aside.replace(path)
        self._changed(path, nudge)

    def remove(self, name: str, *, nudge: bool = True) -> None:
        path = self._path(name)
        path.unlink(missing_ok=True)
        self._changed(path, nudge)

    def _path(self, name: str) -> Path:
        return self.manifests / f"{name}.yaml"

    def _changed(self, path: Path, nudge: bool) -> None:
        if nudge:
            there = path.exists()
            self.changes.append(FileChange(str(path), there, not there))
            self.run.call(self.watcher.nudge)

    # The agent

    def start(self) -> None:
        """Start an agent on what the last one left."""
        assert self.agent is None
        records = load_records(self.node.root_dir / "pods")
        self.changes.clear()
        self.watcher = NudgedWatcher(self.changes)
        source = FileSource(
            self.manifests,
            NODE,
            open_watcher=lambda: self.watcher,
            offload=inline_offload,
            clock=self.clock,
            last_good=wanted_pods(records),
        )
        self.agent = make_agent(
            replace(self.settings(), recorder_size=self.recorder_size),
            self.seams(source),
            records,
            managers=self.managers(),
            claims=load_claims(self.node.root_dir),
        )
        self._life, self._dead = trio.CancelScope(), trio.Event()
        self.run.call(self.run.nursery.start_soon, self._live, self.agent)

    def settings(self) -> AgentSettings:
        return AgentSettings(self.node, parallel_pulls=2)

    def managers(self) -> LoadedManagers | None:
        """Return the managers of a new agent."""
        return None

    def seams(self, files: FileSource) -> Seams:
        """Return the world as a new agent sees it."""
        return Seams(
            runtime=self.runtime,
            mounter=self.mounter,
            cgroups=lambda _driver: self.cgroups,
            cgroup_tree=lambda _driver: self.cgroups,
            sources=(files,),
            exit_waiter=self.runtime.exit_waiter,
            clock=self.clock,
            offload=Offloads(self.offload, self._record),
            plugin_watcher=self.csi.make_watcher if self.csi is not None else None,
            devices=self.csi.devices if self.csi is not None else None,
        )

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a blocking call here and now, and see which records are written."""
        result = await inline_offload(fn, *args, **kwargs)
        self.resizes.see_records(args)
        return result

    async def _record(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        if args and not self.keeps_recording:
            await trio.lowlevel.checkpoint()  # the scheduler draws as if it were written
            notes = args[0]
            assert isinstance(notes, deque)
            notes.clear()
            return None
        return await inline_offload(fn, *args, **kwargs)

    async def _live(self, agent: Agent) -> None:
        try:
            with self._life:
                await agent.run()
        finally:
            self._dead.set()

    def recording(self) -> list[Entry]:
        """Return what the agents have recorded so far."""
        contents = segment_contents(self.node.root_dir / "recorder")
        return [each for path, data in contents for each in read_entries(data, str(path))]

    def kill(self) -> None:
        """Kill the agent; see that it goes, does nothing more, and leaves no task."""
        if self.agent is None:
            return
        calls_before = len(self.runtime.calls)
        self.run.call(self._life.cancel)
        self._wait_dead(DEATH_TAKES_AT_MOST)
        after = [call for call in self.runtime.calls[calls_before:] if call.name in MUTATING]
        assert not after, f"calls of an agent that was killed: {after}"

    def stop(self) -> None:
        """Stop the agent as SIGTERM does."""
        if self.agent is not None:
            self.run.call(self.agent.stop)
            self._wait_dead(STOP_TAKES_AT_MOST)

    def _wait_dead(self, seconds: float) -> None:
        async def wait() -> None:
            with trio.move_on_after(seconds):
                await self._dead.wait()
            await trio.testing.wait_all_tasks_blocked()

        self.run.take(wait)
        assert self._dead.is_set(), f"the agent does not end within {seconds:g} s"
        self.agent = None
        assert self.tasks() == self._tasks_without_agent, "tasks are left behind"
        assert self.runtime.exit_waiter.open_watches == 0

    def tasks(self) -> int:
        """Return how many tasks live, without those of the driver."""
        living: int = self.run.call(lambda: trio.lowlevel.current_statistics().tasks_living)
        return living - (self.csi.tasks() if self.csi is not None else 0)

    def crashes(self) -> list[str]:
        """Return the parts of the agent that have failed: each is a bug."""
        return list(_crashes(self.agent.tree())) if self.agent is not None else []

    def _see_update(self, container: FakeContainer, then: v1.LinuxContainerResources) -> None:
        self.cgroups.see_update(container, then)
        self.resizes.see_update(container, then)

    # What is there

    def pods(self) -> dict[str, Pod]:
        """Return the agent's pods by the name in their manifest."""
        assert self.agent is not None
        pods = list(self.agent.pods.value.values())
        by_name = {pod_key(pod).name.removesuffix(f"-{NODE}"): pod for pod in pods}
        assert len(by_name) == len(pods), f"two pods of one name: {[pod_key(p) for p in pods]}"
        return by_name

    def leftovers(self, wanted: set[PodUid]) -> list[str]:
        """Return what is there of pods that are not wanted."""
        found: list[str] = [s.id for s in self.runtime.sandboxes.values() if s.uid not in wanted]
        found += [c.id for c in self.runtime.containers.values() if c.uid not in wanted]
        paths = [
            *_entries(self.node.root_dir / "pods"),
            *_entries(self.node.pod_logs_dir),
            *[Path(mount.path) for mount in self.mounter.mounts()],
        ]
        of_pods = [path for path in paths if self.node.root_dir / "pods" in path.parents]
        of_pods += _entries(self.node.pod_logs_dir)
        found += [str(p) for p in of_pods if not any(uid in str(p) for uid in wanted)]
        for link in _entries(self.node.container_logs_dir):
            if not any(uid in os.readlink(link) for uid in wanted):
                found.append(str(link))
        return found


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _crashes(node: TreeNode) -> list[str]:
    mine = [f"{node.name}: {node.last_error}"] if node.restarts or node.last_error else []
    return mine + [crash for child in node.children for crash in _crashes(child)]
