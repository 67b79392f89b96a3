"""Make the response to `/stats/summary` from a snapshot. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kubelet_trio.model import rfc3339
from kubelet_trio.stats import api
from kubelet_trio.stats.read import HostReading, NodeUsage
from kubelet_trio.stats.subjects import ContainerSubject, DiskReading, Places, PodSubject
from kubelet_trio.stats.usage import CgroupUsage, Filesystem, Interface, Psi, PsiLine

# Upstream's guess as well: defaultNetworkInterfaceName in pkg/kubelet/stats/helper.go.
_DEFAULT_INTERFACE = "eth0"
# Where the kernel does not count it: cadvisorPSIToStatsPSI never gets nil for CPU and memory.
_NO_PSI = Psi()

# The rate of CPU use in nanocores, by the subject's key; None if it is unknown.
Rate = Callable[[str, CgroupUsage], int | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input for one response: everything that was read at one moment."""

    node_name: str
    pods_root: str  # path of the cgroup that holds all pods
    reading: HostReading
    pods: tuple[PodSubject, ...]
    places: Places
    networks: Mapping[str, tuple[Interface, ...]] = field(default_factory=dict)  # by pod UID
    disk: DiskReading = field(default_factory=DiskReading)
    reported: Mapping[str, CgroupUsage] = field(default_factory=dict)  # by the runtime, by id
    system: tuple[tuple[str, str], ...] = ()  # names and cgroups of further system containers
    from_runtime: bool = False  # whether the runtime's figures of containers come first
    began: Mapping[str, float] = field(default_factory=dict)  # system containers' starts, by name
    shows_health: bool = False  # whether volumes that their drivers report have their condition

    def of_container(self, container_id: str) -> CgroupUsage | None:
        """Return a container's usage: from its cgroup, else as the runtime reports it."""
        if container_id in self.reported and self.lacks(container_id):
            return self.reported[container_id]
        path = self.places.containers.get(container_id)
        return self.reading.cgroups.get(path) if path is not None else None

    def lacks(self, container_id: str) -> bool:
        """Return whether what the runtime reports of a container is of use."""
        if self.from_runtime:
            return True
        path = self.places.containers.get(container_id)
        usage = self.reading.cgroups.get(path) if path is not None else None
        # A cgroup without both controllers shows less than the runtime knows.
        return usage is None or usage.cpu is None or usage.memory is None

    def of_pod(self, pod: PodSubject) -> CgroupUsage | None:
        """Return the usage of a pod's cgroup, None if it has none."""
        path = self.places.pods.get(pod.uid)
        usage = self.reading.cgroups.get(path) if path is not None else None
        return usage if usage is not None and (usage.cpu or usage.memory) else None


def make_summary(snapshot: Snapshot, rate: Rate, *, only_cpu_and_memory: bool) -> api.Summary:
    """Return the summary; with `only_cpu_and_memory` only these and swap."""
    return api.Summary(
        node=_node(snapshot, rate, only_cpu_and_memory),
        pods=[_pod(snapshot, pod, rate, only_cpu_and_memory) for pod in snapshot.pods],
    )


def _node(snapshot: Snapshot, rate: Rate, only: bool) -> api.NodeStats:
    node = snapshot.reading.node
    time = rfc3339(node.usage.time)
    stats = api.NodeStats(
        node_name=snapshot.node_name,
        start_time=rfc3339(node.boot_time) if node.boot_time else None,
        system_containers=list(_system_containers(snapshot, rate, only)),
        cpu=cpu_stats("/", node.usage, rate),
        memory=memory_stats(node.usage, node.memory_capacity),
        swap=api.SwapStats(
            time=time,
            swap_available_bytes=node.swap_free,
            swap_usage_bytes=node.swap_total - node.swap_free,
        ),
    )
    if only:
        return stats
    disk = snapshot.disk
    stats.network = network_stats(node.network, time)
    stats.fs = fs_stats(disk.node)
    stats.runtime = api.RuntimeStats(
        image_fs=fs_stats(disk.images), container_fs=fs_stats(disk.containers)
    )
    stats.rlimit = _rlimit(node, time)
    stats.io = io_stats(node.usage)
    return stats


def _rlimit(node: NodeUsage, time: str) -> api.RlimitStats | None:
    if node.max_pid is None and node.processes is None:
        return None
    return api.RlimitStats(time=time, maxpid=node.max_pid, curproc=node.processes)


