"""Write `/metrics/cadvisor`, with cAdvisor's names, labels and units, from a snapshot. No I/O.

Each cgroup is a subject with cAdvisor's labels: `id` (its path), `name` (the container's id),
`image`, `container`, `pod` and `namespace`, empty if it has none. A pod's own cgroup has pod and
namespace and an empty container.
Source: lib/metrics/prometheus.go and prometheus_machine.go, the sets that the Go kubelet includes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kubelet_trio.stats.read import NodeUsage, Processes
from kubelet_trio.stats.subjects import PodSubject
from kubelet_trio.stats.summary import Snapshot
from kubelet_trio.stats.text import Exposition, label_text, milliseconds, number
from kubelet_trio.stats.usage import CgroupUsage, Cpu, DeviceIo, Filesystem, Interface, Memory, Psi

_NANO = 1e9
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """Constant properties of the machine."""

    cores: int = 0
    physical_cores: int = 0
    sockets: int = 0
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel: str = ""
    os: str = ""
    version: str = ""  # the agent's own


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


def cadvisor_text(snapshot: Snapshot, machine: MachineInfo) -> str:
    """Return the page."""
    page = Exposition()
    _machine(page, machine, snapshot.reading.node)
    for subject in _subjects(snapshot):
        _Writer(page, subject, snapshot).write()
    page.add(
        "container_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
        0,
    )
    return page.text()


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
    yield _Subject(node.usage, _labels("/"), node.network, boot, boot)
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


class _Writer:
    """Writes the samples of one subject."""

    def __init__(self, page: Exposition, subject: _Subject, snapshot: Snapshot) -> None:
        self._page = page
        self._subject = subject
        self._snapshot = snapshot
        self._time = milliseconds(subject.usage.time)

    def write(self) -> None:
        subject, usage = self._subject, self._subject.usage
        self._put("container_last_seen", "gauge", _LAST_SEEN, int(usage.time))
        self._spec(usage)
        if usage.cpu is not None:
            self._cpu(usage.cpu)
        if usage.memory is not None:
            self._memory(usage.memory)
        self._io(usage)
        self._pressure(usage)
        self._network(subject.interfaces)
        self._process(usage, subject.processes)
        if subject.writable is not None:
            self._writable(subject.writable)

    def _put(
        self,
        name: str,
        kind: str,
        help_text: str,
        value: float,
        more: str = "",
        *,
        timed: bool = True,
    ) -> None:
        # Not by `Exposition.add`, because this runs ten thousand times in a scrape.
        self._page.family(name, kind, help_text).append(
            f"{name}{{{self._subject.labels}{more}}} {number(value)}{self._time if timed else ''}"
        )

    def _spec(self, usage: CgroupUsage) -> None:
        subject = self._subject

        # cAdvisor writes specs without a timestamp.
        def put(name: str, help_text: str, value: float) -> None:
            self._put(name, "gauge", help_text, value, timed=False)

        if subject.created_at:
            put(
                "container_creation_time_seconds",
                "Container creation time since unix epoch in seconds.",
                int(subject.created_at),
            )
        if subject.started_at:
            put(
                "container_start_time_seconds",
                "Start time of the container since unix epoch in seconds.",
                int(subject.started_at),
            )
        cpu, memory = usage.cpu, usage.memory
        if cpu is not None:
            put("container_spec_cpu_period", "CPU period of the container.", cpu.period)
            if cpu.quota is not None:
                put("container_spec_cpu_quota", "CPU quota of the container.", cpu.quota)
            if cpu.shares is not None:
                put("container_spec_cpu_shares", "CPU share of the container.", cpu.shares)
        if memory is not None:
            for name, help_text, limit in (
                ("limit_bytes", "Memory limit for the container.", memory.limit),
                # Memory and swap together, as `memsw` of version 1. On version 2 cAdvisor shows
                # swap alone under the same name (lib/container/common/helpers.go).
                (
                    "swap_limit_bytes",
                    "Memory swap limit for the container.",
                    None if memory.swap_limit is None else memory.swap_limit + (memory.limit or 0),
                ),
                (
                    "reservation_limit_bytes",
                    "Memory reservation limit for the container.",
                    memory.reservation,
                ),
            ):
                # cAdvisor's specMemoryValue: 0 means no limit.
                put(f"container_spec_memory_{name}", help_text, limit or 0)

    def _cpu(self, cpu: Cpu) -> None:
        for name, help_text, used in (
            ("user_seconds_total", "Cumulative user cpu time consumed in seconds.", cpu.user),
            ("system_seconds_total", "Cumulative system cpu time consumed in seconds.", cpu.system),
        ):
            self._put(f"container_cpu_{name}", "counter", help_text, used / _NANO)
        self._put(
            "container_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed in seconds.",
            cpu.usage / _NANO,
            ',cpu="total"',
        )
        # As cAdvisor (`s.Cpu.Quota != 0`): without a quota nothing is throttled.
        if cpu.quota is None:
            return
        for name, help_text, value in (
            ("periods_total", "Number of elapsed enforcement period intervals.", cpu.periods),
            (
                "throttled_periods_total",
                "Number of throttled period intervals.",
                cpu.throttled_periods,
            ),
            (
                "throttled_seconds_total",
                "Total time duration the container has been throttled.",
                cpu.throttled / _NANO,
            ),
        ):
            self._put(f"container_cpu_cfs_{name}", "counter", help_text, value)

    def _memory(self, memory: Memory) -> None:
        values = (
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
        )
        for (name, kind, help_text), value in zip(_MEMORY, values, strict=True):
            self._put(name, kind, help_text, value)
        for failure, scope, value in (
            ("pgfault", "container", memory.own_page_faults),
            ("pgmajfault", "container", memory.own_major_page_faults),
            ("pgfault", "hierarchy", memory.page_faults),
            ("pgmajfault", "hierarchy", memory.major_page_faults),
        ):
            self._put(
                "container_memory_failures_total",
                "counter",
                "Cumulative count of memory allocation failures.",
                value,
                f',failure_type="{failure}",scope="{scope}"',
            )
        self._put(
            "container_oom_events_total",
            "counter",
            "Count of out of memory events observed for the container",
            memory.oom_kills,
        )

    def _io(self, usage: CgroupUsage) -> None:
        names = self._snapshot.reading.devices
        for device, io in usage.io.items():
            name = names.get(device, "")
            for metric, help_text, value in _io_values(io):
                self._put(metric, "counter", help_text, value, f',device="{name}"')
            major, _, minor = device.partition(":")
            for operation, value in (("Read", io.read_bytes), ("Write", io.write_bytes)):
                self._put(
                    "container_blkio_device_usage_total",
                    "counter",
                    "Blkio Device bytes usage",
                    value,
                    f',device="{name}",major="{major}",minor="{minor}",operation="{operation}"',
                )

    def _pressure(self, usage: CgroupUsage) -> None:
        for resource, words, psi in (
            ("cpu", "CPU", usage.cpu.psi if usage.cpu else None),
            ("memory", "memory", usage.memory.psi if usage.memory else None),
            ("io", "IO", usage.io_psi),
        ):
            if psi is not None:
                self._psi(resource, words, psi)

    def _psi(self, resource: str, words: str, psi: Psi) -> None:
        self._put(
            f"container_pressure_{resource}_stalled_seconds_total",
            "counter",
            "Total time duration no tasks in the container could make progress due to "
            f"{words} congestion.",
            psi.full.total / _MICRO,
        )
        self._put(
            f"container_pressure_{resource}_waiting_seconds_total",
            "counter",
            f"Total time duration tasks in the container have waited due to {words} congestion.",
            psi.some.total / _MICRO,
        )

    def _network(self, interfaces: tuple[Interface, ...]) -> None:
        for interface in interfaces:
            label = f',interface="{interface.name}"'
            for name, words, value in (
                ("receive_bytes", "bytes received", interface.rx_bytes),
                ("receive_packets", "packets received", interface.rx_packets),
                (
                    "receive_packets_dropped",
                    "packets dropped while receiving",
                    interface.rx_dropped,
                ),
                ("receive_errors", "errors encountered while receiving", interface.rx_errors),
                ("transmit_bytes", "bytes transmitted", interface.tx_bytes),
                ("transmit_packets", "packets transmitted", interface.tx_packets),
                (
                    "transmit_packets_dropped",
                    "packets dropped while transmitting",
                    interface.tx_dropped,
                ),
                ("transmit_errors", "errors encountered while transmitting", interface.tx_errors),
            ):
                metric = f"container_network_{name}_total"
                self._put(metric, "counter", f"Cumulative count of {words}", value, label)

    def _process(self, usage: CgroupUsage, processes: Processes | None) -> None:
        if usage.threads is not None:
            self._put("container_processes", "gauge", _PROCESSES, len(usage.pids))
            self._put("container_threads", "gauge", _THREADS, usage.threads)
            self._put("container_threads_max", "gauge", _THREADS_MAX, usage.threads_max or 0)
        if processes is None:
            return
        self._put("container_file_descriptors", "gauge", _FDS, processes.fds)
        self._put("container_sockets", "gauge", _SOCKETS, processes.sockets)
        if processes.max_open_files is not None:
            self._put(
                "container_ulimits_soft",
                "gauge",
                _ULIMITS,
                processes.max_open_files,
                ',ulimit="max_open_files"',
            )

    def _writable(self, fs: Filesystem) -> None:
        whole = self._snapshot.disk.containers or self._snapshot.disk.images
        label = f',device="{whole.device if whole else ""}"'
        # As cAdvisor: usage is the container's, limit and inodes are the whole file system's.
        if fs.used is not None:
            self._put("container_fs_usage_bytes", "gauge", _FS_USAGE, fs.used, label)
        if whole is None:
            return
        for name, help_text, value in (
            ("container_fs_limit_bytes", _FS_LIMIT, whole.capacity),
            ("container_fs_inodes_total", "Number of Inodes", whole.inodes),
            ("container_fs_inodes_free", "Number of available Inodes", whole.inodes_free),
        ):
            if value is not None:
                self._put(name, "gauge", help_text, value, label)


def _io_values(io: DeviceIo) -> tuple[tuple[str, str, int], ...]:
    return (
        ("container_fs_reads_bytes_total", "Cumulative count of bytes read", io.read_bytes),
        ("container_fs_reads_total", "Cumulative count of reads completed", io.reads),
        ("container_fs_writes_bytes_total", "Cumulative count of bytes written", io.write_bytes),
        ("container_fs_writes_total", "Cumulative count of writes completed", io.writes),
    )


def _machine(page: Exposition, machine: MachineInfo, node: NodeUsage) -> None:
    page.add(
        "cadvisor_version_info",
        "gauge",
        "A metric with a constant '1' value labeled by kernel version, OS version, docker version, "
        "cadvisor version & cadvisor revision.",
        1,
        label_text(
            (
                ("cadvisorRevision", ""),
                ("cadvisorVersion", machine.version),
                ("dockerVersion", ""),
                ("kernelVersion", machine.kernel),
                ("osVersion", machine.os),
            )
        ),
    )
    labels = label_text(
        (
            ("boot_id", machine.boot_id),
            ("machine_id", machine.machine_id),
            ("system_uuid", machine.system_uuid),
        )
    )
    for name, help_text, value in (
        ("machine_cpu_cores", "Number of logical CPU cores.", machine.cores),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", machine.physical_cores),
        ("machine_cpu_sockets", "Number of CPU sockets.", machine.sockets),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            node.memory_capacity,
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            node.swap_total,
        ),
    ):
        page.add(name, "gauge", help_text, value, labels)


# In the order of `values` in `_Writer._memory`.
_MEMORY = (
    ("container_memory_cache", "gauge", "Number of bytes of page cache memory."),
    ("container_memory_rss", "gauge", "Size of RSS in bytes."),
    ("container_memory_kernel_usage", "gauge", "Size of kernel memory allocated in bytes."),
    ("container_memory_mapped_file", "gauge", "Size of memory mapped files in bytes."),
    ("container_memory_swap", "gauge", "Container swap usage in bytes."),
    ("container_memory_failcnt", "counter", "Number of memory usage hits limits"),
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
    ),
    ("container_memory_max_usage_bytes", "gauge", "Maximum memory usage recorded in bytes"),
    ("container_memory_working_set_bytes", "gauge", "Current working set in bytes."),
    (
        "container_memory_total_active_file_bytes",
        "gauge",
        "Current total active file in bytes.",
    ),
    (
        "container_memory_total_inactive_file_bytes",
        "gauge",
        "Current total inactive file in bytes.",
    ),
)
_LAST_SEEN = "Last time a container was seen by the exporter"
_PROCESSES = "Number of processes running inside the container."
_THREADS = "Number of threads running inside the container"
_THREADS_MAX = "Maximum number of threads allowed inside the container, infinity if value is zero"
_FDS = "Number of open file descriptors for the container."
_SOCKETS = "Number of open sockets for the container."
_ULIMITS = (
    "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice"
)
_FS_USAGE = "Number of bytes that are consumed by the container on this filesystem."
_FS_LIMIT = "Number of bytes that can be consumed by the container on this filesystem."
