"""Defaults that depend on the user and the machine."""

from __future__ import annotations

import pytest

from kubelet_trio.config import HostFacts, LocalFacts, settle_locally
from kubelet_trio.config import startup_refusals as refusals
from kubelet_trio.config.load import load_settings

USER = LocalFacts(is_root=False, root_dir="/home/me/.local/state/kubelet-trio")
ROOT = LocalFacts(is_root=True, root_dir="/var/lib/kubelet")
SOCKET = "/run/containerd/containerd.sock"


def test_a_user_without_a_runtime_gets_processes_in_directories_of_their_own() -> None:
    settings = settle_locally(load_settings([]), USER)
    assert settings.flags.root_dir == USER.root_dir
    assert settings.config.pod_logs_dir == f"{USER.root_dir}/logs/pods"
    assert settings.config.container_runtime_endpoint == "process"
    assert [note for note in settings.notes if "processes of this host" in note]


def test_root_keeps_the_go_kubelets_directories() -> None:
    settings = settle_locally(load_settings([]), ROOT)
    assert settings.flags.root_dir == "/var/lib/kubelet"
    assert settings.config.pod_logs_dir == "/var/log/pods"


@pytest.mark.parametrize("is_root", [True, False])
def test_a_socket_that_we_may_use_is_used(is_root: bool) -> None:
    facts = LocalFacts(is_root, "/x", socket="/run/crio/crio.sock")
    settings = settle_locally(load_settings([]), facts)
    assert settings.config.container_runtime_endpoint == "unix:///run/crio/crio.sock"
    assert not [note for note in settings.notes if "processes of this host" in note]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], 1),
        (["--cluster-dns=10.96.0.10"], 0),
        (["--kubeconfig=/etc/kubernetes/kubelet.conf"], 0),  # there pods have events
        (["--container-runtime-endpoint=process"], 0),  # processes have the host's resolver
    ],
)
def test_a_standalone_node_notes_once_that_it_has_no_cluster_dns(
    argv: list[str], told: int
) -> None:
    facts = LocalFacts(True, "/var/lib/kubelet", socket=SOCKET)
    settings = settle_locally(load_settings(argv), facts)
    assert len([note for note in settings.notes if "no clusterDNS" in note]) == told


def test_a_node_whose_runtime_is_not_up_yet_waits_for_it() -> None:
    facts = LocalFacts(True, "/var/lib/kubelet", runtime_installed=True)
    settings = settle_locally(load_settings([]), facts)
    assert settings.config.container_runtime_endpoint == f"unix://{SOCKET}"


def test_what_is_said_is_kept() -> None:
    argv = ["--root-dir=/r", f"--container-runtime-endpoint=unix://{SOCKET}"]
    settings = settle_locally(load_settings(argv), USER)
    assert settings.flags.root_dir == "/r"
    assert settings.config.pod_logs_dir == "/r/logs/pods"
    assert settings.config.container_runtime_endpoint == f"unix://{SOCKET}"
    said = settle_locally(load_settings(["--container-runtime-endpoint=process"]), ROOT)
    assert said.config.container_runtime_endpoint == "process"
    assert not said.notes[1:]


def test_the_process_runtime_runs_with_swap_and_on_cgroup_v1() -> None:
    facts = HostFacts(cgroup_version=1, swaps=("/swapfile",))
    config = load_settings([]).config
    assert len(refusals(config, facts)) == 2
    assert refusals(settle_locally(load_settings([]), USER).config, facts) == []
