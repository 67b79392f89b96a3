"""Rank pods for eviction, and word the message of the evicted one. Pure.

Source: pkg/kubelet/eviction/helpers.go (1.36): first pods that use more than they requested, then
those of lower priority, then those that exceed their request most. QoS classes follow from that
and are not compared. For process IDs priority comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_requests
from kubelet_trio.model import (
    ContainerKind,
    PodUid,
    canonical_quantity,
    metadata,
    parse_quantity,
    pod_containers,
    spec,
    to_units,
)
from kubelet_trio.pressure.thresholds import (
    CONTAINER_FS,
    CONTAINER_INODES,
    IMAGE_FS,
    IMAGE_INODES,
    NODE_FS,
    NODE_INODES,
    RESOURCES,
    Observations,
    Threshold,
    binary_quantity,
)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes and inodes."""

    space: int = 0
    inodes: int = 0

    def __add__(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.space + other.space, self.inodes + other.inodes)


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """The usage of one container."""

    memory: int = 0  # the working set in bytes
    rootfs: DiskUsage = DiskUsage()  # its writable layer
    logs: DiskUsage = DiskUsage()


@dataclass(frozen=True, slots=True)
class PodUsage:
    """The usage of one pod."""

    containers: Mapping[str, ContainerUsage] = field(default_factory=dict)
    volumes: Mapping[str, DiskUsage] = field(default_factory=dict)  # those on the node's disk
    processes: int = 0
    # The working set of its cgroup, memory-backed volumes included; None if it cannot be read.
    pod_memory: int | None = None

    @property
    def memory(self) -> int:
        """The working set in bytes: of the pod's cgroup, else the sum of its containers."""
        if self.pod_memory is not None:
            return self.pod_memory
        return sum(c.memory for c in self.containers.values())

    def disk(self, parts: Iterable[str]) -> DiskUsage:
        """Return the sum of the given parts: `rootfs`, `logs`, `volumes`."""
        total = DiskUsage()
        for part in parts:
            if part == "volumes":
                found = list(self.volumes.values())
            else:
                found = [getattr(c, part) for c in self.containers.values()]
            for one in found:
                total += one
        return total


Usages = Mapping[PodUid, PodUsage]  # a pod without one ranks first

_ALL = ("rootfs", "logs", "volumes")


def disk_parts(signal: str, *, dedicated: bool, split: bool) -> tuple[str, ...]:
    """Return the parts of a pod's disk usage that are on a signal's file system."""
    # Source: buildSignalToRankFunc.
    if not dedicated:
        return _ALL
    is_image, is_container = (
        signal in (IMAGE_FS, IMAGE_INODES),
        signal
        in (
            CONTAINER_FS,
            CONTAINER_INODES,
        ),
    )
    # KEP-4191: writable layers are on the node's file system, so a pod uses nothing of the images'.
    if split:
        return () if is_image else _ALL
    return ("rootfs",) if is_image or is_container else ("logs", "volumes")


def reclaimers(signal: str, *, dedicated: bool, split: bool) -> tuple[str, ...]:
    """Return the node-level reclaim steps for a signal, in order: `containers`, `images`."""
    # Source: buildSignalToNodeReclaimFuncs.
    is_image = signal in (IMAGE_FS, IMAGE_INODES)
    if signal not in (NODE_FS, NODE_INODES, CONTAINER_FS, CONTAINER_INODES) and not is_image:
        return ()
    if not dedicated:
        return ("containers", "images")
    if split:
        return ("images",) if is_image else ("containers",)
    # As upstream: neither images nor writable layers are on the node's file system.
    return () if signal in (NODE_FS, NODE_INODES) else ("containers", "images")


