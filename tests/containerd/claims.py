"""A node with DRA drivers, a scheduler and a controller of claims, on a real runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from kubelet_trio.kube import ROUTES, to_json
from kubelet_trio.server.sockets import open_unix
from kubelet_trio.testing.dra import (
    AskedClaim,
    DraRules,
    FakeClaimDevice,
    FakeDraDriver,
    resource_slice,
)
from tests.harness import Containerd, CriClient, Json, container, forever, live_containers, pod
from tests.harness.api_node import NAMESPACE
from tests.harness.claim_controller import ClaimControllers
from tests.harness.dra_services import OURS, DraTransport, run_dra_driver
from tests.harness.pods import NODE
from tests.harness.process_node import ProcessNode

T = TypeVar("T")
GRANTED = "FAKE_CLAIM_DEVICES"  # the variable in which the fake driver names a claim's devices
DEVICE_NODE = "/dev/claimed"
MISSING = "test -e /dev/claimed || echo missing"


class DriverLife:
    """An instance of a driver, from its start to its end; the test's thread has this."""

    def __init__(self, node: ClaimNode, driver: FakeDraDriver, transport: DraTransport) -> None:
        self._node, self.driver, self._transport = node, driver, transport
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._publish)
                await nursery.start(
                    run_dra_driver, self.driver, self._node.agent.root, self._transport
                )
                task_status.started()
        self._ended.set()

    async def _publish(self) -> None:
        """Publish the driver's slice whenever there is none, as drivers' libraries do."""
        server = self._node.kube.server
        body = to_json(resource_slice(self.driver, NODE))
        while True:
            changed = server.store.changed
            if server.store.get("ResourceSlice", "", body["metadata"]["name"]) is None:
                server.create(ROUTES["ResourceSlice"], body)
            await changed.wait()

    async def end(self) -> None:
        assert self._scope is not None
        self._scope.cancel()
        await self._ended.wait()


