"""What is measured: one function a measurement, on an agent that runs.

Times of containers are the runtime's own (nanoseconds of the machine's clock, as CRI
gives them), so what the measuring takes does not count. CPU is the agent process's user
and system time; nothing of containerd's or of the command line's is in it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from tests.harness import (
    Agent,
    CriClient,
    container_status,
    eventually,
    is_ready,
    live_containers,
    pod,
)

MANY = 30
KILLS = 20
SINGLES = 10
SETTLE = 10.0  # seconds of quiet before a quiet thing is measured

Results = Mapping[str, float]


@dataclass(slots=True)
class Bench:
    """The agent under measurement and what was found so far, by name."""

    agent: Agent
    cri: CriClient
    idle: float = 60.0  # seconds
    results: dict[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"bench-{n}" for n in range(MANY)]

    def run(self) -> Results:
        """Take every measurement, in an order in which each prepares the next."""
        with self.stopwatch("agent ready s"):
            self.agent.start()
        self.quiet("no pod")
        self.single_pods()
        self.many_pods()
        self.quiet(f"{MANY} pods")
        self.killed_containers()
        self.removal()
        return self.results

    def quiet(self, when: str) -> None:
        """RSS, and CPU as a share of one core, while nothing happens."""
        self.agent.stop_watching()
        time.sleep(SETTLE)
        before = self.agent.cpu_seconds()
        time.sleep(self.idle)
        used = self.agent.cpu_seconds() - before
        self.results[f"idle CPU, {when} %"] = 100 * used / self.idle
        self.results[f"RSS, {when} MB"] = self.agent.rss_bytes() / 1e6

    def single_pods(self) -> None:
        """From the rename of a manifest to the start of its container, one pod at a time."""
        took = []
        for n in range(SINGLES):
            name = f"single-{n}"
            began = time.time_ns()
            self.agent.put(pod(name))
            self.agent.wait_ready(name)
            took.append(self.started_at(name) - began)
        for n in range(SINGLES):
            self.agent.drop(f"single-{n}")
        self.wait_empty()
        self.results["one pod, file to started s"] = median(took) / 1e9

    def many_pods(self) -> None:
        """Many manifests at once until all pods are Ready."""
        manifests = [pod(name) for name in self.names]
        self.agent.start_watching()
        cpu = self.agent.cpu_seconds()
        with self.stopwatch(f"{MANY} pods Ready s"):
            for manifest in manifests:
                self.agent.put(manifest)
            for name in self.names:
                self.agent.wait_ready(name, within=120)
        self.results[f"{MANY} pods Ready, CPU s"] = self.agent.cpu_seconds() - cpu

    def killed_containers(self) -> None:
        """From a kill from outside to the return of the next StartContainer, a pod each."""
        took = []
        for name in self.names[:KILLS]:
            pid = self.cri.container_pid(live_containers(self.cri, f"{name}-node")["main"])
            began = time.time_ns()
            os.kill(pid, signal.SIGKILL)
            self.agent.wait(
                name, lambda p: is_ready(p) and container_status(p, "main")["restartCount"] == 1
            )
            took.append(self.started_at(name) - began)
        self.results["killed container started s"] = median(took) / 1e9
        self.results["killed container started, slowest s"] = max(took) / 1e9

    def removal(self) -> None:
        """All manifests removed at once until the runtime holds nothing."""
        cpu = self.agent.cpu_seconds()
        with self.stopwatch(f"{MANY} pods removed s"):
            for name in self.names:
                self.agent.drop(name)
            self.wait_empty()
        self.results[f"{MANY} pods removed, CPU s"] = self.agent.cpu_seconds() - cpu

    def started_at(self, name: str) -> int:
        live = live_containers(self.cri, f"{name}-node")["main"]
        return self.cri.container_status(live).started_at

    def wait_empty(self) -> None:
        eventually(lambda: not self.cri.sandboxes(), within=120, what="all sandboxes gone")

    @contextmanager
    def stopwatch(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.results[name] = time.monotonic() - began
