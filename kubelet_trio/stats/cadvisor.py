"""Write `/metrics/cadvisor`, with cAdvisor's names, labels and units, from a snapshot. No I/O.

Each cgroup is a subject with cAdvisor's labels: `id` (its path), `name` (the container's id),
`image`, `container`, `pod` and `namespace`, empty if it has none. A pod's own cgroup has pod and
namespace and an empty container.
Source: lib/metrics/prometheus.go and prometheus_machine.go, the sets that the Go kubelet includes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from kubelet_trio.stats.cadvisor_families import (
    BLKIO,
    FAMILIES,
    FS_LIMIT,
    FS_USAGE,
    IO_FAMILIES,
    NETWORK_FAMILIES,
    NO_CPU,
    NO_MEMORY,
    SCRAPE_ERROR,
    TASK_STATES,
)
from kubelet_trio.stats.disks import Disk
from kubelet_trio.stats.machine import MachineInfo, write_machine
from kubelet_trio.stats.read import Processes
from kubelet_trio.stats.subjects import PodSubject
from kubelet_trio.stats.summary import Snapshot
from kubelet_trio.stats.text import Exposition, escape, label_text, milliseconds, number_texts
from kubelet_trio.stats.usage import CgroupUsage, Cpu, DeviceIo, Filesystem, Interface, Memory, Psi

_NANO = 1e9
_MICRO = 1e6
# What the statistics of a disk show more exactly than the cgroup of the node.
_OF_DISKS = frozenset(("container_fs_reads_total", "container_fs_writes_total"))


@dataclass(frozen=True, slots=True)
class _Subject:
    """One cgroup with its labels."""

    usage: CgroupUsage
    labels: str  # the text between the braces
    interfaces: tuple[Interface, ...] = ()
    started_at: float = 0.0
    created_at: float = 0.0
    processes: Processes | None = None
    writable: Filesystem | None = None
    is_node: bool = False


def cadvisor_text(snapshot: Snapshot, machine: MachineInfo) -> str:
    """Return the page."""
    page = Exposition()
    write_machine(page, machine, snapshot.reading.node)
    subjects = list(_subjects(snapshot))
    times = [milliseconds(subject.usage.time) for subject in subjects]
    labels = [subject.labels for subject in subjects]
    plain = [f"{text}}} " for text in labels]
    columns = zip(*map(_values, subjects), strict=True)
    for (name, kind, help_text, more, is_timed), column in zip(FAMILIES, columns, strict=True):
        inside = [f"{text}{more}}} " for text in labels] if more else plain
        block = _block(f"{name}{{", inside, column, times if is_timed else None)
        if block:
            page.family(name, kind, help_text).append(block)
    for subject, time in zip(subjects, times, strict=True):
        _Writer(page, subject, snapshot, time).write()
    page.add("container_scrape_error", "gauge", SCRAPE_ERROR, 0)
    return page.text()


def _block(
    begin: str, labels: Sequence[str], values: Sequence[float | None], times: Sequence[str] | None
) -> str:
    """Return the lines of a family; a value that is None has none, and the last has no end."""
    # A full node has 20 000 lines of 300 bytes. They are joined a family at a time, from parts that
    # are there: to format each line costs twice as much.
    there = [value for value in values if value is not None]
    if not there:
        return ""
    if len(there) < len(values):
        is_there = [value is not None for value in values]
        labels = list(compress(labels, is_there))
        times = None if times is None else list(compress(times, is_there))
    ends = {time: f"{time}\n{begin}" for time in (("",) if times is None else set(times))}
    parts = [ends[""] if times is None else ""] * (3 * len(there))
    parts[::3] = labels
    parts[1::3] = number_texts(there)
    if times is not None:
        parts[2::3] = map(ends.__getitem__, times)
        parts[-1] = times[-1]
    else:
        parts[-1] = ""
    return begin + "".join(parts)


def _labels(
    cgroup: str,
    pod: PodSubject | None = None,
    container: str = "",
    image: str = "",
    name: str = "",
) -> str:
    return label_text(
        (
            ("container", container),
            ("id", cgroup),
            ("image", image),
            ("name", name),
            ("namespace", pod.namespace if pod else ""),
            ("pod", pod.name if pod else ""),
        )
    )


def _subjects(snapshot: Snapshot) -> Iterator[_Subject]:
    reading, places, written = snapshot.reading, snapshot.places, set[str]()
    node = reading.node
    boot = node.boot_time or 0.0
    yield _Subject(node.usage, _labels("/"), node.network, boot, boot, is_node=True)
    for pod in snapshot.pods:
        for subject, path in _pod_subjects(snapshot, pod):
            written.add(path)
            yield subject
    other_pods = set(places.pods.values())
    for path, usage in reading.cgroups.items():
        if path not in written and path not in other_pods and path != "/":
            yield _Subject(usage, _labels(path), processes=reading.processes.get(path))


def _pod_subjects(snapshot: Snapshot, pod: PodSubject) -> Iterator[tuple[_Subject, str]]:
    reading, places = snapshot.reading, snapshot.places
    path = places.pods.get(pod.uid)
    interfaces = snapshot.networks.get(pod.uid, ())
    sandbox_path = places.containers.get(pod.sandbox_id or "")
    # A pod's network counts once, with the sandbox as in cAdvisor: sums by pod must be right.
    if path is not None and path in reading.cgroups:
        yield (
            _Subject(
                reading.cgroups[path],
                _labels(path, pod),
                () if sandbox_path else interfaces,
                pod.started_at,
                pod.sandbox_created_at,
            ),
            path,
        )
    if sandbox_path is not None and sandbox_path in reading.cgroups:
        yield (
            _Subject(
                reading.cgroups[sandbox_path],
                _labels(sandbox_path, pod, name=pod.sandbox_id or ""),
                interfaces,
                pod.sandbox_created_at,
                pod.sandbox_created_at,
                reading.processes.get(sandbox_path),
            ),
            sandbox_path,
        )
    for container in pod.containers:
        usage = snapshot.of_container(container.id)
        if usage is None:
            continue
        # Without a cgroup the id is made up, so that each container has series of its own.
        own = places.containers.get(container.id) or f"/{container.id}"
        yield (
            _Subject(
                usage,
                _labels(own, pod, container.name, container.image, container.id),
                () if path or sandbox_path else interfaces,
                container.started_at,
                container.created_at,
                reading.processes.get(own),
                snapshot.disk.writable.get(container.id),
            ),
            own,
        )


def _values(subject: _Subject) -> tuple[float | None, ...]:
    """Return the values of `FAMILIES`, in their order; None: the subject has no such sample."""
    usage, cpu, memory = subject.usage, subject.usage.cpu, subject.usage.memory
    has_threads = usage.threads is not None
    processes = subject.processes
    return (
        int(usage.time),
        int(subject.created_at) or None,
        int(subject.started_at) or None,
        0,
        *(NO_CPU if cpu is None else _cpu_values(cpu)),
        *(NO_MEMORY if memory is None else _memory_values(memory)),
        *_psi_values(cpu.psi if cpu is not None else None),
        *_psi_values(memory.psi if memory is not None else None),
        *_psi_values(usage.io_psi),
        len(usage.pids) if has_threads else None,
        usage.threads,
        (usage.threads_max or 0) if has_threads else None,
        *(
            (None,) * 3
            if processes is None
            else (processes.fds, processes.sockets, processes.max_open_files)
        ),
        *_task_values(processes),
    )


def _cpu_values(cpu: Cpu) -> tuple[float | None, ...]:
    has_quota = cpu.quota is not None
    return (
        cpu.period,
        cpu.quota,
        cpu.shares,
        cpu.user / _NANO,
        cpu.system / _NANO,
        cpu.usage / _NANO,
        # No load is measured, as in a Go kubelet.
        0,
        0,
        # As cAdvisor (`s.Cpu.Quota != 0`): without a quota nothing is throttled.
        cpu.periods if has_quota else None,
        cpu.throttled_periods if has_quota else None,
        cpu.throttled / _NANO if has_quota else None,
        cpu.burst_periods if has_quota else None,
        cpu.burst / _NANO if has_quota else None,
    )


def _memory_values(memory: Memory) -> tuple[float | None, ...]:
    swap_limit = memory.swap_limit
    return (
        # cAdvisor's specMemoryValue: 0 means no limit.
        memory.limit or 0,
        # Memory and swap together, as `memsw` of version 1. On version 2 cAdvisor shows swap alone
        # under the same name (lib/container/common/helpers.go).
        0 if swap_limit is None else swap_limit + (memory.limit or 0),
        memory.reservation or 0,
        memory.cache,
        memory.rss,
        memory.kernel,
        memory.mapped_file,
        memory.swap or 0,
        memory.failcnt,
        memory.usage,
        memory.max_usage,
        memory.working_set,
        memory.active_file,
        memory.inactive_file,
        memory.own_page_faults,
        memory.own_major_page_faults,
        memory.page_faults,
        memory.major_page_faults,
        memory.oom_kills,
    )


def _psi_values(psi: Psi | None) -> tuple[float | None, float | None]:
    return (None, None) if psi is None else (psi.full.total / _MICRO, psi.some.total / _MICRO)


def _task_values(processes: Processes | None) -> tuple[int | None, ...]:
    """Return how many processes are in each state of taskstats; a state is a main thread's."""
    if processes is None:
        return (None,) * len(TASK_STATES)
    return tuple(sum(map(processes.states.__getitem__, letters)) for _, letters in TASK_STATES)


