"""The loads: what is done to a contender, and the figures that come of it.

Each is a function that leaves no pod behind. Times of containers are the runtime's own
(nanoseconds of the machine's clock, as CRI gives them), so what the measuring takes does not
count. CPU is user and system time of the agent's process alone, or of containerd's.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.bare import (
    ONE_LEFT,
    ONE_STARTED,
    ONE_STILL,
    REPLACED,
    many_figure,
    measure_floor,
    measure_questions,
)
from bench.contender import Contender, Meter, wait_ready
from bench.resize import resize
from bench.runtime import Runtime
from kubelet_trio.cri import v1
from tests.harness import CriClient, container, eventually, forever, live_containers, pod
from tests.harness.pods import Json

SETTLE = 5.0  # seconds of quiet before a quiet thing is measured
_GONE_LIMIT = 300.0
_ACTIONS: dict[str, Json] = {
    "HTTP": {"httpGet": {"path": "/", "port": 8080}},
    "TCP": {"tcpSocket": {"port": 8080}},
    "exec": {"exec": {"command": ["true"]}},
}


@dataclass(slots=True)
class Bench:
    """One contender on one runtime, and what was found of it so far, by figure."""

    contender: Contender
    runtime: Runtime
    idle: float = 60.0  # seconds to watch it do nothing
    scale: float = 1.0  # of the numbers of pods; for a trial
    results: dict[str, float] = field(default_factory=dict)

    @property
    def cri(self) -> CriClient:
        return self.runtime.cri

    def many(self, count: int) -> int:
        return max(1, round(count * self.scale))

    def manifests(self, count: int, **fields: Any) -> list[Json]:
        # A grace period of a second: the pods' shell takes no notice of SIGTERM.
        return [
            pod(f"bench-{n}", terminationGracePeriodSeconds=1, **fields)
            for n in range(self.many(count))
        ]

    @contextmanager
    def pods(self, manifests: list[Json]) -> Iterator[list[Json]]:
        """Run pods for the length of a block."""
        for manifest in manifests:
            self.contender.put(manifest)
        wait_ready(self.contender, names_of(manifests), 0.2)
        yield manifests
        self.remove(manifests)
        self.wait_empty()

    def remove(self, manifests: list[Json], every: float = 0.05) -> None:
        """Take manifests away and return when nothing of any pod runs any more.

        `every`: seconds between two looks.
        """
        for manifest in manifests:
            self.contender.drop(manifest["metadata"]["name"])
        what = "nothing runs any more"
        eventually(self._is_still, within=_GONE_LIMIT, what=what, every=every)

    def wait_empty(self) -> None:
        """Return when the runtime holds nothing.

        A Go kubelet leaves dead sandboxes to its garbage collection, once a minute.
        """
        eventually(lambda: not self.cri.sandboxes(), within=_GONE_LIMIT, what="no sandbox left")

    def deleted(self, manifests: list[Json], figure: str) -> None:
        """Take manifests away, and note how long until nothing runs and until nothing is left."""
        began = time.monotonic()
        self.remove(manifests)
        self.results[f"{figure}, nothing runs s"] = time.monotonic() - began
        self.wait_empty()
        self.results[f"{figure}, nothing left s"] = time.monotonic() - began

    def _is_still(self) -> bool:
        return not any(s.state == v1.PodSandboxState.SANDBOX_READY for s in self.cri.sandboxes())

    def started_at(self, name: str) -> int:
        live = live_containers(self.cri, f"{name}-node")["main"]
        return self.cri.container_status(live).started_at

    def quiet(self, label: str, seconds: float) -> None:
        """CPU, wake-ups and CRI calls while nobody asks anything of anybody."""
        meter = Meter(self.contender.pid)
        time.sleep(SETTLE)
        cpu, wakeups, calls = meter.cpu(), meter.wakeups(), self.runtime.calls()
        containerd = self.runtime.meter.cpu()
        time.sleep(seconds)
        per_minute = 60 / seconds
        self.results[f"{label}, CPU %"] = 100 * (meter.cpu() - cpu) / seconds
        used = self.runtime.meter.cpu() - containerd
        self.results[f"{label}, containerd CPU %"] = 100 * used / seconds
        # A thread that ended takes its own to the grave: the figure is a lower bound.
        woken = sum(count - wakeups.get(tid, 0) for tid, count in meter.wakeups().items())
        self.results[f"{label}, wake-ups a minute"] = woken * per_minute
        self.results[f"{label}, CRI calls a minute"] = (self.runtime.calls() - calls) * per_minute


MANY = (30, 100)


def floor(bench: Bench) -> None:
    """The same pods by bare calls, without the agent; what the other figures are measured by."""
    bench.contender.stop()
    many = [bench.many(count) for count in MANY]
    bench.results.update(measure_floor(bench.runtime, many, bench.many(20)))
    bench.contender.start()


def one_pod(bench: Bench) -> None:
    """Manifest written until the container started, and until Ready is seen."""
    started, ready = [], []
    for n in range(bench.many(20)):
        manifest = pod(f"single-{n}", terminationGracePeriodSeconds=1)
        began = time.time_ns()
        bench.contender.put(manifest)
        wait_ready(bench.contender, names_of([manifest]), 0.01)
        ready.append(time.time_ns() - began)
        started.append(bench.started_at(f"single-{n}") - began)
        bench.remove([manifest])
        time.sleep(0.3)
    bench.wait_empty()
    bench.results["one pod, written to started s"] = median(started) / 1e9
    bench.results["one pod, written to Ready s"] = median(ready) / 1e9


def burst(bench: Bench) -> None:
    """Many pods at once until all are Ready, then all gone at once."""
    for wanted in MANY:
        made = bench.manifests(wanted)
        count = len(made)
        agent, containerd = Meter(bench.contender.pid), bench.runtime.meter
        cpu, runtime_cpu = agent.cpu(), containerd.cpu()
        began = time.monotonic()
        for manifest in made:
            bench.contender.put(manifest)
        wait_ready(bench.contender, names_of(made), 0.1)
        bench.results[f"{count} pods Ready s"] = time.monotonic() - began
        bench.results[f"{count} pods Ready, agent CPU s"] = agent.cpu() - cpu
        bench.results[f"{count} pods Ready, containerd CPU s"] = containerd.cpu() - runtime_cpu
        time.sleep(SETTLE)
        bench.deleted(made, f"{count} pods deleted")
        # Until nothing is left, and SETTLE seconds of nothing, which take next to none.
        bench.results[f"{count} pods, agent CPU ms a life"] = 1e3 * (agent.cpu() - cpu) / count


def delete_one(bench: Bench) -> None:
    """File gone until nothing of it runs, and of the last of them until nothing is left."""
    took, began = [], 0.0
    main = container("main", forever())  # ends on SIGTERM
    for n in range(bench.many(5)):
        manifest = pod(f"deleted-{n}", main, terminationGracePeriodSeconds=1)
        bench.contender.put(manifest)
        wait_ready(bench.contender, names_of([manifest]), 0.1)
        time.sleep(1)
        began = time.monotonic()
        bench.remove([manifest], 0.005)
        took.append(time.monotonic() - began)
    bench.results["1 pod deleted, nothing runs s"] = median(took)
    bench.wait_empty()
    bench.results["1 pod deleted, nothing left s"] = time.monotonic() - began


def idle(bench: Bench) -> None:
    """Nothing happens, under no pod, 30 and 100."""
    for count in (0, 30, 100):
        with bench.pods(bench.manifests(count) if count else []) as made:
            bench.quiet(f"idle, {len(made)} pods", bench.idle)
            bench.results[f"idle, {len(made)} pods, RSS MB"] = Meter(bench.contender.pid).rss()


def death(bench: Bench) -> None:
    """A kill from outside until the return of the next StartContainer, first restarts."""
    took = []
    with bench.pods(bench.manifests(20)) as made:
        for manifest in made:
            name = manifest["metadata"]["name"]
            old = live_containers(bench.cri, f"{name}-node")["main"]
            began = time.time_ns()
            os.kill(bench.cri.container_pid(old), signal.SIGKILL)

            def is_back(name: str = name, old: str = old) -> bool:
                return live_containers(bench.cri, f"{name}-node").get("main", old) != old

            eventually(is_back, within=60, what=f"{name} runs again")
            took.append(bench.started_at(name) - began)
            time.sleep(0.2)
    bench.results["death to restart s"] = median(took) / 1e9


def restart(bench: Bench) -> None:
    """The agent's exec until all pods are told Ready again; what started again meanwhile."""
    with bench.pods(bench.manifests(100)) as made:
        before = {c.id for c in bench.cri.containers()}
        bench.contender.stop()
        asked = measure_questions(bench.runtime)
        began = time.monotonic()
        bench.contender.start()
        wait_ready(bench.contender, names_of(made), 0.05)
        took, label = time.monotonic() - began, f"restart under {len(made)} pods"
        bench.results[f"{label}, all adopted s"] = took
        bench.results[f"{label}, asked by bare calls s"] = asked
        bench.results[f"{label}, all adopted to the floor"] = took / asked
        again = {c.id for c in bench.cri.containers()} - before
        bench.results[f"{label}, containers restarted"] = float(len(again))


