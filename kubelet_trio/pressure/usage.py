"""What pods use, read when somebody has to go, or has limits that must be watched.

Memory and writable layers are the runtime's to tell; logs and volumes are counted on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import Pod

from kubelet_trio.cgroups import cgroup_path, parse_cgroup, pod_cgroup
from kubelet_trio.containers import NodeSettings, pod_identity, pod_log_directory, pod_qos
from kubelet_trio.cri import Runtime, v1
from kubelet_trio.model import Offload, PodUid, pod_containers, spec
from kubelet_trio.pressure.ranking import ContainerUsage, Disk, PodUsage
from kubelet_trio.pressure.signals import NodeSignals, tree_usage

# Of these the files are the pod's own, on the node's disk.
_LOCAL = ("emptyDir", "configMap", "downwardAPI", "projected", "gitRepo")


@dataclass(frozen=True, slots=True)
class UsageReader:
    """Reads the usage of pods."""

    runtime: Runtime
    node: Callable[[], NodeSettings]
    signals: NodeSignals
    offload: Offload

    async def read(
        self, pods: Iterable[tuple[PodUid, Pod]], *, all_pods: bool, disk: bool
    ) -> dict[PodUid, PodUsage]:
        """Return what the pods use; one that the runtime tells nothing of is left out.

        Raises `RuntimeCallError`.

        Args:
            pods: whose usage.
            all_pods: they are (nearly) all there are: one call instead of one each.
            disk: whether logs and volumes matter; counting them takes a walk over all files.
        """
        pods = list(pods)
        stats = [] if not all_pods else await self.runtime.list_container_stats()
        if not all_pods:
            for uid, _ in pods:
                stats += await self.runtime.list_container_stats(uid)
        by_pod: dict[PodUid, dict[str, v1.ContainerStats]] = {}
        for one in stats:
            identity = pod_identity(one.attributes.labels if one.attributes else {})
            if identity is not None and one.attributes and one.attributes.metadata:
                by_pod.setdefault(identity.uid, {})[one.attributes.metadata.name] = one
        return {
            uid: await self.offload(self._measure, uid, pod, by_pod[uid], disk)
            for uid, pod in pods
            if uid in by_pod
        }

    def _measure(
        self, uid: PodUid, pod: Pod, stats: Mapping[str, v1.ContainerStats], disk: bool
    ) -> PodUsage:
        node = self.node()
        logs = pod_log_directory(node.pod_logs_dir, pod)
        names = {c.spec.name for c in pod_containers(pod)}
        containers = {
            name: ContainerUsage(
                memory=_memory(one),
                rootfs=_layer(one),
                logs=tree_usage(str(logs / name)) if disk else Disk(),
            )
            for name, one in stats.items()
            if name in names
        }
        name = pod_cgroup(uid, pod_qos(pod), parse_cgroup(node.cgroup_root))
        path = cgroup_path(name, node.cgroup_driver)
        return PodUsage(
            containers,
            self._volumes(uid, pod) if disk else {},
            self.signals.processes(path),
            self.signals.working_set(path),
        )

    def _volumes(self, uid: PodUid, pod: Pod) -> dict[str, Disk]:
        root = self.node().pod_dir(uid) / "volumes"
        found: dict[str, Disk] = {}
        for volume in spec(pod).volumes or ():
            if not any(getattr(volume, kind, None) is not None for kind in _LOCAL):
                continue
            if volume.emptyDir is not None and volume.emptyDir.medium:
                continue  # memory, not disk
            for directory in root.glob(f"*/{volume.name}"):
                found[volume.name] = tree_usage(str(directory))
        return found


def _memory(stats: v1.ContainerStats) -> int:
    used = stats.memory.working_set_bytes if stats.memory else None
    return used.value if used else 0


def _layer(stats: v1.ContainerStats) -> Disk:
    layer = stats.writable_layer
    if layer is None:
        return Disk()
    return Disk(
        layer.used_bytes.value if layer.used_bytes else 0,
        layer.inodes_used.value if layer.inodes_used else 0,
    )
