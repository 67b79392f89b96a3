"""Measures the resource use of the node and its pods, for the server: the child `stats`.

The room `stats` is imported, and files are read, at the first request: most standalone nodes never
get one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod, PodSpec

from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.agent.volumes import VolumeNames
from kubelet_trio.cgroups import (
    cgroup_host,
    cgroup_path,
    parse_cgroup,
    qos_cgroup,
    uid_of_pod_cgroup,
)
from kubelet_trio.cri import Runtime
from kubelet_trio.model import (
    ContainerRecord,
    ContainerState,
    EventSink,
    PodUid,
    Purpose,
    RuntimePod,
    pod_key,
    pod_ref,
)
from kubelet_trio.objects import claim_name
from kubelet_trio.pleg import Pleg
from kubelet_trio.status import StatusStore

if TYPE_CHECKING:
    from kubelet_trio.stats import (
        ContainerSubject,
        DriverStats,
        DriverVolume,
        Filesystem,
        Host,
        MachineInfo,
        PodSubject,
        StatsProvider,
        Summary,
        VolumeUsage,
    )


class AgentStats:
    """The measurements of one agent; they may be requested at any time."""

    def __init__(
        self,
        settings: AgentSettings,
        seams: Seams,
        runtime: Runtime,
        pleg: Pleg,
        statuses: StatusStore,
        names: VolumeNames,
        events: EventSink | None = None,
        drivers: Callable[[], DriverStats] | None = None,
    ) -> None:
        """Args:
        settings: the agent's.
        seams: the world.
        runtime: the container runtime.
        pleg: the running containers.
        statuses: the pods.
        names: finds the pods' volumes on disk.
        events: for abnormal volumes; None: no events.
        drivers: returns the CSI drivers, at the first request; None: there are none.
        """
        self._settings = settings
        self._seams = seams
        self._runtime = runtime
        self._statuses = statuses
        self.subjects = PodSubjects(pleg, statuses)
        self._names = names
        self._events = events
        self._drivers = drivers
        self._asked = trio.Event()
        self._provider: StatsProvider | None = None
        self._volumes: VolumeUsage | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure volumes and close files until cancelled; idle before the first request."""
        task_status.started()
        await self._asked.wait()
        assert self._volumes is not None
        assert self._provider is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._provider.run, name="stats/files")
            await self._volumes.run()

    async def provider(self) -> StatsProvider:
        """Return the provider of `/stats/summary` and of the metrics pages."""
        if self._provider is None:
            host, machine = await self._seams.offload_for(Purpose.STATS)(_look_at_host)
            # Checked again: another request may have been faster.
            if self._provider is None:
                self._provider = self._make(host, machine)
                self._asked.set()
        return self._provider

    async def summary(self, *, only_cpu_and_memory: bool = False) -> bytes:
        """Return the JSON of `/stats/summary`."""
        provider = await self.provider()
        return await provider.summary(only_cpu_and_memory=only_cpu_and_memory)

    async def measure(self) -> Summary:
        """Return what `/stats/summary` shows."""
        return await (await self.provider()).measure()

    async def claimed_volumes(self) -> list[tuple[str, str, Filesystem]]:
        """Return namespace, claim and last measured use of each volume behind a claim."""
        pods = self.subjects.now()
        if not any(pod.claims for pod in pods):
            return []
        measured = await self.volumes(pods)
        return [
            (pod.namespace, pod.claims[name], fs)
            for pod in pods
            for name, fs in measured.get(pod.uid, {}).items()
            if name in pod.claims
        ]

    async def volumes(
        self, pods: tuple[PodSubject, ...] | None = None
    ) -> Mapping[PodUid, Mapping[str, Filesystem]]:
        """Return the last measured use of the volumes of pods (None: all), by name in the pod."""
        await self.provider()
        assert self._volumes is not None
        if pods is None:
            pods = self.subjects.now()
        return await self._volumes.usage(pods)

    def _tell_abnormal(self, volume: DriverVolume, message: str) -> None:
        pod = self._statuses.pods.value.get(volume.uid)
        if pod is None or self._events is None or not self._settings.volume_health:
            return
        key = pod_key(pod)
        # calcAndStoreStats in pkg/kubelet/server/stats/volume_stat_calculator.go.
        self._events.emit(
            pod_ref(key.namespace, key.name, volume.uid),
            "Warning",
            "VolumeConditionAbnormal",
            f"Volume {volume.name}: {message}",
        )

    async def _volume_names(self, subject: PodSubject) -> Mapping[str, str]:
        pods = self._statuses.pods.value
        self._names.keep(pods)  # else those of all pods that there ever were
        pod = pods.get(subject.uid)
        return {} if pod is None else await self._names.of_pod(pod)

    async def log_usage(self) -> list[tuple[tuple[str, ...], int]]:
        """Return the bytes of each running container's logs, by pod UID, namespace and names."""
        pods = self.subjects.now()
        return await self._seams.offload_for(Purpose.STATS)(_log_usage, pods)

    def _make(self, host: Host, machine: MachineInfo) -> StatsProvider:
        from kubelet_trio.stats import NoDriverStats, StatsProvider, StatsSettings, VolumeUsage

        node, seams = self._settings.node, self._seams
        root = parse_cgroup(node.cgroup_root)
        kubepods = qos_cgroup("Guaranteed", root)
        self._volumes = VolumeUsage(
            str(node.root_dir),
            seams.offload_for(Purpose.VOLUME_STATS),
            seams.clock,
            period=self._settings.volume_stats_period,
            names=self._volume_names,
            drivers=self._drivers() if self._drivers is not None else NoDriverStats(),
            on_abnormal=self._tell_abnormal,
            meter=seams.meter,
        )
        return StatsProvider(
            StatsSettings(
                node.node_name,
                str(node.root_dir),
                # Of both drivers: the runtime's is unknown until it has answered.
                (cgroup_path(kubepods, "systemd"), cgroup_path(kubepods, "cgroupfs")),
                machine,
                self._settings.system_cgroups,
                shows_health=self._settings.volume_health,
                from_runtime=self._settings.stats_from_runtime,
            ),
            seams.stats_host or host,
            self._runtime,
            self.subjects.now,
            _pod_of_cgroup,
            seams.clock,
            seams.offload_for(Purpose.STATS),
            self._volumes,
        )