class _Writer:
    """Writes the samples of one subject that have labels of their own."""

    def __init__(self, page: Exposition, subject: _Subject, snapshot: Snapshot, time: str) -> None:
        self._page = page
        self._subject = subject
        self._snapshot = snapshot
        self._time = time

    def write(self) -> None:
        subject = self._subject
        disks = self._snapshot.reading.disks if subject.is_node else ()
        for disk in disks:
            self._disk(disk)
        # A disk tells more of itself than the cgroup of the node does.
        self._io(subject.usage, frozenset(d.device for d in disks if d.io is not None))
        self._network(subject.interfaces)
        if subject.writable is not None:
            self._writable(subject.writable)

    def _put(self, name: str, kind: str, help_text: str, value: float, more: str = "") -> None:
        self._page.family(name, kind, help_text).append(
            f"{name}{{{self._subject.labels}{more}}} {value}{self._time}"
        )

    def _disk(self, disk: Disk) -> None:
        label, io = f',device="{escape(disk.device)}"', disk.io
        self._put("container_fs_usage_bytes", "gauge", FS_USAGE, disk.used, label)
        self._put("container_fs_limit_bytes", "gauge", FS_LIMIT, disk.capacity, label)
        self._put("container_fs_inodes_total", "gauge", "Number of Inodes", disk.inodes, label)
        free = disk.inodes_free
        self._put("container_fs_inodes_free", "gauge", "Number of available Inodes", free, label)
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
            self._put(f"container_fs_{name}_total", "counter", words, value, label)
        words = "Number of I/Os currently in progress"
        self._put("container_fs_io_current", "gauge", words, io.in_flight, label)

    def _io(self, usage: CgroupUsage, told: frozenset[str]) -> None:
        names, family, time = self._snapshot.reading.devices, self._page.family, self._time
        for number, io in usage.io.items():
            device = names.get(number, "")
            labels = f'{{{self._subject.labels},device="{device}"'
            for name, help_text, value in zip(*IO_FAMILIES, _io_values(io), strict=True):
                if not (device in told and name in _OF_DISKS):
                    family(name, "counter", help_text).append(f"{name}{labels}}} {value}{time}")
            major, _, minor = number.partition(":")
            begin = f'{BLKIO}{labels},major="{major}",minor="{minor}",operation="'
            family(BLKIO, "counter", "Blkio Device bytes usage").extend(
                (
                    f'{begin}Read"}} {io.read_bytes}{time}',
                    f'{begin}Write"}} {io.write_bytes}{time}',
                )
            )

    def _network(self, interfaces: tuple[Interface, ...]) -> None:
        family, time = self._page.family, self._time
        for interface in interfaces:
            labels = f'{{{self._subject.labels},interface="{interface.name}"}} '
            values = _network_values(interface)
            for name, help_text, value in zip(*NETWORK_FAMILIES, values, strict=True):
                family(name, "counter", help_text).append(f"{name}{labels}{value}{time}")

    def _writable(self, fs: Filesystem) -> None:
        whole = self._snapshot.disk.containers or self._snapshot.disk.images
        label = f',device="{whole.device if whole else ""}"'
        # As cAdvisor: usage is the container's, limit and inodes are the whole file system's.
        if fs.used is not None:
            self._put("container_fs_usage_bytes", "gauge", FS_USAGE, fs.used, label)
        if whole is None:
            return
        for name, help_text, value in (
            ("container_fs_limit_bytes", FS_LIMIT, whole.capacity),
            ("container_fs_inodes_total", "Number of Inodes", whole.inodes),
            ("container_fs_inodes_free", "Number of available Inodes", whole.inodes_free),
        ):
            if value is not None:
                self._put(name, "gauge", help_text, value, label)


def _io_values(io: DeviceIo) -> tuple[int, ...]:
    return io.read_bytes, io.reads, io.write_bytes, io.writes


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
