"""Serve `/stats/summary`, `/metrics/resource` and `/metrics/cadvisor`, read on request.

There is no housekeeping loop: without requests nothing is read. Requests within `_FRESH` seconds
share one reading, as long as the same containers run, and so do concurrent requests.

The rate of CPU use is taken between this reading and one that is some seconds older. For a subject
that no response has shown before, there are two readings, a second apart.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import trio

from kubelet_trio.cri import Runtime, RuntimeCallError, v1
from kubelet_trio.model import Offload, PodUid, WallClock, get_logger
from kubelet_trio.stats import api
from kubelet_trio.stats.cadvisor import cadvisor_page
from kubelet_trio.stats.cadvisor_families import SCRAPE_ERROR
from kubelet_trio.stats.cri_usage import runtime_usage, writable_layer
from kubelet_trio.stats.kept_files import KeptFiles
from kubelet_trio.stats.machine import MachineInfo, write_machine
from kubelet_trio.stats.open_files import Host
from kubelet_trio.stats.read import (
    HostReading,
    file_usage,
    log_usage,
    read_filesystem,
    read_filesystems,
    read_host,
    read_networks,
)
from kubelet_trio.stats.resource import resource_text
from kubelet_trio.stats.subjects import DiskReading, PodSubject, find_places
from kubelet_trio.stats.summary import Snapshot, make_summary
from kubelet_trio.stats.text import Exposition
from kubelet_trio.stats.usage import CgroupUsage, Filesystem, Interface
from kubelet_trio.stats.volumes import VolumeUsage

log = get_logger()

_FRESH = 1.0  # seconds that a reading is reused
_RATE_BASE = 5.0  # seconds: the shortest interval for a rate, once there are two readings
# Seconds: a longer interval gives way to a newer, shorter one. After a long time without requests
# the second response then shows the current rate.
_RATE_LONG = 60.0
_RUNTIME_LIMIT = 10.0  # seconds for the runtime's calls


@dataclass(frozen=True, slots=True)
class StatsSettings:
    """Settings that are constant while the agent runs."""

    node_name: str
    root_dir: str
    pod_roots: tuple[str, ...]  # possible paths of the pods' cgroup: one for each driver
    machine: MachineInfo = field(default_factory=MachineInfo)
    system: tuple[tuple[str, str], ...] = ()  # `runtime` and `misc`, with their cgroups
    shows_health: bool = False  # the CSIVolumeHealth gate
    from_runtime: bool = False  # the PodAndContainerStatsFromCRI gate


@dataclass(frozen=True, slots=True)
class _CpuTime:
    time: float  # Unix seconds
    used: int  # ns


@dataclass(slots=True)
class StatsProvider:
    """Reads on request. Any number of tasks may use it concurrently."""

    settings: StatsSettings
    host: Host
    runtime: Runtime
    pods: Callable[[], Iterable[PodSubject]]
    pod_of: Callable[[str], PodUid | None]  # from the name of a pod's cgroup
    clock: WallClock
    offload: Offload
    volumes: VolumeUsage | None = None
    files: KeptFiles = field(init=False)
    _cache: dict[str, tuple[float, Snapshot]] = field(default_factory=dict)
    _locks: dict[str, trio.Lock] = field(default_factory=dict)
    _bases: dict[str, tuple[_CpuTime, _CpuTime]] = field(default_factory=dict)
    _known: frozenset[str] = frozenset()  # the subjects of the last summary
    _begin: trio.Lock = field(default_factory=trio.Lock)
    _began: float = 0.0  # the agent's start, Unix seconds

    def __post_init__(self) -> None:
        self.files = KeptFiles(self.host, self.offload)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Close files that nobody needs any more, until cancelled; without it none stays open."""
        self._began = self._began or self.clock.time()
        await self.files.run(task_status=task_status)

    async def summary(self, *, only_cpu_and_memory: bool = False) -> bytes:
        """Return the JSON of `/stats/summary`."""
        return msgspec.json.encode(await self.measure(only_cpu_and_memory=only_cpu_and_memory))

    async def measure(self, *, only_cpu_and_memory: bool = False) -> api.Summary:
        """Return what `/stats/summary` shows."""
        # First: the snapshot below needs an older reading to compute a rate.
        await self._wait_bases()
        snapshot = await self.snapshot("cpu" if only_cpu_and_memory else "all")
        return make_summary(snapshot, self._rate, only_cpu_and_memory=only_cpu_and_memory)

    async def resource(self) -> str:
        """Return the page of `/metrics/resource`."""
        return resource_text(await self.snapshot("cpu"))

    async def cadvisor(self) -> Iterable[bytes]:
        """Return the page of `/metrics/cadvisor`, in pieces that are made as they are taken.

        With `from_runtime` the machine's families, and the runtime's own metrics of pods.
        """
        if self.settings.from_runtime:
            return await self._runtime_page()
        snapshot = await self.snapshot("metrics")
        return cadvisor_page(snapshot, self.settings.machine)

    async def _runtime_page(self) -> Iterable[bytes]:
        from kubelet_trio.stats.cri_metrics import write_runtime_metrics

        page = Exposition()
        node = (await self.snapshot("cpu")).reading.node
        write_machine(page, self.settings.machine, node)
        error = 1
        with trio.move_on_after(_RUNTIME_LIMIT):
            try:
                descriptors = await self.runtime.list_metric_descriptors()
                metrics = await self.runtime.list_pod_sandbox_metrics()
            except RuntimeCallError as exc:
                log.warning("stats.runtime_metrics", error=str(exc))
            else:
                write_runtime_metrics(page, descriptors, metrics)
                error = 0
        page.add("container_scrape_error", "gauge", SCRAPE_ERROR, error)
        return (page.text().encode(),)

    async def snapshot(self, kind: str) -> Snapshot:
        """Return a snapshot of the running pods that is at most a second old.

        Args:
            kind: `cpu` (CPU and memory), `all` (for the summary) or `metrics` (for cAdvisor).
        """
        # Concurrent requests wait for the first one's reading, and share it.
        async with self._locks.setdefault(kind, trio.Lock()):
            cached, pods = self._cache.get(kind), tuple(self.pods())
            if cached is not None:
                read_at, snapshot = cached
                if trio.current_time() - read_at < _FRESH and snapshot.pods == pods:
                    return snapshot
            snapshot = await self._take(kind, pods)
            self._note_rates(snapshot)
            self._cache[kind] = (trio.current_time(), snapshot)
            return snapshot

    async def _take(self, kind: str, pods: tuple[PodSubject, ...]) -> Snapshot:
        now = self.clock.time()
        self._began = self._began or now
        keep = self.files.choose()
        reading, networks, began = await self.offload(self._read, pods, kind, now, keep)
        ids: set[str] = {c.id for pod in pods for c in pod.containers}
        ids |= {pod.sandbox_id for pod in pods if pod.sandbox_id}
        # There is a root for each cgroup driver; the one that exists is in use.
        root = next((r for r in self.settings.pod_roots if r in reading.cgroups), "")
        snapshot = Snapshot(
            node_name=self.settings.node_name,
            pods_root=root,
            reading=reading,
            pods=pods,
            places=find_places(reading.cgroups, ids, self.pod_of),
            networks=networks,
            system=self.settings.system,
            began=began,
            shows_health=self.settings.shows_health,
            from_runtime=self.settings.from_runtime,
        )
        # metrics-server scrapes often: no call of the runtime if the cgroups have everything.
        if (
            kind == "cpu"
            and not self.settings.from_runtime
            and all(snapshot.of_container(c.id) is not None for pod in pods for c in pod.containers)
        ):
            return snapshot
        is_lacking = any(snapshot.lacks(c.id) for pod in pods for c in pod.containers)
        stats = {
            one.attributes.id: one
            for one in await self._ask_runtime(layers_only=not is_lacking)
            if one.attributes is not None
        }
        reported = {
            own: runtime_usage(one, now) for own, one in stats.items() if snapshot.lacks(own)
        }
        disk = DiskReading() if kind == "cpu" else await self._disk(kind, pods, stats, now)
        return replace(snapshot, reported=reported, disk=disk)

    def _read(
        self, pods: tuple[PodSubject, ...], kind: str, now: float, keep: bool
    ) -> tuple[HostReading, dict[str, tuple[Interface, ...]], dict[str, float]]:
        """Read cgroups and /proc, and when system containers began. Runs in a thread."""
        others = (cgroup for _, cgroup in self.settings.system)
        with self.files.opened(keep) as files:
            reading = read_host(
                self.host,
                self.settings.pod_roots,
                others,
                everything=kind == "metrics",
                now=now,
                files=files,
            )
        networks = {} if kind == "cpu" else read_networks(self.host, _processes(pods))
        return reading, networks, {} if kind == "metrics" else self._begun(reading)

    def _begun(self, reading: HostReading) -> dict[str, float]:
        """Return when each system container began: the agent, and others with their cgroups."""
        root = next((r for r in self.settings.pod_roots if r in reading.cgroups), "")
        found = {"kubelet": self._began}
        for name, path in (*self.settings.system, ("pods", root)):
            if path in reading.cgroups and (made := _made_at(self.host, path)) is not None:
                found[name] = made
        return found

    async def _ask_runtime(self, *, layers_only: bool) -> list[v1.ContainerStats]:
        """Return the runtime's stats; none if it does not respond in time."""
        # A hung runtime must not hang the page: the cgroups' part is served without it.
        with trio.move_on_after(_RUNTIME_LIMIT):
            try:
                return await self.runtime.list_container_stats(layers_only=layers_only)
            except RuntimeCallError:
                return []
        return []

    async def _disk(
        self,
        kind: str,
        pods: tuple[PodSubject, ...],
        stats: Mapping[str, v1.ContainerStats],
        now: float,
    ) -> DiskReading:
        root, images, containers = self.settings.root_dir, None, None
        whole: Mapping[str, Filesystem] = {}
        with trio.move_on_after(_RUNTIME_LIMIT):
            try:
                info = await self.runtime.image_fs_info()
            except RuntimeCallError:
                pass
            else:
                listed = (*info.image_filesystems, *info.container_filesystems)
                places = [root, *(usage.fs_id.mountpoint for usage in listed if usage.fs_id)]
                whole = await self.offload(read_filesystems, places, now)
                images = _part(info.image_filesystems, whole)
                containers = _part(info.container_filesystems, whole)
        # Only the summary shows logs, hosts files and volumes.
        measured = pods if kind == "all" else ()
        own = await self.offload(_read_disk, root, measured, now, whole.get(root))
        return replace(
            own,
            images=images or own.node,
            containers=containers or images or own.node,
            writable={i: w for i, s in stats.items() if (w := writable_layer(s, now))},
            volumes=await self.volumes.usage(measured) if self.volumes and measured else {},
        )

    # The rate of CPU use

    async def _wait_bases(self) -> None:
        """Read new subjects once, so that the next reading has a rate for them.

        The Go kubelet has one by then, because its housekeeping reads all the time.
        """
        # A lock of its own: several first requests sleep once, not one after the other.
        async with self._begin:
            now = frozenset(("/", *(c.id for pod in self.pods() for c in pod.containers)))
            if now - self._known:
                await self.snapshot("cpu")
                await trio.sleep(_FRESH)
            self._known = now

    def _rate(self, key: str, usage: CgroupUsage) -> int | None:
        """Return the rate since the base reading in nanocores, None if there is none yet."""
        if key not in self._bases or usage.cpu is None:
            return None
        base, newer = self._bases[key]
        if usage.time - base.time > _RATE_LONG and usage.time - newer.time >= _FRESH:
            base = newer
        if usage.time <= base.time:
            return None
        used = usage.cpu.usage - base.used
        return max(int(used / (usage.time - base.time)), 0)

    def _note_rates(self, snapshot: Snapshot) -> None:
        """Keep two earlier CPU times of every subject: the base, and the next base."""
        bases = {}
        for key, current in _cpu_times(snapshot):
            old, new = self._bases.get(key, (current, current))
            # Less than before: its cgroup was created again.
            if current.used < new.used:
                old = new = current
            elif current.time - new.time >= _RATE_BASE:
                old, new = new, current
            bases[key] = (old, new)
        self._bases = bases


