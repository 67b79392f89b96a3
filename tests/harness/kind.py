"""A cluster of somebody else's: kind's, whose worker runs this agent (`scripts/kind-up`).

`KUBECONFIG` says how to reach it and `KUBELET_TRIO_NODE` which node is the agent's. It has what
tests need that bring neither API server nor agent of their own.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import yaml

from tests.harness.pods import Json

NODE = os.environ.get("KUBELET_TRIO_NODE", "")  # "" where the tests bring a cluster of their own
_MANIFESTS = "/etc/kubernetes/manifests"
_LIMIT = 60.0


class KindAuthority:
    """Who signed the API server's certificate."""

    def __init__(self, certificate: Path) -> None:
        self.certificate = certificate


class KindPlane:
    """The control plane, which is not ours to stop."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.admin_kubeconfig = Path(os.environ["KUBECONFIG"])
        config = yaml.safe_load(self.admin_kubeconfig.read_text())
        found = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
        (base / "ca.crt").write_bytes(found)
        self.authority = KindAuthority(base / "ca.crt")


class KindAgent:
    """The agent of the worker; it runs already, and goes on."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._put: set[str] = set()

    def start(self) -> None:
        """It runs."""

    def put(self, manifest: Json) -> None:
        """Write a manifest, by an atomic rename."""
        name = manifest["metadata"]["name"]
        self._put.add(name)
        file = f"{_MANIFESTS}/{name}.json"
        _inside("sh", "-c", f"cat >{file}.tmp && mv {file}.tmp {file}", said=json.dumps(manifest))

    def drop(self, name: str) -> None:
        """Remove the manifest of a pod."""
        self._put.discard(name)
        _inside("rm", "-f", f"{_MANIFESTS}/{name}.json")

    def tail(self, lines: int = 60) -> str:
        """Return the end of what the agent has printed."""
        return _inside("journalctl", "-u", "kubelet", "--no-pager", "-n", str(lines))

    def close(self) -> None:
        """Take back what was put."""
        for name in list(self._put):
            self.drop(name)


def lacking() -> list[str]:
    """Return what is lacking for such a cluster, one phrase each."""
    return [] if os.environ.get("KUBECONFIG") else ["no KUBECONFIG"]


def _inside(*command: str, said: str = "") -> str:
    """Run a command in the worker and return what it prints."""
    ran = subprocess.run(
        ["docker", "exec", "-i", NODE, *command],
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT,
    )
    if ran.returncode:
        raise AssertionError(f"{command} in {NODE} exited {ran.returncode}: {ran.stderr}")
    return ran.stdout
