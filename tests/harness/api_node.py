"""An agent on a real runtime, in a thread of the tests' process, with FakeKube as API server.

For what an API server asks of a node and no manifest can: a test creates, resizes and deletes pods
with plain calls, and reads them back as the API server has them. `kill` ends the agent's tasks
at once, wherever they are; the next `start` continues with what is on disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import trio

from kubelet_trio.daemon import Apis
from kubelet_trio.kube import ROUTES
from kubelet_trio.model import SystemClock
from kubelet_trio.testing import FakeKube
from tests.harness import leftovers
from tests.harness.containerd import Containerd
from tests.harness.cri import CriClient
from tests.harness.inside import cluster_agent
from tests.harness.machine import PATIENCE
from tests.harness.pods import NODE, Json, WaitTimeoutError, is_ready
from tests.harness.ports import free_port

T = TypeVar("T")
NAMESPACE = "default"
# Whether the machine's own disk is nearly full is not what these tests are about.
CONFIG: Json = {
    "nodeStatusUpdateFrequency": "1s",
    "evictionHard": {
        "memory.available": "1Mi",
        "nodefs.available": "1Mi",
        "imagefs.available": "1Mi",
        "nodefs.inodesFree": "10",
    },
}


class ApiNode:
    """A node of a fake API server, from `start` to `close`, with deaths of its agent in between."""

    def __init__(self, base: Path, containerd: Containerd, config: Json | None = None) -> None:
        self.base, self.containerd = base, containerd
        ports: Json = {"port": free_port(), "healthzPort": free_port()}
        self.config = {**CONFIG, **ports, **(config or {})}
        self.history: dict[str, list[Json]] = {}  # every version of a pod that was seen
        self._ready = threading.Event()
        self._alive: trio.CancelScope | None = None
        self._threads = ThreadPoolExecutor(1, "api-node")
        self._run = self._threads.submit(trio.run, self._main)
        assert self._ready.wait(10 * PATIENCE)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # The agent

    def start(self) -> None:
        """Start an agent, and return when the API server has its node as Ready."""
        trio.from_thread.run(self._start, trio_token=self._token)

    def kill(self) -> None:
        """Cancel all of the agent's tasks; what runs goes on."""
        trio.from_thread.run(self._kill, trio_token=self._token)

    def close(self) -> None:
        """End the agent and the API server, remove what it ran, raise what the agent raised."""
        if not self._run.done():
            trio.from_thread.run_sync(self._all.cancel, trio_token=self._token)
        self._threads.shutdown()
        try:
            with CriClient(self.containerd.socket) as cri:
                cri.remove_all()
        finally:
            leftovers.unmount_under(self.base)
        self._run.result()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.kube = FakeKube(clock=SystemClock())
        self.kube.server.create(
            ROUTES["ServiceAccount"], {"metadata": {"name": "default"}}, NAMESPACE
        )
        async with trio.open_nursery() as nursery:
            self._nursery, self._all = nursery, nursery.cancel_scope
            nursery.start_soon(self._watch)
            await self._open()
            self._ready.set()
            await trio.sleep_forever()

    async def _open(self) -> None:
        """Start what the API server has besides; for subclasses."""

    async def _watch(self) -> None:
        while True:
            changed = self.kube.server.store.changed
            for pod in self.kube.server.store.all("Pod", NAMESPACE):
                seen = self.history.setdefault(pod["metadata"]["name"], [])
                if not seen or seen[-1] is not pod:
                    seen.append(pod)
            await changed.wait()

    async def _start(self) -> None:
        assert self._alive is None
        await self._nursery.start(self._live)
        with trio.fail_after(60 * PATIENCE):
            await self.kube.wait_until(has_ready_node)
        self._untaint()

    def _untaint(self) -> None:
        # The node controller takes the taint off once it has seen the node Ready.
        self.kube.server.patch(ROUTES["Node"], NODE, {"spec": {"taints": None}})

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        api = self.kube.node(NODE)
        agent = cluster_agent(self.containerd, self.base, self.config, Apis(api, api, "fake"))
        async with trio.open_nursery() as nursery:
            self._alive, self._dead = nursery.cancel_scope, trio.Event()
            await nursery.start(agent.run)
            task_status.started()
        self._dead.set()

    async def _kill(self) -> None:
        assert self._alive is not None
        self._alive.cancel()
        self._alive = None
        await self._dead.wait()

    # Its pods

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._run.done():
            self._run.result()  # raises what the agent raised
        return trio.from_thread.run_sync(call, *arguments, trio_token=self._token)

    def create(self, manifest: Json) -> None:
        """Create a pod that is bound to the node and needs no token."""
        bound = {"nodeName": NODE, "automountServiceAccountToken": False}
        body = {**manifest, "spec": {**bound, **manifest["spec"]}}
        self._ask(self.kube.server.create, ROUTES["Pod"], body, NAMESPACE)

    def tell(self, name: str, status: Json) -> None:
        """Change a pod's status, as a kubelet does."""
        route, body = ROUTES["Pod"], {"status": status}
        self._ask(self.kube.server.patch, route, name, body, NAMESPACE, "status")

    def resize(self, name: str, patch: Json) -> Json:
        """Change a pod's resources by the subresource `resize`; `patch` is of its spec."""
        route = ROUTES["Pod"]
        body = {"spec": patch}
        return self._ask(self.kube.server.patch, route, name, body, NAMESPACE, "resize")

    def delete(self, name: str) -> None:
        """Delete a pod, and return when it is gone."""
        self._ask(self.kube.server.delete, ROUTES["Pod"], name, NAMESPACE)
        self._poll(lambda: self.find(name) is None, 60, f"{name} is gone")

    def find(self, name: str) -> Json | None:
        """Return a pod as the API server has it."""
        return self._ask(self.kube.server.store.get, "Pod", NAMESPACE, name)

    def wait(
        self, name: str, wanted: Callable[[Json], object], within: float = 60, what: str = ""
    ) -> Json:
        """Wait until a pod is as `wanted` says, and return it."""
        found: list[Json | None] = [None]

        def check() -> bool:
            found[0] = self.find(name)
            return found[0] is not None and bool(wanted(found[0]))

        self._poll(check, within, f"{name} {what or 'as wanted'}", found)
        assert found[0] is not None
        return found[0]

    def wait_seen(self, pod: Json) -> None:
        """Wait until `history` has this version of a pod: its task may be one turn behind."""
        name, version = pod["metadata"]["name"], _version(pod)
        self._poll(lambda: _version(self.history[name][-1]) >= version, 60, f"{name} seen", [pod])

    @contextmanager
    def running(self, manifest: Json) -> Iterator[Json]:
        """Run a pod for the length of a block."""
        name = manifest["metadata"]["name"]
        self.create(manifest)
        try:
            yield self.wait(name, is_ready, what="Ready")
        finally:
            self.delete(name)

    def amounts(self, resource: str) -> tuple[str | None, str | None]:
        """Return the node's capacity and allocatable of a resource; None where it tells none."""
        found = self._ask(self.kube.server.store.all, "Node")
        status = found[0].get("status", {}) if found else {}
        return tuple(status.get(key, {}).get(resource) for key in ("capacity", "allocatable"))

    def wait_amounts(self, resource: str, *wanted: str | None, within: float = 60) -> None:
        """Wait until capacity and allocatable of a resource are as wanted."""
        found: list[tuple[str | None, ...]] = [()]

        def check() -> bool:
            found[0] = self.amounts(resource)
            return found[0] == wanted

        what = f"capacity and allocatable of {resource} are {wanted}"
        self._poll(check, within, what, found)

    def events(self, name: str) -> list[Json]:
        """Return a pod's events, as they came."""
        found = self._ask(self.kube.server.store.all, "Event", NAMESPACE)
        about = [e for e in found if e["involvedObject"]["name"] == name]
        return sorted(about, key=lambda e: int(e["metadata"]["resourceVersion"]))

    def _poll(
        self, check: Callable[[], object], within: float, what: str, found: object = None
    ) -> None:
        deadline = time.monotonic() + within * PATIENCE
        while not check():
            if time.monotonic() > deadline:
                raise WaitTimeoutError(f"not within {within} s: {what}: {found}")
            time.sleep(0.02)


def has_ready_node(kube: FakeKube) -> bool:
    nodes = kube.server.store.all("Node")
    conditions = nodes[0].get("status", {}).get("conditions", ()) if nodes else ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _version(pod: Json) -> int:
    return int(pod["metadata"]["resourceVersion"])
