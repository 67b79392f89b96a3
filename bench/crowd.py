"""`python -m bench.crowd`: as many real pods as a node has by default, on a containerd of its own.

Root, and what the containerd suite needs. All pods are put at once, wait for Ready, are left alone
and removed; then nothing may be left of them: no process, mount, network, cgroup. What holds the
loop is measured as in `bench.scale`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from bench.contender import Meter
from bench.scale import Slow
from tests.harness import Agent, Containerd, CriClient, eventually, leftovers, missing, pod
from tests.harness.pods import is_ready

QUIET = 30.0  # s of nothing
_REST = 8.0  # s until the agent is looked at
_LIMIT = 300.0
Figures = dict[str, float]


class Crowd:
    """One agent, instrumented, on one containerd."""

    def __init__(self, base: Path, containerd: Containerd) -> None:
        """Start the agent and let it come to rest."""
        self.containerd, self.found = containerd, Figures()
        self._holds = base / "holds.json"
        program = base / "program"
        command = [sys.executable, "-m", "bench.held", str(self._holds)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        program.chmod(0o755)
        self.agent = Agent(base / "agent", containerd, program=program)
        self.networks = len(_names(Path("/run/netns")))  # of others
        self.agent.start()
        time.sleep(_REST)
        self.mounts = len(leftovers.mounts_under(self.agent.base))  # the agent's own
        self._meter, self._slow = Meter(self.agent.pid), Slow()

    @contextmanager
    def phase(self, name: str, each: int = 0) -> Iterator[None]:
        """Note what a block costs, for `each` pod or in all, and what holds the loop meanwhile."""
        self._told()
        self._slow.begin()
        runtime = Meter(self.containerd.pid)
        began, calls = time.monotonic(), self.containerd.calls().total()
        cpu, theirs = self._meter.cpu(), runtime.cpu()
        yield
        self.found[f"{name}: s"] = time.monotonic() - began
        of, per = ("a pod", each) if each else ("in all", 1)
        self.found[f"{name}: agent's CPU ms {of}"] = 1e3 * (self._meter.cpu() - cpu) / per
        self.found[f"{name}: containerd's CPU ms {of}"] = 1e3 * (runtime.cpu() - theirs) / per
        self.found[f"{name}: CRI calls {of}"] = (self.containerd.calls().total() - calls) / per
        self.found[f"{name}: as slow as"] = self._slow.take()
        for what, value in self._told().items():
            self.found[f"{name}: held {what} ms"] = value

    def memory(self, name: str) -> None:
        self.found[f"RSS MB, {name}"] = self._meter.rss()
        self.found[f"PSS MB, {name}"] = self._meter.pss()

    def _told(self) -> Mapping[str, float]:
        self._holds.unlink(missing_ok=True)
        os.kill(self.agent.pid, signal.SIGUSR2)
        eventually(self._holds.exists, within=60, what="the agent answers a signal")
        held: dict[str, float] = json.loads(self._holds.read_text())["held"]
        return held


def measure(count: int) -> Figures:
    """Return the figures, and what is left of the pods."""
    with tempfile.TemporaryDirectory() as place, Containerd(metrics=True) as containerd:
        crowd = Crowd(Path(place), containerd)
        agent = crowd.agent
        try:
            crowd.memory("no pods")
            with crowd.phase("start", count):
                for n in range(count):
                    agent.put(pod(f"crowd-{n}", terminationGracePeriodSeconds=1))
                eventually(partial(_are_ready, agent, count), _LIMIT, "all pods are Ready", 1)
            time.sleep(_REST)
            crowd.memory("all pods")
            with crowd.phase("quiet"):
                time.sleep(QUIET)
            with CriClient(containerd.socket) as cri, crowd.phase("removal", count):
                for path in agent.manifests.iterdir():
                    path.unlink()
                eventually(lambda: not cri.sandboxes(), _LIMIT, "no sandbox is left", 1)
            time.sleep(_REST)
            crowd.memory("no pods again")
            crowd.found |= _left(crowd)
        finally:
            agent.close()
        return crowd.found


def _are_ready(agent: Agent, count: int) -> bool:
    return sum(is_ready(each) for each in agent.pods().values()) == count


def _left(crowd: Crowd) -> Figures:
    """Count what the pods have left while containerd and agent still run; it should be nothing."""
    containerd, pods = crowd.containerd, crowd.agent.root / "pods"
    tops = [top / containerd.layout.cgroup for top in leftovers.hierarchies()]
    return {
        "left: processes": len(leftovers.shims_of(containerd.socket)),
        "left: mounts": len(leftovers.mounts_under(crowd.agent.base)) - crowd.mounts,
        "left: networks": len(_names(Path("/run/netns"))) - crowd.networks,
        "left: cgroups": sum("pod" in path.name for top in tops for path in top.rglob("*")),
        "left: directories of pods": len(_names(pods)),
        "left: logs": len(_names(crowd.agent.logs)),
    }


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


@click.command()
@click.option("--pods", default=110, show_default=True, help="A node takes 110 by default.")
def main(pods: int) -> None:
    """Start, leave alone and remove that many real pods."""
    if lacks := missing():
        raise click.ClickException(f"this machine cannot run it: {', '.join(lacks)}")
    click.echo(f"| figure | {pods} pods |\n| --- | ---: |")
    for figure, value in measure(pods).items():
        click.echo(f"| {figure} | {value:.3g} |")


if __name__ == "__main__":
    main()
