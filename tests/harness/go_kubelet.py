"""The Go kubelet on the directories and the runtime of an `Agent`, in its place.

The program is `kubelet` of KUBEBUILDER_ASSETS: 1.20 as scripts/control-plane builds it, or a newer
one put there by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import yaml

from tests.harness.agent import Agent
from tests.harness.control_plane import find_program
from tests.harness.machine import CGROUP_DRIVER, PATIENCE
from tests.harness.pods import Json, WaitTimeoutError

# What the Go kubelet sets on its machine (setupKernelTunables).
_TUNED = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_NO_EVICTION = {"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"}
_REMOVED = (1, 24)  # --container-runtime and the container runtime's own flags


class GoKubelet:
    """One Go kubelet at a time, from `start` to `stop`; `restore` undoes what it set."""

    def __init__(self, agent: Agent, node: str, kubeconfig: Path) -> None:
        self.agent, self.node, self.kubeconfig = agent, node, kubeconfig
        self.output = agent.base / "go-kubelet.log"
        self._process: subprocess.Popen[bytes] | None = None
        program = find_program("kubelet")
        assert program is not None
        self.program = program
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        found = re.search(r"v(\d+)\.(\d+)", told.stdout)
        assert found is not None, told.stdout
        self.version = int(found[1]), int(found[2])
        self._before = {name: _sysctl(name).read_text() for name in _TUNED}

    def start(self) -> None:
        """Start it. From the main thread: the kernel ends it with the thread that did."""
        config = self.agent.base / "go-config.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        command = [
            str(self.program),
            f"--config={config}",
            f"--root-dir={self.agent.root}",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={self.node}",
            f"--cert-dir={self.agent.base / 'go-pki'}",
        ]
        if self.version < _REMOVED:
            endpoint = self.agent.containerd.endpoint
            command += ["--container-runtime=remote", f"--container-runtime-endpoint={endpoint}"]
        if guard := shutil.which("setpriv"):
            command = [guard, "--pdeathsig", "KILL", *command]
        with self.output.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True
            )

    def _config(self) -> Json:
        shared = (
            "apiVersion",
            "kind",
            "staticPodPath",
            "healthzPort",
            "port",
            "cgroupRoot",
            "makeIPTablesUtilChains",
            "failSwapOn",
            "clusterDNS",
            "clusterDomain",
        )
        config = {name: self.agent.config[name] for name in shared}
        config |= {
            "cgroupDriver": CGROUP_DRIVER,
            "evictionHard": _NO_EVICTION,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "nodeStatusUpdateFrequency": "2s",
            "fileCheckFrequency": "2s",
        }
        if self.version >= _REMOVED:
            config |= {
                "containerRuntimeEndpoint": self.agent.containerd.endpoint,
                "failCgroupV1": False,
                "podLogsDir": self.agent.config["podLogsDir"],
            }
        return config

    def stop(self) -> None:
        """End it as systemd does; what it runs goes on."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20 * PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def check_alive(self) -> None:
        """Raise `WaitTimeoutError` with the end of its log if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            lines = self.output.read_text(errors="replace").splitlines()[-30:]
            raise WaitTimeoutError("the Go kubelet has ended:\n" + "\n".join(lines))

    def restore(self) -> None:
        """Give the machine its settings back."""
        for name, value in self._before.items():
            if _sysctl(name).read_text() != value:
                _sysctl(name).write_text(value)


def _sysctl(name: str) -> Path:
    return Path("/proc/sys") / name


def watch(kubelet: GoKubelet, seconds: float) -> None:
    """Let a Go kubelet do what it does by itself."""
    until = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < until:
        kubelet.check_alive()
        time.sleep(0.5)


def has_kubelet() -> bool:
    """Return whether there is a Go kubelet to run."""
    found = find_program("kubelet")
    return found is not None and os.access(found, os.X_OK)
