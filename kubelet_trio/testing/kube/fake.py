"""`FakeKube`: the fake API server, its administrator's client, and controls for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.kube import from_json, route_of, to_json
from kubelet_trio.model import WallClock
from kubelet_trio.testing.clock import TrioClock
from kubelet_trio.testing.kube.client import FakeKubeClient
from kubelet_trio.testing.kube.desk import Desk
from kubelet_trio.testing.kube.faults import KubeFaults, KubeRequest
from kubelet_trio.testing.kube.restriction import NodeUser
from kubelet_trio.testing.kube.server import DeleteOptions, FakeServer

T = TypeVar("T")
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class FakeKube(FakeKubeClient):
    """A fake API server, and a `KubeApi` with all permissions.

    Pass the component under test the fake itself or, with a node's permissions, `node(name)`.
    Its requests are in `requests`, and faults hit them. Tests arrange and inspect objects with the
    synchronous methods, which have no faults, take no virtual time and are not in `requests`.
    """

    def __init__(
        self, *, clock: WallClock | None = None, namespaces: Sequence[str] = NAMESPACES
    ) -> None:
        """Create an API server without objects but namespaces.

        Args:
            clock: wall time of creations and deletions; by default it follows trio's clock.
            namespaces: namespaces that exist from the start.
        """
        super().__init__(FakeServer(clock or TrioClock(now=_now), namespaces), Desk())

    def node(self, name: str) -> FakeKubeClient:
        """Return a node's client, limited by Node authorization and NodeRestriction."""
        client = FakeKubeClient(self.server, self.desk, NodeUser(name, self.server.store))
        client.bookmark_period = self.bookmark_period
        client.streaming_lists = self.streaming_lists
        client.lacks = self.lacks
        return client

    @property
    def requests(self) -> list[KubeRequest]:
        """Every request so far; tests may clear the list."""
        return self.desk.requests

    @property
    def faults(self) -> KubeFaults:
        return self.desk.faults

    @property
    def latency(self) -> float:
        """The seconds of each request."""
        return self.desk.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        self.desk.latency = seconds

    def go_down(self) -> None:
        """Break every connection and refuse new ones."""
        self.desk.go_down()

    def hang(self) -> None:
        """Accept requests and never respond; watches stay open and send nothing."""
        self.desk.hang()

    def mute(self) -> None:
        """Respond to requests, but send nothing on watches, not even a bookmark.

        These watches stay mute for ever: their client has to close them.
        """
        self.desk.mute()

    def come_back(self) -> None:
        """End `go_down`, `hang` or `mute`."""
        self.desk.come_back()

    def cut(self) -> None:
        """Break every connection once: watches, and requests in progress."""
        self.desk.cut()

    def compact(self) -> None:
        """Forget all past changes: a watch from an older version gets 410."""
        self.server.store.compact()

    # Arrange and inspect objects, without requests.

    def add(self, obj: T, *, namespace: str = "") -> T:
        """Create an object; one without a namespace goes to `default`."""
        # Not through the desk: no faults and no latency, but all the server's rules.
        route = route_of(type(obj))
        body = to_json(obj)
        namespace = namespace or (body.get("metadata") or {}).get("namespace") or "default"
        return from_json(self.server.create(route, body, namespace), type(obj))

    def find(self, model: type[T], name: str, namespace: str = "default") -> T | None:
        """Return an object, or None."""
        route = route_of(model)
        found = self.server.store.get(route.kind, namespace if route.namespaced else "", name)
        return None if found is None else from_json(found, model)

    def all(self, model: type[T], namespace: str = "") -> list[T]:
        """Return all objects of a kind, by namespace and name."""
        route = route_of(model)
        return [from_json(obj, model) for obj in self.server.store.all(route.kind, namespace)]

    def change(
        self,
        model: type[T],
        name: str,
        patch: dict[str, Any],
        namespace: str = "default",
        subresource: str = "",
    ) -> T:
        """Change an object by a strategic merge patch.

        The subresource `status` is for statuses, `resize` for the cpu and memory of pods.
        """
        namespace = namespace if route_of(model).namespaced else ""
        done = self.server.patch(route_of(model), name, to_json(patch), namespace, subresource)
        return from_json(done, model)

    def bind(self, pod: str, node: str, namespace: str = "default") -> None:
        """Bind a pod to a node, as the scheduler does."""
        body = {"target": {"kind": "Node", "name": node}}
        self.server.create(route_of(Pod), body, namespace, pod, "binding")

    def remove(
        self,
        model: type[Any],
        name: str,
        namespace: str = "default",
        *,
        grace_period: int | None = None,
    ) -> None:
        """Delete an object as `kubectl delete` does."""
        route = route_of(model)
        namespace = namespace if route.namespaced else ""
        self.server.delete(route, name, namespace, DeleteOptions(grace_period))

    async def wait_until(self, condition: Callable[[FakeKube], bool]) -> None:
        """Wait until a condition holds; it is checked after every change."""
        while not condition(self):
            await self.server.store.wait_change()


def _now() -> float:
    """Return trio's time; zero outside a run, where tests arrange their server."""
    try:
        return trio.current_time()
    except RuntimeError:
        return 0.0
