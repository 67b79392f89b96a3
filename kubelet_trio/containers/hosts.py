"""A pod's /etc/hosts: made from its IPs and aliases, or the node's own with aliases added.

Bind-mounted into every container that does not mount something there itself. What the
node's file says is read by the caller: only `write_hosts` and `has_hosts` touch
the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightkube.models.core_v1 import Container, HostAlias, Pod

from kubelet_trio.containers.hostname import PodHostname, pod_hostname
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.containers.paths import hosts_path
from kubelet_trio.cri import v1
from kubelet_trio.model import read_regular
from kubelet_trio.model import spec as pod_spec

HOSTS = "/etc/hosts"

_HEADER = "# Kubernetes-managed hosts file.\n"
_HOST_NETWORK_HEADER = "# Kubernetes-managed hosts file (host network).\n"
_LOCAL_ENTRIES = (
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)


def hosts_content(pod: Pod, node: NodeSettings, pod_ips: Sequence[str], node_hosts: str) -> str:
    """Return the content of a pod's hosts file.

    Args:
        pod_ips: the pod's IPs; of no account on the host's network.
        node_hosts: the node's own file, which is used on the host's network only.
    """
    aliases = pod_spec(pod).hostAliases or ()
    if pod_spec(pod).hostNetwork:
        return _HOST_NETWORK_HEADER + node_hosts + _alias_entries(aliases)
    return managed_hosts(pod_ips, pod_hostname(pod, node.cluster_domain), aliases)


def managed_hosts(ips: Iterable[str], name: PodHostname, aliases: Sequence[HostAlias] = ()) -> str:
    """Return a hosts file of the local names, one line per pod IP, and the aliases."""
    names = f"{name.hostname}.{name.domain}\t{name.hostname}" if name.domain else name.hostname
    own = "".join(f"{ip}\t{names}\n" for ip in ips)
    return _HEADER + _LOCAL_ENTRIES + own + _alias_entries(aliases)


def mounts_own_hosts(container: Container) -> bool:
    """Whether a container mounts a volume over /etc/hosts, so that ours is not to be."""
    return any(mount.mountPath == HOSTS for mount in container.volumeMounts or ())


def hosts_mount(pod_dir: Path, *, selinux: bool = False) -> v1.Mount:
    """Return the mount of the pod's hosts file; containers may write to it."""
    return v1.Mount(
        container_path=HOSTS, host_path=str(hosts_path(pod_dir)), selinux_relabel=selinux
    )


def write_hosts(pod_dir: Path, content: str) -> None:
    """Write the pod's hosts file in place: running containers have this very inode mounted."""
    path = hosts_path(pod_dir)
    # A container that holds a lease on it must not hold us up (EAGAIN).
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(content.encode())
        os.fchmod(file.fileno(), 0o644)


def has_hosts(pod_dir: Path, content: str) -> bool:
    """Whether the pod's hosts file says so. Containers may write to it, also without end."""
    expected = content.encode()
    try:
        return read_regular(hosts_path(pod_dir), len(expected)) == expected
    except OSError:
        return False


def _alias_entries(aliases: Sequence[HostAlias]) -> str:
    if not aliases:
        return ""
    lines = ("\t".join((alias.ip, *(alias.hostnames or ()))) + "\n" for alias in aliases)
    return "\n# Entries added by HostAliases.\n" + "".join(lines)