def _system_containers(snapshot: Snapshot, rate: Rate, only: bool) -> Iterator[api.ContainerStats]:
    reading = snapshot.reading
    named = (
        ("kubelet", reading.own_cgroup),
        *snapshot.system,
        ("pods", snapshot.pods_root),
    )
    for name, path in named:
        usage = reading.cgroups.get(path) if path else None
        if path and usage is not None:
            capacity = reading.node.memory_capacity if name == "pods" else None
            if capacity and usage.memory and usage.memory.limit:  # without what is reserved
                capacity = min(capacity, usage.memory.limit)
            yield api.ContainerStats(
                name=name,
                start_time=rfc3339(began) if (began := snapshot.began.get(name)) else None,
                cpu=cpu_stats(path, usage, rate),
                memory=memory_stats(usage, capacity),
                swap=swap_stats(usage),
                io=None if only else io_stats(usage),
            )


def _pod(snapshot: Snapshot, pod: PodSubject, rate: Rate, only: bool) -> api.PodStats:
    containers = [_container(snapshot, c, rate, only) for c in pod.containers]
    stats = api.PodStats(
        pod_ref=api.PodReference(name=pod.name, namespace=pod.namespace, uid=pod.uid),
        start_time=rfc3339(pod.started_at) if pod.started_at else None,
        containers=containers,
    )
    usage = snapshot.of_pod(pod)
    if usage is not None:
        stats.cpu = cpu_stats(pod.uid, usage, rate)
        stats.memory = memory_stats(usage)
        stats.swap = swap_stats(usage)
    else:
        _sum_up(stats)
    if only:
        return stats
    time = rfc3339(snapshot.reading.node.usage.time)
    interfaces = snapshot.networks.get(pod.uid)
    stats.network = network_stats(interfaces, time) if interfaces is not None else None
    stats.io = io_stats(usage)
    stats.process_stats = _processes(snapshot, pod)
    stats.volume = list(_volumes(snapshot, pod))
    stats.ephemeral_storage = _ephemeral_storage(snapshot, pod, containers)
    return stats


def _processes(snapshot: Snapshot, pod: PodSubject) -> api.ProcessStats | None:
    usages = [snapshot.of_container(c.id) for c in pod.containers]
    counts = [len(u.pids) for u in usages if u is not None and u.pids]
    return api.ProcessStats(process_count=sum(counts)) if counts else None


def _sum_up(stats: api.PodStats) -> None:
    """Set the sum of the containers' usage, for a pod without a cgroup of its own."""
    cpus = [c.cpu for c in stats.containers if c.cpu is not None]
    memories = [c.memory for c in stats.containers if c.memory is not None]
    if cpus:
        stats.cpu = api.CpuStats(
            time=max(c.time for c in cpus),
            usage_nano_cores=add(c.usage_nano_cores for c in cpus),
            usage_core_nano_seconds=add(c.usage_core_nano_seconds for c in cpus),
        )
    if memories:
        stats.memory = api.MemoryStats(
            time=max(m.time for m in memories),
            usage_bytes=add(m.usage_bytes for m in memories),
            working_set_bytes=add(m.working_set_bytes for m in memories),
            rss_bytes=add(m.rss_bytes for m in memories),
            page_faults=add(m.page_faults for m in memories),
            major_page_faults=add(m.major_page_faults for m in memories),
        )


def _container(
    snapshot: Snapshot, container: ContainerSubject, rate: Rate, only: bool
) -> api.ContainerStats:
    usage = snapshot.of_container(container.id)
    stats = api.ContainerStats(
        name=container.name,
        start_time=rfc3339(container.started_at) if container.started_at else None,
    )
    if usage is not None:
        stats.cpu = cpu_stats(container.id, usage, rate)
        stats.memory = memory_stats(usage)
        stats.swap = swap_stats(usage)
    if only:
        return stats
    disk = snapshot.disk
    stats.rootfs = fs_stats(disk.containers or disk.images, disk.writable.get(container.id))
    stats.logs = fs_stats(disk.node, disk.logs.get(container.id))
    stats.io = io_stats(usage)
    return stats


def _volumes(snapshot: Snapshot, pod: PodSubject) -> Iterator[api.VolumeStats]:
    for name, fs in snapshot.disk.volumes.get(pod.uid, {}).items():
        claim = pod.claims.get(name)
        shape = fs_stats(fs)
        assert shape is not None
        yield api.VolumeStats(
            time=shape.time,
            available_bytes=shape.available_bytes,
            capacity_bytes=shape.capacity_bytes,
            used_bytes=shape.used_bytes,
            inodes_free=shape.inodes_free,
            inodes=shape.inodes,
            inodes_used=shape.inodes_used,
            name=name,
            pvc_ref=api.PvcReference(name=claim, namespace=pod.namespace) if claim else None,
            volume_health_stats=api.VolumeHealthStats(abnormal=fs.abnormal)
            if fs.abnormal is not None and snapshot.shows_health
            else None,
        )


