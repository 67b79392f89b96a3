"""What containers of a fake runtime use: as told by whoever writes the test."""

from __future__ import annotations

from dataclasses import dataclass

from kubelet_trio.cri import v1
from kubelet_trio.testing.objects import FakeContainer


@dataclass(frozen=True, slots=True)
class FakeUsage:
    """Bytes and numbers; `disk` is of the writable layer."""

    memory: int = 0
    disk: int = 0
    inodes: int = 0


def container_stats(container: FakeContainer, usage: FakeUsage) -> v1.ContainerStats:
    """Describe a container's usage as ListContainerStats does."""
    return v1.ContainerStats(
        attributes=v1.ContainerAttributes(
            id=container.id,
            metadata=container.metadata,
            labels=dict(container.config.labels),
            annotations=dict(container.config.annotations),
        ),
        memory=v1.MemoryUsage(working_set_bytes=v1.UInt64Value(value=usage.memory)),
        writable_layer=v1.FilesystemUsage(
            used_bytes=v1.UInt64Value(value=usage.disk),
            inodes_used=v1.UInt64Value(value=usage.inodes),
        ),
    )
