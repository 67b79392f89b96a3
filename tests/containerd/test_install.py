"""docs/install.md and the operator's tutorial, followed to the letter on a fresh Debian, and back.

One machine, whose tests follow each other: the node is installed, used, and uninstalled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.install.contents import MANIFESTS
from pack import rootfs
from tests.harness.fresh import BOOKWORM, CLONE, FreshDebian, fresh_debian
from tests.harness.pods import eventually
from tests.harness.transcript import blocks_of, follow

DOCS = Path(__file__).parents[2] / "docs"
RUNTIME, AGENT, INSTALL, IMAGES, POD, UNINSTALL = blocks_of(DOCS / "install.md")
WEB = f"{MANIFESTS}/web.yaml"
# containerd's own: images and what their import leaves.
_OF_CONTAINERD = ("var/lib/containerd", "opt/containerd")
# What its network plugins make with the first pod.
_OF_PLUGINS = {"var/lib/cni", "var/lib/cni/networks", "var/lib/cni/results"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshDebian]:
    if reason := rootfs.why_not(BOOKWORM):
        pytest.skip(f"no Debian to install into: {reason}")
    with fresh_debian(tmp_path_factory.mktemp("machine")) as running:
        yield running


def files(machine: FreshDebian) -> set[str]:
    """Return all files that are not the runtime's, the clone's, or of the stand-in for systemd."""
    ignored = (*_OF_CONTAINERD, CLONE.lstrip("/"), "etc/systemd/stand-in", "root")
    return {path for path in machine.inside.files() if not path.startswith(ignored)}


@pytest.fixture(scope="module")
def before(machine: FreshDebian) -> set[str]:
    """What is there once the runtime is."""
    machine.run(RUNTIME.text)
    return files(machine)


@pytest.fixture(scope="module")
def installed(machine: FreshDebian, before: set[str]) -> FreshDebian:
    """The machine after all steps of the page: a node with its first pod."""
    apt = time.monotonic() - machine.began
    for block in (AGENT, INSTALL, IMAGES, POD):
        machine.run(block.text)
    eventually(lambda: "1/1     Running" in machine.run("kubelet-trio pods"), within=60)
    took, size = time.monotonic() - machine.began, machine.size("/opt/kubelet-trio")
    # docs/install.md has these, rounded.
    print(f"installed: {size / 1e6:.0f} MB; to a Running pod: {took:.0f} s, of apt {apt:.0f} s")
    return machine


def test_the_steps_of_the_page_run_a_pod(installed: FreshDebian) -> None:
    assert installed.run("systemctl is-active kubelet-trio containerd") == "active\nactive\n"
    assert installed.run("systemctl is-enabled kubelet-trio") == "enabled\n"
    said = installed.run("kubelet-trio exec web -- wget -qO- localhost:8080")
    assert said == "hello from web-node1\n"
    # The page says about 90 MB; much more would be a mistake there or here.
    assert 60e6 < installed.size("/opt/kubelet-trio") < 120e6
    # A second time there is nothing to do.
    again = installed.run("kubelet-trio install --dry-run")
    assert not any(line.startswith(("create", "change", "make")) for line in again.splitlines())


def test_ten_minutes_on_a_node(installed: FreshDebian) -> None:
    for block in blocks_of(DOCS / "tutorial-operator.md"):
        follow(block, installed.run, lambda *_: pytest.fail("the page has no files"))


def test_after_the_last_block_nothing_is_left(installed: FreshDebian, before: set[str]) -> None:
    installed.run(UNINSTALL.text)
    # Manifests are the user's, as the page says.
    manifests = {"etc/kubernetes", MANIFESTS[1:], WEB[1:]}
    assert files(installed) - before == manifests | _OF_PLUGINS
    assert before <= files(installed)
    assert installed.run("ctr -n k8s.io tasks ls -q") == ""
    assert installed.run("ctr -n k8s.io containers ls -q") == ""
    assert "/var/lib/kubelet" not in installed.run("cat /proc/self/mountinfo")
    assert "kubepods" not in installed.run("ls /sys/fs/cgroup /sys/fs/cgroup/*")
    assert "kt0" not in installed.run("ip link")
    assert installed.run("systemctl is-active containerd") == "active\n"
