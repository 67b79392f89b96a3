"""`python -m bench.cluster [--peer /path/to/kubelet]`: how soon a cluster hears of its node.

Root, and what `scripts/test cluster` needs. Each contender joins the same private control plane
as a node of its own, on a containerd of its own; the floor (`bench.bare_node`) as well. What the
API server tells is seen by a watch; when it received a patch, its audit log says.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Protocol

import click

from bench.bare import GRACE
from bench.bare_node import BareNode
from bench.contender import GoKubelet, Ours
from bench.report import machine
from tests.harness import Containerd, CriClient, eventually, live_containers, missing, pod
from tests.harness.agent import PROGRAM
from tests.harness.control_plane import ControlPlane, missing_programs
from tests.harness.feed import Feed
from tests.harness.kube import KubeClient
from tests.harness.pods import Json, condition

_LIMIT = 180.0  # a Go kubelet takes its time over a pod whose container was just killed
_SETTLE = 0.5  # seconds between two pods
_PODS = "/api/v1/namespaces/default/pods"
_FLOOR = BareNode.name
_EVICTED_AT_ONCE = 20  # as `kubectl drain` does all its evictions beside each other


class Joins(Protocol):
    """What joins a cluster as a node."""

    def start(self) -> None: ...

    def close(self) -> None: ...


# The contender with this node name, kubeconfig, directory and containerd.
Make = Callable[[str, Path, Path, Containerd], Joins]


class Seen:
    """When something was first seen of an object, by name: monotonic seconds."""

    def __init__(self, plane: ControlPlane, path: str, wanted: Callable[[Json], bool]) -> None:
        self._wanted = wanted
        self._at: dict[str, float] = {}
        self._news = threading.Condition()
        self._feed = Feed(plane.admin_kubeconfig, path, change=self._take)
        self._feed.listed.wait(_LIMIT)

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
            if not self._news.wait_for(lambda: name in self._at, _LIMIT):
                raise TimeoutError(f"{name}: not seen in {_LIMIT:g} s")
            return self._at[name]

    def wait_not(self, name: str) -> None:
        """Wait until it is no longer so."""
        with self._news:
            if not self._news.wait_for(lambda: name not in self._at, _LIMIT):
                raise TimeoutError(f"{name}: still so after {_LIMIT:g} s")

    def close(self) -> None:
        self._feed.close()


class Node:
    """One contender as a node, and what is measured of it."""

    def __init__(
        self,
        name: str,
        plane: ControlPlane,
        kube: KubeClient,
        containerd: Containerd,
        start: Callable[[], Joins],
        counts: tuple[int, int],
    ) -> None:
        self._name, self._plane, self._kube = name, plane, kube
        self._count, self._many = counts
        self._containerd, self._make = containerd, start
        self.results: dict[str, float] = {}

    def measure(self, *, bare: bool) -> None:
        """Take all figures; of a `bare` node without those of what it does not do."""
        nodes = Seen(self._plane, "/api/v1/nodes", lambda n: condition(n, "Ready") == "True")
        running = Seen(self._plane, _PODS, _is_running)
        contender = self._make()
        try:
            began = time.monotonic()
            contender.start()
            self.results["agent's exec to node Ready s"] = nodes.wait(self._name) - began
            self._pods(running)
            self._drain(running)
            if not bare:
                self._runtime(nodes)
        finally:
            contender.close()
            nodes.close()
            running.close()

    def _pods(self, running: Seen) -> None:
        """One pod at a time: bound until Running is seen; its container's changes until told."""
        bound, started, ended = [], [], []
        with CriClient(self._containerd.socket) as cri:
            for number in range(self._count):
                name = f"{self._name}-{number}"
                began = time.monotonic()
                self._bind(name)
                bound.append(running.wait(name) - began)
                main = live_containers(cri, name)["main"]
                at = cri.container_status(main).started_at
                started.append(self._told(name, at) - at / 1e9)
                time.sleep(_SETTLE)
                killed = time.time_ns()
                os.kill(cri.container_pid(main), signal.SIGKILL)
                ended.append(self._told(name, killed) - killed / 1e9)
                self._kube.delete(f"{_PODS}/{name}", gracePeriodSeconds=1)
                self._kube.wait_gone(f"{_PODS}/{name}", _LIMIT)
                eventually(lambda: not cri.sandboxes(), _LIMIT, "no sandbox left")
        self.results["pod bound to Running seen s"] = median(bound)
        self.results["pod bound to Running seen, worst s"] = max(bound)
        self.results["container started to patch received s"] = median(started)
        self.results["container killed to patch received s"] = median(ended)

    def _bind(self, name: str) -> None:
        wanted = pod(name, automountServiceAccountToken=False, nodeName=self._name)
        self._kube.create(_PODS, wanted)

    def _drain(self, running: Seen) -> None:
        """Bind many pods at once until all are seen Running; evict them until all are gone."""
        there = Seen(self._plane, _PODS, lambda _pod: True)
        names = [f"{self._name}-many-{number}" for number in range(self._many)]
        try:
            with ThreadPoolExecutor(_EVICTED_AT_ONCE) as threads:
                began = time.monotonic()
                list(threads.map(self._bind, names))
                last = max(running.wait(name) for name in names)
                self.results[f"{self._many} pods bound to all Running seen s"] = last - began
                time.sleep(_SETTLE)
                began = time.monotonic()
                list(threads.map(self._evict, names))
                for name in names:
                    there.wait_not(name)
                self.results[f"drain of {self._many} pods s"] = time.monotonic() - began
        finally:
            there.close()

    def _evict(self, name: str) -> None:
        eviction = {
            "apiVersion": "policy/v1beta1",  # of the control plane's version
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"},
            "deleteOptions": {"gracePeriodSeconds": GRACE},
        }
        self._kube.create(f"{_PODS}/{name}/eviction", eviction)

    def _told(self, name: str, after: int) -> float:
        """Return when the API server received the first status of a pod after a time in ns."""
        found: list[float] = []

        def is_told() -> bool:
            lines = (self._plane.base / "audit.log").read_text().splitlines()
            for entry in map(json.loads, lines[-300:]):
                ref = entry.get("objectRef", {})
                if (ref.get("name"), ref.get("subresource")) != (name, "status"):
                    continue
                at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
                if at * 1e9 > after:
                    found.append(at)
                    return True
            return False

        eventually(is_told, _LIMIT, f"a status of {name}")
        return found[0]

    def _runtime(self, nodes: Seen) -> None:
        """The runtime answers again until the node is seen Ready."""
        took = []
        for _ in range(3):
            self._containerd.stop()
            nodes.wait_not(self._name)
            self._containerd.start()
            began = time.monotonic()
            took.append(nodes.wait(self._name) - began)
        self.results["runtime answers to node Ready s"] = median(took)


