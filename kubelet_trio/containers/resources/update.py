"""The resources in requests that change a running pod (KEP-1287, KEP-5419). Pure.

A runtime leaves a setting as it is if the request has 0 or no value for it. So a request names
what a container of the same spec would be created without, if the container has it now.
"""

from __future__ import annotations

from lightkube.models.core_v1 import Pod

from kubelet_trio.cgroups import MIN_SHARES, CgroupLimits
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.containers.resources.container import container_resources, overhead_resources
from kubelet_trio.cri import v1
from kubelet_trio.model import ConfiguredResources, PodContainer

_UNLIMITED = -1


def update_resources(
    pod: Pod, container: PodContainer, node: NodeSettings, had: ConfiguredResources | None
) -> v1.LinuxContainerResources:
    """Return the resources of an UpdateContainerResources request.

    The container then has those that a new one would have, but for its oom_score_adj: runtimes
    set that at the creation only. With cgroup v1 the request has both memory and memory+swap, which
    runc writes in the order that the kernel accepts.

    Args:
        pod: the pod with the resources that it shall have.
        container: one of its containers, with the resources that it shall have.
        node: the node's settings.
        had: what the container has, as its record reports it.

    Raises ValueError for a quantity that does not parse.
    """
    resources = container_resources(pod, container, node)
    resources.hugepage_limits = []  # they cannot be resized, and containerd would add them again
    # Only what is to be removed: CRI-O refuses a negative memory limit.
    if not resources.cpu_quota and resources.cpu_period and (had is None or had.cpu_quota > 0):
        resources.cpu_quota = _UNLIMITED
    if not resources.memory_limit_in_bytes and (had is None or had.memory_limit > 0):
        resources.memory_limit_in_bytes = resources.memory_swap_limit_in_bytes = _UNLIMITED
    if node.memory_qos and node.cgroup_version == 2:
        resources.unified.setdefault("memory.high", "max")
    return resources


def update_sandbox_resources(
    pod: Pod, limits: CgroupLimits, node: NodeSettings
) -> v1.LinuxContainerResources:
    """Return `resources` of an UpdatePodSandboxResources request: the pod's without its overhead.

    Its `overhead` is `overhead_resources`. `limits` are those of the pod's cgroup, which include
    the overhead; unlimited ones are -1. Raises ValueError for a quantity that does not parse.
    Source: subtractOverheadFromResourceConfig of pkg/kubelet/kuberuntime.
    """
    overhead = overhead_resources(pod, node)
    resources = v1.LinuxContainerResources(
        cpu_period=limits.cpu_period or 0,
        cpu_quota=_less(limits.cpu_quota, overhead.cpu_quota),
        memory_limit_in_bytes=_less(limits.memory, overhead.memory_limit_in_bytes),
        unified=dict(limits.unified),
    )
    if limits.cpu_shares is not None:
        resources.cpu_shares = max(limits.cpu_shares - overhead.cpu_shares, MIN_SHARES)
    return resources


def _less(limit: int | None, overhead: int) -> int:
    if limit is None or limit <= 0:
        return limit or 0
    return max(limit - overhead, 0)
