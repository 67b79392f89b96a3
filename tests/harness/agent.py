"""One `kubelet-trio run` as a process of its own, driven as a person would: files and CLI.

State is read from one watch on the control socket that lives as long as the agent does.
Commands are run as a person would run them. Readiness is the agent's own `sd_notify` word.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.harness import leftovers
from tests.harness.containerd import Containerd
from tests.harness.cri import CriClient
from tests.harness.machine import CGROUP_DRIVER, PATIENCE
from tests.harness.pods import NODE, Json, WaitTimeoutError, Watch, is_ready, pod_name
from tests.harness.ports import free_port

PROGRAM = Path(sys.executable).with_name("kubelet-trio")


class CommandError(Exception):
    """A command of the agent's failed; the message holds what it printed."""


class Agent:
    """An agent with directories of its own under `base`, on a private containerd.

    `config` overrides fields of its KubeletConfiguration, `arguments` end its command line,
    `environment` adds to the environment; `program` is the command of another installation.
    """

    def __init__(
        self,
        base: Path,
        containerd: Containerd,
        *,
        config: Mapping[str, Any] | None = None,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        program: Path = PROGRAM,
    ) -> None:
        self.base, self.containerd, self.program = base, containerd, program
        self.root, self.manifests = base / "root", base / "manifests"
        self.logs, self.output = base / "logs", base / "agent.log"
        self.log_links = base / "containers"
        self.control = self.root / "kubelet-trio.sock"
        self.arguments, self.environment = arguments, environment or {}
        self.healthz_port = free_port()
        self.notified: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None
        for directory in (self.manifests, self.logs):
            directory.mkdir(parents=True)
        self.config = {**self._defaults(), **(config or {})}
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(base / "notify"))

    def _defaults(self) -> Json:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self.manifests),
            "podLogsDir": str(self.logs),
            "containerRuntimeEndpoint": self.containerd.endpoint,
            "healthzPort": self.healthz_port,
            "port": free_port(),  # two runs on one machine must not meet
            "cgroupDriver": CGROUP_DRIVER,
            "cgroupRoot": self.containerd.layout.cgroup,
            "makeIPTablesUtilChains": False,  # they would be those of the tests' own machine
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
        }

    # The process

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """Write the configuration and return the command line of `kubelet-trio run`."""
        config = self.base / "config.yaml"
        config.write_text(yaml.safe_dump(self.config))
        named = ["--root-dir", str(self.root), "--hostname-override", NODE]
        named.append("--keep-kernel-settings")  # it is not the tests' machine to set up
        return [str(self.program), "run", "--config", str(config), *named, *self.arguments]

    def start(self, *, ready_within: float = 60) -> None:
        """Start the agent and return when it has said READY=1."""
        assert not self.is_running
        with self.output.open("ab") as out:
            self._process = subprocess.Popen(
                self.command(),
                stdout=out,
                stderr=out,
                env={**os.environ, "NOTIFY_SOCKET": str(self.base / "notify"), **self.environment},
                start_new_session=True,
            )
        self.wait_notified("READY=1", ready_within)

    def run_again(self) -> subprocess.CompletedProcess[str]:
        """Run a second agent on the same directories, and return how it ended."""
        return subprocess.run(
            self.command(), capture_output=True, text=True, check=False, timeout=60 * PATIENCE
        )

    def wait_notified(self, word: str, within: float = 60) -> None:
        """Wait for a line of sd_notify, said after the last one waited for."""
        deadline = time.monotonic() + within * PATIENCE
        while True:
            self._notify.settimeout(0.2)
            try:
                lines = self._notify.recv(4096).decode().splitlines()
            except TimeoutError:
                if time.monotonic() > deadline or (not self.is_running and word != "STOPPING=1"):
                    raise WaitTimeoutError(f"no {word} from the agent:\n{self.tail()}") from None
                continue
            self.notified += lines
            if word in lines:
                return

    def stop(self, within: float = 60) -> int:
        """Send SIGTERM and return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(within * PATIENCE)
        self.stop_watching()
        return status

    def kill(self) -> None:
        """Kill the agent with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.stop_watching()

    def end(self) -> None:
        """End the agent alone, for good."""
        if self.is_running:
            self.kill()
        self.stop_watching()
        self._notify.close()

    def close(self) -> None:
        """End the agent, then its pods, then what it mounted: whatever state it is in."""
        self.end()
        try:
            with CriClient(self.containerd.socket) as cri:
                cri.remove_all()
        finally:
            leftovers.unmount_under(self.base)
        leftovers.remove_cgroups(self.containerd.layout.cgroup)
        leftovers.make_cgroups(self.containerd.layout.cgroup)

    def tail(self, lines: int = 60) -> str:
        """Return the end of what the agent has printed."""
        if not self.output.exists():
            return ""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def cpu_seconds(self) -> float:
        """Return the user and system time of the agent's process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Return the resident set of the agent's process."""
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        line = next(line for line in status if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    # Manifests

    def put(self, manifest: Json | str, file: str = "") -> None:
        """Write a manifest, by an atomic rename, as `<name>.yaml` unless named."""
        if isinstance(manifest, str):
            text = manifest
        else:
            text = json.dumps(manifest)
            file = file or f"{manifest['metadata']['name']}.yaml"
        written = self.base / "manifest.tmp"
        written.write_text(text)
        written.rename(self.manifests / file)

    def drop(self, name: str) -> None:
        """Remove the manifest of a pod."""
        (self.manifests / f"{name}.yaml").unlink()

    # What the agent says

    def cli(self, *arguments: str, within: float = 60) -> str:
        """Run a command against the agent and return its standard output."""
        command = [str(PROGRAM), "--root-dir", str(self.root), *arguments]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=within * PATIENCE
        )
        if ran.returncode:
            raise CommandError(f"{arguments} exited {ran.returncode}: {ran.stderr}{ran.stdout}")
        return ran.stdout

    def open_cli(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that goes on, such as `logs -f`; the caller ends it."""
        command = [str(PROGRAM), "--root-dir", str(self.root), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def ask(self, path: str) -> Json:
        """Ask the control socket and return its JSON."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10 * PATIENCE)
            control.connect(str(self.control))
            control.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = b"".join(iter(lambda: control.recv(1 << 20), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 200 " in head, answer
        told: Json = json.loads(body)
        return told

    def pods(self) -> dict[str, Json]:
        """Ask for all pods: name (without the node's) -> pod."""
        return {pod_name(pod): pod for pod in self.ask("/pods")["items"]}

    def problems(self) -> list[Json]:
        """Ask for the manifests that are not followed: `where` and `message`."""
        return [p for source in self.ask("/status")["sources"] for p in source["problems"]]

    def wait(
        self, name: str, wanted: Callable[[Json], object], within: float = 60, what: str = ""
    ) -> Json:
        """Wait until a pod of that name is as `wanted` says and return it."""
        watch = self.start_watching()
        deadline = time.monotonic() + within * PATIENCE
        while True:
            for pod in watch.named(name):
                if wanted(pod):
                    return pod
            if not watch.read(deadline):
                seen = json.dumps([pod.get("status") for pod in watch.named(name)], indent=1)
                raise WaitTimeoutError(f"{name} not {what or 'as wanted'} in {within} s: {seen}")

    def wait_ready(self, name: str, within: float = 60) -> Json:
        """Wait until the pod's Ready condition is true."""
        return self.wait(name, is_ready, within, "Ready")

    def wait_gone(self, name: str, within: float = 60) -> None:
        """Wait until the agent no longer tells of a pod of that name."""
        watch = self.start_watching()
        deadline = time.monotonic() + within * PATIENCE
        # Asked, since a watch that has not said anything yet knows no pod at all.
        while pod := self.pods().get(name):
            if time.monotonic() > deadline:
                seen = json.dumps(pod.get("status"), indent=1)
                raise WaitTimeoutError(f"{name} not gone in {within} s: {seen}")
            watch.read(min(deadline, time.monotonic() + 1))

    def healthz(self, path: str = "/healthz") -> tuple[int, str]:
        """Ask the health endpoint; returns status and body, (0, why) if nobody answers."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.healthz_port, timeout=5 * PATIENCE
        )
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError as exc:
            return 0, str(exc)
        finally:
            connection.close()

    def start_watching(self) -> Watch:
        """Start the watch that `wait` reads, if it does not run."""
        if self._watch is None:
            self._watch = Watch(self.control)
        return self._watch

    def stop_watching(self) -> None:
        """End the watch, so that nobody asks anything of the agent."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
