"""`kubelet-trio run` on the embedded runtime, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubelet_trio.cli.client import AgentClient, ClientError
from tests.cri.process.processes import processes_at
from tests.harness.leftovers import unmount_under
from tests.harness.machine import PATIENCE

# Seconds for whatever a test waits for. They only bound a hang: on a busy machine an interpreter
# can take more than 20 s to import what the agent needs.
LIMIT = 120 * PATIENCE
_MAIN = "from kubelet_trio.cli.main import cli; cli()"

SLEEPER = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: none, command: [sleep, "1000"]}]
"""
_SETTINGS = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podLogsDir: {base}/logs/pods
"""


class Daemon:
    """The running agent. Pods are ended with it."""

    def __init__(self, base: Path, *flags: str, **environment: str) -> None:
        self.root = base / "root"
        self.manifests = base / "manifests"
        self.manifests.mkdir(exist_ok=True)
        self.log = base / "log"
        self.client = AgentClient(str(self.root))
        settings = base / "kubelet.yaml"
        settings.write_text(_SETTINGS.format(base=base))  # nothing outside, as root either
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _MAIN, "run", f"--root-dir={self.root}"),
                    *("--container-runtime-endpoint=process", "--fail-cgroupv1=false"),
                    f"--config={settings}",
                    *(f"--pod-manifest-path={self.manifests}", "--remove-pods-on-exit"),
                    *(["--process-allow-root"] if os.getuid() == 0 else []),
                    *flags,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )

    def write(self, text: str = SLEEPER, name: str = "web.yaml") -> None:
        (self.manifests / name).write_text(text)

    def eventually(self, look: Callable[[], Any]) -> Any:
        """Return what `look` finds as soon as it finds something."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if found := look():
                    return found
            except ClientError:
                pass  # it does not answer yet
            time.sleep(0.05)
        raise AssertionError(f"not seen in {LIMIT} s; the agent's log:\n{self.log.read_text()}")

    def running_pods(self) -> list[str]:
        pods = self.client.get("pods")["items"]
        return [p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"]

    def port_problems(self) -> dict[str, str]:
        ports = self.client.get("status")["ports"]
        return {port["name"]: port["problem"] for port in ports if port["problem"]}

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)


@contextmanager
def daemon(base: Path, *flags: str, **environment: str) -> Iterator[Daemon]:
    running = Daemon(base, *flags, **environment)
    try:
        yield running
    finally:
        was_killed = running.process.poll() is None
        running.process.kill()
        running.process.wait()
        for line in processes_at(base):
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        if was_killed:  # one that ends by itself has unmounted its root directory
            unmount_under(running.root)


@contextmanager
def taken_port() -> Iterator[socket.socket]:
    """Hold a port of the loopback address, as another program would."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held


def number(held: socket.socket) -> int:
    return int(held.getsockname()[1])
