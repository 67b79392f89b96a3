"""The root: the one place that builds components and wires channels.

`Agent` takes plain settings and the seams to the world, builds every room's parts and runs
them as one supervision tree (see `supervision.md`). It is also what the outside may see of
them (`server.AgentView`). Nothing below it knows of anything beside it; what crosses rooms
is wired here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.agent.admission import FEATURE_CHECKS, admission_node, marks_of
from kubelet_trio.agent.cgroups import cgroup_children, make_cgroups
from kubelet_trio.agent.checks import SyncLoop, check_functions
from kubelet_trio.agent.desired import marked, source_infos
from kubelet_trio.agent.directories import make_node_directories
from kubelet_trio.agent.ending import run_and_hurry
from kubelet_trio.agent.garbage import PodsOfNode, make_garbage
from kubelet_trio.agent.guards import GuardedPods, make_guards
from kubelet_trio.agent.image_access import make_image_access
from kubelet_trio.agent.logs import log_children
from kubelet_trio.agent.metrics import AgentMetrics, MetricSources
from kubelet_trio.agent.node_api import node_api_children
from kubelet_trio.agent.parts import AgentParts
from kubelet_trio.agent.pod_starts import PodStarts
from kubelet_trio.agent.runtime_classes import with_overhead
from kubelet_trio.agent.services import ServiceParts, make_services
from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.containers import NodeSettings, owned_by
from kubelet_trio.credentials import ImageAccess
from kubelet_trio.cri import (
    CallsInFlight,
    GuardedRuntime,
    Runtime,
    RuntimeHealth,
    RuntimeState,
)
from kubelet_trio.events import EventRecorder, EventRing
from kubelet_trio.model import (
    ContainerId,
    ContainerState,
    PodKey,
    PodUid,
    Purpose,
    RuntimePod,
    WallClock,
    get_logger,
    is_static,
    pod_key,
    pod_uid,
)
from kubelet_trio.node import PodCidr, Pressure
from kubelet_trio.objects import LocalObjects, ObjectStore
from kubelet_trio.pleg import Pleg
from kubelet_trio.pods import (
    AdmissionNode,
    Admitter,
    EndReason,
    OrphanDirectories,
    PodRecord,
    PodRegistry,
    PodServices,
    TerminationRequest,
    tell_crash,
)
from kubelet_trio.server import LOCK_NAME, AgentStatus, Ports, RuntimeInfo, root_lock
from kubelet_trio.sources import Desired, run_merge
from kubelet_trio.status import StatusStore
from kubelet_trio.supervision import (
    ChildSpec,
    ChildState,
    DeclaredNode,
    DynamicSupervisor,
    RestartPolicy,
    Supervisor,
    TreeNode,
)

log = get_logger()

# Few at the top: budgets multiply down the tree.
_TOP = RestartPolicy(limit=3)
# How many request timeouts a call may go on that nobody waits for any more: RunPodSandbox, the
# longest, has two of its own.
_LEFT_CALLS = 2.5
# Seconds that the agent's own mount may take to go when it ends.
_RELEASE_LIMIT = 5.0


class Agent:
    """One node agent. `run` it once; everything else may be asked at any time."""

    def __init__(
        self,
        settings: AgentSettings,
        seams: Seams,
        records: Mapping[PodUid, PodRecord] | None = None,
    ) -> None:
        """Build every part; `records` are what `load_records` found of an earlier life."""
        self.settings = settings
        self._records = dict(records or {})
        self.meter = seams.meter
        self._calls = CallsInFlight(_LEFT_CALLS * settings.request_timeout)
        self.bare_runtime = seams.runtime
        seams = replace(seams, runtime=GuardedRuntime(seams.runtime, self._calls, self.meter))
        self._seams = seams
        self.ports = Ports(seams.offload)  # declared by who serves on them, as the tree is made
        self._started_at = seams.clock.time()
        self.events_recorder = EventRecorder(EventRing(settings.node.node_name), seams.clock)
        self._health = RuntimeHealth(seams.runtime, self._on_runtime_state)
        self._pod_cidr = PodCidr(seams.runtime.update_runtime_config, settings.pod_cidr)
        self._statuses = StatusStore()
        self._starts = PodStarts(self.meter, seams.clock)
        self._statuses.on_delivered = self._starts.delivered
        told = partial(tell_crash, self.events_recorder)
        self._pods = DynamicSupervisor("pods", on_crash=told, policy=_TOP)
        self._pleg = Pleg(
            seams.runtime,
            wake=self._on_pod_change,
            exit_waiter=seams.exit_waiter,
            owns=owned_by(settings.instance),
            meter=self.meter,
            recovered=self._retry_pods,
        )
        self._documents = LocalObjects(self._on_object_change)
        self._objects = self._make_objects()
        self._cgroups = make_cgroups(
            settings, seams, self.node, self.events_recorder, self._statuses.pods, self._health
        )
        access = make_image_access(settings, seams)
        self._services = self._make_services(access)
        self._sources = self._make_sources()
        self._sync_loop = SyncLoop(settings.sync_period, self._pods, self._sources)
        self._desired: AsyncValue[Desired] = AsyncValue(Desired())
        self._is_clearing = False
        self._registry: PodRegistry | None = None
        self._orphans = OrphanDirectories(self._services, self._require_registry)
        self._node_pods = PodsOfNode(
            self._require_registry, self._pleg, self._desired, self._statuses.pods
        )
        self._garbage = make_garbage(settings, seams, self._node_pods, self.events_recorder, access)
        guarded = GuardedPods(self._require_registry, self._pleg, self._statuses.pods)
        self._guards = make_guards(
            settings, seams, guarded, self._garbage, self.events_recorder, self.node
        )
        if seams.cluster is not None:
            seams.cluster.attach(self._cluster_parts())
        self.stats = AgentStats(settings, seams, self._pleg, self._statuses)
        self._root = self._make_tree()
        self.metrics = self._make_metrics()

    def _make_services(self, access: ImageAccess | None) -> PodServices:
        """Return what all workers share."""
        return make_services(
            self.settings,
            self._seams,
            ServiceParts(
                self._health,
                self._pleg,
                self._objects,
                self._cgroups,
                self._statuses,
                self.events_recorder,
                self.meter,
                node=self.node,
                started_at=self._started_at,
                access=access,
            ),
        )

    def _make_sources(self) -> Supervisor:
        return Supervisor(
            "sources",
            [
                *(ChildSpec(f"{s.name}:{s.origin}", s.run) for s in self._seams.sources),
                ChildSpec("merge", self._run_merge),
            ],
            policy=_TOP,
        )

    def _make_metrics(self) -> AgentMetrics:
        return AgentMetrics(
            MetricSources(
                self.settings,
                self._seams,
                self.meter,
                self._pleg,
                self.events_recorder,
                self._statuses,
                self._garbage,
                self._guards,
                self.stats,
                desired=self._desired,
                registry=lambda: self._registry,
                tree=self.tree,
                volumes=self._services.volumes,
            )
        )

    def _make_objects(self) -> ObjectStore:
        """The documents beside the manifests, and in a cluster its objects."""
        if self._seams.cluster is None:
            return self._documents
        return self._seams.cluster.objects.beside(
            self._documents,
            changed=self._on_object_change,
            retry=self._retry_pods,
            is_static=lambda uid: is_static(self._require_registry().workers[uid].pod),
        )

    def _retry_pods(self) -> None:
        if self._registry is not None:
            self._registry.wake_all()

    def _make_tree(self) -> Supervisor:
        seams = self._seams
        connection = (seams.connection,) if seams.connection is not None else ()
        cluster = seams.cluster.children() if seams.cluster is not None else ()
        upkeep, orphans = cgroup_children(
            self._cgroups,
            self._require_registry,
            self._pleg.wait_synced,
            self._services.volumes.pods_on_disk,
        )
        threads = seams.offload_for(Purpose.CERTIFICATES)
        server = node_api_children(self, seams.node_api, seams.cluster, threads)
        return Supervisor(
            "kubelet",
            [
                Supervisor("health", seams.servers(self), policy=_TOP),
                ChildSpec("events", self.events_recorder.run, policy=_TOP),
                ChildSpec("status", self._statuses.run, policy=_TOP),
                *((Supervisor("machine", seams.machine, policy=_TOP),) if seams.machine else ()),
                *cluster[:1],
                Supervisor(
                    "runtime",
                    [
                        *connection,
                        self._calls,
                        ChildSpec("health", self._health.run),
                        ChildSpec("pleg", self._pleg.run),
                        ChildSpec("pod-cidr", self._pod_cidr.run),
                    ],
                    policy=_TOP,
                ),
                *upkeep,
                self._pods,
                self._sources,
                *cluster[1:],
                Supervisor("pressure", self._guards.children(), policy=_TOP),
                Supervisor(
                    "gc",
                    [
                        *self._garbage.children(),
                        ChildSpec("pod-dirs", self._orphans.run),
                        self._services.remains.tasks,
                        *orphans,
                        *log_children(self.settings, seams, self._pleg, self.meter),
                    ],
                    policy=_TOP,
                ),
                ChildSpec("stats", self.stats.run, policy=_TOP),
                *((Supervisor("server", server, policy=_TOP),) if server else ()),
            ],
        )

    def _cluster_parts(self) -> AgentParts:
        return AgentParts(
            runtime=self._health.state,
            events=self.events_recorder,
            statuses=self._statuses,
            pleg_problem=lambda: self._pleg.healthy(trio.current_time()),
            runtime_listed=self._pleg.wait_synced,
            running=self._pod_names,
            images=self._seams.runtime.list_images,
            pod_cidr=self._pod_cidr,
            pressure=self._guards.eviction.pressure,
            guard_problem=self._guards.not_ready,
            meter=self.meter,
        )

    def _pod_names(self) -> set[PodKey]:
        workers = self._registry.workers.values() if self._registry is not None else ()
        return {pod_key(worker.pod) for worker in workers}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `stop` is called; ready when every part runs, connected or not.

        Raises:
            SocketInUseError: another agent has the root directory.
            GaveUpError: a part kept failing.
        """
        node = self.settings.node
        make_directories = partial(make_node_directories, for_plugins=not self.settings.instance)
        await self._seams.offload_for(Purpose.RECORDS)(make_directories, node)
        is_ours = False
        try:
            with root_lock(node.root_dir / LOCK_NAME):
                is_ours = True
                await self._run_locked(task_status)
        finally:
            # After the lock's file is closed, which may lie on that very mount. An agent that
            # has come meanwhile has its own lock open there: then it stays, and is its.
            if is_ours:
                with trio.move_on_after(_RELEASE_LIMIT, shield=True):
                    await self._services.volumes.release()

    async def _run_locked(self, task_status: trio.TaskStatus[None]) -> None:
        await self._services.volumes.prepare()
        self._registry = PodRegistry(
            self._services,
            self._records,
            lambda: self._pleg.known_uids,
            self._pods.start_child,
            Admitter(
                self._admission_node,
                (self._guards.under_pressure,),
                self.meter,
                (*FEATURE_CHECKS, *self.settings.admission.checks, self._guards.in_shutdown),
            ),
        )
        run = partial(self._root.run, task_status=task_status)
        await run_and_hurry(run, self._calls.hurry)

    def stop(self) -> None:
        """Ask the agent to end, last part first. Containers keep running. Never blocks."""
        self._calls.hurry()
        self._root.stop()

    async def remove_pods(self) -> None:
        """End every pod for good, by recorded decisions, and wait until they are gone.

        No pod starts from then on: what is left to do with the agent is to stop it. Before
        their supervisor runs no pod can be ended, and nothing is waited for.
        """
        if self._registry is None or self._pods.tree().state is not ChildState.RUNNING:
            return
        self._is_clearing = True
        self._apply(self._desired.value)
        await self._pods.wait_idle()

    async def wait_pod_gone(self, pod: Pod) -> None:
        """Wait until a pod that is not wanted any more has left the node."""
        await self._pods.wait_child_gone(f"{pod_key(pod)}@{pod_uid(pod)}")

    def shorten_grace(self, uid: PodUid, seconds: int) -> None:
        """Give a pod that is being ended no more than `seconds`. Never blocks."""
        worker = self._registry.workers.get(uid) if self._registry is not None else None
        if worker is not None:
            worker.request(TerminationRequest(uid, EndReason.DELETED, grace_period=seconds))

    def _require_registry(self) -> PodRegistry:
        assert self._registry is not None
        return self._registry

    async def _run_merge(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self._require_registry().resume()
        await run_merge(
            self._seams.sources,
            self._apply,
            self.events_recorder,
            on_applied=self._sync_loop.turn,
            period=self.settings.sync_period,
            task_status=task_status,
        )

    def _apply(self, desired: Desired) -> None:
        assert self._registry is not None
        self._documents.apply(desired.objects)  # before the pods that need them
        desired = with_overhead(desired)
        self._starts.wanted(desired.pods)
        if self.settings.instance:
            desired = marked(desired, self.settings.instance)
        self._desired.value = desired
        if self._is_clearing:
            # Nothing is wanted any more, whatever a source has yet to say.
            desired = replace(desired, pods={}, all_ready=True)
        self._registry.apply(desired)
        if self._seams.cluster is not None:
            self._seams.cluster.apply(desired)

    # Wires

    def _on_pod_change(self, uid: PodUid) -> None:
        if self._registry is not None:
            self._registry.wake(uid)

    def _on_object_change(self, uid: PodUid) -> None:
        if self._registry is not None:
            self._registry.objects_changed(uid)

    def _on_runtime_state(self, state: RuntimeState) -> None:
        if state.is_ready:
            self._pleg.relist_soon()
        if self._registry is not None:
            self._registry.wake_all()
        if self._seams.cluster is not None:
            self._seams.cluster.runtime_changed()

    # What the outside may see

    def node(self) -> NodeSettings:
        """Return the node as it is now: its runtime may name another cgroup driver."""
        driver = self._health.state.value.cgroup_driver
        node = self.settings.node
        return node if driver is None else replace(node, cgroup_driver=driver)

    def _admission_node(self) -> AdmissionNode:
        marks, cluster = self.settings.admission.marks, self._seams.cluster
        known = cluster.known_node() if cluster is not None else None
        if known is not None:  # others may have labelled or tainted the node's object
            marks = marks_of(known)
        settings, runtime = self.settings.admission, self._health.state.value
        return admission_node(self.node(), settings, runtime, marks)

    @property
    def pods(self) -> AsyncValue[Mapping[PodUid, Pod]]:
        return self._statuses.pods

    @property
    def pressure(self) -> AsyncValue[Pressure]:
        """What the node is short of."""
        return self._guards.eviction.pressure

    def not_ready(self) -> str | None:
        """Return why the node takes no pods for now, None if it does."""
        return self._guards.not_ready()

    @property
    def events(self) -> EventRing:
        return self.events_recorder.ring

    def tree(self) -> TreeNode:
        return self._root.tree()

    def declared(self) -> DeclaredNode:
        return self._root.declared()

    def check_functions(self) -> dict[str, Callable[[], str | None]]:
        """Return what health endpoints ask; a check returns None while it is well."""
        return check_functions(self._health.state, self._pleg, self._sync_loop)

    async def wait_delivered(self) -> None:
        """Wait until every source has delivered once and the pods are told."""
        await self._desired.wait_value(lambda desired: desired.all_ready)
        wanted = self._desired.value.pods.keys()
        await self._statuses.pods.wait_value(lambda pods: wanted <= pods.keys())

    def status(self) -> AgentStatus:
        """Return the agent in one page."""
        runtime = self._health.state.value
        return AgentStatus(
            node_name=self.settings.node.node_name,
            root_dir=str(self.settings.node.root_dir),
            started_at=self._started_at,
            runtime=RuntimeInfo(
                self.settings.runtime_endpoint, runtime.name, runtime.version, runtime.problem
            ),
            sources=tuple(source_infos(self._seams.sources, self._desired.value)),
            checks={name: check() for name, check in self.check_functions().items()},
            notes=self.settings.notes,
            remains=self._services.remains.problems(),
            events_dropped=self.events_recorder.dropped,
            ports=self.ports.infos(),
        )

    @property
    def runtime(self) -> Runtime:
        return self._seams.runtime

    def observed(self, uid: PodUid) -> RuntimePod:
        """Return what the runtime holds of a pod, as last seen."""
        return self._pleg.get(uid)

    def running_pods(self) -> Iterator[RuntimePod]:
        """Return what the runtime holds of each pod of which something runs."""
        return self._pleg.running_pods()

    @property
    def clock(self) -> WallClock:
        return self._seams.clock

    def log_path(self, uid: PodUid, container_id: ContainerId) -> Path | None:
        record = self._pleg.find(uid, container_id)
        return Path(record.log_path) if record is not None and record.log_path else None

    def is_running(self, uid: PodUid, container_id: ContainerId) -> bool:
        record = self._pleg.find(uid, container_id)
        return record is not None and record.state is ContainerState.RUNNING
