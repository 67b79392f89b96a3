from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from lightkube.models.core_v1 import HostAlias, VolumeMount

from kubelet_trio.containers import (
    has_hosts,
    hosts_content,
    hosts_mount,
    mounts_own_hosts,
    write_hosts,
)
from kubelet_trio.containers.hosts import PodHostname, managed_hosts
from tests.containers.make import NODE, container, pod
from tests.harness.hostile import small_memory

LOCAL = (
    "# Kubernetes-managed hosts file.\n"
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)
ALIASES = [HostAlias(ip="1.2.3.4", hostnames=["a", "b"]), HostAlias(ip="::2", hostnames=["c"])]
ALIAS_LINES = "\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n::2\tc\n"


def test_each_ip_of_the_pod_has_a_line() -> None:
    content = managed_hosts(["10.0.0.2", "fd00::2"], PodHostname("web"))
    assert content == LOCAL + "10.0.0.2\tweb\nfd00::2\tweb\n"


def test_a_pod_with_a_domain_has_both_names() -> None:
    content = hosts_content(pod(subdomain="s", hostAliases=ALIASES), NODE, ["10.0.0.2"], "")
    assert content == LOCAL + "10.0.0.2\tweb.s.default.svc.cluster.local\tweb\n" + ALIAS_LINES


def test_on_the_hosts_network_it_is_the_hosts_file_with_aliases() -> None:
    header = "# Kubernetes-managed hosts file (host network).\n"
    of_pod = pod(hostNetwork=True, hostAliases=ALIASES)
    assert hosts_content(of_pod, NODE, [], "127.0.0.1\thost\n") == (
        header + "127.0.0.1\thost\n" + ALIAS_LINES
    )
    assert hosts_content(pod(hostNetwork=True), NODE, [], "x\n") == header + "x\n"


def test_a_container_may_mount_its_own() -> None:
    assert mounts_own_hosts(container(volumeMounts=[VolumeMount("/etc/hosts", "v")]))
    assert not mounts_own_hosts(container(volumeMounts=[VolumeMount("/etc", "v")]))


def test_the_file_is_rewritten_in_place(tmp_path: Path) -> None:
    write_hosts(tmp_path, "one")
    inode = (tmp_path / "etc-hosts").stat().st_ino
    write_hosts(tmp_path, "2")
    status = (tmp_path / "etc-hosts").stat()
    assert (tmp_path / "etc-hosts").read_text() == "2"
    assert (status.st_ino, stat.S_IMODE(status.st_mode)) == (inode, 0o644)
    assert hosts_mount(tmp_path).host_path == str(tmp_path / "etc-hosts")


@pytest.mark.parametrize("is_endless", [True, False])
def test_what_a_container_wrote_into_it_is_not_read_to_its_end(
    tmp_path: Path, is_endless: bool
) -> None:
    write_hosts(tmp_path, "one")
    assert has_hosts(tmp_path, "one")
    if is_endless:
        os.truncate(tmp_path / "etc-hosts", 1 << 40)
    else:
        (tmp_path / "etc-hosts").write_bytes(b"\xff")
    with small_memory():
        assert not has_hosts(tmp_path, "one")
    write_hosts(tmp_path, "one")
    assert has_hosts(tmp_path, "one")
    assert not has_hosts(tmp_path / "gone", "one")