def rank_for_eviction(
    pods: Sequence[tuple[PodUid, Pod]], usages: Usages, resource: str, parts: Iterable[str] = _ALL
) -> list[tuple[PodUid, Pod]]:
    """Return the pods in the order in which to evict them.

    Args:
        pods: the candidates.
        usages: their usage, as far as it is known.
        resource: `memory`, `ephemeral-storage`, `inodes` or `pids`.
        parts: the parts of the disk usage that count.
    """
    parts = tuple(parts)

    def key(entry: tuple[PodUid, Pod]) -> tuple[object, ...]:
        uid, pod = entry
        priority = spec(pod).priority or 0
        usage = usages.get(uid)
        # As in the Go kubelet, pods without stats are evicted first.
        if usage is None:
            return (False, False, priority, 0) if resource != "pids" else (priority, False, 0)
        used = _used(usage, resource, parts)
        if resource == "pids":
            return (priority, True, -used)
        # As upstream (`disk`): the excess in inodes is counted from the requested bytes of disk.
        requested = _requested(pod, "memory" if resource == "memory" else "ephemeral-storage")
        # There are no requests for inodes: every pod that has some exceeds them.
        exceeds = used > (0 if resource == "inodes" else requested)
        return (True, not exceeds, priority, requested - used)

    return sorted(pods, key=key)


def _requested(pod: Pod, name: str) -> int:
    requested = pod_requests(pod).get(name, 0)
    # GetResourceRequestQuantity: an overhead adds to a request, and is none by itself.
    overhead = parse_quantity((spec(pod).overhead or {}).get(name, "0"))
    return to_units(requested) if requested > overhead else 0


def _used(usage: PodUsage, resource: str, parts: Iterable[str]) -> int:
    if resource == "memory":
        return usage.memory
    if resource == "pids":
        return usage.processes
    disk = usage.disk(parts)
    return disk.inodes if resource == "inodes" else disk.space


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reason for an eviction: the message, and the annotations of upstream's event."""

    message: str
    annotations: Mapping[str, str]


def eviction_verdict(
    pod: Pod,
    usage: PodUsage | None,
    resource: str,
    thresholds: Iterable[Threshold],
    observed: Observations,
) -> Verdict:
    """Return the reason for a pod's eviction, in upstream's words."""
    text = f"The node was low on resource: {resource}. "
    for threshold in thresholds:
        seen = observed.get(threshold.signal)
        if RESOURCES[threshold.signal] == resource and seen is not None:
            limit = threshold.value.shown(seen.capacity)
            text += f"Threshold quantity: {limit}, available: {seen.shown(threshold.signal)}. "
            break
    if usage is None:
        return Verdict(text, {})
    own = _own_usage(pod, usage, resource)
    if own is not None:
        name, amount, requested = own
        text += (
            f"Pod {name} was using {amount}, request is {requested}, "
            f"has larger consumption of {resource}. "
        )
    names, amounts = [], []
    for container in pod_containers(pod):
        if container.kind is ContainerKind.EPHEMERAL:
            continue  # it cannot request anything
        used = _container_used(usage, container.spec.name, resource)
        resources = container.spec.resources
        requested = ((resources.requests if resources else None) or {}).get(resource, "0")
        if used is None or used <= to_units(parse_quantity(requested)):
            continue
        name, amount = container.spec.name, binary_quantity(used)
        text += (
            f"Container {name} was using {amount}, request is {canonical_quantity(requested)}, "
            f"has larger consumption of {resource}. "
        )
        names.append(name)
        amounts.append(amount)
    blamed = {"offending_pod": own[0], "offending_pod_usage": own[1]} if own is not None else {}
    annotations = {
        **blamed,
        "offending_containers": ",".join(names),
        "offending_containers_usage": ",".join(amounts),
        "starved_resource": resource,
    }
    return Verdict(text, annotations)


def _own_usage(pod: Pod, usage: PodUsage, resource: str) -> tuple[str, str, str] | None:
    """Return name, usage and request of a pod with a request of its own (spec.resources).

    None for other pods. As upstream also of a pod that uses less than that.
    """
    own = spec(pod).resources
    requested = ((own.requests if own is not None else None) or {}).get("memory")
    if resource != "memory" or requested is None:
        return None
    return metadata(pod).name or "", binary_quantity(usage.memory), canonical_quantity(requested)


def _container_used(usage: PodUsage, name: str, resource: str) -> int | None:
    found = usage.containers.get(name)
    if found is None or resource not in ("memory", "ephemeral-storage"):
        return None
    return found.memory if resource == "memory" else (found.rootfs + found.logs).space
