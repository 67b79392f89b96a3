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
from kubelet_trio.stats.text import escape, number_texts
from kubelet_trio.stats.usage import CgroupUsage, Filesystem, Interface

# What the statistics of a disk show more exactly than the cgroup of the node.
_OF_DISKS = frozenset(("container_fs_reads_total", "container_fs_writes_total"))


@dataclass(frozen=True, slots=True)
class Subject:
    """One cgroup with its labels."""

    usage: CgroupUsage
    labels: bytes  # the text between the braces
    interfaces: tuple[Interface, ...] = ()
    started_at: float = 0.0
    created_at: float = 0.0
    processes: Processes | None = None
    writable: Filesystem | None = None


class Families:
    """Collects the lines of families, in the order of their first use."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {}

    def family(self, name: str, kind: str, help_text: str) -> list[bytes]:
        """Return the parts of a family, to append others; create it at the first call."""
        parts = self._parts.get(name)
        if parts is None:
            parts = self._parts[name] = [head(name, kind, help_text)]
        return parts

    def texts(self) -> Iterator[bytes]:
        """Yield the families that have a sample."""
        for parts in self._parts.values():
            if len(parts) > 1:
                yield b"".join(parts)


def head(name: str, kind: str, help_text: str) -> bytes:
    """Return the lines that begin a family."""
    words = help_text.replace("\n", "\\n")
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n".encode()


def block(
    name: str,
    labels: Sequence[bytes],
    values: Sequence[float | None],
    times: Sequence[bytes] | None,
    more: bytes = b"",
) -> list[bytes]:
    """Return the parts of the lines of a family; a value that is None has none.

    Args:
        name: of the family.
        labels: what each line has of its own, with what ends the labels if `more` does not.
        values: one for each line.
        times: ends of the lines; None: they have none.
        more: what all lines have after their labels.
    """
    if None in values:
        is_there = [value is not None for value in values]
        labels = list(compress(labels, is_there))
        times = None if times is None else list(compress(times, is_there))
    there = [value for value in values if value is not None]
    if not there:
        return []
    begin = f"{name}{{".encode()
    last = b"\n" if times is None else times[-1]
    width = 4 if more else 3
    # Nearly always all have been read at the same time. The end of a line and the begin of the next
    # are one part.
    parts = [last + begin] * (width * len(there))
    parts[::width] = labels
    if more:
        parts[1::width] = [more] * len(there)
    parts[width - 2 :: width] = number_texts(there)
    if times is not None and times.count(last) < len(times):
        ends = {time: time + begin for time in set(times)}
        parts[width - 1 :: width] = map(ends.__getitem__, times)
    parts[-1] = last
    return [begin, *parts]


# Samples that have labels of their own: they are few, or not those of every subject.

_Timed = Sequence[tuple[Subject, bytes]]  # subjects with the ends of their lines


def write_disks(families: Families, node: Subject, disks: Iterable[Disk], time: bytes) -> None:
    """Write the node's own disks."""
    for disk in disks:
        labels = node.labels + f',device="{escape(disk.device)}"'.encode()
        for name, kind, words, value in _disk_values(disk):
            line = b"%b{%b} %b%b" % (name.encode(), labels, str(value).encode(), time)
            families.family(name, kind, words).append(line)


def _disk_values(disk: Disk) -> Iterator[tuple[str, str, str, float]]:
    """Yield name, kind, help and value of a disk's samples."""
    yield "container_fs_usage_bytes", "gauge", FS_USAGE, disk.used
    yield "container_fs_limit_bytes", "gauge", FS_LIMIT, disk.capacity
    yield "container_fs_inodes_total", "gauge", FS_INODES, disk.inodes
    yield "container_fs_inodes_free", "gauge", FS_INODES_FREE, disk.inodes_free
    done = disk.io
    if done is None:
        return
    for name, words, value in (
        ("reads", "Cumulative count of reads completed", done.reads),
        ("reads_merged", "Cumulative count of reads merged", done.reads_merged),
        ("sector_reads", "Cumulative count of sector reads completed", done.sectors_read),
        ("read_seconds", "Cumulative count of seconds spent reading", done.read_seconds),
        ("writes", "Cumulative count of writes completed", done.writes),
        ("writes_merged", "Cumulative count of writes merged", done.writes_merged),
        ("sector_writes", "Cumulative count of sector writes completed", done.sectors_written),
        ("write_seconds", "Cumulative count of seconds spent writing", done.write_seconds),
        ("io_time_seconds", "Cumulative count of seconds spent doing I/Os", done.io_seconds),
        (
            "io_time_weighted_seconds",
            "Cumulative weighted I/O time in seconds",
            done.weighted_seconds,
        ),
    ):
        yield f"container_fs_{name}_total", "counter", words, value
    words = "Number of I/Os currently in progress"
    yield "container_fs_io_current", "gauge", words, done.in_flight