def probes(bench: Bench) -> None:
    """100 pods with a probe a second each."""
    for kind, count in (("HTTP", 100), ("TCP", 100), ("exec", 20)):
        action = _ACTIONS[kind]
        serve = "mkdir /www; echo ok > /www/index.html; exec httpd -f -p 8080 -h /www"
        main = container("main", serve, readinessProbe={**action, "periodSeconds": 1})
        made = [
            pod(f"bench-{n}", main, terminationGracePeriodSeconds=1)
            for n in range(bench.many(count))
        ]
        with bench.pods(made):
            bench.quiet(f"{len(made)} pods, {kind} probes", min(bench.idle, 30.0))


def storm(bench: Bench) -> None:
    """100 pods' labels change each second, their UIDs stay; the last edit's way to `/pods`."""
    made = bench.manifests(100)
    for n, manifest in enumerate(made):
        manifest["metadata"]["uid"] = f"00000000-0000-0000-0000-{n:012}"
    rounds = 10
    with bench.pods(made):
        meter = Meter(bench.contender.pid)
        cpu, began = meter.cpu(), time.monotonic()
        for edit in range(rounds):
            for manifest in made:
                manifest["metadata"]["labels"] = {"edit": str(edit)}
                bench.contender.put(manifest)
            time.sleep(max(0.0, began + edit + 1 - time.monotonic()))
        bench.results["edit storm, CPU %"] = 100 * (meter.cpu() - cpu) / (time.monotonic() - began)
        last = made[-1]
        last["metadata"]["labels"] = {"edit": "last"}
        began = time.monotonic()
        bench.contender.put(last)
        eventually(
            lambda: any(
                (p["metadata"].get("labels") or {}).get("edit") == "last"
                for p in bench.contender.pods()
            ),
            within=120,
            what="the last edit is told",
        )
        bench.results["edit storm, lag of the last s"] = time.monotonic() - began