class ClaimNode(ProcessNode):
    """A `ProcessNode` whose pods may have claims.

    Its agent reaches the runtime through a socket of the test's, where what it sends is read: a
    containerd without CDI drops the names of CDI devices.
    """

    def __init__(self, base: Path, containerd: Containerd) -> None:
        self._sent = bytearray()  # to the runtime, HTTP/2 and all
        endpoint = {"containerRuntimeEndpoint": f"unix://{base / 'cri.sock'}"}
        super().__init__(base, containerd, endpoint)
        self.controllers = ClaimControllers(self.kube, NODE)
        trio.from_thread.run_sync(
            self._nursery.start_soon, self.controllers.run, trio_token=self._token
        )

    async def _open(self) -> None:
        await super()._open()
        listener = open_unix(self.base / "cri.sock")
        self._nursery.start_soon(trio.serve_listeners, self._forward, [listener])

    async def _forward(self, agent: trio.abc.Stream) -> None:
        """Carry one connection of the agent's to the runtime."""
        try:
            async with agent, await trio.open_unix_socket(self.containerd.socket) as runtime:
                async with trio.open_nursery() as nursery:
                    stop = nursery.cancel_scope
                    nursery.start_soon(_pump, runtime, agent, bytearray(), stop)
                    await _pump(agent, runtime, self._sent, stop)
        except* trio.BrokenResourceError:
            pass  # the agent was killed

    def has_sent(self, text: str) -> bool:
        """Whether the agent has sent a text to the runtime; gRPC leaves texts as they are."""
        return self._ask(lambda: text.encode() in self._sent)

    # Drivers

    def start_driver(
        self,
        name: str,
        devices: Sequence[str] = ("a", "b"),
        *,
        rules: DraRules | None = None,
        instance: str = "",
        transport: DraTransport = OURS,
    ) -> DriverLife:
        """Start an instance of a driver, and return when its sockets are there."""
        driver = FakeDraDriver(
            name,
            devices,
            rules,
            instance=instance,
            pool=NODE,
            choose=partial(self._granted, name),
            cdi_dir=self.containerd.cdi_dir,
            nodes={DEVICE_NODE: "/dev/null"},
        )
        life = DriverLife(self, driver, transport)
        trio.from_thread.run(self._nursery.start, life.live, trio_token=self._token)
        return life

    def end_driver(self, life: DriverLife) -> None:
        trio.from_thread.run(life.end, trio_token=self._token)

    @contextmanager
    def driver(self, name: str, *devices: str, **more: Any) -> Iterator[DriverLife]:
        """Run a driver for the length of a block; it must not have been misused."""
        life = self.start_driver(name, devices or ("a", "b"), **more)
        try:
            yield life
            self.ask(life.driver.rules.check)
        finally:
            self.end_driver(life)

    def _granted(self, driver: str, claim: AskedClaim) -> Sequence[FakeClaimDevice]:
        """Return the devices of a claim, by its status as a real driver does."""
        found = self.kube.server.get(ROUTES["ResourceClaim"], claim.namespace, claim.name)
        results = found["status"]["allocation"]["devices"]["results"]
        return [
            FakeClaimDevice(one["device"], one["pool"], (one["request"].partition("/")[0],))
            for one in results
            if one["driver"] == driver
        ]

    def prepared(self, life: DriverLife) -> list[str]:
        """Return the names of the claims that a driver has prepared."""
        return self.ask(lambda: sorted(c.name for c in life.driver.rules.prepared.values()))

    def count(self, life: DriverLife, method: str) -> int:
        """Return how many calls of a method a driver had, in all of its instances."""
        return self.ask(partial(life.driver.rules.count, method))

    def registrations(self, life: DriverLife) -> int:
        """Return how often the agent has taken an instance's registration."""
        return self.ask(lambda: life.driver.registrations.count(""))

    def wait_registered(self, life: DriverLife, times: int = 1) -> None:
        self.poll(lambda: self.registrations(life) >= times, what="the driver is registered")

    # Objects

    def ask(self, call: Callable[[], T]) -> T:
        """Call something in the thread of the API server and of the drivers."""
        return self._ask(call)

    def poll(self, check: Callable[[], object], within: float = 60, what: str = "") -> None:
        self._poll(check, within, what)

    def add(self, kind: str, body: Json) -> None:
        namespace = NAMESPACE if ROUTES[kind].namespaced else ""
        self._ask(self.kube.server.create, ROUTES[kind], body, namespace)

    def remove(self, kind: str, name: str) -> None:
        namespace = NAMESPACE if ROUTES[kind].namespaced else ""
        self._ask(self.kube.server.delete, ROUTES[kind], name, namespace)

    def names(self, kind: str) -> list[str]:
        """Return the names of all objects of a kind."""
        return [one["metadata"]["name"] for one in self._ask(self.kube.server.store.all, kind)]

    def begin_delete(self, pod_name: str) -> None:
        """Delete a pod gracefully, without waiting for its end."""
        self._ask(self.kube.server.delete, ROUTES["Pod"], pod_name, NAMESPACE)

    def uid(self, name: str) -> str:
        """Return the UID of a claim."""
        found = self._ask(self.kube.server.get, ROUTES["ResourceClaim"], NAMESPACE, name)
        uid: str = found["metadata"]["uid"]
        return uid

    def allocation(self, name: str) -> list[Json]:
        """Return the results in the allocation of a claim."""
        found = self._ask(self.kube.server.get, ROUTES["ResourceClaim"], NAMESPACE, name)
        results: list[Json] = found["status"]["allocation"]["devices"]["results"]
        return results

    def offer(self, driver: str, count: int = 1) -> None:
        """Make a class of a driver's devices, and a template of claims; both have its name."""
        selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
        self.add("DeviceClass", {"metadata": {"name": driver}, "spec": {"selectors": [selector]}})
        template = {"metadata": {"name": driver}, "spec": {"spec": claim_spec(driver, count)}}
        self.add("ResourceClaimTemplate", template)

    @contextmanager
    def without(self, step: str) -> Iterator[Callable[[], None]]:
        """Leave a step of the controllers out, until the yielded function is called."""

        def switch(is_on: bool) -> None:
            setattr(self.controllers, step, is_on)
            self.controllers.step()

        self._ask(switch, False)
        try:
            yield partial(self._ask, switch, True)
        finally:
            self._ask(switch, True)


async def _pump(
    source: trio.abc.ReceiveStream,
    sink: trio.abc.SendStream,
    seen: bytearray,
    stop: trio.CancelScope,
) -> None:
    async for chunk in source:
        seen += chunk
        await sink.send_all(chunk)
    stop.cancel()


def claim_spec(device_class: str, count: int = 1) -> Json:
    wish = {"deviceClassName": device_class, "count": count}
    return {"devices": {"requests": [{"name": "one", "exactly": wish}]}}


def claim(name: str, device_class: str, count: int = 1) -> Json:
    return {"metadata": {"name": name}, "spec": claim_spec(device_class, count)}


def claiming(name: str, *, template: str = "", shared: str = "", **spec: Any) -> Json:
    """Return a pod of one container with a claim: from a template, or one that exists."""
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": shared}
    main = container("main", forever(), resources={"claims": [{"name": "gpu"}]})
    return pod(name, main, resourceClaims=[{"name": "gpu", **source}], **spec)


def granted(cri: CriClient, name: str) -> list[str]:
    """Return the devices that the container `main` of a pod has by its variables."""
    live = live_containers(cri, name)["main"]
    return cri.run(live, "sh", "-c", f"echo ${GRANTED}").strip().split(",")


def lacks_node(cri: CriClient, name: str) -> bool:
    """Whether the container `main` of a pod is without the device node of its claim."""
    live = live_containers(cri, name)["main"]
    return "missing" in cri.run(live, "sh", "-c", MISSING)


def pid_of(cri: CriClient, name: str) -> int:
    return cri.container_pid(live_containers(cri, name)["main"])
