"""Facts of the host on which the agent does not start, as the Go kubelet would not."""

from __future__ import annotations

from dataclasses import dataclass

from kubelet_trio.config.local import PROCESS
from kubelet_trio.config.types import KubeletConfiguration


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What of the host decides whether the agent may start."""

    cgroup_version: int  # 1 or 2
    swaps: tuple[str, ...] = ()  # active swap areas, as /proc/swaps names them
    missing_cgroup_root: tuple[str, ...] = ()  # directories that `cgroupRoot` should have
    kernel: tuple[str, ...] = ()  # settings that are not the kubelet's, where it may set none


def startup_refusals(config: KubeletConfiguration, facts: HostFacts) -> list[str]:
    """Return why the agent does not start on this host; nothing if it may.

    Source: validation_linux.go and NewContainerManager in cm/container_manager_linux.go.
    """
    if config.container_runtime_endpoint == PROCESS:
        return []  # it promises no limits that swap or an old cgroup version could break
    refusals = []
    if facts.cgroup_version == 1 and config.fail_cgroup_v1:
        refusals.append(
            "this host uses cgroup v1 and failCgroupV1 (--fail-cgroupv1) is true; "
            "move it to cgroup v2 or set failCgroupV1: false"
        )
    if facts.cgroup_version == 1 and config.single_process_oom_kill is False:
        refusals.append("singleProcessOOMKill must not be set to false on cgroup v1")
    if facts.cgroup_version == 1 and config.memory_swap.swap_behavior == "LimitedSwap":
        refusals.append("memorySwap.swapBehavior LimitedSwap is not supported on cgroup v1")
    if facts.swaps and config.fail_swap_on:
        refusals.append(
            "running with swap on is not supported, please disable swap or set "
            f"failSwapOn (--fail-swap-on) to false. Swap areas: {', '.join(facts.swaps)}"
        )
    if facts.missing_cgroup_root and config.cgroups_per_qos:
        refusals.append(
            f"cgroupRoot (--cgroup-root) {config.cgroup_root!r} does not exist: make "
            f"{', '.join(facts.missing_cgroup_root)}, or name a cgroup that is there"
        )
    refusals += [
        f"protectKernelDefaults (--protect-kernel-defaults) is true and the kernel's {setting}"
        for setting in facts.kernel
    ]
    return refusals


def parse_swaps(text: str) -> tuple[str, ...]:
    """Return the swap areas that /proc/swaps lists, without those on tmpfs, as upstream."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return tuple(row[0] for row in rows if len(row) > 1 and row[0] != "tmpfs")
