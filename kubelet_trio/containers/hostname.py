"""What a pod calls itself: hostname, domain, and the name its kernel reports."""

from __future__ import annotations

import re
from typing import NamedTuple

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers.errors import SandboxConfigError
from kubelet_trio.model import pod_key
from kubelet_trio.model import spec as pod_spec

MAX_HOSTNAME = 63  # a DNS label's
MAX_FQDN = 64  # the kernel's nodename field

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")


class PodHostname(NamedTuple):
    """A pod's short name and, where it has a subdomain, the domain it is in."""

    hostname: str
    domain: str = ""


def pod_hostname(pod: Pod, cluster_domain: str) -> PodHostname:
    """Return hostname and domain, from `hostnameOverride`, or `hostname` and `subdomain`.

    The pod's name stands in for a hostname, cut to 63 characters. Raises
    `SandboxConfigError` for names that DNS would not take.
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
    """Return the hostname a sandbox is given: the full name if `setHostnameAsFQDN` asks for it.

    Raises `SandboxConfigError` where the full name does not fit into the kernel's 64 bytes.
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
