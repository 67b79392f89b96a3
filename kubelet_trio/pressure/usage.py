"""Read the usage of pods, to rank them for eviction or to check limits on local storage.

Memory and writable layers come from the runtime; logs and volumes are counted on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lightkube.models.core_v1 import Pod

from kubelet_trio.cgroups import cgroup_path, parse_cgroup, pod_cgroup
from kubelet_trio.containers import NodeSettings, pod_identity, pod_log_directory, pod_qos
from kubelet_trio.cri import Runtime, v1
from kubelet_trio.model import Offload, PodUid, about_pod, get_logger, pod_containers, spec
from kubelet_trio.pressure.ranking import ContainerUsage, DiskUsage, PodUsage
from kubelet_trio.pressure.signals import NodeSignals, tree_usage

log = get_logger()

# Seconds for counting the files of one pod, and of all pods of one call. Ten million cached files
# take over a minute, and the node evicts no pod for disk during the count.
_POD_BUDGET = 10.0
_BUDGET = 30.0
# Volume kinds whose files are on the node's disk and count for the pod (IsLocalEphemeralVolume):
# secret, downwardAPI and projected are kept in memory.
_LOCAL = ("emptyDir", "configMap")


@dataclass(slots=True)
class _Budget:
    """The time limit for a count of files."""

    end: float  # of `time.monotonic`
    was_spent: bool = False

    def is_over(self) -> bool:
        self.was_spent = self.was_spent or time.monotonic() > self.end
        return self.was_spent


@dataclass(slots=True)
class UsageReader:
    """Reads the usage of pods.

    If a pod's files cannot be counted within its budget, each of its logs and volumes has the
    larger of the partial count and the previous one.
    """

    runtime: Runtime
    node: Callable[[], NodeSettings]
    signals: NodeSignals
    offload: Offload
    budget: float = _BUDGET
    # Whether anything of a pod runs: only then the runtime has stats of it.
    runs: Callable[[PodUid], bool] = lambda _uid: True
    # The previous result with files counted, by `all_pods`.
    _last: dict[bool, dict[PodUid, PodUsage]] = field(default_factory=dict)

    async def read(
        self, pods: Iterable[tuple[PodUid, Pod]], *, all_pods: bool, disk: bool
    ) -> dict[PodUid, PodUsage]:
        """Return the usage of pods, without running ones that the runtime has no stats for.

        Raises `RuntimeCallError`.

        Args:
            pods: the pods.
            all_pods: they are (nearly) all pods of the node: one call instead of one for each.
            disk: whether to count logs and volumes, which takes a walk over all files.
        """
        pods = list(pods)
        # A call without a pod makes the runtime measure all of them: too much for a few.
        stats = [] if not all_pods else await self.runtime.list_container_stats()
        if not all_pods:
            for uid, _ in pods:
                stats += await self.runtime.list_container_stats(uid)
        by_pod: dict[PodUid, dict[str, v1.ContainerStats]] = {}
        for one in stats:
            identity = pod_identity(one.attributes.labels if one.attributes else {})
            if identity is not None and one.attributes and one.attributes.metadata:
                by_pod.setdefault(identity.uid, {})[one.attributes.metadata.name] = one
        # Kept apart: `run_limits` reads a few pods, and must not drop the others' counts.
        before = self._last.get(all_pods, {})
        found: dict[PodUid, PodUsage] = {}
        end = time.monotonic() + self.budget
        for uid, pod in pods:
            if uid in by_pod or not self.runs(uid):
                usage = await self._read_one(
                    uid, pod, by_pod.get(uid, {}), end if disk else None, before.get(uid)
                )
                if usage is not None:
                    found[uid] = usage
        if disk:
            self._last[all_pods] = found
        return found

    async def _read_one(
        self,
        uid: PodUid,
        pod: Pod,
        stats: Mapping[str, v1.ContainerStats],
        end: float | None,
        last: PodUsage | None,
    ) -> PodUsage | None:
        """Read one pod; count files until `end`, None: do not count them."""
        budget = None if end is None else _Budget(min(end, time.monotonic() + _POD_BUDGET))
        try:
            usage = await self.offload(self._measure, uid, pod, stats, budget)
        except TimeoutError as exc:
            # A dead mount in one pod must not stop the ranking of the others.
            log.warning("eviction.usage_unknown", **about_pod(pod), error=str(exc))
            return last
        if budget is not None and budget.was_spent:
            log.info("eviction.count_cut_short", **about_pod(pod))
            usage = _larger(usage, last) if last is not None else usage
        return usage

    def _measure(
        self,
        uid: PodUid,
        pod: Pod,
        stats: Mapping[str, v1.ContainerStats],
        budget: _Budget | None,
    ) -> PodUsage:
        node = self.node()
        logs = pod_log_directory(node.pod_logs_dir, pod)
        names = {c.spec.name for c in pod_containers(pod)}
        # What does not run has files still, such as those that make it crash again and again.
        found: Mapping[str, v1.ContainerStats | None] = stats or dict.fromkeys(names)
        containers = {
            name: ContainerUsage(
                memory=_memory(one) if one is not None else 0,
                rootfs=_layer(one) if one is not None else DiskUsage(),
                logs=tree_usage(str(logs / name), budget.is_over) if budget else DiskUsage(),
            )
            for name, one in found.items()
            if name in names
        }
        name = pod_cgroup(uid, pod_qos(pod), parse_cgroup(node.cgroup_root))
        path = cgroup_path(name, node.cgroup_driver)
        return PodUsage(
            containers,
            self._volumes(uid, pod, budget) if budget else {},
            self.signals.processes(path),
            self.signals.working_set(path),
        )

    def _volumes(self, uid: PodUid, pod: Pod, budget: _Budget) -> dict[str, DiskUsage]:
        root = self.node().pod_dir(uid) / "volumes"
        found: dict[str, DiskUsage] = {}
        for volume in spec(pod).volumes or ():
            if not any(getattr(volume, kind, None) is not None for kind in _LOCAL):
                continue
            if volume.emptyDir is not None and volume.emptyDir.medium:
                continue  # memory, not disk
            # `*` is the plugin's directory, such as kubernetes.io~empty-dir.
            for directory in root.glob(f"*/{volume.name}"):
                found[volume.name] = tree_usage(str(directory), budget.is_over)
        return found


def _larger(usage: PodUsage, last: PodUsage) -> PodUsage:
    """Return `usage` with the larger of both counts for each log and volume."""
    containers = {
        name: replace(one, logs=_more(one.logs, last.containers[name].logs))
        if name in last.containers
        else one
        for name, one in usage.containers.items()
    }
    names = usage.volumes.keys() | last.volumes.keys()
    volumes = {
        name: _more(usage.volumes.get(name, DiskUsage()), last.volumes.get(name, DiskUsage()))
        for name in names
    }
    return replace(usage, containers=containers, volumes=volumes)


def _more(one: DiskUsage, other: DiskUsage) -> DiskUsage:
    return DiskUsage(max(one.space, other.space), max(one.inodes, other.inodes))


def _memory(stats: v1.ContainerStats) -> int:
    used = stats.memory.working_set_bytes if stats.memory else None
    return used.value if used else 0


def _layer(stats: v1.ContainerStats) -> DiskUsage:
    layer = stats.writable_layer
    if layer is None:
        return DiskUsage()
    return DiskUsage(
        layer.used_bytes.value if layer.used_bytes else 0,
        layer.inodes_used.value if layer.inodes_used else 0,
    )
