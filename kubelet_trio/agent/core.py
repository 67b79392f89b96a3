"""A built agent: runs it, stops it, and shows it (`server.AgentView`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.agent.checks import check_functions
from kubelet_trio.agent.history import AgentHistory
from kubelet_trio.agent.lag import lag_measured
from kubelet_trio.agent.metrics import AgentMetrics
from kubelet_trio.agent.node_object import NodeObjectPage
from kubelet_trio.agent.parts import Parts
from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.agent.topology_page import TopologyPage, machine_alone, managed_machine
from kubelet_trio.agent.tree import make_tree
from kubelet_trio.agent.volume_page import VolumePage
from kubelet_trio.containers import NodeSettings
from kubelet_trio.cri import Runtime
from kubelet_trio.events import EventRecorder, EventRing
from kubelet_trio.model import (
    ContainerId,
    ContainerState,
    Meter,
    PodUid,
    Purpose,
    RuntimePod,
    WallClock,
    pod_key,
    pod_object_ref,
    pod_uid,
)
from kubelet_trio.node import Pressure
from kubelet_trio.pods import (
    EndReason,
    RestartRefusedError,
    TerminationRequest,
    check_debuggable,
    check_runnable,
)
from kubelet_trio.server import LOCK_NAME, AgentStatus, Ports, PullInfo, RuntimeInfo, root_lock
from kubelet_trio.sources import load_ephemeral
from kubelet_trio.supervision import (
    ChildSpec,
    ChildState,
    DeclaredNode,
    GaveUpError,
    TreeNode,
)

if TYPE_CHECKING:
    from kubelet_trio.pods import EditPlan, PodWhy

# Seconds that unmounting the agent's own mount may take at its end.
_RELEASE_LIMIT = 5.0
# Seconds that a client waits until the flight recorder has written.
_FLUSH_LIMIT = 5.0

# The directories that the Go kubelet makes below its root (setupDataDirs in pkg/kubelet).
# Plugins and device managers put their sockets there, and expect the directories to exist.
_FOR_PLUGINS = (
    ("plugins", 0o750),
    ("plugins_registry", 0o750),
    ("pod-resources", 0o750),
    ("checkpoints", 0o700),
)


class Agent:
    """One node agent. `run` it once; the views may be read at any time."""

    def __init__(
        self,
        parts: Parts,
        health_servers: Callable[[Agent], tuple[ChildSpec, ...]],
        servers: Callable[[Agent], tuple[ChildSpec, ...]],
    ) -> None:
        """Args:
        parts: what `agent.compose` has built.
        health_servers: returns the children of `health`, which show the agent.
        servers: returns the children of `server`, which show it and act for their clients.
        """
        self.parts = parts
        self.ports = Ports(self.seams.offload)
        self._root = make_tree(parts, self.ports, health_servers(self), servers(self))
        self.metrics = AgentMetrics(parts, self.meter, self.tree)
        self.volume_page = VolumePage(
            self.settings.node,
            self.seams,
            parts.reports.statuses,
            parts.volume_names,
            parts.stats,
        )
        self.node_object_page = NodeObjectPage(parts)
        managers = parts.supplies.managers
        self.topology_page = TopologyPage(
            machine_alone(self.seams) if managers is None else managed_machine(parts, managers)
        )

    # Lifecycle

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop` is called; ready when every part runs, connected or not.

        Raises:
            SocketInUseError: another agent has the root directory.
            GaveUpError: a part kept failing.
        """
        if self.parts.setup.taps is not None:
            self.parts.setup.taps.begin()
        node = self.settings.node
        make_directories = partial(make_node_directories, for_plugins=not self.settings.instance)
        await self.seams.offload_for(Purpose.RECORDS)(make_directories, node)
        volumes = self.parts.supplies.services.volumes
        has_lock = False
        try:
            with root_lock(node.root_dir / LOCK_NAME), lag_measured(self.meter):
                has_lock = True
                is_complete = await volumes.prepare()
                if self.parts.setup.cluster is not None:
                    self.parts.setup.cluster.volumes.in_use.settle(is_complete=is_complete)
                run = partial(self._root.run, task_status=task_status)
                tracing = self.seams.tracing
                # Around the tree: its tasks inherit it, and begin without a span.
                with tracing.active() if tracing is not None else nullcontext():
                    await _run_and_hurry(run, self.parts.runtime.calls.hurry)
        finally:
            # After the lock's file is closed: it may lie on this very mount. If another agent has
            # started meanwhile, its open lock keeps the mount busy, and the mount stays for it.
            if has_lock:
                with trio.move_on_after(_RELEASE_LIMIT, shield=True):
                    await volumes.release()

    def stop(self) -> None:
        """Ask the agent to end, last part first. Containers keep running. Never blocks."""
        if self.parts.setup.taps is not None:
            self.parts.setup.taps.mark("stopped")
        self.parts.runtime.calls.hurry()
        self._root.stop()

    async def remove_pods(self) -> None:
        """Terminate every pod for good, by recorded decisions, and wait until they are gone.

        No pod starts afterwards: stop the agent next. Before the pods' supervisor runs, no pod can
        be terminated, and this returns at once.
        """
        pods = self.parts.pods
        if pods.supervisor.tree().state is not ChildState.RUNNING:
            return
        self._note_request("remove", PodUid(""), {})
        pods.desired.clear()
        await pods.supervisor.wait_idle()

    async def wait_pod_gone(self, pod: Pod) -> None:
        """Wait until a pod that is no longer desired has left the node."""
        await self.parts.pods.supervisor.wait_child_gone(f"{pod_key(pod)}@{pod_uid(pod)}")

    def shorten_grace(self, uid: PodUid, seconds: int) -> None:
        """Shorten the grace period of a terminating pod. Never blocks."""
        worker = self.parts.workers.get(uid)
        if worker is not None:
            self._note_request("grace", uid, {"seconds": seconds})
            worker.request(TerminationRequest(uid, EndReason.DELETED, grace_period=seconds))

    def restart(self, uid: PodUid, name: str) -> Sequence[str]:
        """Restart a container of a pod, "": all that may; return their names. Never blocks.

        Raises `RestartRefusedError`.
        """
        worker = self.parts.workers.get(uid)
        if worker is None:
            raise RestartRefusedError("the pod is not on this node any more")
        found = worker.restart(name)
        self._note_request("restart", uid, {"container": name})
        return sorted(c.name for c in self.observed(uid).containers if c.id in found)

    def debug(self, uid: PodUid, given: bytes) -> str:
        """Add an ephemeral container, given as JSON, to a pod; return its name. Never blocks.

        Raises:
            DebugRefusedError: the pod may not be given one, or the runtime cannot run it.
            ManifestError: the container is not valid.
        """
        worker = self.parts.workers.get(uid)
        pod = worker.pod if worker is not None else None
        check_debuggable(pod, is_ending=worker is not None and worker.is_ending)
        assert worker is not None
        container = load_ephemeral(given, worker.pod)
        check_runnable(container, self.parts.runtime.health.state.value.name)
        self._note_request("debug", uid, {"manifest": container})
        worker.update(worker.allocation.add(container))
        text = f"Ephemeral container {container.name} was added on this node"
        self.events_recorder.emit(pod_object_ref(worker.pod), "Normal", "Debugging", text)
        return container.name

    def _note_request(self, what: str, uid: PodUid, told: Mapping[str, object]) -> None:
        if self.parts.setup.taps is not None:
            self.parts.setup.taps.request(what, uid, told)

    async def plan(self, given: bytes, with_manifests: bool = True) -> EditPlan:
        """Return what an edit of the manifest directory would do; `given` is the JSON of `Edit`.

        Raises:
            ManifestError: a manifest is not valid.
            ValueError: the JSON is not that of an edit, or there is no manifest directory.
        """
        from kubelet_trio.agent.edits import EditPlanner, read_edit, without_manifests

        found = await EditPlanner(self.parts).plan(read_edit(given))
        return found if with_manifests else without_manifests(found)

    async def flush_recording(self) -> Mapping[str, int]:
        """Write what the flight recorder has noted; return its `entries`, `lost` and `bytes`.

        Raises:
            ValueError: it is off.
            TimeoutError: the disk does not answer.
        """
        taps = self.parts.setup.taps
        if taps is None:
            raise ValueError("the flight recorder is off: flightRecorderSize is 0")
        recorder = taps.recorder
        taps.mark("saved")
        with trio.move_on_after(_FLUSH_LIMIT) as limit:
            await recorder.flush()
        if limit.cancelled_caught:
            raise TimeoutError(f"the disk has not answered within {_FLUSH_LIMIT:g} s")
        return {"entries": recorder.entries, "lost": recorder.lost, "bytes": recorder.size}

    # Views

    @property
    def settings(self) -> AgentSettings:
        return self.parts.setup.settings

    @property
    def seams(self) -> Seams:
        return self.parts.setup.seams

    @property
    def clock(self) -> WallClock:
        return self.seams.clock

    @property
    def meter(self) -> Meter:
        return self.seams.meter

    @property
    def runtime(self) -> Runtime:
        return self.parts.runtime.runtime

    @property
    def stats(self) -> AgentStats:
        return self.parts.stats

    @property
    def history(self) -> AgentHistory:
        return self.parts.history

    @property
    def events_recorder(self) -> EventRecorder:
        return self.parts.reports.events

    @property
    def events(self) -> EventRing:
        return self.events_recorder.ring

    @property
    def pods(self) -> AsyncValue[Mapping[PodUid, Pod]]:
        return self.parts.reports.statuses.pods

    @property
    def pressure(self) -> AsyncValue[Pressure]:
        """The node's shortages."""
        return self.parts.setup.links.pressure

    def not_ready(self) -> str | None:
        """Return why the node admits no pods, None if it does."""
        return self.parts.setup.links.not_ready()

    def node(self) -> NodeSettings:
        """Return the node's current settings: the runtime may name another cgroup driver."""
        return self.parts.runtime.node()

    def tree(self) -> TreeNode:
        return self._root.tree()

    def declared(self) -> DeclaredNode:
        return self._root.declared()

    def check_functions(self) -> dict[str, Callable[[], str | None]]:
        """Return the health checks by name; each returns the problem, None if there is none."""
        return check_functions(self.parts, self.ports)

    async def wait_delivered(self) -> None:
        """Wait until every source has delivered once, and each of its pods has a status."""
        desired = self.parts.pods.desired.value
        await desired.wait_value(lambda now: now.all_ready)
        wanted = desired.value.pods.keys()
        await self.pods.wait_value(lambda pods: wanted <= pods.keys())

    def status(self) -> AgentStatus:
        """Return the state of the agent."""
        runtime, settings = self.parts.runtime.health.state.value, self.settings
        return AgentStatus(
            node_name=settings.node.node_name,
            root_dir=str(settings.node.root_dir),
            started_at=self.parts.started_at,
            runtime=RuntimeInfo(
                settings.runtime_endpoint, runtime.name, runtime.version, runtime.problem
            ),
            sources=tuple(self.parts.pods.desired.infos()),
            checks={name: check() for name, check in self.check_functions().items()},
            notes=settings.notes,
            remains=self.parts.supplies.services.remains.problems(),
            events_dropped=self.events_recorder.dropped,
            ports=self.ports.infos(),
            pulls=tuple(self._pulls()),
        )

    def _pulls(self) -> Iterator[PullInfo]:
        for pull in self.parts.supplies.services.images.pulls:
            yield PullInfo(pull.uid, pull.container, pull.image, pull.since, pull.is_queued)

    def observed(self, uid: PodUid) -> RuntimePod:
        """Return the sandboxes and containers of a pod, as last observed."""
        return self.parts.runtime.pleg.get(uid)

    def running_pods(self) -> Iterator[RuntimePod]:
        """Return the sandboxes and containers of each pod that has a running one."""
        return self.parts.runtime.pleg.running_pods()

    def why(self, uid: PodUid) -> PodWhy | None:
        """Return why a pod is as it is; None if the node has no such pod. Never blocks."""
        from kubelet_trio.agent.reasons import explain_pod  # loaded when somebody asks

        return explain_pod(self.parts, uid)

    def log_path(self, uid: PodUid, container_id: ContainerId) -> Path | None:
        record = self.parts.runtime.pleg.find(uid, container_id)
        return Path(record.log_path) if record is not None and record.log_path else None

    def is_running(self, uid: PodUid, container_id: ContainerId) -> bool:
        record = self.parts.runtime.pleg.find(uid, container_id)
        return record is not None and record.state is ContainerState.RUNNING


