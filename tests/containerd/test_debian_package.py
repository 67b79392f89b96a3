"""The Debian package, installed by dpkg into a fresh Debian: run, upgraded, removed, purged."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.install.contents import KUBELET_CONFIG, PACKAGED_UNITS, unit_text
from pack import deb, rootfs, tree
from tests.containerd import built
from tests.harness.chroot import USER, Chroot, chroot
from tests.harness.pods import Json, eventually

REPO = Path(__file__).parents[2]
HOME = f"/home/{USER}"
SOCKET = f"{HOME}/root/kubelet-trio.sock"
CONFIG = f"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {HOME}/first-run
podLogsDir: {HOME}/logs
failSwapOn: false
failCgroupV1: false
makeIPTablesUtilChains: false
"""


@pytest.fixture
def debian(tmp_path: Path) -> Iterator[Chroot]:
    built.need_debian()
    with chroot(rootfs.cached(built.python()), tmp_path) as running:
        yield running


def install(debian: Chroot, package: Path) -> None:
    shutil.copy(package, debian.root / "tmp/agent.deb")
    debian.run("dpkg", "--install", "/tmp/agent.deb")


class Agent:
    """The installed agent, run by an ordinary user on the process runtime."""

    def __init__(self, debian: Chroot) -> None:
        self.debian, self.output = debian, debian.root / "tmp/agent.log"
        home = debian.root / HOME[1:]
        if not (home / "first-run").exists():
            shutil.copytree(REPO / "examples/first-run", home / "first-run")
            (home / "kubelet.yaml").write_text(CONFIG)
        flags = ["--config", f"{HOME}/kubelet.yaml", "--root-dir", f"{HOME}/root"]
        runtime = ["--container-runtime-endpoint=process", "--keep-kernel-settings"]
        command = ["kubelet-trio", "run", *flags, *runtime]
        self.process = debian.start(self.output, *command, user=USER)

    def pods(self) -> dict[str, Json]:
        """Return the pods by the names of their manifests; none while no agent answers."""
        if not (self.debian.root / SOCKET[1:]).exists():
            assert self.process.poll() is None, self.output.read_text()
            return {}
        command = ["kubelet-trio", "--root-dir", f"{HOME}/root", "pods", "-o", "json"]
        try:
            listed = json.loads(self.debian.run(*command, user=USER))
        except AssertionError:
            return {}  # the socket of the agent before
        return {pod["metadata"]["name"].partition("-")[0]: pod for pod in listed["items"]}

    def running(self) -> dict[str, list[str]]:
        """Return the container ids of the pods whose containers all run."""
        return {
            name: [one["containerID"] for one in statuses]
            for name, pod in self.pods().items()
            if (statuses := pod["status"].get("containerStatuses", []))
            and all("running" in one["state"] for one in statuses)
        }

    def restarts(self, name: str) -> int:
        (status,) = self.pods()[name]["status"]["containerStatuses"]
        return int(status["restartCount"])

    def stop(self) -> None:
        # nsenter waits for the agent, which is its only child.
        listed = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        (pid,) = Path(listed).read_text().split()
        subprocess.run(["kill", f"-{signal.SIGTERM.value}", pid], check=True)
        assert self.process.wait(30) == 0, self.output.read_text()


