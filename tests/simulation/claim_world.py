"""A node with DRA drivers and an API server, whose pods use claims.

The control plane of claims acts after each change, unless it is told to rest. A witness holds every
sandbox, every container and every call of a driver against what the API server has said so far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from kubelet_trio.agent import ApiServer, ClusterSettings, Seams
from kubelet_trio.cri import v1
from kubelet_trio.kube import ROUTES, NotFoundError
from kubelet_trio.managers.claims import load_claims
from kubelet_trio.managers.claims.checkpoint import CHECKPOINT
from kubelet_trio.managers.claims.state import ClaimTable
from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.node import NodeIdentity, NodeResources
from kubelet_trio.sources import FileSource
from kubelet_trio.testing import FakeKube
from kubelet_trio.testing.kube.server import DeleteOptions
from tests.harness.claim_controller import ClaimControllers, is_ended
from tests.harness.pods import Json
from tests.node.make import AMOUNTS, INFO
from tests.simulation.claim_drivers import DraNode
from tests.simulation.claim_needs import (
    SHARED,
    ClaimNeed,
    driver_slice,
    shared_claim,
    standing_objects,
)
from tests.simulation.claim_witness import ClaimWitness
from tests.simulation.stepper import Stepper
from tests.simulation.world import NODE, WitnessRuntime, World

P = ParamSpec("P")
T = TypeVar("T")
NAMESPACE = "default"


class ClaimRuntime(WitnessRuntime):
    """A runtime that tells what starts, at the moment when it does."""

    on_sandbox: Callable[[PodUid], None]
    on_container: Callable[[PodUid, v1.ContainerConfig], None]

    async def run_pod_sandbox(
        self, config: v1.PodSandboxConfig, runtime_handler: str = ""
    ) -> SandboxId:
        assert config.metadata is not None
        self.on_sandbox(PodUid(config.metadata.uid))
        return await super().run_pod_sandbox(config, runtime_handler)

    async def create_container(
        self,
        sandbox_id: SandboxId,
        config: v1.ContainerConfig,
        sandbox_config: v1.PodSandboxConfig,
    ) -> ContainerId:
        assert sandbox_config.metadata is not None
        self.on_container(PodUid(sandbox_config.metadata.uid), config)
        return await super().create_container(sandbox_id, config, sandbox_config)


class ClaimWorld(World):
    """The node, and its API server."""

    def __init__(self, run: Stepper, *, plain: bool = True) -> None:
        self.drivers: DraNode | None = None
        super().__init__(run, ClaimRuntime)
        assert isinstance(self.runtime, ClaimRuntime)
        self.kube = FakeKube(clock=self.clock)
        self.server, self.store = self.kube.server, self.kube.server.store
        self.controllers = ClaimControllers(self.kube, NODE)
        self.is_disk_full = False
        self.pods_seen: dict[PodUid, Json] = {}
        # Of a pod, the claims that have ever been reserved for it: their UIDs by name.
        self._reserved: dict[PodUid, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        root = self.node.root_dir
        self.drivers = DraNode(run, root, self.store, plain=plain)
        self.witness = ClaimWitness(self.drivers.rules, self.runtime.alive)
        self.drivers.begin(self.witness)
        self.runtime.on_sandbox = self._sandbox_starts
        self.runtime.on_container = self._container_is_created
        admin = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
        self.server.patch(ROUTES["Namespace"], NAMESPACE, admin)
        for kind, body in standing_objects():
            self._create(kind, body)
        for name in self.drivers.rules:
            self.drivers.start(name)
        run.call(run.nursery.start_soon, self._run_control_plane)
        run.settle()
        self._tasks_without_agent = self.tasks()

    # The agent

    def seams(self, files: FileSource) -> Seams:
        assert self.drivers is not None
        api = self.kube.node(NODE)
        settings = ClusterSettings(
            NodeIdentity(NODE), NodeResources(AMOUNTS, AMOUNTS), lambda _: INFO, ("192.0.2.1",)
        )
        return replace(
            super().seams(files),
            cluster=ApiServer(api, settings, api, None),
            plugin_watcher=self.drivers.make_watcher,
        )

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.is_disk_full and any(isinstance(a, dict) and CHECKPOINT in a for a in args):
            raise OSError(28, "No space left on device")
        return await super().offload(fn, *args, **kwargs)

    def kill(self) -> None:
        """Kill the agent: what was on disk at that moment is all that is left."""
        if self.agent is None:
            return
        path = self.node.root_dir / CHECKPOINT
        left = path.read_bytes() if path.exists() else None
        self.run.call(self._end_at_once)
        super().kill()
        path.unlink(missing_ok=True)
        if left is not None:
            path.write_bytes(left)
        self.witness.agent_ended()

    def _end_at_once(self) -> None:
        assert self.drivers is not None
        self._life.cancel()
        self.drivers.cut()  # the kernel closes what the process had

    def tasks(self) -> int:
        return super().tasks() - (self.drivers.tasks() if self.drivers is not None else 0)

    @property
    def table(self) -> ClaimTable:
        """What the agent knows of claims."""
        claims = self.agent.parts.supplies.claims if self.agent is not None else None
        return claims.manager.table if claims is not None and claims.manager is not None else {}

    def kept(self) -> ClaimTable:
        """What its checkpoint says."""
        return load_claims(self.node.root_dir) or {}

    # The API server

    def create(self, name: str, need: ClaimNeed, *, anew: bool = False) -> None:
        """Create a pod and its claims, unless there is a pod of the name.

        `anew` replaces claims of the names that an earlier pod has left.
        """
        if self.store.get("Pod", NAMESPACE, name) is None:
            self.run.call(self._create_pod, name, need, anew)

    def _create_pod(self, name: str, need: ClaimNeed, anew: bool) -> None:
        for body in need.own(name):
            self._create_claim(body, anew=anew)
        for shared in set(SHARED) & set(need.kinds):
            self._create_claim(shared_claim(shared), anew=False)
        self._create("Pod", need.manifest(name, NODE))

    def _create_claim(self, body: Json, *, anew: bool) -> None:
        name = body["metadata"]["name"]
        found = self.store.get("ResourceClaim", NAMESPACE, name)
        if found is not None and (anew or request_names(found) != request_names(body)):
            self.server.delete(ROUTES["ResourceClaim"], name, NAMESPACE)
            self._act()
        if self.store.get("ResourceClaim", NAMESPACE, name) is None:
            self._create("ResourceClaim", body)

    def delete(self, name: str, grace_period: int | None = None) -> None:
        if self.store.get("Pod", NAMESPACE, name) is not None:
            options = DeleteOptions(grace_period)
            self.run.call(self.server.delete, ROUTES["Pod"], name, NAMESPACE, options)

    def claims(self) -> list[str]:
        return [claim["metadata"]["name"] for claim in self.store.all("ResourceClaim", NAMESPACE)]

    def let_schedule(self, *, allocates: bool, reserves: bool) -> None:
        """Say what the scheduler does from now on."""

        def change() -> None:
            self.controllers.allocates, self.controllers.reserves = allocates, reserves
            self._act()

        self.run.call(change)

    def drop_reservations(self, claim: str) -> None:
        """Take all pods off a claim."""
        self.run.call(self._put_status, claim, lambda was: {**was, "reservedFor": []})

    def delete_claim(self, name: str) -> None:
        """Delete a claim, which goes once no pod uses it."""
        self.run.call(self.server.delete, ROUTES["ResourceClaim"], name, NAMESPACE)

    def drop_claim(self, name: str) -> None:
        """Remove a claim, whoever uses it."""

        def drop() -> None:
            claim = self.server.delete(ROUTES["ResourceClaim"], name, NAMESPACE)
            meta = {**claim["metadata"], "finalizers": []}
            try:
                self.server.update(ROUTES["ResourceClaim"], {**claim, "metadata": meta})
            except NotFoundError:
                return  # it had no finalizer

        self.run.call(drop)

    def _put_status(self, name: str, change: Callable[[Json], Json]) -> None:
        claim = self.store.get("ResourceClaim", NAMESPACE, name)
        if claim is not None and claim.get("status"):
            body = {**claim, "status": change(claim["status"])}
            self.server.update(ROUTES["ResourceClaim"], body, subresource="status")

    def _create(self, kind: str, body: Json) -> None:
        self.server.create(ROUTES[kind], body, NAMESPACE if ROUTES[kind].namespaced else "")

    async def _run_control_plane(self) -> None:
        while True:
            changed, before = self.store.changed, self.store.version
            self._act()
            if self.store.version == before:
                await changed.wait()

    def _act(self) -> None:
        self._publish_slices()
        self.controllers.step()
        self._look()

    def _publish_slices(self) -> None:
        """Publish the devices of drivers that run, again if somebody has removed them."""
        assert self.drivers is not None
        for driver in self.drivers.running():
            body = driver_slice(driver.name, NODE)
            if self.store.get("ResourceSlice", "", body["metadata"]["name"]) is None:
                self._create("ResourceSlice", body)

    def _look(self) -> None:
        """Keep what claims and pods have been."""
        for pod in self.store.all("Pod", NAMESPACE):
            self.pods_seen[pod["metadata"]["uid"]] = pod
        for claim in self.store.all("ResourceClaim", NAMESPACE):
            name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
            status = claim.get("status") or {}
            if allocation := status.get("allocation"):
                drivers = {result["driver"] for result in allocation["devices"]["results"]}
                self.witness.drivers_of[uid] = frozenset(drivers)
            for consumer in status.get("reservedFor") or ():
                known = self._reserved[consumer["uid"]][name]
                if uid not in known:
                    known.append(uid)

    # What starts

    def _sandbox_starts(self, uid: PodUid) -> None:
        pod = self.pods_seen[uid]
        names = {name for _, name in claim_names(pod)}
        candidates = {name: list(self._reserved[uid][name]) for name in sorted(names)}
        self.witness.sandbox_starts(uid, candidates)

    def _container_is_created(self, uid: PodUid, config: v1.ContainerConfig) -> None:
        assert config.metadata is not None
        name = config.metadata.name
        got = [device.name for device in config.CDI_devices]
        asked = asked_by(self.pods_seen[uid], name)
        self.witness.container_is_created(uid, name, asked, got)

    def is_served(self, pod: Json) -> bool:
        """Whether a pod on the node may have all that it claims."""
        names = [name for _, name in claim_names(pod)]
        return (
            pod["spec"].get("nodeName") == NODE
            and len(names) >= len(pod["spec"].get("resourceClaims") or ())
            and all(self._is_free_for(pod["metadata"]["uid"], name) for name in names)
        )

    def _is_free_for(self, uid: PodUid, name: str) -> bool:
        """Whether a claim is reserved for a pod, and no pod runs with an older one of its name."""
        claim = self.store.get("ResourceClaim", NAMESPACE, name)
        reserved = ((claim or {}).get("status") or {}).get("reservedFor") or ()
        if claim is None or all(consumer["uid"] != uid for consumer in reserved):
            return False
        used = (self.witness.uses[each.uid] for each in self.runtime.alive())
        return all(uids.get(name) in (None, claim["metadata"]["uid"]) for uids in used)

    def living(self) -> dict[PodUid, Json]:
        """Return the pods that have not ended."""
        pods = self.store.all("Pod", NAMESPACE)
        return {pod["metadata"]["uid"]: pod for pod in pods if not is_ended(pod)}


def claim_names(pod: Json) -> Iterator[tuple[str, str]]:
    """Yield the claims of a pod that exist by its status: its own name for each, and theirs."""
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in pod["status"].get("resourceClaimStatuses") or ()
    }
    for each in pod["spec"].get("resourceClaims") or ():
        if name := each.get("resourceClaimName") or made.get(each["name"]):
            yield each["name"], name
    if extended := pod["status"].get("extendedResourceClaimStatus"):
        yield "", extended["resourceClaimName"]


def request_names(claim: Json) -> list[str]:
    return [request["name"] for request in claim["spec"]["devices"]["requests"]]


def asked_by(pod: Json, container: str) -> Iterator[tuple[str, str]]:
    """Yield the claims and requests ("": all of them) that a container names."""
    names = dict(claim_names(pod))
    for each in pod["spec"]["containers"]:
        if each["name"] == container:
            for asked in (each.get("resources") or {}).get("claims") or ():
                yield names.get(asked["name"], ""), asked.get("request", "")
    extended: dict[str, Any] = pod["status"].get("extendedResourceClaimStatus") or {}
    for mapping in extended.get("requestMappings") or ():
        if mapping["containerName"] == container:
            yield extended["resourceClaimName"], mapping["requestName"]
