"""How a runtime merges a change of resources into what a container has."""

from __future__ import annotations

from kubelet_trio.cri.generated.runtime import v1


def merged_resources(
    now: v1.LinuxContainerResources, asked: v1.LinuxContainerResources
) -> v1.LinuxContainerResources:
    """Return a container's resources after UpdateContainerResources, as in containerd.

    Zero and "" in the request change nothing, `unified` is merged by file, and a memory limit
    without a swap limit is the swap limit too. Source: WithResources in containerd's
    internal/cri/opts/spec_linux_opts.go.
    """
    memory = asked.memory_limit_in_bytes
    swap = asked.memory_swap_limit_in_bytes or memory
    return v1.LinuxContainerResources(
        cpu_period=asked.cpu_period or now.cpu_period,
        cpu_quota=asked.cpu_quota or now.cpu_quota,
        cpu_shares=asked.cpu_shares or now.cpu_shares,
        memory_limit_in_bytes=memory or now.memory_limit_in_bytes,
        memory_swap_limit_in_bytes=swap or now.memory_swap_limit_in_bytes,
        # Set when the container is created, and never again.
        oom_score_adj=now.oom_score_adj,
        cpuset_cpus=asked.cpuset_cpus or now.cpuset_cpus,
        cpuset_mems=asked.cpuset_mems or now.cpuset_mems,
        hugepage_limits=[*now.hugepage_limits, *asked.hugepage_limits],
        unified={**now.unified, **asked.unified},
    )
