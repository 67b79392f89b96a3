"""Resource usage of containers, summed over their processes from /proc.

Memory is the sum of resident pages, which counts shared pages more than once. All functions
block.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process.process_state import RUNNING
from kubelet_trio.cri.process.registry import Container
from kubelet_trio.cri.process.shim.processes import children_by_parent, descendants, process_stat
from kubelet_trio.cri.process.shim.protocol import NAME

_NANO = 1_000_000_000
# Indices into what `process_stat` returns.
_MINOR_FAULTS, _MAJOR_FAULTS, _USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM, _RSS = (
    7,
    9,
    11,
    12,
    13,
    14,
    21,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage of one container."""

    cpu: int = 0  # nanoseconds
    memory: int = 0  # bytes
    minor_faults: int = 0
    major_faults: int = 0
    processes: int = 0


def container_stats(containers: Iterable[Container]) -> list[v1.ContainerStats]:
    """Return the stats of the running ones among `containers`, from one scan of /proc."""
    running = [c for c in containers if c.process.state == RUNNING]
    children = children_by_parent() if running else {}
    return [
        _message(
            container,
            measure(container.process.shim, descendants(container.process.shim, children)),
        )
        for container in running
    ]


def measure(shim: int, processes: Iterable[int]) -> Usage:
    """Add up the processes of a shim."""
    # The time of an ended process counts for its parent once that has waited for it, proc(5), and
    # orphans are children of the shim. So we add the shim's reaped time, and the sum never falls
    # unless a process ignores SIGCHLD.
    ticks = _fields(shim, (_CHILD_USER, _CHILD_SYSTEM))
    cpu, memory, minor, major, count = sum(ticks), 0, 0, 0, 0
    for pid in processes:
        if _is_shim(pid):
            continue  # forwards the output of an exec: the agent's cost, not the container's
        wanted = (_USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM, _RSS, _MINOR_FAULTS, _MAJOR_FAULTS)
        *times, pages, minor_faults, major_faults = _fields(pid, wanted)
        cpu += sum(times)
        memory += pages
        minor += minor_faults
        major += major_faults
        count += 1
    return Usage(
        cpu=cpu * _NANO // os.sysconf("SC_CLK_TCK"),
        memory=memory * os.sysconf("SC_PAGE_SIZE"),
        minor_faults=minor,
        major_faults=major,
        processes=count,
    )


def _is_shim(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
            return file.read(64) == NAME + b"\n"
    except OSError:
        return False


def _fields(pid: int, wanted: tuple[int, ...]) -> list[int]:
    stat = process_stat(pid)
    return [0] * len(wanted) if stat is None else [int(stat[index]) for index in wanted]


def _message(container: Container, usage: Usage) -> v1.ContainerStats:
    now = time.time_ns()
    return v1.ContainerStats(
        attributes=v1.ContainerAttributes(
            id=container.id,
            metadata=container.metadata,
            labels=container.config.labels,
            annotations=container.config.annotations,
        ),
        cpu=v1.CpuUsage(timestamp=now, usage_core_nano_seconds=v1.UInt64Value(value=usage.cpu)),
        memory=v1.MemoryUsage(
            timestamp=now,
            working_set_bytes=v1.UInt64Value(value=usage.memory),
            usage_bytes=v1.UInt64Value(value=usage.memory),
            rss_bytes=v1.UInt64Value(value=usage.memory),
            page_faults=v1.UInt64Value(value=usage.minor_faults + usage.major_faults),
            major_page_faults=v1.UInt64Value(value=usage.major_faults),
        ),
    )