def _cpu_times(snapshot: Snapshot) -> Iterator[tuple[str, _CpuTime]]:
    reading = snapshot.reading
    usages: list[tuple[str, CgroupUsage | None]] = [("/", reading.node.usage)]
    usages += [
        (path, reading.cgroups.get(path))
        for path in (
            snapshot.pods_root,
            reading.own_cgroup,
            *(cgroup for _, cgroup in snapshot.system),
        )
        if path
    ]
    for pod in snapshot.pods:
        usages.append((pod.uid, snapshot.of_pod(pod)))
        usages += [(c.id, snapshot.of_container(c.id)) for c in pod.containers]
    for key, usage in usages:
        if usage is not None and usage.cpu is not None:
            yield key, _CpuTime(usage.time, usage.cpu.usage)


def _made_at(host: Host, path: str) -> float | None:
    """Return when a cgroup was made, as cAdvisor tells it: its oldest directory."""
    found = []
    for mount in dict.fromkeys(host.mounts.values()):
        with contextlib.suppress(OSError):
            found.append(os.stat(f"{mount}{path}").st_mtime)
    return min(found, default=None)


def _processes(pods: Iterable[PodSubject]) -> dict[str, int]:
    """Return a process in the network namespace of each pod that has one of its own, or 0."""
    # Containers share their sandbox's, so any process shows it. On the host's network it would show
    # the node's interfaces.
    return {
        pod.uid: next((c.pid for c in pod.containers if c.pid > 0), 0)
        for pod in pods
        if not pod.host_network
    }


