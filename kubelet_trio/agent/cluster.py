"""What an agent does at an API server, wired: imported only where there is one.

    node, its status and lease          node/registration, heartbeat, lease
    the pods bound to it                sources/apiserver
    statuses, mirrors, events           status/manager, mirrors, events/api
    secrets, config maps, tokens, ...   objects/cluster, cluster_tokens, services

Everything here may be built before there is a connection and runs without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import (
    ContainerImage,
    Node,
    NodeFeatures,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    NodeSystemInfo,
    Pod,
)

from kubelet_trio.agent.certificates import NodeCertificates
from kubelet_trio.agent.cluster_objects import PodObjects
from kubelet_trio.agent.parts import AgentParts
from kubelet_trio.cri import RuntimeCallError, RuntimeState
from kubelet_trio.events import ApiEvents
from kubelet_trio.kube import KubeApi, Reflector, ServerFeatures
from kubelet_trio.model import ObjectRef, PodKey, PodUid, WallClock, get_logger, is_static, pod_key
from kubelet_trio.node import (
    HeartbeatPeriods,
    NodeHeartbeat,
    NodeIdentity,
    NodeLease,
    NodeObject,
    NodeResources,
    NodeView,
    Pressure,
    Registration,
    RuntimeWatch,
    object_ttl,
    own_problem,
)
from kubelet_trio.objects import NO_MEMORY, ChangeDetection
from kubelet_trio.pods import DECLARED
from kubelet_trio.sources import ApiSource, Desired
from kubelet_trio.status import MirrorPods, StatusManager
from kubelet_trio.supervision import ChildSpec, Restart, RestartPolicy, Strategy, Supervisor

if TYPE_CHECKING:
    from kubelet_trio.offline import Keeper

log = get_logger()

# Seconds for which a list of images is good enough for the node's status.
_IMAGES_AGE = 30.0


_SEMANTIC = re.compile(r"v?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)")
_GENERIC = re.compile(r"\s*v?(\d+(?:\.\d+)+)")


def go_version(text: str) -> str:
    """Return a runtime's version as upstream reads it: of `1.6.20~ds1` the numbers alone."""
    found = _SEMANTIC.fullmatch(text) or _GENERIC.match(text)
    return found[1] if found is not None else text


def _handlers(runtime: RuntimeState) -> tuple[NodeRuntimeHandler, ...]:
    return tuple(
        NodeRuntimeHandler(
            name=name,
            features=NodeRuntimeHandlerFeatures(
                recursiveReadOnlyMounts=name in runtime.recursive_read_only,
                userNamespaces=name in runtime.user_namespaces,
            ),
        )
        for name in sorted(runtime.handlers)
    )


