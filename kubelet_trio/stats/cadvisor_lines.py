"""Write the lines of `/metrics/cadvisor`: a family of all subjects at once. No I/O.

A full node has 25 000 lines of 300 bytes. They are joined a family at a time, from parts that are
there already: to format each line costs twice as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress

from kubelet_trio.stats.cadvisor_families import (
    BLKIO,
    FS_INODES,
    FS_INODES_FREE,
    FS_LIMIT,
    FS_USAGE,
    IO_FAMILIES,
    NETWORK_FAMILIES,
)
from kubelet_trio.stats.disks import Disk
from kubelet_trio.stats.process_files import Processes
from kubelet_trio.stats.text import Exposition, escape, number_texts
from kubelet_trio.stats.usage import CgroupUsage, Filesystem, Interface

# What the statistics of a disk show more exactly than the cgroup of the node.
_OF_DISKS = frozenset(("container_fs_reads_total", "container_fs_writes_total"))


@dataclass(frozen=True, slots=True)
class Subject:
    """One cgroup with its labels."""

    usage: CgroupUsage
    labels: str  # the text between the braces
    interfaces: tuple[Interface, ...] = ()
    started_at: float = 0.0
    created_at: float = 0.0
    processes: Processes | None = None
    writable: Filesystem | None = None


def block(
    begin: str,
    labels: Sequence[str],
    values: Sequence[float | None],
    times: Sequence[str] | None,
    more: str = "",
) -> str:
    """Return the lines of a family; a value that is None has none, and the last has no end.

    Args:
        begin: of each line: the name and a brace.
        labels: what each line has of its own, with what ends the labels if `more` does not.
        values: one for each line.
        times: when they were read; None: the lines have no time.
        more: what all lines have after that.
    """
    if None in values:
        is_there = [value is not None for value in values]
        labels = list(compress(labels, is_there))
        times = None if times is None else list(compress(times, is_there))
    there = [value for value in values if value is not None]
    if not there:
        return ""
    last = "" if times is None else times[-1]
    width = 4 if more else 3
    # Nearly always all have been read at the same time.
    parts = [f"{last}\n{begin}"] * (width * len(there))
    parts[::width] = labels
    if more:
        parts[1::width] = [more] * len(there)
    parts[width - 2 :: width] = number_texts(there)
    if times is not None and times.count(last) < len(times):
        ends = {time: f"{time}\n{begin}" for time in set(times)}
        parts[width - 1 :: width] = map(ends.__getitem__, times)
    parts[-1] = last
    return begin + "".join(parts)


# Samples that have labels of their own: they are few, or not those of every subject.

_Timed = Sequence[tuple[Subject, str]]  # subjects with the timestamps of their samples


def write_disks(page: Exposition, node: Subject, disks: Iterable[Disk], time: str) -> None:
    """Write the node's own disks."""
    for disk in disks:
        labels = f'{node.labels},device="{escape(disk.device)}"'
        for name, kind, words, value in _disk_values(disk):
            page.family(name, kind, words).append(f"{name}{{{labels}}} {value}{time}")


def _disk_values(disk: Disk) -> Iterator[tuple[str, str, str, float]]:
    """Yield name, kind, help and value of a disk's samples."""
    yield "container_fs_usage_bytes", "gauge", FS_USAGE, disk.used
    yield "container_fs_limit_bytes", "gauge", FS_LIMIT, disk.capacity
    yield "container_fs_inodes_total", "gauge", FS_INODES, disk.inodes
    yield "container_fs_inodes_free", "gauge", FS_INODES_FREE, disk.inodes_free
    io = disk.io
    if io is None:
        return
    for name, words, value in (
        ("reads", "Cumulative count of reads completed", io.reads),
        ("reads_merged", "Cumulative count of reads merged", io.reads_merged),
        ("sector_reads", "Cumulative count of sector reads completed", io.sectors_read),
        ("read_seconds", "Cumulative count of seconds spent reading", io.read_seconds),
        ("writes", "Cumulative count of writes completed", io.writes),
        ("writes_merged", "Cumulative count of writes merged", io.writes_merged),
        ("sector_writes", "Cumulative count of sector writes completed", io.sectors_written),
        ("write_seconds", "Cumulative count of seconds spent writing", io.write_seconds),
        ("io_time_seconds", "Cumulative count of seconds spent doing I/Os", io.io_seconds),
        (
            "io_time_weighted_seconds",
            "Cumulative weighted I/O time in seconds",
            io.weighted_seconds,
        ),
    ):
        yield f"container_fs_{name}_total", "counter", words, value
    words = "Number of I/Os currently in progress"
    yield "container_fs_io_current", "gauge", words, io.in_flight


