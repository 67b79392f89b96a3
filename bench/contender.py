"""Who is measured: this agent, or a Go kubelet of any version, behind one face.

Both get the same manifests directory, containerd and cgroup root, and both are asked for
their pods by polling `/pods`: this agent on its control socket, the Go kubelet on its
read-only port.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import yaml

from tests.harness import Agent, Containerd, CriClient, eventually, leftovers
from tests.harness.agent import PROGRAM
from tests.harness.pods import NODE, Json
from tests.harness.ports import free_port

_START_LIMIT = 60.0
_OPEN: Mapping[str, Any] = {
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}


class Contender(Protocol):
    """A node agent with a manifests directory of its own."""

    name: str
    api_port: int  # of the kubelet API
    resizes_static_pods: bool

    @property
    def pid(self) -> int: ...

    def start(self) -> None:
        """Start it and return when it answers."""
        ...

    def stop(self) -> None:
        """End it; what it runs goes on."""
        ...

    def put(self, manifest: Json) -> None: ...

    def drop(self, name: str) -> None: ...

    def pods(self) -> list[Json]:
        """Return all pods as it tells them."""
        ...

    def close(self) -> None:
        """End it and everything that it ran."""
        ...


class Ours:
    """This agent, as the tests run it, from the installation of `program`."""

    name = "kubelet-trio"
    resizes_static_pods = True

    def __init__(
        self,
        program: Path,
        base: Path,
        containerd: Containerd,
        arguments: tuple[str, ...] = (),
        *,
        serve: bool = False,
    ) -> None:
        """`serve`: the kubelet API on `api_port`, for everybody, as the Go kubelet's here."""
        self.api_port = free_port()
        config = {"address": "127.0.0.1", "port": self.api_port, **_OPEN} if serve else {}
        own = ("--cert-dir", str(base / "pki"), *arguments)
        self._agent = Agent(base, containerd, config=config, arguments=own, program=program)

    @property
    def pid(self) -> int:
        return self._agent.pid

    def start(self) -> None:
        self._agent.start()

    def stop(self) -> None:
        self._agent.stop()

    def put(self, manifest: Json) -> None:
        self._agent.put(manifest)

    def drop(self, name: str) -> None:
        self._agent.drop(name)

    def pods(self) -> list[Json]:
        return list(self._agent.ask("/pods")["items"])

    @contextmanager
    def watched(self) -> Iterator[Callable[[str], object]]:
        """Watch its pods; yield what waits until the pod of that name is Ready.

        The agent tells of it at once. Nobody asks, which would take CPU time from what is measured.
        """
        self._agent.start_watching()
        yield self._agent.wait_ready
        self._agent.stop_watching()

    def close(self) -> None:
        self._agent.close()