def _features(runtime: RuntimeState) -> NodeFeatures | None:
    """Return what the runtime can; None, as upstream, where it names no feature."""
    can = runtime.supplemental_groups_policy
    return NodeFeatures(supplementalGroupsPolicy=True) if can else None


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What the agent was told of its place in a cluster, in plain values."""

    identity: NodeIdentity
    resources: NodeResources
    info: Callable[[str], NodeSystemInfo]  # the machine, given what runs its containers
    host_ips: tuple[str, ...] = ()
    host: str = ""  # of the API server, for people
    periods: HeartbeatPeriods = field(default_factory=HeartbeatPeriods)
    lease_seconds: int = 40
    change_detection: ChangeDetection = ChangeDetection.WATCH
    event_qps: int = 50  # 0: no limit
    event_burst: int = 100


@dataclass(frozen=True, slots=True)
class ReviewApis:
    """Ways to the API server for what callers of the kubelet API set off.

    Each has a rate of its own: what strangers make up delays neither what the node has to say nor
    what those ask for who are known.
    """

    tokens: KubeApi
    accesses: KubeApi


class Cluster:
    """See the module. `attach` once, before its children run."""

    def __init__(
        self,
        api: KubeApi,
        settings: ClusterSettings,
        clock: WallClock,
        heartbeat: KubeApi,
        keeper: Keeper | None = None,
        certificates: NodeCertificates | None = None,
        reviews: ReviewApis | None = None,
    ) -> None:
        """Build every part.

        Args:
            api: the API server.
            settings: the node.
            clock: wall time.
            heartbeat: the API server once more, with a rate limit and connections of its own,
                so that a node with much to say is not taken for dead.
            keeper: of what is known, for a start without the API server; None: there is none.
            certificates: what the node gets and renews; None for nothing.
            reviews: the API server for TokenReviews and SubjectAccessReviews; None: `api`.
        """
        self._api = api
        self.reviews = reviews or ReviewApis(api, api)
        self._heartbeat_api = heartbeat
        self._settings = settings
        self._clock = clock
        self.certificates = certificates or NodeCertificates(clock)
        self.node = NodeObject()
        self._node_listed = trio.Event()  # what the server has of the node is known, if anything
        self._keeper = keeper
        self._features = ServerFeatures()
        self.objects = PodObjects(
            api,
            clock,
            settings.change_detection,
            keeper or NO_MEMORY,
            time_to_live=lambda: object_ttl(self.known_node()),
            features=self._features,
        )
        self._statuses = StatusManager(api, clock)
        self._events = ApiEvents(
            api, settings.identity.name, qps=settings.event_qps, burst=settings.event_burst
        )
        self.source = ApiSource(
            api,
            settings.identity.name,
            clock,
            self._observed,
            settings.host,
            self._fall_back,
            self._features,
            self._node_listed.wait,
        )
        self._watch = RuntimeWatch()
        self._address_problem: str | None = None  # as last logged
        self._images: tuple[ContainerImage, ...] | None = None
        self._images_at = -_IMAGES_AGE
        self._parts: AgentParts | None = None
        self._mirrors = MirrorPods(api, self.node.value, self._ending)
        self._heartbeat: NodeHeartbeat | None = None

    def attach(self, parts: AgentParts) -> None:
        """Meet the agent: from here on its statuses and events go to the API server too."""
        self._parts = parts
        self._heartbeat = NodeHeartbeat(
            self._heartbeat_api,
            self._settings.identity,
            self.node,
            self._observe,
            parts.events,
            self._settings.periods,
        )
        parts.events.forward = self._events.put
        parts.statuses.listener = self._statuses
        self._statuses.meter = parts.meter
        ref = ObjectRef("Node", self._settings.identity.name, uid=self._settings.identity.name)
        parts.events.emit(ref, "Normal", "Starting", "Starting kubelet.")

    def children(self) -> tuple[Supervisor, ...]:
        """Return `api`, which ends after the pods' workers, `node`, and `certificates` if any."""
        assert self._heartbeat is not None
        assert self._parts is not None
        identity, node = self._settings.identity, self.node
        registration = Registration(self._heartbeat_api, identity, node, self._observe)
        lease = NodeLease(self._heartbeat_api, node, self._clock, self._settings.lease_seconds)
        policy = RestartPolicy(limit=3)
        certificates = self.certificates.children(self._api, node.value, self._parts.meter)
        return (
            Supervisor(
                "api",
                [
                    *self._keeping(),
                    ChildSpec("events", self._events.run, stop=self._events.stop),
                    ChildSpec("status", self._statuses.run, stop=self._statuses.stop),
                    ChildSpec("mirrors", self._mirrors.run),
                    *self.objects.children(),
                ],
                policy=policy,
            ),
            Supervisor(
                "node",
                [
                    ChildSpec("watch", self._follow_node),
                    ChildSpec("register", registration.run, Restart.TRANSIENT),
                    ChildSpec("status", self._heartbeat.run),
                    ChildSpec("lease", lease.run),
                ],
                strategy=Strategy.REST_FOR_ONE,
                policy=policy,
            ),
            *((Supervisor("certificates", certificates, policy=policy),) if certificates else ()),
        )

    # What the agent tells

    def apply(self, desired: Desired) -> None:
        """Take over what is wanted: static pods get mirrors."""
        static = {pod_key(p): p for p in desired.pods.values() if is_static(p)}
        self._mirrors.want(static, is_complete=desired.all_ready)

    def runtime_changed(self) -> None:
        """The runtime came or went: the node's readiness with it."""
        self.node_changed()

    def node_changed(self) -> None:
        """What the node says of itself is another: say it now."""
        if self._heartbeat is not None:
            self._heartbeat.wake()

    async def wait_reported(self) -> None:
        """Wait until the API server has the pods' statuses as they are now."""
        await self._statuses.wait_delivered()

    # Wires

    def _keeping(self) -> tuple[ChildSpec, ...]:
        keeper = self._keeper
        return (ChildSpec("offline", keeper.run, stop=keeper.stop),) if keeper is not None else ()

    def _fall_back(self) -> tuple[Pod, ...] | None:
        return self._keeper.fall_back() if self._keeper is not None else None

    def known_node(self) -> Node | None:
        """Return the node's object, or what was last known of it where the server is silent."""
        last = self._keeper.last_node if self._keeper is not None else None
        return self.node.value.value or last

    def _ending(self) -> set[PodKey]:
        assert self._parts is not None
        return self._parts.running()

    def _observed(self, pods: Mapping[PodUid, Pod], mirrors: Mapping[PodKey, Pod]) -> None:
        self._statuses.observe(pods, mirrors)
        self._mirrors.observe(mirrors)
        if self._keeper is not None:
            self._keeper.note_pods(pods)

    async def _follow_node(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        assert self._parts is not None
        name = self._settings.identity.name
        reflector = Reflector(
            self._api, Node, field_selector=f"metadata.name={name}", features=self._features
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            nursery.start_soon(self._watch_pressure)
            nursery.start_soon(self._watch_pleg)
            task_status.started()
            while True:
                delivery = await reflector.wait_delivery()
                for node in delivery.objects.values():
                    self.node.put(node)
                    self._parts.pod_cidr.want(node)
                    if self._keeper is not None:
                        self._keeper.note_node(node)
                self._node_listed.set()

    async def _watch_pressure(self) -> None:
        assert self._parts is not None
        while self._parts.pressure is not None:
            await self._parts.pressure.wait_transition()
            if self._heartbeat is not None:
                self._heartbeat.wake()

    async def _watch_pleg(self) -> None:
        """Registered before the first relist, the node is Ready with it, not a period later."""
        assert self._parts is not None
        await self._parts.runtime_listed()
        self.node_changed()

    async def _observe(self) -> NodeView:
        """Look at the node, for its status."""
        parts, settings = self._parts, self._settings
        assert parts is not None
        runtime, now = parts.runtime.value, trio.current_time()
        not_ready = self._watch.problems(runtime, now)
        pleg = parts.pleg_problem()
        if pleg is not None:
            not_ready.append(pleg)
        guards = parts.guard_problem()
        if guards is not None:
            not_ready.append(guards)
        version = f"{runtime.name}://{go_version(runtime.version) or 'Unknown'}"
        return NodeView(
            now=self._clock.time(),
            host_ips=settings.host_ips,
            address_problem=self._check_node_ips(),
            resources=settings.resources,
            info=settings.info(version),
            not_ready=tuple(not_ready),
            pressure=parts.pressure.value if parts.pressure is not None else Pressure(),
            images=await self._list_images(parts, runtime, now),
            handlers=_handlers(runtime),
            features=_features(runtime),
            declared=DECLARED,
        )

    def _check_node_ips(self) -> str | None:
        """Return why `--node-ip` cannot be the node's now: interfaces come and go."""
        problems = (own_problem(ip) for ip in self._settings.identity.node_ips)
        problem = next((p for p in problems if p is not None), None)
        if problem is not None and problem != self._address_problem:
            log.error("node.address_refused", error=f"--node-ip: {problem}")
        self._address_problem = problem
        return problem

    async def _list_images(
        self, parts: AgentParts, runtime: RuntimeState, now: float
    ) -> tuple[ContainerImage, ...] | None:
        if not runtime.is_ready or now < self._images_at + _IMAGES_AGE:
            return self._images
        try:
            found = await parts.images()
        except RuntimeCallError as exc:
            log.info("node.images_failed", error=str(exc))
        else:
            self._images = tuple(
                ContainerImage(names=[*i.repo_digests, *i.repo_tags], sizeBytes=i.size)
                for i in found
            )
        self._images_at = now
        return self._images
