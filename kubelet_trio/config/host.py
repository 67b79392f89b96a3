"""Settings that depend on the host: defaults for its user and runtime, and refusals to start.

The Go kubelet's defaults are for root: /var/lib/kubelet, /var/log/pods, containerd's socket.
Another user gets directories below their own state directory. Without a container runtime that
this user may use, pods run as processes of the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from kubelet_trio.config.load import Settings
from kubelet_trio.config.types import KubeletConfiguration

PROCESS = "process"  # the endpoint that means the embedded runtime
NO_CLUSTER_DNS = (
    "no API server and no clusterDNS (--cluster-dns): pods with dnsPolicy ClusterFirst, the "
    "default, get the resolver of this host"
)


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """Facts about machine and user that defaults depend on."""

    is_root: bool
    root_dir: str  # the default root directory of this user
    socket: str | None = None  # of a CRI runtime that this user may use
    runtime_installed: bool = False  # a CRI runtime is installed, with or without a socket yet


def settle_locally(settings: Settings, facts: LocalFacts) -> Settings:
    """Return the settings with the defaults of this machine and user."""
    config, flags, notes = settings.config, settings.flags, settings.notes
    if not facts.is_root:
        if "--root-dir" not in settings.given:
            flags = replace(flags, root_dir=facts.root_dir)
        if "--cert-dir" not in settings.given:
            flags = replace(flags, cert_dir=f"{flags.root_dir}/pki")
        if "podLogsDir" not in settings.given:
            config = msgspec.structs.replace(config, pod_logs_dir=f"{flags.root_dir}/logs/pods")
    if "containerRuntimeEndpoint" not in settings.given:
        if facts.socket is not None:
            endpoint = f"unix://{facts.socket}"
        elif facts.is_root and facts.runtime_installed:
            # At boot the runtime may still be starting: do not run the pods as processes then.
            endpoint = config.container_runtime_endpoint
        else:
            endpoint = PROCESS
            notes = (
                *notes,
                "no container runtime is found that this user may use, so pods run as processes "
                "of this host, without images and isolation; --container-runtime-endpoint names "
                "another one",
            )
        config = msgspec.structs.replace(config, container_runtime_endpoint=endpoint)
    if not (flags.kubeconfig or config.cluster_dns or config.container_runtime_endpoint == PROCESS):
        notes = (*notes, NO_CLUSTER_DNS)
    return replace(settings, config=config, flags=flags, notes=notes)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about the host that decide whether the agent may start."""

    cgroup_version: int  # 1 or 2
    swaps: tuple[str, ...] = ()  # active swap areas, as in /proc/swaps
    missing_cgroup_root: tuple[str, ...] = ()  # directories of `cgroupRoot` that do not exist
    kernel: tuple[str, ...] = ()  # kernel settings that differ, with protectKernelDefaults


def startup_refusals(config: KubeletConfiguration, facts: HostFacts) -> list[str]:
    """Return the reasons why the agent does not start on this host; none if it may.

    Source: validation_linux.go and NewContainerManager in cm/container_manager_linux.go.
    """
    if config.container_runtime_endpoint == PROCESS:
        return []  # the process runtime guarantees no limits that swap or cgroup v1 would break
    refusals = []
    if facts.cgroup_version == 1 and config.fail_cgroup_v1:
        refusals.append(
            "this host uses cgroup v1 and failCgroupV1 (--fail-cgroupv1) is true; "
            "move it to cgroup v2 or set failCgroupV1: false"
        )
    # memory.oom.group, which kills a whole container, exists on cgroup v2 only.
    if facts.cgroup_version == 1 and config.single_process_oom_kill is False:
        refusals.append("singleProcessOOMKill must not be set to false on cgroup v1")
    # KEP-2400 limits swap on cgroup v2 only.
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
    """Return the swap areas that /proc/swaps lists."""
    rows = [line.split() for line in text.splitlines()[1:]]
    # Swap on tmpfs does not count, as in the Go kubelet.
    return tuple(row[0] for row in rows if len(row) > 1 and row[0] != "tmpfs")
