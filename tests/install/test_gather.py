"""Facts read from files below another root, and from this kernel."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kubelet_trio.install.checks import run_checks
from kubelet_trio.install.cni import PodCidrError, conflist, parse_pod_cidr, parse_routes
from kubelet_trio.install.facts import Wanted
from kubelet_trio.install.gather import agent_pid, containerd_files, gather, load_wanted
from kubelet_trio.server import LOCK_NAME, root_lock


def test_the_facts_of_this_machine_can_be_gathered_and_decided_on(tmp_path: Path) -> None:
    wanted = Wanted(endpoint=f"unix://{tmp_path}/none.sock", root_dir=str(tmp_path), ports=())
    facts = gather(wanted, tmp_path)
    assert facts.memory > 0
    assert facts.runtime.is_down
    assert "mount" in facts.programs
    assert run_checks(facts)


def test_a_port_in_use_is_found_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ports = (("healthzPort", "127.0.0.1", port),)
        wanted = Wanted(endpoint="process", root_dir=str(tmp_path), ports=ports)
        assert f"pid {os.getpid()}" in gather(wanted, tmp_path).busy_ports[port]
    assert gather(wanted, tmp_path).busy_ports == {}


def test_an_agent_is_known_by_the_lock_of_its_root_directory(tmp_path: Path) -> None:
    assert agent_pid(tmp_path) == 0
    with root_lock(tmp_path / LOCK_NAME):
        assert agent_pid(tmp_path) > 0
    assert agent_pid(tmp_path) == 0


def test_the_installed_configuration_is_what_is_checked(tmp_path: Path) -> None:
    assert load_wanted([], tmp_path, systemd=True).cgroup_driver == "systemd"
    assert load_wanted([], tmp_path, systemd=False).static_pod_path == "/etc/kubernetes/manifests"
    path = tmp_path / "var/lib/kubelet/config.yaml"
    path.parent.mkdir(parents=True)
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    path.write_text(f"{head}failSwapOn: false\nhealthzPort: 0\n")
    wanted = load_wanted([], tmp_path, systemd=True)
    assert (wanted.fail_swap_on, wanted.cgroup_driver) == (False, "cgroupfs")
    assert [field for field, _, _ in wanted.ports] == ["port"]
    path.write_text(f"{head}failSwapOnn: false\n")
    assert "failSwapOnn" in load_wanted([], tmp_path, systemd=True).problems[0]


def test_imported_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    etc = tmp_path / "etc/containerd"
    (etc / "conf.d").mkdir(parents=True)
    (etc / "config.toml").write_text('version = 2\nimports = ["conf.d/*.toml"]\n')
    for name in ("b.toml", "a.toml", "c.txt"):
        (etc / "conf.d" / name).write_text(f"# {name}\n")
    found = containerd_files(tmp_path, "1.6.20")
    assert [path for path, _ in found.imported] == [
        "/etc/containerd/conf.d/a.toml",
        "/etc/containerd/conf.d/b.toml",
    ]
    assert containerd_files(tmp_path / "none", "1.6.20").main is None


@pytest.mark.parametrize(
    ("cidr", "routes", "expected"),
    [
        ("10.86.0.0/16", ("10.0.2.0/24",), ("10.86.0.0/16",)),
        ("10.86.0.0/16,fd00::/64", (), ("10.86.0.0/16", "fd00::/64")),
        ("10.0.0.0/8", ("10.0.2.0/24",), "overlaps 10.0.2.0/24"),
        ("10.86.0.0/30", (), "no room"),
        ("10.86.0.0/16,10.87.0.0/16", (), "at most one"),
        ("10.86.0.1/16", (), "host bits"),
        ("nonsense", (), "nonsense"),
    ],
)
def test_a_pod_cidr_is_taken_or_refused_by_name(
    cidr: str, routes: tuple[str, ...], expected: tuple[str, ...] | str
) -> None:
    if isinstance(expected, tuple):
        assert parse_pod_cidr(cidr, routes) == expected
        return
    with pytest.raises(PodCidrError, match=expected):
        parse_pod_cidr(cidr, routes)


def test_the_network_has_the_plugins_that_are_installed() -> None:
    all_of = conflist(("10.86.0.0/16", "fd00::/64"), frozenset({"portmap", "firewall"}))
    assert '"portmap"' in all_of
    assert '"::/0"' in all_of
    assert '"portmap"' not in conflist(("10.86.0.0/16",), frozenset())


def test_routes_are_the_kernels_without_the_default_and_our_bridge() -> None:
    table = (
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
        "eth0 00000000 0202000A 0003 0 0 0 00000000 0 0 0\n"
        "eth0 0002000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
        "kt0 0000560A 00000000 0001 0 0 0 0000FFFF 0 0 0\n"
        "eth0 zz\n"
    )
    assert parse_routes(table) == ("10.0.2.0/24",)