def _ephemeral_storage(
    snapshot: Snapshot, pod: PodSubject, containers: Iterable[api.ContainerStats]
) -> api.FsStats | None:
    disk = snapshot.disk
    if disk.node is None:
        return None
    # Source: calcEphemeralStorage in pkg/kubelet/stats/helper.go.
    used: list[int | None] = []
    inodes: list[int | None] = []
    for container in containers:
        for fs in (container.rootfs, container.logs):
            if fs is not None:
                used.append(fs.used_bytes)
                inodes.append(fs.inodes_used)
    volumes = disk.volumes.get(pod.uid, {})
    own = [fs for name, fs in volumes.items() if name in pod.local_volumes]
    if pod.uid in disk.hosts:
        own.append(disk.hosts[pod.uid])
    used.extend(fs.used for fs in own)
    inodes.extend(fs.inodes_used for fs in own)
    shape = fs_stats(disk.node, Filesystem(disk.node.time))
    assert shape is not None
    shape.used_bytes, shape.inodes_used = add(used), add(inodes)
    return shape


# The parts, for nodes, pods and containers alike


def cpu_stats(key: str, usage: CgroupUsage, rate: Rate) -> api.CpuStats | None:
    if usage.cpu is None:
        return None
    return api.CpuStats(
        time=rfc3339(usage.time),
        usage_nano_cores=rate(key, usage),
        usage_core_nano_seconds=usage.cpu.usage,
        psi=psi_stats(usage.cpu.psi or _NO_PSI),
    )


def memory_stats(usage: CgroupUsage, capacity: int | None = None) -> api.MemoryStats | None:
    """Return memory stats; `available_bytes` is relative to `capacity`, or else to the limit."""
    memory = usage.memory
    if memory is None:
        return None
    limit = memory.limit if memory.limit is not None and capacity is None else capacity
    return api.MemoryStats(
        time=rfc3339(usage.time),
        available_bytes=None if limit is None else max(limit - memory.working_set, 0),
        usage_bytes=memory.usage,
        working_set_bytes=memory.working_set,
        rss_bytes=memory.rss,
        page_faults=memory.page_faults,
        major_page_faults=memory.major_page_faults,
        psi=psi_stats(memory.psi or _NO_PSI),
    )


def swap_stats(usage: CgroupUsage) -> api.SwapStats | None:
    memory = usage.memory
    if memory is None or memory.swap is None:
        return None
    limit = memory.swap_limit
    return api.SwapStats(
        time=rfc3339(usage.time),
        swap_available_bytes=None if limit is None else max(limit - memory.swap, 0),
        swap_usage_bytes=memory.swap,
    )


def io_stats(usage: CgroupUsage | None) -> api.IoStats | None:
    if usage is None or usage.io_psi is None:
        return None
    return api.IoStats(time=rfc3339(usage.time), psi=psi_stats(usage.io_psi))


def psi_stats(psi: Psi | None) -> api.PsiStats | None:
    if psi is None:
        return None
    return api.PsiStats(full=_psi_data(psi.full), some=_psi_data(psi.some))


def _psi_data(pressure: PsiLine) -> api.PsiData:
    return api.PsiData(
        total=pressure.total,
        avg10=pressure.avg10,
        avg60=pressure.avg60,
        avg300=pressure.avg300,
    )


def network_stats(interfaces: Iterable[Interface], time: str) -> api.NetworkStats:
    stats = api.NetworkStats(time=time)
    for interface in interfaces:
        entry = api.InterfaceStats(
            name=interface.name,
            rx_bytes=interface.rx_bytes,
            rx_errors=interface.rx_errors,
            tx_bytes=interface.tx_bytes,
            tx_errors=interface.tx_errors,
        )
        stats.interfaces.append(entry)
        if interface.name == _DEFAULT_INTERFACE:
            stats.name = entry.name
            stats.rx_bytes, stats.rx_errors = entry.rx_bytes, entry.rx_errors
            stats.tx_bytes, stats.tx_errors = entry.tx_bytes, entry.tx_errors
    return stats


# A default of its own, because None means that the part's usage is unknown.
_OWN = object()


def fs_stats(fs: Filesystem | None, part: Filesystem | object | None = _OWN) -> api.FsStats | None:
    """Return a filesystem's stats; with `part`, the used bytes and inodes are the part's."""
    if fs is None and not isinstance(part, Filesystem):
        return None
    whole = fs or Filesystem(0.0)
    used = whole if part is _OWN else part if isinstance(part, Filesystem) else Filesystem(0.0)
    return api.FsStats(
        time=rfc3339(max(whole.time, used.time)),
        available_bytes=whole.available,
        capacity_bytes=whole.capacity,
        used_bytes=used.used,
        inodes_free=whole.inodes_free,
        inodes=whole.inodes,
        inodes_used=used.inodes_used,
    )


def add(values: Iterable[int | None]) -> int | None:
    """Return the sum of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