class PodSubjects:
    """The pods with a running sandbox or container; one that has not changed is the same object.

    A scrape asks for them each time, and few have changed since the one before.
    """

    def __init__(self, pleg: Pleg, statuses: StatusStore) -> None:
        self._pleg = pleg
        self._statuses = statuses
        self._made: dict[PodUid, tuple[RuntimePod, Pod | None, PodSubject | None]] = {}

    def now(self) -> tuple[PodSubject, ...]:
        """Return them with their running containers, by UID."""
        before, pods = self._made, self._statuses.pods.value
        made = {}
        for uid in sorted(self._pleg.known_uids):
            observed, pod = self._pleg.get(uid), pods.get(uid)
            known = before.get(uid)
            # Snapshots and pods are immutable: another value is another object.
            if known is None or known[0] is not observed or known[1] is not pod:
                known = observed, pod, _pod_subject(observed, pod)
            made[uid] = known
        self._made = made
        return tuple(subject for _, _, subject in made.values() if subject is not None)


def _pod_subject(observed: RuntimePod, pod: Pod | None) -> PodSubject | None:
    from kubelet_trio.stats import PodSubject

    running = [c for c in observed.containers if c.state is ContainerState.RUNNING]
    if not running and not any(s.ready for s in observed.sandboxes):
        return None
    sandbox = next(iter(observed.sandboxes), None)
    spec = pod.spec if pod is not None else None
    volumes = (spec.volumes if spec is not None else None) or ()
    return PodSubject(
        observed.uid,
        observed.name,
        observed.namespace,
        tuple(_container_subject(c) for c in running),
        sandbox_id=sandbox.id if sandbox is not None else None,
        sandbox_created_at=sandbox.created_at if sandbox is not None else 0.0,
        started_at=sandbox.created_at if sandbox is not None else 0.0,
        host_network=sandbox.host_network if sandbox is not None else False,
        claims={v.name: name for v in volumes if (name := claim_name(observed.name, v))},
        volumes=frozenset(v.name for v in volumes),
        local_volumes=_local_volumes(spec),
    )


