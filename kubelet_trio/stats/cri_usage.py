"""Convert the runtime's ContainerStats to `CgroupUsage`. No I/O.

For containers without a cgroup of this kernel: of the embedded runtime without the permission to
create cgroups, and of sandboxes with a kernel of their own.
"""

from __future__ import annotations

from kubelet_trio.cri import v1
from kubelet_trio.stats.usage import CgroupUsage, Cpu, Filesystem, Memory


def runtime_usage(stats: v1.ContainerStats, now: float) -> CgroupUsage:
    """Return the usage in the runtime's stats; its time is `now` if the stats have none."""
    cpu, memory = stats.cpu, stats.memory
    stamp = max(
        0 if cpu is None else cpu.timestamp,
        0 if memory is None else memory.timestamp,
    )
    return CgroupUsage(
        time=stamp / 1e9 if stamp else now,
        cpu=None if cpu is None else Cpu(usage=_value(cpu.usage_core_nano_seconds)),
        memory=None if memory is None else _memory(memory, stats.swap),
    )


def writable_layer(stats: v1.ContainerStats, now: float) -> Filesystem | None:
    """Return the size of the container's writable layer."""
    layer = stats.writable_layer
    if layer is None:
        return None
    return Filesystem(
        layer.timestamp / 1e9 if layer.timestamp else now,
        used=_value(layer.used_bytes),
        inodes_used=_value(layer.inodes_used),
    )


def _memory(memory: v1.MemoryUsage, swap: v1.SwapUsage | None) -> Memory:
    working_set = _value(memory.working_set_bytes)
    usage = _value(memory.usage_bytes) or working_set
    # Not the messages' own truth, which compares each field. 0 is what a runtime says of no limit.
    available = _value(memory.available_bytes)
    faults, major = _value(memory.page_faults), _value(memory.major_page_faults)
    return Memory(
        usage=usage,
        # So that `Memory.working_set` is what the runtime reported.
        inactive_file=usage - working_set,
        rss=_value(memory.rss_bytes),
        page_faults=faults,
        major_page_faults=major,
        own_page_faults=faults,
        own_major_page_faults=major,
        # CRI reports no limit, but `available_bytes`, which is the limit minus the working set.
        limit=working_set + available if available else None,
        swap=None if swap is None else _value(swap.swap_usage_bytes) or None,
    )


def _value(value: v1.UInt64Value | None) -> int:
    return 0 if value is None else value.value
