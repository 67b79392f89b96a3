"""`python -m bench.cluster [--peer /path/to/kubelet]`: how soon a cluster hears of its node.

Root, and what `scripts/test cluster` needs. Each contender joins the same private control plane
as a node of its own, on a containerd of its own. What the API server tells is seen by a watch;
when it received a patch, its audit log says.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import click

from bench.bare_cluster import (
    ANSWERS,
    BOUND,
    KILLED,
    LIMIT,
    PODS,
    STARTED,
    BareNode,
    Seen,
    is_ready,
    is_running,
    to_floor,
    told,
)
from bench.contender import Contender, GoKubelet, Ours
from bench.report import machine
from tests.harness import Containerd, CriClient, eventually, live_containers, missing, pod
from tests.harness.agent import PROGRAM
from tests.harness.control_plane import ControlPlane, missing_programs
from tests.harness.kube import KubeClient

_SETTLE = 0.5  # seconds between two pods
Make = Callable[[Path, Containerd, tuple[str, ...]], Contender]


class Node:
    """One contender as a node, and what is measured of it."""

    def __init__(
        self,
        name: str,
        plane: ControlPlane,
        kube: KubeClient,
        containerd: Containerd,
        start: Callable[[], Contender],
        count: int,
    ) -> None:
        self._name, self._plane, self._kube, self._count = name, plane, kube, count
        self._containerd, self._make = containerd, start
        self.results: dict[str, float] = {}

    def measure(self) -> None:
        """Take all figures, and those of the floor before them."""
        bare = BareNode(f"{self._name}-bare", self._plane, self._kube, self._containerd)
        floor = bare.measure(self._count)
        nodes = Seen(self._plane, "/api/v1/nodes", is_ready)
        running = Seen(self._plane, PODS, is_running)
        contender = self._make()
        try:
            began = time.monotonic()
            contender.start()
            self.results["agent's exec to node Ready s"] = nodes.wait(self._name) - began
            self._pods(running)
            self._runtime(nodes)
        finally:
            contender.close()
            nodes.close()
            running.close()
        self.results.update({f"by bare calls, {name}": took for name, took in floor.items()})
        self.results.update(to_floor(self.results, floor))

    def _pods(self, running: Seen) -> None:
        """One pod at a time: bound until Running is seen; its container's changes until told."""
        bound, started, ended = [], [], []
        with CriClient(self._containerd.socket) as cri:
            for number in range(self._count):
                name = f"{self._name}-{number}"
                began = time.monotonic()
                wanted = pod(name, automountServiceAccountToken=False, nodeName=self._name)
                self._kube.create(PODS, wanted)
                bound.append(running.wait(name) - began)
                main = live_containers(cri, name)["main"]
                at = cri.container_status(main).started_at
                started.append(told(self._plane, name, at) - at / 1e9)
                time.sleep(_SETTLE)
                killed = time.time_ns()
                os.kill(cri.container_pid(main), signal.SIGKILL)
                ended.append(told(self._plane, name, killed) - killed / 1e9)
                self._kube.delete(f"{PODS}/{name}", gracePeriodSeconds=1)
                self._kube.wait_gone(f"{PODS}/{name}", LIMIT)
                eventually(lambda: not cri.sandboxes(), LIMIT, "no sandbox left")
        self.results[BOUND] = median(bound)
        self.results["pod bound to Running seen, worst s"] = max(bound)
        self.results[STARTED] = median(started)
        self.results[KILLED] = median(ended)

    def _runtime(self, nodes: Seen) -> None:
        """The runtime answers again until the node is seen Ready."""
        took = []
        for _ in range(3):
            self._containerd.stop()
            nodes.wait_not(self._name)
            self._containerd.start()
            began = time.monotonic()
            took.append(nodes.wait(self._name) - began)
        self.results[ANSWERS] = median(took)


@contextmanager
def _node(make: Make, plane: ControlPlane, kube: KubeClient, count: int) -> Iterator[Node]:
    name = f"node-{time.monotonic_ns()}"
    arguments = ("--kubeconfig", str(plane.node_kubeconfig(name)), f"--hostname-override={name}")
    with tempfile.TemporaryDirectory() as base, Containerd() as containerd:

        def start() -> Contender:
            return make(Path(base) / "agent", containerd, arguments)

        yield Node(name, plane, kube, containerd, start, count)


@click.command()
@click.option("--peer", type=click.Path(path_type=Path, exists=True), help="A Go kubelet as well.")
@click.option("--rounds", default=1, show_default=True, help="Each contender once a round.")
@click.option("--pods", default=20, show_default=True, help="One after the other, each round.")
def main(peer: Path | None, rounds: int, pods: int) -> None:
    """Measure how soon an API server hears of what a node does."""
    if lacks := [*missing(), *missing_programs()]:
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    makers: dict[str, Make] = {Ours.name: partial(Ours, PROGRAM)}
    if peer is not None:
        binary = peer.absolute()
        makers["Go kubelet"] = lambda base, containerd, arguments: GoKubelet(
            binary, base, containerd, arguments
        )
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
                with _node(makers[who], plane, kube, pods) as node:
                    node.measure()
                    taken[who].append(node.results)
                click.echo(f"round {number + 1}: {who}: {node.results}", err=True)
    click.echo("\n".join(f"- {name}: {value}" for name, value in machine().items()))
    click.echo(f"\n| measured | {' | '.join(makers)} |\n| --- |{' ---: |' * len(makers)}")
    for figure in taken[Ours.name][0]:
        values = [f"{median(r[figure] for r in taken[who]):.3f}" for who in makers]
        click.echo(f"| {figure} | {' | '.join(values)} |")


if __name__ == "__main__":
    main()