def _log_usage(pods: tuple[PodSubject, ...]) -> list[tuple[tuple[str, ...], int]]:
    from kubelet_trio.stats import log_usage

    found: list[tuple[tuple[str, ...], int]] = []
    for pod in pods:
        for container in pod.containers:
            size = log_usage(container.log_dir) if container.log_dir else None
            if size is not None:
                found.append(((pod.uid, pod.namespace, pod.name, container.name), size[0]))
    return found


def _container_subject(record: ContainerRecord) -> ContainerSubject:
    from kubelet_trio.stats import ContainerSubject

    return ContainerSubject(
        record.id,
        record.name,
        record.image,
        record.pid,
        started_at=record.started_at or record.created_at,
        created_at=record.created_at,
        log_dir=os.path.dirname(record.log_path),
    )


def _local_volumes(spec: PodSpec | None) -> frozenset[str]:
    """Return the volumes that count as ephemeral storage (util.IsLocalEphemeralVolume)."""
    return frozenset(
        v.name
        for v in (spec.volumes if spec is not None else None) or ()
        if v.configMap is not None or (v.emptyDir is not None and not v.emptyDir.medium)
    )


def _pod_of_cgroup(name: str) -> PodUid | None:
    return uid_of_pod_cgroup(name, "systemd") or uid_of_pod_cgroup(name, "cgroupfs")


def _look_at_host() -> tuple[Host, MachineInfo]:
    """Detect the cgroup mounts and the machine. Blocks."""
    import kubelet_trio
    from kubelet_trio.stats import Host, MachineInfo

    found = cgroup_host()
    cores, sockets = _cpu_topology(_text("/proc/cpuinfo"))
    return (
        Host(found.version, {name: str(path) for name, path in found.mounts.items()}),
        MachineInfo(
            cores=os.cpu_count() or 0,
            physical_cores=cores,
            sockets=sockets,
            books=_count_ids("book_id"),
            drawers=_count_ids("drawer_id"),
            machine_id=_text("/etc/machine-id"),
            # Readable by root alone; there is none on machines without DMI.
            system_uuid=_text("/sys/class/dmi/id/product_uuid"),
            boot_id=_text("/proc/sys/kernel/random/boot_id"),
            kernel=os.uname().release,
            os=_os_name(_text("/etc/os-release")),
            version=kubelet_trio.__version__,
        ),
    )


def _count_ids(name: str) -> int:
    """Return how many values the CPUs have of a property of s390; 0 elsewhere."""
    found = Path("/sys/devices/system/cpu").glob(f"cpu[0-9]*/topology/{name}")
    return len({_text(str(path)) for path in found} - {""})


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _os_name(release: str) -> str:
    for line in release.splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def _cpu_topology(cpuinfo: str) -> tuple[int, int]:
    """Return the numbers of physical cores and of sockets in /proc/cpuinfo."""
    # show_cpuinfo of x86 writes `physical id` before `core id`; ARM has neither.
    cores, sockets, socket = set[tuple[str, str]](), set[str](), ""
    for line in cpuinfo.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "physical id":
            socket = value
            sockets.add(value)
        elif name == "core id":
            cores.add((socket, value))
    return len(cores), len(sockets)
