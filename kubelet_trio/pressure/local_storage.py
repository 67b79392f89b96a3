"""Limits on local storage: which one a pod exceeds. Pure.

Source: pkg/kubelet/eviction/eviction_manager.go (1.36).
"""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_limits, total_quantities
from kubelet_trio.model import canonical_quantity, parse_quantity, quantity_like, spec, to_units
from kubelet_trio.pressure.ranking import DiskUsage, PodUsage

_STORAGE = "ephemeral-storage"


@dataclass(frozen=True, slots=True)
class Excess:
    """An exceeded limit: the signal for metrics, and the message."""

    signal: str
    message: str


def has_local_limits(pod: Pod) -> bool:
    """Whether anything of the pod's local storage is limited."""
    if _STORAGE in pod_limits(pod):
        return True
    if any(_STORAGE in _limits(c) for c in spec(pod).containers or ()):
        return True
    return any(_size_limit(v) for v in spec(pod).volumes or ())


def local_storage_excess(pod: Pod, usage: PodUsage, *, dedicated: bool) -> Excess | None:
    """Return the first limit that the pod exceeds.

    Args:
        pod: the pod.
        usage: its usage.
        dedicated: whether writable layers are on another file system than the node's files.
    """
    # As upstream (localStorageEviction): first volumes, then the pod, then containers.
    for volume in spec(pod).volumes or ():
        # A memory-backed volume has no usage: its tmpfs cannot exceed its size (KEP-1967).
        limit = _size_limit(volume)
        used = usage.volumes.get(volume.name)
        if limit and used is not None and used.space > to_units(parse_quantity(limit)):
            shown = canonical_quantity(limit)
            text = f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{shown}". '
            return Excess("emptydirfs.limit", text)
    whole = pod_limits(pod).get(_STORAGE)
    if whole is not None and usage.disk(("rootfs", "logs", "volumes")).space > to_units(whole):
        shown = quantity_like(whole, total_quantities(pod, "limits")[_STORAGE])
        text = f"Pod ephemeral local storage usage exceeds the total limit of containers {shown}. "
        return Excess("ephemeralpodfs.limit", text)
    for container in spec(pod).containers or ():
        limit = _limits(container).get(_STORAGE)
        found = usage.containers.get(container.name)
        # Zero means no limit of its own (containerEphemeralStorageLimitEviction).
        if limit is None or not parse_quantity(limit) or found is None:
            continue
        # As upstream: with a file system for images only the logs are on the node's.
        used = found.logs + (DiskUsage() if dedicated else found.rootfs)
        if to_units(parse_quantity(limit)) < used.space:
            text = (
                f"Container {container.name} exceeded its local ephemeral storage limit "
                f'"{canonical_quantity(limit)}". '
            )
            return Excess("ephemeralcontainerfs.limit", text)
    return None


def _size_limit(volume: object) -> str | None:
    # Zero means no limit (emptyDirLimitEviction).
    source = getattr(volume, "emptyDir", None)
    limit = source.sizeLimit if source is not None else None
    return str(limit) if limit and parse_quantity(limit) > 0 else None


def _limits(container: object) -> dict[str, str]:
    resources = getattr(container, "resources", None)
    return (resources.limits if resources is not None else None) or {}
