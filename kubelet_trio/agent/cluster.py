"""The agent's rooms for an API server: imported only if there is one.

    node, its status and lease          node/registration, heartbeat, observer, follower, lease
    the pods bound to it                sources/apiserver
    statuses, mirrors, events           status/manager, mirrors, events/api
    secrets, config maps, tokens, ...   objects/cluster, cluster_tokens, services
    attached volumes, CSINode           objects/attachments, node/volumes_in_use, csi_node

All of it may be built before there is a connection, and runs without one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio
from lightkube.models.core_v1 import Node, NodeStatus, NodeSystemInfo, Pod
from trio_util import AsyncValue

from kubelet_trio.agent.changes import PodListener
from kubelet_trio.agent.cluster_volumes import make_cluster_volumes
from kubelet_trio.agent.device_plugins import with_devices
from kubelet_trio.agent.fresh_node import FreshNode
from kubelet_trio.agent.settings import TOP_POLICY
from kubelet_trio.cri import RuntimeState, v1
from kubelet_trio.events import ApiEvents, EventRecorder
from kubelet_trio.kube import KubeApi, ServerFeatures
from kubelet_trio.model import (
    Bell,
    EventSink,
    Meter,
    ObjectRef,
    PodKey,
    PodUid,
    WallClock,
    is_static,
    pod_key,
)
from kubelet_trio.node import (
    ClientCertificate,
    CsiLimits,
    DriverFacts,
    HeartbeatPeriods,
    NodeFollower,
    NodeHeartbeat,
    NodeIdentity,
    NodeLease,
    NodeObject,
    NodeObserver,
    NodeResources,
    NodeStartup,
    PodCidr,
    Pressure,
    Registration,
    ServingCertificate,
    ServingFiles,
    object_ttl,
)
from kubelet_trio.objects import (
    NO_MEMORY,
    ChangeDetection,
    ClusterAccounts,
    ClusterObjects,
    ClusterServices,
    ClusterTokens,
    LocalObjects,
    NodeObjects,
    NoPodCertificates,
    NoTrustBundles,
    PodCertificates,
    TrustBundles,
)
from kubelet_trio.pleg import Pleg
from kubelet_trio.pods import ClusterServiceVariables, PodWorker, declared_features
from kubelet_trio.sources import ApiSource, Desired
from kubelet_trio.status import MirrorPods, StatusManager
from kubelet_trio.supervision import (
    ChildSpec,
    DynamicSupervisor,
    Restart,
    RestartPolicy,
    Strategy,
    Supervisor,
)
from kubelet_trio.volumes import Issuers

if TYPE_CHECKING:
    from kubelet_trio.managers import DeviceManagers
    from kubelet_trio.objects import ClusterPodCertificates
    from kubelet_trio.offline import Keeper

# As the Go kubelet, an agent ends whose API server keeps refusing the CSINode: one series of tries
# takes more than two minutes, and the second failure within ten ends the process.
_CSI_NODE_POLICY = RestartPolicy(limit=1, within=600.0)
D = TypeVar("D", bound=DriverFacts)
_LAST_CHANCE = RestartPolicy(limit=0)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of a node of a cluster, in plain values."""

    identity: NodeIdentity
    resources: NodeResources
    info: Callable[[str], NodeSystemInfo]  # describes the machine, given the runtime's version
    host_ips: tuple[str, ...] = ()
    host: str = ""  # the API server's name for messages
    periods: HeartbeatPeriods = field(default_factory=HeartbeatPeriods)
    lease_seconds: int = 40
    change_detection: ChangeDetection = ChangeDetection.WATCH
    event_qps: int = 50  # 0: no limit
    event_burst: int = 100
    trust_bundles: bool = False  # the gate ClusterTrustBundleProjection
    pod_certificates: bool = False  # the gate PodCertificateRequest