class GoKubelet:
    """A Go kubelet binary, with the configuration that its version takes.

    Standalone, unless `arguments`, which end its command line, name a kubeconfig.
    """

    resizes_static_pods = False  # an edited manifest is a new pod

    def __init__(
        self,
        binary: Path,
        base: Path,
        containerd: Containerd,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._binary, self._base, self._containerd = binary, base, containerd
        self._arguments = arguments
        self.version = go_version(binary)
        self.name = f"kubelet {'.'.join(map(str, self.version))}"
        self._manifests = base / "manifests"
        self._manifests.mkdir(parents=True)
        self._port, self.api_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with (self._base / "kubelet.log").open("ab") as out:
            self._process = subprocess.Popen(
                self._command(), stdout=out, stderr=out, start_new_session=True
            )
        eventually(self._answers, within=_START_LIMIT, what=f"{self.name} answers")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
            self._process = None

    def put(self, manifest: Json) -> None:
        written = self._base / "manifest.tmp"
        written.write_text(json.dumps(manifest))
        written.rename(self._manifests / f"{manifest['metadata']['name']}.yaml")

    def drop(self, name: str) -> None:
        (self._manifests / f"{name}.yaml").unlink()

    def pods(self) -> list[Json]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/pods", timeout=30) as answer:
            return json.load(answer)["items"] or []

    def close(self) -> None:
        self.stop()
        with CriClient(self._containerd.socket) as cri:
            cri.remove_all()
        leftovers.unmount_under(self._base)
        leftovers.remove_cgroups(self._containerd.layout.cgroup)
        leftovers.make_cgroups(self._containerd.layout.cgroup)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = (self._base / "kubelet.log").read_text(errors="replace").splitlines()[-5:]
            raise RuntimeError(f"{self.name} ended: {' / '.join(said)}")
        try:
            self.pods()
        except OSError:
            return False
        return True

    def _command(self) -> list[str]:
        config = self._base / "config.yaml"
        config.write_text(yaml.safe_dump(dict(self._config())))
        command = [
            str(self._binary),
            f"--config={config}",
            f"--root-dir={self._base / 'root'}",
            f"--cert-dir={self._base / 'pki'}",
            f"--hostname-override={NODE}",
        ]
        if self.version < (1, 24):
            command.append("--container-runtime=remote")
        if self.version < (1, 27):
            command.append(f"--container-runtime-endpoint={self._containerd.endpoint}")
        return [*command, *self._arguments]

    def _config(self) -> Mapping[str, Any]:
        config: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self._manifests),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._containerd.layout.cgroup,
            "failSwapOn": False,
            "address": "127.0.0.1",
            "port": self.api_port,
            "readOnlyPort": self._port,
            "healthzPort": free_port(),
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            **_OPEN,
            "oomScoreAdj": 0,
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
        }
        if self.version >= (1, 27):
            config["containerRuntimeEndpoint"] = self._containerd.endpoint
        if self.version >= (1, 31):
            config["failCgroupV1"] = False
        return config


def go_version(binary: Path) -> tuple[int, int]:
    """Ask a kubelet for its version. Raises ValueError if it does not say one."""
    said = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    if found is None:
        raise ValueError(f"{binary} --version said {said!r}, not Kubernetes v<major>.<minor>")
    return int(found[1]), int(found[2])


_SCHED = 2  # CPUCLOCK_SCHED: a clock of a process's CPU time is ~PID << 3 | this (Linux ABI)


def serving(peer: Path | None, base: Path, containerd: Containerd) -> Contender:
    """Return a contender with its kubelet API open: this checkout's agent, or the Go kubelet."""
    if peer is not None:
        return GoKubelet(peer.absolute(), base / "peer", containerd)
    return Ours(PROGRAM, base / "ours", containerd, serve=True)


class Meter:
    """What a process has used so far, from /proc."""

    def __init__(self, pid: int) -> None:
        self._pid, self._proc = pid, Path("/proc", str(pid))

    def cpu(self) -> float:
        """Return user and system time, in seconds, to the nanosecond: /proc/PID/stat has ticks."""
        return time.clock_gettime(~self._pid << 3 | _SCHED)

    def rss(self) -> float:
        """Return the resident set, in MB."""
        return self._status("VmRSS") / 1e3

    def pss(self) -> float:
        """Return the proportional set, in MB: of pages that n processes share, an n-th."""
        lines = (self._proc / "smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1e3

    def wakeups(self) -> dict[str, int]:
        """Return how often each of its threads has slept and was woken, by TID."""
        found = {}
        for thread in (self._proc / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                found[thread.name] = self._status("voluntary_ctxt_switches", thread)
        return found

    def _status(self, field: str, base: Path | None = None) -> int:
        lines = ((base or self._proc) / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def wait_ready(contender: Contender, names: set[str], pause: float, limit: float = 300.0) -> None:
    """Poll `/pods` every `pause` seconds until all these pods are Ready."""
    deadline = time.monotonic() + limit
    while missing := names - ready_names(contender.pods()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{contender.name}: not Ready in {limit:.0f} s: {sorted(missing)}")
        time.sleep(pause)


def ready_names(pods: list[Json]) -> set[str]:
    """Return the names, as their manifests have them, of those with condition Ready."""
    return {
        pod["metadata"]["name"].removesuffix(f"-{NODE}")
        for pod in pods
        for condition in pod.get("status", {}).get("conditions") or ()
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
