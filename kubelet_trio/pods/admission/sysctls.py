"""Decide which sysctls a pod may set: the safe ones, and those that the node allows.

A sysctl is safe if the kernel has it once for each namespace and nothing outside of the pod is
affected by it. The unsafe ones that a node may allow are namespaced as well: otherwise a pod would
set the node's. Upstream (1.36): pkg/kubelet/sysctl.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kubelet_trio.containers import dotted_sysctl

# The safe ones, with the kernel version since which they are namespaced; (0, 0): any.
_SAFE: Mapping[str, tuple[int, int]] = {
    "kernel.shm_rmid_forced": (0, 0),
    "net.ipv4.ip_local_port_range": (0, 0),
    "net.ipv4.tcp_syncookies": (0, 0),
    "net.ipv4.ping_group_range": (0, 0),
    "net.ipv4.ip_unprivileged_port_start": (0, 0),
    "net.ipv4.ip_local_reserved_ports": (3, 16),
    "net.ipv4.tcp_keepalive_time": (4, 5),
    "net.ipv4.tcp_fin_timeout": (4, 6),
    "net.ipv4.tcp_keepalive_intvl": (4, 5),
    "net.ipv4.tcp_keepalive_probes": (4, 5),
    "net.ipv4.tcp_rmem": (4, 15),
    "net.ipv4.tcp_wmem": (4, 15),
}
_IPC = "IPC"
_NET = "Net"
_NAMESPACED = {
    "kernel.sem": _IPC,
    "kernel.shmall": _IPC,
    "kernel.shmmax": _IPC,
    "kernel.shmmni": _IPC,
    "kernel.shm_rmid_forced": _IPC,
    "kernel.shm": _IPC,  # of the pattern kernel.shm*
    "kernel.msgmax": _IPC,
    "kernel.msgmnb": _IPC,
    "kernel.msgmni": _IPC,
    "kernel.msg": _IPC,
}
_NAMESPACED_BELOW = {"net.": _NET, "fs.mqueue.": _IPC}
# The form of a sysctl's name in the API's validation, with an optional `*` at its end.
_MAX_PATTERN = 253
_SEGMENT = r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_PATTERN = re.compile(rf"({_SEGMENT}[./])*(\*|{_SEGMENT}|[a-z0-9]([-_a-z0-9]*)?\*)")


@dataclass(frozen=True, slots=True)
class SysctlRules:
    """The sysctls that pods may set: exact names and prefixes, each with its namespace."""

    exact: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def problem(self, name: str, *, host_network: bool, host_ipc: bool) -> str | None:
        """Return why a pod may not set a sysctl; None where it may."""
        dotted = dotted_sysctl(name)
        namespace = self.exact.get(dotted)
        if namespace is None:
            namespace = next((n for p, n in self.prefixes.items() if dotted.startswith(p)), None)
        if namespace is None:
            return f'"{dotted}" not allowlisted'
        # In the host's namespace the sysctl would be the node's.
        if (namespace == _IPC and host_ipc) or (namespace == _NET and host_network):
            return f'"{dotted}" not allowed with host {namespace} enabled'
        return None


def sysctl_rules(
    allowed_unsafe: Iterable[str] = (), kernel: tuple[int, int] = (99, 0)
) -> SysctlRules:
    """Return the rules of a node.

    Args:
        allowed_unsafe: `allowedUnsafeSysctls`: names, or prefixes that end in `*`.
        kernel: the kernel's version.

    Raises:
        ValueError: a name is malformed, or its sysctl is not namespaced.
    """
    exact: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    safe = [name for name, since in _SAFE.items() if kernel >= since]
    for pattern in (*safe, *allowed_unsafe):
        if len(pattern) > _MAX_PATTERN or not _PATTERN.fullmatch(pattern):
            raise ValueError(
                f'sysctl "{pattern}" must have at most {_MAX_PATTERN} characters and be a name '
                "such as kernel.shmmax, or the beginning of one and *"
            )
        dotted = dotted_sysctl(pattern)
        name, star, _ = dotted.partition("*")
        namespace = _namespace(name)
        if namespace is None:
            raise ValueError(f'the sysctls "{dotted}" are not known to be namespaced')
        (prefixes if star else exact)[name] = namespace
    return SysctlRules(exact, prefixes)


def kernel_version(release: str) -> tuple[int, int]:
    """Return the version in a kernel's release (`5.15.0-91-generic`); (0, 0) if there is none."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _namespace(name: str) -> str | None:
    found = _NAMESPACED.get(name)
    if found is not None:
        return found
    return next((n for p, n in _NAMESPACED_BELOW.items() if name.startswith(p)), None)
