"""Resource claims in an agent: what keeps them is loaded with the first pod that has some.

A node whose pods claim nothing loads none of it: neither the manager nor its drivers' table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio
from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.agent.local_claims import LocalSource
from kubelet_trio.agent.settings import TOP_POLICY, AgentSettings, Seams
from kubelet_trio.managers import ClaimHealth
from kubelet_trio.model import PodUid, Purpose, pod_containers, pod_key, pod_uid, spec
from kubelet_trio.sources import Desired
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Restart

if TYPE_CHECKING:
    from kubelet_trio.agent.cluster import Cluster
    from kubelet_trio.agent.recording import Taps
    from kubelet_trio.managers import (
        Claim,
        ClaimDrivers,
        ClaimKey,
        ClaimSource,
        ClaimUse,
        DeviceHealths,
        DraDrivers,
        MachineHoldings,
        ResourceClaims,
        SliceCleaner,
        SliceReader,
    )
    from kubelet_trio.recorder import DriverNotes
    from kubelet_trio.stats import Sample

KnownPods = Callable[[], Collection[PodUid] | None]


class ClaimInputs(Protocol):
    """What a replay has instead of an API server's claims, drivers, and their files."""

    @property
    def slices(self) -> SliceReader:
        """The slices that drivers hand to the node."""
        ...

    def source(self, source: ClaimSource) -> ClaimSource:
        """Return where claims are, given where an agent without an API server has them."""
        ...

    def drivers(
        self, on_health: Callable[[str, str, str], None]
    ) -> tuple[ClaimDrivers, DeviceHealths]:
        """Return the drivers, and the health of their devices.

        `on_health` is called with a driver, a pool and a device whose health has changed.
        """
        ...