def write_io(
    page: Exposition, subjects: _Timed, devices: Mapping[str, str], told: AbstractSet[str]
) -> None:
    """Write the I/O of cgroups by device; of the devices `told` what disks do not show."""
    labels, names, ends, values, times = [], [], [], [], []
    for subject, time in subjects:
        for number, io in subject.usage.io.items():
            device = devices.get(number, "")
            major, _, minor = number.partition(":")
            text = f'{subject.labels},device="{device}"'
            labels.append(f"{text}}} ")
            ends.append(f'{text},major="{major}",minor="{minor}",operation="')
            names.append(device)
            values.append((io.read_bytes, io.reads, io.write_bytes, io.writes))
            times.append(time)
    if not values:
        return
    columns = list(zip(*values, strict=True))
    for name, words, column in zip(*IO_FAMILIES, columns, strict=True):
        shown: Sequence[int | None] = column
        if told and name in _OF_DISKS:
            shown = [None if n in told else v for n, v in zip(names, column, strict=True)]
        if lines := block(f"{name}{{", labels, shown, times):
            page.family(name, "counter", words).append(lines)
    # Both lines of a device follow each other.
    both = [f'{text}{operation}"}} ' for text in ends for operation in ("Read", "Write")]
    moved = [count for pair in zip(columns[0], columns[2], strict=True) for count in pair]
    lines = block(f"{BLKIO}{{", both, moved, [time for time in times for _ in range(2)])
    page.family(BLKIO, "counter", "Blkio Device bytes usage").append(lines)


def write_networks(page: Exposition, subjects: _Timed) -> None:
    labels, values, times = [], [], []
    for subject, time in subjects:
        for interface in subject.interfaces:
            labels.append(f'{subject.labels},interface="{interface.name}"}} ')
            values.append(_network_values(interface))
            times.append(time)
    if values:
        columns = zip(*values, strict=True)
        for name, words, column in zip(*NETWORK_FAMILIES, columns, strict=True):
            page.family(name, "counter", words).append(block(f"{name}{{", labels, column, times))


def write_writable(page: Exposition, subjects: _Timed, whole: Filesystem | None) -> None:
    """Write the writable layers of containers; `whole` is the file system that holds them."""
    own = [(s, time, s.writable) for s, time in subjects if s.writable is not None]
    device = whole.device if whole else ""
    labels = [f'{subject.labels},device="{device}"}} ' for subject, _, _ in own]
    times = [time for _, time, _ in own]
    # As cAdvisor: usage is the container's, limit and inodes are the whole file system's.
    used = [layer.used for _, _, layer in own]
    limits = (None,) * 3 if whole is None else (whole.capacity, whole.inodes, whole.inodes_free)
    for name, words, values in (
        ("container_fs_usage_bytes", FS_USAGE, used),
        ("container_fs_limit_bytes", FS_LIMIT, [limits[0]] * len(own)),
        ("container_fs_inodes_total", FS_INODES, [limits[1]] * len(own)),
        ("container_fs_inodes_free", FS_INODES_FREE, [limits[2]] * len(own)),
    ):
        if lines := block(f"{name}{{", labels, values, times):
            page.family(name, "gauge", words).append(lines)


def _network_values(interface: Interface) -> tuple[int, ...]:
    return (
        interface.rx_bytes,
        interface.rx_packets,
        interface.rx_dropped,
        interface.rx_errors,
        interface.tx_bytes,
        interface.tx_packets,
        interface.tx_dropped,
        interface.tx_errors,
    )
