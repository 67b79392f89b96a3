"""The default of `evictionHard` on Linux, for the configuration and for the node's capacity."""

from __future__ import annotations

from collections.abc import Mapping

# Source: pkg/kubelet/eviction/defaults_linux.go.
DEFAULT_EVICTION_HARD: Mapping[str, str] = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