class NodeClaims:
    """Implements `pods.PodClaims`."""

    def __init__(
        self,
        settings: AgentSettings,
        seams: Seams,
        cluster: Cluster | None,
        wake: Callable[[PodUid], None],
        retry: Callable[[PodUid], None],
        left: Mapping[ClaimKey, Claim],
        taps: Taps | None = None,
    ) -> None:
        """Begin with the claims that an earlier agent has left.

        Args:
            settings: the agent's.
            seams: the world.
            cluster: has the claims' objects; None: a standalone node.
            wake: called with a pod whose status is to be published anew. Must not block.
            retry: called with a pod that waits for devices when there may be some. Must not block.
            left: the claims.
            taps: of the flight recorder.
        """
        self._settings = settings.managers
        self._root_dir = settings.node.root_dir
        self._seams = seams
        self._taps = taps
        self._known: KnownPods = lambda: None
        # None: an API server has the claims.
        self._local: LocalSource | None = None
        self._source: ClaimSource
        if cluster is None:
            self._source = self._local = LocalSource(
                settings.node, seams, lambda: self._known(), self._prepared, retry, taps
            )
        else:
            self._source = _make_source(cluster)
        if seams.claims is not None:
            self._source = seams.claims.source(self._source)
        self._wake = wake
        self._left = left
        self._manager: ResourceClaims | None = None
        self._drivers: DraDrivers | None = None
        self._notes: DriverNotes | None = None
        self._replayed: tuple[ClaimDrivers, DeviceHealths] | None = None
        self._slices = _make_slices(cluster, seams)
        self._loaded = trio.Event()
        self._tree = DynamicSupervisor("claims", policy=TOP_POLICY)
        if left:
            self._load()

    def tree(self, known: KnownPods) -> DynamicSupervisor:
        """Return the part of the supervision tree; `known` as `ResourceClaims` has it.

        Once the manager is loaded, its children are here.
        """
        self._known = known
        start = ChildSpec("start", partial(self._start, known), Restart.TRANSIENT)
        self._tree.start_child(start)
        if self._slices is not None:
            self._tree.start_child(ChildSpec("slices", self._slices.run))
        return self._tree

    async def _start(
        self, known: KnownPods, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await self._loaded.wait()
        for child in self._load().children(known):
            self._tree.start_child(child)
        if self._local is not None:
            self._tree.start_child(ChildSpec("local", self._local.claims.run))

    def with_names(self, desired: Desired) -> Desired:
        """Take the desired pods; return them with the claims that are made for static ones."""
        return self._local.apply(desired) if self._local is not None else desired

    def _prepared(self) -> Mapping[ClaimKey, Claim]:
        """Return the claims that drivers may have prepared."""
        return self._manager.table if self._manager is not None else self._left

    @property
    def drivers(self) -> DraDrivers:
        """The handler of plugins of drivers."""
        if self._drivers is None:
            from kubelet_trio.managers import DraDrivers

            self._notes = self._taps.drivers() if self._taps is not None else None
            self._drivers = DraDrivers(
                self._seams.meter,
                on_health=self._health_changed,
                on_change=self._driver_changed,
                watches_health=self._settings.device_health,
            )
        return self._drivers

    def _driver_changed(self, driver: str, is_usable: bool) -> None:
        if self._notes is not None:
            self._notes.changed(driver, self.drivers.registered.get(driver))
        if self._slices is not None:
            self._slices.note(driver, is_usable)

    @property
    def _found(self) -> tuple[ClaimDrivers, DeviceHealths]:
        """The drivers of claims, and what they say of their devices."""
        inputs = self._seams.claims
        if inputs is None:
            return self.drivers, self.drivers.healths
        if self._replayed is None:
            self._replayed = inputs.drivers(self._health_changed)
        return self._replayed

    @property
    def manager(self) -> ResourceClaims | None:
        """What keeps the claims; None: there have been none yet."""
        return self._manager

    def _load(self) -> ResourceClaims:
        if self._manager is None:
            from kubelet_trio.managers import CheckpointKeeper, ResourceClaims

            seams, source, (drivers, _) = self._seams, self._source, self._found
            disk, taps = seams.offload_for(Purpose.RECORDS), self._taps
            on_put = taps.checkpoint if taps is not None else lambda _file, _encode: None
            if taps is not None:
                source, drivers = taps.claim_seams(source, drivers)
            self._manager = ResourceClaims(
                self._left,
                CheckpointKeeper(self._root_dir, disk, on_put),
                source,
                drivers,
                seams.meter,
                extended=self._settings.extended_claims,
            )
            self._loaded.set()
        return self._manager

    def _health_changed(self, driver: str, pool: str, device: str) -> None:
        """Publish the statuses of the pods with a device whose health has changed."""
        if self._notes is not None:
            self._notes.health(self.drivers.healths, driver, pool, device)
        if self._manager is not None:
            for uid in sorted(self._manager.pods_with(driver, {(pool, device)})):
                self._wake(uid)

    # PodClaims

    async def prepare(self, pod: Pod) -> None:
        """Prepare what a pod claims. Raises `ClaimError`."""
        if self._uses_claims(pod):
            await self._load().prepare(pod)

    async def unprepare(self, pod: Pod) -> None:
        """Give back what a pod claims. Raises `ClaimError`."""
        if self._manager is not None:
            await self._manager.unprepare(pod_uid(pod))

    def holds(self, uid: PodUid) -> bool:
        """Whether a pod may have to give something back."""
        return self._manager is not None and self._manager.holds(uid)

    def cdi_ids(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """Return the CDI devices of a container. Raises `ClaimError`."""
        if not self._uses_claims(pod):
            return ()
        return self._load().cdi_ids(pod, container)

    def health(self, pod: Pod, container: Container) -> tuple[ClaimHealth, ...]:
        """Return the health of a container's devices."""
        if self._manager is None or not self._settings.device_health:
            return ()
        messages = self._settings.device_health_message
        return self._manager.health(pod, container, self._found[1], messages=messages)

    def _uses_claims(self, pod: Pod) -> bool:
        if spec(pod).resourceClaims:
            return True
        if not self._settings.extended_claims or pod.status is None:
            return False
        return pod.status.extendedResourceClaimStatus is not None

    # What is shown

    def uses(self, pod: Pod, container: str) -> tuple[ClaimUse, ...]:
        """Return the claims that a container of a pod uses, for the pod resources API."""
        if self._manager is None or not self._settings.show_claims:
            return ()
        from kubelet_trio.managers import claim_uses

        body = spec(pod)
        for each in (*(body.initContainers or ()), *body.containers):
            if each.name == container:
                return claim_uses(self._manager.claims_of(pod, each))
        return ()

    def shown(self, holdings: MachineHoldings, pods: Iterable[Pod]) -> MachineHoldings:
        """Return what is shown of the machine with the devices that pods have claimed."""
        if self._manager is None:
            return holdings
        from kubelet_trio.managers import ClaimedDevice, with_claims

        healths, claimed = self._found[1], {}
        for pod in pods:
            key = pod_key(pod)
            for container in pod_containers(pod):
                claimed[key.namespace, key.name, container.spec.name] = [
                    ClaimedDevice(
                        driver,
                        f"{device.pool}/{device.device}",
                        healths.health(driver, device.pool, device.device)[0] != "Unhealthy",
                    )
                    for driver, device in self._manager.devices_of(pod, container.spec)
                ]
        return with_claims(holdings, claimed)

    def samples(self) -> Iterator[Sample]:
        """Yield how many claims are prepared."""
        in_use = self._manager.in_use() if self._manager is not None else {"<any>": 0}
        for driver, count in sorted(in_use.items()):
            yield "dra_resource_claims_in_use", (driver,), count


def _make_source(cluster: Cluster) -> ClaimSource:
    from kubelet_trio.agent.cluster_claims import ClusterClaims

    return ClusterClaims(cluster.server.api)


def _make_slices(cluster: Cluster | None, seams: Seams) -> SliceCleaner | None:
    """Return what removes the slices of drivers that are gone; None without an API server."""
    if cluster is None or seams.plugin_watcher is None:
        return None
    from kubelet_trio.managers import ApiSlices, SliceCleaner

    server = cluster.server
    return SliceCleaner(ApiSlices(server.api, server.settings.identity.name))