async def _run_and_hurry(run: Callable[[], Awaitable[None]], hurry: Callable[[], None]) -> None:
    """Run the tree; on a cancellation from outside call `hurry` at once. Raises `GaveUpError`."""
    # The tree shields its parts from the cancellation until their turn to end: a worker that waits
    # for a call without a limit would use up its turn.
    gave_up: GaveUpError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hurry_when_cancelled, hurry, name="kubelet (cancellation)")
        try:
            await run()
        except GaveUpError as exc:  # raised below: a nursery would wrap it in a group
            gave_up = exc
        nursery.cancel_scope.cancel()
    if gave_up is not None:
        raise gave_up


async def _hurry_when_cancelled(hurry: Callable[[], None]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        hurry()


def make_node_directories(node: NodeSettings, *, for_plugins: bool) -> None:
    """Make the missing directories, with the Go kubelet's modes whatever the umask is. Blocks.

    A directory that exists keeps its mode.

    Args:
        node: has their paths.
        for_plugins: also make those of plugins, which an embedded agent does not need.
    """
    _make_directory(node.root_dir, 0o750)
    _make_directory(node.root_dir / "pods", 0o750)
    for name, mode in _FOR_PLUGINS if for_plugins else ():
        _make_directory(node.root_dir / name, mode)
    _make_directory(node.pod_logs_dir, 0o750)
    _make_directory(node.container_logs_dir, 0o755)


def _make_directory(path: Path, mode: int) -> None:
    if path.is_dir():
        return
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    # mkdir(2) applied the umask.
    path.chmod(mode)
