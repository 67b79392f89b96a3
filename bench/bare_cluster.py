"""The floor of a node in a cluster: what its API server and runtime take without an agent.

A plain loop sees by a watch that a pod is bound, makes the three CRI calls of its start, and
patches its status; the death of a container and the return of a runtime are patched as soon as they
are seen.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.bare import Floor
from bench.runtime import Runtime
from tests.harness import Containerd, CriClient, eventually, pod
from tests.harness.control_plane import ControlPlane
from tests.harness.feed import Feed
from tests.harness.kube import KubeClient
from tests.harness.pods import Json, condition

LIMIT = 180.0  # a Go kubelet takes its time over a pod whose container was just killed
PODS = "/api/v1/namespaces/default/pods"
BOUND = "pod bound to Running seen s"
STARTED = "container started to patch received s"
KILLED = "container killed to patch received s"
ANSWERS = "runtime answers to node Ready s"
# The agent's exec has no floor: no start of a program is the API server's or the runtime's.
_COMPARED = (BOUND, STARTED, KILLED, ANSWERS)


class Seen:
    """When something was first seen of an object, by name: monotonic seconds."""

    def __init__(self, plane: ControlPlane, path: str, wanted: Callable[[Json], bool]) -> None:
        self._wanted = wanted
        self._at: dict[str, float] = {}
        self._news = threading.Condition()
        self._feed = Feed(plane.admin_kubeconfig, path, change=self._take)
        self._feed.listed.wait(LIMIT)

    def _take(self, event: Json) -> None:
        now = time.monotonic()
        with self._news:
            name = event["object"]["metadata"]["name"]
            if event["type"] == "DELETED" or not self._wanted(event["object"]):
                self._at.pop(name, None)
            else:
                self._at.setdefault(name, now)
            self._news.notify_all()

    def wait(self, name: str) -> float:
        """Return when it was seen, which may still be to come."""
        with self._news:
            if not self._news.wait_for(lambda: name in self._at, LIMIT):
                raise TimeoutError(f"{name}: not seen in {LIMIT:g} s")
            return self._at[name]

    def wait_not(self, name: str) -> None:
        """Wait until it is no longer so."""
        with self._news:
            if not self._news.wait_for(lambda: name not in self._at, LIMIT):
                raise TimeoutError(f"{name}: still so after {LIMIT:g} s")

    def close(self) -> None:
        self._feed.close()


def is_running(found: Json) -> bool:
    return bool(found.get("status", {}).get("phase") == "Running")


def is_ready(node: Json) -> bool:
    return condition(node, "Ready") == "True"


def told(plane: ControlPlane, name: str, after: int) -> float:
    """Return when the API server received the first status of a pod after a time in ns."""
    found: list[float] = []

    def is_told() -> bool:
        lines = (plane.base / "audit.log").read_text().splitlines()
        for entry in map(json.loads, lines[-300:]):
            ref = entry.get("objectRef", {})
            if (ref.get("name"), ref.get("subresource")) != (name, "status"):
                continue
            at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
            if at * 1e9 > after:
                found.append(at)
                return True
        return False

    eventually(is_told, LIMIT, f"a status of {name}")
    return found[0]


class BareNode:
    """A node by bare calls, on a runtime and an API server without an agent."""

    def __init__(
        self, name: str, plane: ControlPlane, kube: KubeClient, containerd: Containerd
    ) -> None:
        self._name, self._plane, self._kube, self._containerd = name, plane, kube, containerd

    def measure(self, count: int) -> dict[str, float]:
        """Take the figures that have a floor, of so many pods one after the other."""
        self._kube.create("/api/v1/nodes", {"metadata": {"name": self._name}})
        bound = Seen(self._plane, PODS, lambda p: p["spec"].get("nodeName") == self._name)
        running = Seen(self._plane, PODS, is_running)
        nodes = Seen(self._plane, "/api/v1/nodes", is_ready)
        try:
            with (
                TemporaryDirectory() as logs,
                ThreadPoolExecutor(1) as threads,
                CriClient(self._containerd.socket) as cri,
            ):
                floor = Floor(Runtime(self._containerd, cri), Path(logs), threads)
                taken = [self._life(number, floor, bound, running) for number in range(count)]
                answers = [self._answer(cri, nodes) for _ in range(3)]
        finally:
            for seen in (bound, running, nodes):
                seen.close()
            self._kube.delete(f"/api/v1/nodes/{self._name}")
        found = {name: median(one[name] for one in taken) for name in taken[0]}
        return {**found, ANSWERS: median(answers)}

    def _life(self, number: int, floor: Floor, bound: Seen, running: Seen) -> dict[str, float]:
        name = f"{self._name}-{number}"
        path = f"{PODS}/{name}"
        began = time.monotonic()
        self._kube.create(PODS, pod(name, automountServiceAccountToken=False, nodeName=self._name))
        bound.wait(name)
        floor.start(1)
        self._kube.patch(f"{path}/status", {"status": {"phase": "Running"}})
        took = running.wait(name) - began
        started = floor.started_at()
        patched = told(self._plane, name, started) - started / 1e9
        killed = time.time_ns()
        floor.kill()
        self._kube.patch(f"{path}/status", {"status": {"reason": "Killed"}})
        ended = told(self._plane, name, killed) - killed / 1e9
        floor.end()
        self._kube.delete(path, gracePeriodSeconds=0)
        self._kube.wait_gone(path, LIMIT)
        return {BOUND: took, STARTED: patched, KILLED: ended}

    def _answer(self, cri: CriClient, nodes: Seen) -> float:
        """Return how long it takes from the question to a runtime until the node is seen Ready."""
        self._tell(ready="False")
        nodes.wait_not(self._name)
        began = time.monotonic()
        cri.version(wait=LIMIT)
        self._tell(ready="True")
        return nodes.wait(self._name) - began

    def _tell(self, *, ready: str) -> None:
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        self._kube.patch(f"/api/v1/nodes/{self._name}/status", {"status": status})


def to_floor(results: Mapping[str, float], floor: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios of a node's figures to its floor."""
    both = [name for name in _COMPARED if name in results and floor.get(name)]
    return {f"{name.removesuffix(' s')} to the floor": results[name] / floor[name] for name in both}
