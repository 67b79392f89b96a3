"""`python -m bench.scale`: how long many pods hold the agent's loop, and what they cost.

The agent is a process of its own, and so is the runtime that it talks CRI to: `FakeRuntime` behind
a socket, without which 500 pods would be a measure of runc. What holds the loop is CPU time of its
thread between two looks for I/O, so that a busy machine changes little of it.

`--dead` and `--images` add the remains of years to the node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import click
import yaml

from bench.contender import Meter
from bench.growth import table
from kubelet_trio.cri import v1
from tests.harness import CriClient, leftovers
from tests.harness.ports import free_port

COUNTS = (50, 250, 500)
QUIET = 30.0  # seconds without a change
_LIMIT = 600.0
_WORK = 20_000  # steps of Python: 1 ms
Figures = dict[str, float]


class Slow(Thread):
    """Measures by how much other work on the machine lengthens what is CPU time.

    Cores share caches and execution units: the same work takes a busy machine's CPU longer. So some
    work of the same kind is measured again and again, beside the fastest time that it ever took.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._taken: list[float] = []
        self._least = inf
        self.start()

    def run(self) -> None:
        while True:
            began = time.thread_time()
            sum(number * number for number in range(_WORK))
            self._taken.append(time.thread_time() - began)
            self._least = min(self._least, self._taken[-1])
            time.sleep(0.2)

    def begin(self) -> None:
        self._taken = []

    def take(self) -> float:
        """Return the median since `begin`, as a multiple of the least."""
        return median(self._taken) / self._least if self._taken else 1.0


class Scale:
    """One agent on one runtime, both with nothing before them."""

    def __init__(
        self,
        base: Path,
        dead: int,
        images: int,
        *,
        events: bool = True,
        is_verbose: bool = False,
        child: str = "bench.held",
        program: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Start both.

        `program` and `environment` run another `kubelet-trio` than `bench.held`; `config` overrides
        fields of its configuration.
        """
        self.base, self._is_verbose = base, is_verbose
        self.found: Figures = {}
        self._manifests = base / "manifests"
        self._manifests.mkdir()
        self._holds = base / "holds.json"
        self._socket = socket = base / "cri.sock"
        server = [sys.executable, "-m", "tests.harness.cri_server", str(socket)]
        server += ["--dead", str(dead), "--images", str(images)]
        if not events:
            server.append("--no-events")
        self._agent: subprocess.Popen[bytes] | None = None
        self._log = base / "agent.log"
        self._server = subprocess.Popen(server)
        self._until(socket.is_socket, "the runtime serves")
        written = base / "config.yaml"
        written.write_text(yaml.safe_dump({**self._config(socket), **(config or {})}))
        self._agent = subprocess.Popen(
            [
                *(program or (sys.executable, "-m", child, str(self._holds))),
                *("run", "--config", str(written), "--root-dir", str(base / "root")),
                *("--hostname-override", "node", "--keep-kernel-settings"),
                # Who keeps remains for long is who has many.
                *("--minimum-container-ttl-duration", "24h" if dead else "0"),
            ],
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        self._meter = Meter(self._agent.pid)
        self._slow = Slow()

    @property
    def pid(self) -> int:
        """The agent's."""
        assert self._agent is not None
        return self._agent.pid

    def _config(self, socket: Path) -> Mapping[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self._manifests),
            "podLogsDir": str(self.base / "logs"),
            "containerRuntimeEndpoint": f"unix://{socket}",
            "healthzPort": free_port(),
            "port": free_port(),
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": ["none"],
            "makeIPTablesUtilChains": False,
            "failCgroupV1": False,
            "failSwapOn": False,
            "maxPods": 1000,
        }

    def tail(self) -> str:
        """Return the end of what the agent has printed."""
        return self._log.read_text()[-3000:]

    def close(self) -> None:
        """End both, and remove what the agent has mounted."""
        for process in (self._agent, self._server):
            if process is not None:
                process.terminate()
                process.wait(60)
        leftovers.unmount_under(self.base)

    @contextmanager
    def phase(self, name: str, count: int = 0) -> Iterator[None]:
        """Note what holds the loop during a block, and its CPU time, for each of `count`."""
        self._holding()
        self._slow.begin()
        cpu = self._meter.cpu()
        yield
        cpu = self._meter.cpu() - cpu
        if self._is_verbose:
            click.echo(f"   {name}", err=True)
        for what, value in self._holding().items():
            self.found[f"{name}: {what}"] = value
        self.found[f"{name}: as slow as"] = self._slow.take()
        if count:
            self.found[f"{name}: CPU ms a pod"] = 1e3 * cpu / count
        else:
            self.found[f"{name}: CPU ms a minute"] = 1e3 * cpu / QUIET * 60

    def wait_started(self) -> None:
        """Wait until the agent's tree runs."""
        self._until(lambda: '"agent.started"' in self._log.read_text(), "the agent has started")

    def told(self) -> dict[str, Any]:
        """Return what the child tells at a signal."""
        assert self._agent is not None
        self._holds.unlink(missing_ok=True)
        self._agent.send_signal(signal.SIGUSR2)
        self._until(self._holds.exists, "the agent answers a signal")
        found: dict[str, Any] = json.loads(self._holds.read_text())
        return found

    def _holding(self) -> Figures:
        """Return the figures of the loop since the last question."""
        told = self.told()
        if self._is_verbose:
            for task, held in told["longest"]:
                click.echo(f"      {held:7.1f} ms  {task}", err=True)
            for took, turn in told["longest turns"]:
                click.echo(f"      {took:7.1f} ms  a turn:", err=True)
                for task, (held, steps) in turn:
                    if held > took / 20:
                        click.echo(f"         {held:7.1f} ms  {steps} steps: {task}", err=True)
        return {f"{name} ms": value for name, value in told["held"].items()}

    def put(self, count: int, note: str = "") -> None:
        """Write that many manifests."""
        for number in range(count):
            written = self.base / "manifest.tmp"
            written.write_text(json.dumps(_manifest(number, note)))
            written.rename(self._manifests / f"pod-{number}.yaml")

    def drop(self) -> None:
        for path in self._manifests.iterdir():
            path.unlink()

    def wait(self, ready: int, settle: float = 3.0) -> None:
        """Wait until that many pods run, and for what follows."""
        with CriClient(self._socket) as cri:
            self._until(lambda: _ready(cri) == ready, f"{ready} sandboxes are ready")
            self._until(lambda: len(cri.running()) == ready, f"{ready} containers run")
        time.sleep(settle)

    def wait_gone(self, settle: float) -> None:
        """Wait until nothing is left of the pods, neither in the runtime nor on the disk."""
        pods = self.base / "root" / "pods"
        with CriClient(self._socket) as cri:
            self._until(lambda: not cri.sandboxes(), "no sandboxes are left")
        self._until(lambda: not any(pods.iterdir()), "no directories of pods are left")
        time.sleep(settle)

    def memory(self, name: str) -> None:
        self.found[f"RSS MB, {name}"] = self._meter.rss()

    def _until(self, is_so: Any, what: str) -> None:
        deadline = time.monotonic() + _LIMIT
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {_LIMIT:.0f} s")
            if self._server.poll() is not None:
                raise RuntimeError("the runtime has ended")
            if self._agent is not None and self._agent.poll() is not None:
                raise RuntimeError(f"the agent has ended: {self.tail()}")
            time.sleep(0.2)