def _is_running(found: Json) -> bool:
    return bool(found.get("status", {}).get("phase") == "Running")


@contextmanager
def _node(
    make: Make, plane: ControlPlane, kube: KubeClient, counts: tuple[int, int]
) -> Iterator[Node]:
    name = f"node-{time.monotonic_ns()}"
    kubeconfig = plane.node_kubeconfig(name)
    with tempfile.TemporaryDirectory() as base, Containerd() as containerd:
        start = partial(make, name, kubeconfig, Path(base) / "agent", containerd)
        yield Node(name, plane, kube, containerd, start, counts)


def _makers(peer: Path | None, most: int) -> dict[str, Make]:
    """Return the contenders by name, ours first."""

    def ours(name: str, kubeconfig: Path, base: Path, containerd: Containerd) -> Joins:
        return Ours(PROGRAM, base, containerd, _joining(name, kubeconfig))

    def floor(name: str, kubeconfig: Path, base: Path, containerd: Containerd) -> Joins:
        return BareNode(name, kubeconfig, base, containerd, most)

    makers: dict[str, Make] = {Ours.name: ours, _FLOOR: floor}
    if peer is not None:
        binary = peer.absolute()

        def theirs(name: str, kubeconfig: Path, base: Path, containerd: Containerd) -> Joins:
            return GoKubelet(binary, base, containerd, _joining(name, kubeconfig))

        makers["Go kubelet"] = theirs
    return makers


def _joining(name: str, kubeconfig: Path) -> tuple[str, ...]:
    return ("--kubeconfig", str(kubeconfig), f"--hostname-override={name}")


def _table(taken: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: each figure, and ours as a ratio to the others'."""
    ours, *others = taken
    ratios = [f"to {name}" for name in others]
    yield f"| measured | {' | '.join([*taken, *ratios])} |"
    yield f"| --- |{' ---: |' * (len(taken) + len(ratios))}"
    for figure in taken[ours][0]:
        values = {
            name: median(found[figure] for found in rounds)
            for name, rounds in taken.items()
            if figure in rounds[0]
        }
        cells = [f"{values[name]:.3f}" if name in values else "" for name in taken]
        cells += [f"{values[ours] / values[n]:.2f}" if n in values else "" for n in others]
        yield f"| {figure} | {' | '.join(cells)} |"


@click.command()
@click.option("--peer", type=click.Path(path_type=Path, exists=True), help="A Go kubelet as well.")
@click.option("--rounds", default=1, show_default=True, help="Each contender once a round.")
@click.option("--pods", default=20, show_default=True, help="One after the other, each round.")
@click.option("--many", default=30, show_default=True, help="Bound at once, and drained.")
def main(peer: Path | None, rounds: int, pods: int, many: int) -> None:
    """Measure how soon an API server hears of what a node does."""
    if lacks := [*missing(), *missing_programs()]:
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    makers = _makers(peer, many)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in makers}
    with (
        tempfile.TemporaryDirectory() as base,
        ControlPlane(Path(base) / "plane") as plane,
        KubeClient(plane.admin_kubeconfig) as kube,
    ):
        for namespace in ("default", "kube-node-lease"):
            kube.prepare_namespace(namespace, plane.authority.certificate)
        for number in range(rounds):
            for who in makers if number % 2 == 0 else reversed(makers):
                with _node(makers[who], plane, kube, (pods, many)) as node:
                    node.measure(bare=who == _FLOOR)
                    taken[who].append(node.results)
                click.echo(f"round {number + 1}: {who}: {node.results}", err=True)
    click.echo("\n".join(f"- {name}: {value}" for name, value in machine().items()))
    click.echo("\n" + "\n".join(_table(taken)))


if __name__ == "__main__":
    main()