@dataclass(frozen=True, slots=True)
class ReviewApis:
    """Clients of the API server for the reviews that callers of the kubelet API cause.

    Each has a rate limit of its own: made-up tokens of unknown clients delay neither the node's own
    requests nor the reviews for known clients.
    """

    tokens: KubeApi
    accesses: KubeApi


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The seam to an API server.

    Attributes:
        api: its client.
        settings: the node's.
        heartbeat: a second client, with connections and a rate limit of its own, so that the
            control plane does not take a node with many requests for dead.
        keeper: keeps the last known state, for a start without the API server; None: none is kept.
        client: gets and renews the node's client certificate; None: it has no such task.
        serving: where the certificate of the kubelet API is kept; None: it is not renewed.
        reviews: the clients for TokenReviews and SubjectAccessReviews; None: `api`.
        has_pods: whether the agent runs the pods that it binds to the node.
    """

    api: KubeApi
    settings: ClusterSettings
    heartbeat: KubeApi
    keeper: Keeper | None = None
    client: ClientCertificate | None = None
    serving: ServingFiles | None = None
    reviews: ReviewApis | None = None
    has_pods: bool = True


class Cluster:
    """The clients of the API server's objects, pods, statuses and events.

    It is built before the other rooms: the event recorder and the status store report to it.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: WallClock,
        meter: Meter,
        changes: PodListener,
        workers: Mapping[PodUid, PodWorker],
    ) -> None:
        """Args:
        server: the API server.
        clock: wall time.
        meter: of statuses and certificates.
        changes: gets changed objects and services.
        workers: the pod workers.
        """
        api, settings, memory = server.api, server.settings, server.keeper or NO_MEMORY
        self.server = server
        self.reviews = server.reviews or ReviewApis(api, api)
        self.node = NodeObject()
        self._node_listed = trio.Event()
        self._startup = NodeStartup(meter, clock)
        self.node_changed = Bell()  # rung when the node's status has to be reported at once
        self._features = ServerFeatures()
        self._workers = workers
        self._clock = clock
        self.tokens = ClusterTokens(api, clock, memory)
        self.accounts = ClusterAccounts(api, self.tokens)
        self._objects = ClusterObjects(
            api,
            changes.objects_changed,
            strategy=settings.change_detection,
            # The TTL controller changes it with the size of the cluster.
            time_to_live=lambda: object_ttl(self.known_node()),
            memory=memory,
        )
        self._services = ClusterServices(api, changes.wake_all, memory, self._features)
        self.service_variables = ClusterServiceVariables(self._services)
        self.statuses = StatusManager(api, clock, meter)
        identity, name = settings.identity, settings.identity.name
        self.events = ApiEvents(api, name, qps=settings.event_qps, burst=settings.event_burst)
        # A mirror pod stays while its static pod terminates: the worker still uses the name.
        self._mirrors = MirrorPods(api, self.node.value, self._present)
        self.source = ApiSource(
            api,
            name,
            clock,
            self._observe_pods,
            settings.host,
            self._fall_back,
            self._features,
            # Admission needs the node's labels and taints (NewSourceApiserver, pkg/kubelet/config).
            self._node_listed.wait,
            FreshNode(api, name, self.node).meet,
        )
        self._changed = changes.objects_changed
        self._projections = DynamicSupervisor("projections", policy=RestartPolicy(limit=3))
        self._bundles = self._make_bundles()
        self._pod_certificates: ClusterPodCertificates | None = None
        self._certificates = self._make_certificates(meter)
        self.volumes = make_cluster_volumes(api, identity, self.node, self.node_changed, memory)

    def _make_certificates(
        self, meter: Meter
    ) -> tuple[ClientCertificate | ServingCertificate, ...]:
        """Return what renews the node's own certificates."""
        server, name = self.server, self.server.settings.identity.name
        found: list[ClientCertificate | ServingCertificate] = []
        if server.client is not None:
            found.append(server.client)
        if server.serving is not None:
            found.append(
                ServingCertificate(
                    server.serving, name, self._clock, server.api, self.node.value, meter
                )
            )
        return tuple(found)

    def make_issuers(self, events: EventSink) -> Issuers:
        """Return the issuers of projected volumes; `events` tell of certificates refused."""
        return Issuers(self.tokens, self._bundles, self._make_pod_certificates(events))

    def _make_bundles(self) -> TrustBundles:
        if not self.server.settings.trust_bundles:
            return NoTrustBundles(_gate("ClusterTrustBundleProjection"))
        # Here, as below: few nodes have these gates.
        from kubelet_trio.objects import ClusterTrustBundles

        return ClusterTrustBundles(
            self.server.api, self._projections, self._changed, self._features
        )

    def _make_pod_certificates(self, events: EventSink) -> PodCertificates:
        settings = self.server.settings
        if not settings.pod_certificates:
            return NoPodCertificates(_gate("PodCertificateRequest"))
        from kubelet_trio.objects import ClusterPodCertificates

        self._pod_certificates = ClusterPodCertificates(
            self.server.api,
            self._projections,
            settings.identity.name,
            self.known_node,
            self._clock,
            events,
            self._changed,
            features=self._features,
        )
        return self._pod_certificates

    def pod_certificate_states(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield a gauge for each signer and state of pods' certificates."""
        if self._pod_certificates is not None:
            for labels, count in sorted(self._pod_certificates.states().items()):
                yield "kubelet_podcertificate_states", labels, count

    def objects(self, documents: LocalObjects) -> NodeObjects:
        """Return the objects of all pods; `documents` serve the static ones."""
        return NodeObjects(documents, self._objects, lambda uid: is_static(self._workers[uid].pod))

    def known_node(self) -> Node | None:
        """Return the node's object, or the last known one while the API server is unreachable."""
        keeper = self.server.keeper
        return self.node.value.value or (keeper.last_node if keeper is not None else None)

    def want_mirrors(self, desired: Desired) -> None:
        """Set the static pods that need a mirror pod."""
        static = {pod_key(p): p for p in desired.pods.values() if is_static(p)}
        # The mirror of a pod that is kept shows later what its manifest was.
        self._mirrors.want(static, is_complete=desired.all_ready and not desired.kept)

    @property
    def mirror_count(self) -> int:
        """How many mirror pods of this node the API server has."""
        return self._mirrors.count

    async def wait_reported(self) -> None:
        """Wait until the API server has the pods' current statuses."""
        await self.statuses.wait_delivered()

    def certificate_ttls(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield a gauge for each certificate: the seconds until it expires."""
        for certificate in self._certificates:
            yield from certificate.ttls()

    def _fall_back(self) -> tuple[Pod, ...] | None:
        """Use what is on disk from now on; return its pods, None if there is none."""
        keeper = self.server.keeper
        pods = keeper.fall_back() if keeper is not None else None
        if keeper is not None and pods is not None:
            node = keeper.last_node
            status = (node.status if node is not None else None) or NodeStatus()
            # The API server has them: only this node writes the list.
            self.volumes.in_use.note_reported(status.volumesInUse or ())
        return pods

    def _present(self) -> dict[PodKey, list[PodUid]]:
        found: dict[PodKey, list[PodUid]] = {}
        for uid, worker in self._workers.items():
            found.setdefault(pod_key(worker.pod), []).append(uid)
        return found

    def _observe_pods(self, pods: Mapping[PodUid, Pod], mirrors: Mapping[PodKey, Pod]) -> None:
        self.statuses.observe(pods, mirrors)
        self._mirrors.observe(mirrors)
        if self.server.keeper is not None:
            self.server.keeper.note_pods(pods)

    def api_children(self) -> Supervisor:
        """Return `api`: the clients of the API server. It ends after the pods' workers."""
        keeper = self.server.keeper
        keeping = (ChildSpec("offline", keeper.run, stop=keeper.stop),) if keeper else ()
        return Supervisor(
            "api",
            [
                # First, so that it ends last: it stores what the others receive until their end.
                *keeping,
                ChildSpec("events", self.events.run, stop=self.events.stop),
                ChildSpec("status", self.statuses.run, stop=self.statuses.stop),
                ChildSpec("mirrors", self._mirrors.run),
                ChildSpec("services", self._services.run),
                self._objects.tree,
                *((self._projections,) if self._has_projections() else ()),
            ],
            policy=TOP_POLICY,
        )

    def _has_projections(self) -> bool:
        settings = self.server.settings
        return settings.trust_bundles or settings.pod_certificates

    def certificate_children(self) -> tuple[Supervisor, ...]:
        """Return `certificates`; empty if there are none to request or renew."""
        children = [child for each in self._certificates for child in each.children()]
        return (Supervisor("certificates", children, policy=TOP_POLICY),) if children else ()

    def observer(
        self,
        runtime: AsyncValue[RuntimeState],
        pressure: AsyncValue[Pressure],
        problems: Sequence[Callable[[], str | None]],
        list_images: Callable[[], Awaitable[list[v1.Image]]],
        devices: DeviceManagers | None,
    ) -> NodeObserver:
        """Return what observes the node for its status.

        Args:
            runtime: the runtime's last observed state.
            pressure: the node's shortages.
            problems: further reasons for which the node is not ready.
            list_images: lists the images on the node.
            devices: those of device plugins; None: the node has none.
        """
        settings = self.server.settings
        return NodeObserver(
            settings.identity,
            with_devices(settings.resources, devices),
            settings.info,
            settings.host_ips,
            declared_features(settings.identity.gates_off),
            self._clock,
            runtime,
            pressure,
            problems,
            list_images,
            self.volumes.in_use.listed,
        )

    def node_children(
        self,
        observer: NodeObserver,
        events: EventRecorder,
        pleg: Pleg,
        pod_cidr: PodCidr,
        *,
        reset_extended: bool,
    ) -> Supervisor:
        """Return `node`: the node's own object, its status and its lease.

        `reset_extended`: the extended resources of an existing object are set to 0 first.
        """
        server, settings, node = self.server, self.server.settings, self.node
        api, identity = server.heartbeat, settings.identity
        keeper = server.keeper

        def on_node(value: Node) -> None:
            pod_cidr.want(value)
            if keeper is not None:
                keeper.note_node(value)

        follower = NodeFollower(
            server.api,
            identity.name,
            self._features,
            node,
            on_node,
            self._node_listed,
            observer.pressure,
            pleg.wait_synced,
            self.node_changed,
        )
        registration = Registration(
            *(api, identity, node, observer.observe, events),
            reset_extended=reset_extended,
            startup=self._startup,
        )
        heartbeat = NodeHeartbeat(
            *(api, identity, node, observer.observe, events, settings.periods),
            wake=self.node_changed,
            on_volumes=self.volumes.in_use.note_reported,
            startup=self._startup,
        )
        lease = NodeLease(api, node, self._clock, settings.lease_seconds)
        return Supervisor(
            "node",
            [
                ChildSpec("watch", follower.run),
                # TRANSIENT: it ends once the node is registered.
                ChildSpec("register", registration.run, Restart.TRANSIENT),
                ChildSpec("status", heartbeat.run),
                ChildSpec("lease", lease.run),
            ],
            # Each child needs the ones before it: watch, registration, status.
            strategy=Strategy.REST_FOR_ONE,
            policy=TOP_POLICY,
        )

    def csi_children(
        self,
        drivers: AsyncValue[Mapping[str, D]],
        refresh: Callable[[str], Awaitable[None]],
    ) -> Supervisor:
        """Return `csi-node`: what the API server knows of the node's CSI drivers.

        It ends before the drivers do: those of an agent that ends stay registered.

        Args:
            drivers: the registered drivers by name.
            refresh: asks one for its facts again; it logs a failure, and raises none.
        """
        limits = CsiLimits(self.server.api, self._features)
        return Supervisor(
            "csi-node",
            [
                ChildSpec(
                    "object", partial(self.volumes.csi_node.run, drivers), policy=_CSI_NODE_POLICY
                ),
                ChildSpec("limits", partial(limits.run, drivers, refresh)),
            ],
            policy=_LAST_CHANCE,
        )

    def report_start(self, events: EventRecorder) -> None:
        """Emit the event that the kubelet starts, as upstream does."""
        # The UID is the name, as in the Go kubelet's events: `kubectl describe` looks for both.
        name = self.server.settings.identity.name
        events.emit(ObjectRef("Node", name, uid=name), "Normal", "Starting", "Starting kubelet.")


def _gate(name: str) -> str:
    return f"this needs the feature gate {name}, which is off"