def _ready(cri: CriClient) -> int:
    state = v1.PodSandboxState.SANDBOX_READY
    return sum(sandbox.state == state for sandbox in cri.sandboxes())


def _manifest(number: int, note: str) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "uid": f"00000000-0000-0000-0000-{number:012}",
            "labels": {"note": note},
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "web", "image": "web", "imagePullPolicy": "IfNotPresent"}],
        },
    }


def measure(
    count: int, dead: int, images: int, *, events: bool, is_verbose: bool = False
) -> Figures:
    """Return the figures of one number of pods."""
    with tempfile.TemporaryDirectory() as place:
        scale = Scale(Path(place), dead, images, events=events, is_verbose=is_verbose)
        try:
            scale.wait(0, settle=10.0)
            scale.memory("no pods")
            with scale.phase("start", count):
                scale.put(count)
                scale.wait(count)
            scale.memory("all pods")
            with scale.phase("quiet"):
                time.sleep(QUIET)
            with scale.phase("edits", count):
                scale.put(count, "edited")
                time.sleep(10.0)
            with scale.phase("removal", count):
                scale.drop()
                scale.wait(0)
        finally:
            scale.close()
        return scale.found


@click.command()
@click.option("--pods", default=",".join(map(str, COUNTS)), show_default=True, help="Numbers.")
@click.option("--dead", default=0, show_default=True, help="Containers that have exited.")
@click.option("--images", default=0, show_default=True, help="Images on the node.")
@click.option("--events/--no-events", default=True, help="Whether the runtime tells of exits.")
@click.option("--verbose", is_flag=True, help="Tell which tasks hold the loop.")
def main(pods: str, dead: int, images: int, events: bool, verbose: bool) -> None:
    """Measure what holds the agent's loop under many pods, on FakeRuntime over gRPC."""
    by_count: dict[int, Figures] = {}
    for count in map(int, pods.split(",")):
        click.echo(f"{count} pods", err=True)
        by_count[count] = measure(count, dead, images, events=events, is_verbose=verbose)
    click.echo("\n".join(table(by_count)))


if __name__ == "__main__":
    main()
