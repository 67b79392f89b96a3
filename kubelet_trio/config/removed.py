"""Flags that older kubelets had, with what to do where a command line still has one."""

from __future__ import annotations

from collections.abc import Mapping

_DOCKERSHIM = "it belonged to dockershim, and the runtime reads its own configuration for it"
_ENV = "kubeadm keeps such flags in /var/lib/kubelet/kubeadm-flags.env"

# Flag to the minor version of Kubernetes that had it no more, and why it is not needed.
_REMOVED: Mapping[str, tuple[str, str]] = {
    "cni-bin-dir": ("1.24", _DOCKERSHIM),
    "cni-cache-dir": ("1.24", _DOCKERSHIM),
    "cni-conf-dir": ("1.24", _DOCKERSHIM),
    "container-runtime": ("1.27", "--container-runtime-endpoint alone names the runtime"),
    "docker": ("1.24", _DOCKERSHIM),
    "docker-endpoint": ("1.24", _DOCKERSHIM),
    "dynamic-config-dir": ("1.24", "--config-dir takes drop-in files instead"),
    "experimental-dockershim-root-directory": ("1.24", _DOCKERSHIM),
    "image-pull-progress-deadline": ("1.24", _DOCKERSHIM),
    "network-plugin": ("1.24", _DOCKERSHIM),
    "network-plugin-mtu": ("1.24", _DOCKERSHIM),
}


def removal(flag: str) -> str:
    """Return since when a flag is gone, why, and where to remove it; "" if it never was."""
    if flag not in _REMOVED:
        return ""
    since, why = _REMOVED[flag]
    return f"unknown flag: --{flag}: Kubernetes {since} removed it ({why}). Remove it; {_ENV}"