def write_io(
    families: Families, subjects: _Timed, devices: Mapping[str, str], told: AbstractSet[str]
) -> None:
    """Write the I/O of cgroups by device; of the devices `told` what disks do not show."""
    labels, names, values, times = [], [], [], []
    both: list[bytes] = []
    known = {number: _device_labels(number, name) for number, name in devices.items()}
    for subject, time in subjects:
        for number, count in subject.usage.io.items():
            device, read, written = known.get(number) or _device_labels(number, "")
            labels.append(subject.labels + device)
            # Both lines of a device follow each other.
            both += (subject.labels + read, subject.labels + written)
            names.append(devices.get(number, ""))
            values.append((count.read_bytes, count.reads, count.write_bytes, count.writes))
            times.append(time)
    if not values:
        return
    columns = list(zip(*values, strict=True))
    for name, words, column in zip(*IO_FAMILIES, columns, strict=True):
        shown: Sequence[int | None] = column
        if told and name in _OF_DISKS:
            shown = [None if n in told else v for n, v in zip(names, column, strict=True)]
        if parts := block(name, labels, shown, times):
            families.family(name, "counter", words).extend(parts)
    moved = [count for pair in zip(columns[0], columns[2], strict=True) for count in pair]
    parts = block(BLKIO, both, moved, [time for time in times for _ in range(2)])
    families.family(BLKIO, "counter", "Blkio Device bytes usage").extend(parts)


def _device_labels(number: str, name: str) -> tuple[bytes, bytes, bytes]:
    """Return the labels of a device, and those of bytes read from it and written to it."""
    major, _, minor = number.partition(":")
    device = f',device="{name}"'
    operation = f'{device},major="{major}",minor="{minor}",operation='
    return (
        f"{device}}} ".encode(),
        f'{operation}"Read"}} '.encode(),
        f'{operation}"Write"}} '.encode(),
    )


def write_networks(families: Families, subjects: _Timed) -> None:
    labels, values, times = [], [], []
    for subject, time in subjects:
        for interface in subject.interfaces:
            labels.append(subject.labels + f',interface="{interface.name}"}} '.encode())
            values.append(_network_values(interface))
            times.append(time)
    if values:
        columns = zip(*values, strict=True)
        for name, words, column in zip(*NETWORK_FAMILIES, columns, strict=True):
            families.family(name, "counter", words).extend(block(name, labels, column, times))


def write_writable(families: Families, subjects: _Timed, whole: Filesystem | None) -> None:
    """Write the writable layers of containers; `whole` is the file system that holds them."""
    own = [(s, time, s.writable) for s, time in subjects if s.writable is not None]
    device = f',device="{whole.device if whole else ""}"}} '.encode()
    labels = [subject.labels + device for subject, _, _ in own]
    times = [time for _, time, _ in own]
    # As cAdvisor: the limit is the whole file system's, all else the container's, which has no
    # inodes of its own to be free.
    limit = None if whole is None else whole.capacity
    for name, words, values in (
        ("container_fs_usage_bytes", FS_USAGE, [layer.used for _, _, layer in own]),
        ("container_fs_limit_bytes", FS_LIMIT, [limit] * len(own)),
        ("container_fs_inodes_total", FS_INODES, [layer.inodes_used for _, _, layer in own]),
        ("container_fs_inodes_free", FS_INODES_FREE, [0] * len(own)),
    ):
        if parts := block(name, labels, values, times):
            families.family(name, "gauge", words).extend(parts)


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