LOADS: Mapping[str, Callable[[Bench], None]] = {
    "floor": floor,
    "one-pod": one_pod,
    "burst": burst,
    "delete": delete_one,
    "idle": idle,
    "death": death,
    "restart": restart,
    "probes": probes,
    "storm": storm,
    "resize": resize,
}


def to_floor(results: Mapping[str, float]) -> dict[str, float]:
    """Return what compares a contender with the floor, if the same run has taken it."""
    pairs = [
        ("one pod, written to started", "one pod, written to started s", ONE_STARTED),
        ("one pod, written to Ready", "one pod, written to Ready s", ONE_STARTED),
        ("death to restart", "death to restart s", REPLACED),
        ("1 pod deleted, nothing runs", "1 pod deleted, nothing runs s", ONE_STILL),
        ("1 pod deleted, nothing left", "1 pod deleted, nothing left s", ONE_LEFT),
    ]
    for figure in results:
        if match := _MANY.fullmatch(figure):
            name = {"Ready": "started", "deleted, nothing runs": "still"}.get(match[2], "left")
            pairs.append((f"{match[1]} pods {match[2]}", figure, many_figure(int(match[1]), name)))
    found = {}
    for name, figure, bare in pairs:
        if figure not in results or bare not in results:
            continue
        found[f"{name} to the floor"] = results[figure] / results[bare]
        if figure.startswith(("one pod", "death")):
            found[f"{name} beyond the floor ms"] = 1e3 * (results[figure] - results[bare])
    return found


_MANY = re.compile(r"(\d+) pods (Ready|deleted, nothing runs|deleted, nothing left) s")


def names_of(manifests: list[Json]) -> set[str]:
    return {manifest["metadata"]["name"] for manifest in manifests}