def _part(
    usages: Iterable[v1.FilesystemUsage], whole: Mapping[str, Filesystem]
) -> Filesystem | None:
    """Return the first filesystem that could be read, with what the runtime uses of it."""
    for usage in usages:
        found = whole.get(usage.fs_id.mountpoint) if usage.fs_id else None
        if found is not None:
            return msgspec.structs.replace(
                found,
                used=usage.used_bytes.value if usage.used_bytes else None,
                inodes_used=usage.inodes_used.value if usage.inodes_used else None,
            )
    return None


def _read_disk(
    root_dir: str, pods: tuple[PodSubject, ...], now: float, node: Filesystem | None
) -> DiskReading:
    """Read logs, hosts files and the node's filesystem, unless that is known. Blocks."""
    logs: dict[str, Filesystem] = {}
    hosts: dict[PodUid, Filesystem] = {}
    for pod in pods:
        for container in pod.containers:
            size = log_usage(container.log_dir) if container.log_dir else None
            if size is not None:
                logs[container.id] = Filesystem(now, used=size[0], inodes_used=size[1])
        own = file_usage(f"{root_dir}/pods/{pod.uid}/etc-hosts")
        if own is not None:
            hosts[pod.uid] = Filesystem(now, used=own, inodes_used=1)
    return DiskReading(node=node or read_filesystem(root_dir, now), logs=logs, hosts=hosts)
