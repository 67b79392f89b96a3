"""A program called `kubelet` has the Go kubelet's command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("kubelet-trio")
# How kubeadm reads the one line (GetKubeletVersion in cmd/kubeadm/app/preflight).
KUBEADM_READS = re.compile(
    r"^\s*Kubernetes v((0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)([-\w.+]*)?)\s*$"
)


@pytest.fixture
def kubelet(tmp_path: Path) -> Path:
    link = tmp_path / "kubelet"
    link.symlink_to(PROGRAM)
    return link


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_kubeadm_reads_its_version(kubelet: Path) -> None:
    ran = run(kubelet, "--version")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert KUBEADM_READS.match(ran.stdout)
    assert ran.stdout == "Kubernetes v1.36.2\n"


def test_the_raw_version_is_gos(kubelet: Path) -> None:
    ran = run(kubelet, "--version=raw")
    assert ran.returncode == 0
    assert ran.stdout.startswith('version.Info{Major:"1", Minor:"36", ')
    assert 'GitVersion:"v1.36.2"' in ran.stdout


def test_its_help_is_that_of_run_without_a_subcommand(kubelet: Path) -> None:
    ran = run(kubelet, "-h")
    assert ran.returncode == 0
    assert "Usage: kubelet [flags]" in ran.stdout
    assert "--bootstrap-kubeconfig" in ran.stdout


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("pods", 'unknown command "pods"'),  # the subcommands are kubelet-trio's
        ("--network-plugin=cni", "unknown flag: --network-plugin: Kubernetes 1.24 removed it"),
        ("--version=v1.2.3", 'invalid argument "v1.2.3" for "--version" flag'),
        ("--config=/no/such/file", "/no/such/file: No such file or directory"),
    ],
)
def test_what_it_cannot_take_is_refused(kubelet: Path, argument: str, problem: str) -> None:
    ran = run(kubelet, argument)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert problem in ran.stderr
    assert "Traceback" not in ran.stderr


def test_another_name_has_subcommands() -> None:
    assert "Usage: kubelet-trio" in run(PROGRAM, "--help").stdout
