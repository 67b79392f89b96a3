"""A pod's hostname, and its /etc/hosts.

The hosts file is made from the pod's IPs and host aliases; on the host's network it is the node's
file with the aliases added. It is bind-mounted into every container that mounts nothing there
itself. Only `write_hosts` and `has_hosts` use the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from lightkube.models.core_v1 import Container, HostAlias, Pod

from kubelet_trio.containers.errors import SandboxConfigError
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.containers.paths import hosts_path
from kubelet_trio.cri import v1
from kubelet_trio.model import pod_key, read_regular
from kubelet_trio.model import spec as pod_spec

MAX_HOSTNAME = 63  # a DNS label's
MAX_FQDN = 64  # the kernel's nodename field

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")

HOSTS = "/etc/hosts"

# Source: managedHostsFileContent and nodeHostsFileContent in kubelet_pods.go.
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


class PodHostname(NamedTuple):
    """A pod's short hostname, and its domain if it has a subdomain."""

    hostname: str
    domain: str = ""


def pod_hostname(pod: Pod, cluster_domain: str) -> PodHostname:
    """Return hostname and domain, from `hostnameOverride`, or `hostname` and `subdomain`.

    Without a hostname it is the pod's name, cut to 63 characters. Raises `SandboxConfigError` for
    invalid DNS names.
    """
    spec, key = pod_spec(pod), pod_key(pod)
    if spec.hostnameOverride is not None:
        if len(spec.hostnameOverride) > 253 or not _SUBDOMAIN.fullmatch(spec.hostnameOverride):
            raise SandboxConfigError(
                f'pod HostnameOverride "{spec.hostnameOverride}" is not a valid DNS subdomain'
            )
        return PodHostname(_cut(key.name, spec.hostnameOverride))
    hostname = key.name
    if spec.hostname:
        hostname = _label("Hostname", spec.hostname)
    domain = ""
    if spec.subdomain:
        domain = f"{_label('Subdomain', spec.subdomain)}.{key.namespace}.svc.{cluster_domain}"
    return PodHostname(_cut(key.name, hostname), domain)


def kernel_hostname(name: PodHostname, set_hostname_as_fqdn: bool | None) -> str:
    """Return the hostname of the sandbox: the full name with `setHostnameAsFQDN`.

    Raises `SandboxConfigError` for a full name of more than the kernel's 64 bytes.
    """
    if not (name.domain and set_hostname_as_fqdn):
        return name.hostname
    fqdn = f"{name.hostname}.{name.domain}"
    if len(fqdn) > MAX_FQDN:
        raise SandboxConfigError(
            "failed to construct FQDN from pod hostname and cluster domain, "
            f"FQDN {fqdn} is too long ({MAX_FQDN} characters is the max, "
            f"{len(fqdn)} characters requested)"
        )
    return fqdn


def _label(field: str, value: str) -> str:
    if len(value) > MAX_HOSTNAME or not _LABEL.fullmatch(value):
        raise SandboxConfigError(f'pod {field} "{value}" is not a valid DNS label')
    return value


def _cut(pod_name: str, hostname: str) -> str:
    if len(hostname) <= MAX_HOSTNAME:
        return hostname
    cut = hostname[:MAX_HOSTNAME].rstrip("-.")
    if not cut:
        raise SandboxConfigError(f'hostname for pod "{pod_name}" was invalid: "{hostname}"')
    return cut


def hosts_content(pod: Pod, node: NodeSettings, pod_ips: Sequence[str], node_hosts: str) -> str:
    """Return the content of a pod's hosts file. Raises `SandboxConfigError`.

    Args:
        pod: the pod.
        node: the node's settings.
        pod_ips: the pod's IPs; ignored on the host's network.
        node_hosts: the content of the node's own file; used on the host's network only.
    """
    aliases = pod_spec(pod).hostAliases or ()
    if pod_spec(pod).hostNetwork:
        return _HOST_NETWORK_HEADER + node_hosts + _alias_entries(aliases)
    return managed_hosts(pod_ips, pod_hostname(pod, node.cluster_domain), aliases)


def managed_hosts(ips: Iterable[str], name: PodHostname, aliases: Sequence[HostAlias] = ()) -> str:
    """Return a hosts file with the local names, a line per pod IP, and the aliases."""
    names = f"{name.hostname}.{name.domain}\t{name.hostname}" if name.domain else name.hostname
    own = "".join(f"{ip}\t{names}\n" for ip in ips)
    return _HEADER + _LOCAL_ENTRIES + own + _alias_entries(aliases)


def mounts_own_hosts(container: Container) -> bool:
    """Return whether a container mounts a volume at /etc/hosts, which then replaces ours."""
    return any(mount.mountPath == HOSTS for mount in container.volumeMounts or ())


def hosts_mount(pod_dir: Path, *, selinux: bool = False) -> v1.Mount:
    """Return the mount of the pod's hosts file; containers may write to it."""
    return v1.Mount(
        container_path=HOSTS, host_path=str(hosts_path(pod_dir)), selinux_relabel=selinux
    )


def write_hosts(pod_dir: Path, content: str) -> None:
    """Write the pod's hosts file. Raises OSError."""
    path = hosts_path(pod_dir)
    # In place: running containers have this inode mounted, and would not see a new file.
    # O_NONBLOCK: with a lease on the file, fcntl(2), a container could block our open.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(content.encode())
        os.fchmod(file.fileno(), 0o644)


def has_hosts(pod_dir: Path, content: str) -> bool:
    """Return whether the pod's hosts file has this content."""
    # Containers may write to it: read no more than what we expect.
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