def test_pods_outlive_an_upgrade_and_a_purge_leaves_nothing(debian: Chroot, tmp_path: Path) -> None:
    before = debian.files()
    install(debian, built.debian_package())
    assert "Show the agent" in debian.run("kubelet-trio", "--help")
    assert debian.run("kubelet-trio", "version").startswith("Client: 0.1.0")
    agent = Agent(debian)
    eventually(lambda: {"web", "sidecar"} <= agent.running().keys(), within=60)
    eventually(lambda: agent.restarts("crash") > 0, within=60)
    ran = agent.running()

    install(debian, deb.repack(built.debian_package(), "0.1.0+next", tmp_path))
    said = debian.run("dpkg-query", "--show", "--showformat=${Version}", "kubelet-trio")
    assert said == "0.1.0+next"
    agent.stop()
    agent = Agent(debian)
    eventually(lambda: {"web", "sidecar"} <= agent.running().keys(), within=60)
    again = agent.running()
    assert {name: again[name] for name in ("web", "sidecar")} == {
        name: ran[name] for name in ("web", "sidecar")
    }

    agent.stop()
    debian.run("dpkg", "--remove", "kubelet-trio")
    kept = debian.files() - before
    assert kept == {"etc/default/kubelet-trio"}
    # The shims of its containers have nothing more to do with the package.
    commands = debian.run("sh", "-c", "cat /proc/*/cmdline | tr '\\0' ' '")
    assert "http.server" in commands
    debian.run("dpkg", "--purge", "kubelet-trio")
    # An empty /opt, which no package owns, dpkg takes along.
    assert before - {"opt"} == debian.files() - {"opt"}


def test_what_the_package_says_of_itself() -> None:
    built.need_debian()
    package = str(built.debian_package())
    said = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True)
    fields = dict(line.split(": ", 1) for line in said.stdout.decode().splitlines() if ": " in line)
    version = built.python().version
    assert f"python{version}" in fields["Depends"]
    assert 20_000 < int(fields["Installed-Size"]) < 60_000  # KiB; docs/packages.md says 43 MB
    listed = subprocess.run(["dpkg-deb", "--contents", package], check=True, capture_output=True)
    names = {line.split()[5] for line in listed.stdout.decode().splitlines()}
    packages = f"./opt/kubelet-trio/lib/python{version}/site-packages/"
    assert {f"./{place}" for place in deb.COMPLETIONS.values()} <= names
    manual = {
        f"./usr/share/man/{page}.gz" for page in ("man1/kubelet-trio.1", "man8/kubelet-trio.8")
    }
    assert manual <= names
    # The prefix of the tree, systemd's own places and the documentation's; no other.
    tops = {"/".join(name.split("/")[1:3]) for name in names if name.count("/") > 2}
    assert tops == {"etc/default", "opt/kubelet-trio", "usr/bin", "usr/lib", "usr/share"}
    assert f"{packages}trio/__init__.py" in names
    assert f"{packages}trio/__pycache__/__init__.cpython-{version.replace('.', '')}.pyc" in names
    # Tests of others, pip's notes and stubs are not in it.
    left = [name for name in names if "/_tests/" in name or name.endswith((".pyi", "/RECORD"))]
    assert left == []


def test_it_brings_the_unit_of_an_installation_by_hand(debian: Chroot) -> None:
    install(debian, built.debian_package())
    (unit,) = PACKAGED_UNITS
    assert (debian.root / unit[1:]).read_text() == unit_text()
    # There is neither a runtime nor a network here.
    ignored = [f"--ignore={check}" for check in ("runtime", "network", "programs")]
    planned = debian.run("kubelet-trio", "install", "--dry-run", *ignored)
    assert KUBELET_CONFIG in planned
    assert "kubelet-trio.service" not in planned  # the package's is there
    flags = (debian.root / "etc/default/kubelet-trio").read_text()
    assert "KUBELET_TRIO_ARGS=" in flags
    assert "$KUBELET_TRIO_ARGS" in unit_text()


def test_what_the_command_cannot_write_fails_the_build(tmp_path: Path) -> None:
    empty = tree.Tree(tmp_path, tmp_path, built.python())
    with pytest.raises(tree.BuildError, match="completion bash"):
        empty.run("completion", "bash")


def test_edited_flags_are_kept(debian: Chroot, tmp_path: Path) -> None:
    install(debian, built.debian_package())
    edited = debian.root / "etc/default/kubelet-trio"
    edited.write_text("KUBELET_TRIO_ARGS=--v=4\n")
    install(debian, deb.repack(built.debian_package(), "0.1.0+next", tmp_path))
    assert edited.read_text() == "KUBELET_TRIO_ARGS=--v=4\n"
