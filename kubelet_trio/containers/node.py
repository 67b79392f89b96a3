"""What the configs of every pod on the node have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kubelet_trio.cgroups import CgroupDriver
from kubelet_trio.containers.dns import ResolvConf

# What the Go kubelet asks every runtime to hide from unprivileged containers.
MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READONLY_PATHS = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The node as configs see it. Sizes in bytes, times in seconds."""

    node_name: str
    hostname: str
    root_dir: Path = Path("/var/lib/kubelet")
    pod_logs_dir: Path = Path("/var/log/pods")
    container_logs_dir: Path = Path("/var/log/containers")
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    resolv_conf: ResolvConf | None = field(default_factory=ResolvConf)  # None: `resolvConf: ""`
    host_ips: tuple[str, ...] = ()
    cgroup_driver: CgroupDriver = "cgroupfs"
    cgroups_per_qos: bool = True
    cgroup_root: str = ""
    cgroup_version: int = 2
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: float = 0.1
    memory_capacity: int = 0
    capacity: Mapping[str, int] = field(default_factory=dict)  # in nano-units, by resource
    allocatable: Mapping[str, int] = field(default_factory=dict)  # what of it is for pods
    hugepage_sizes: tuple[str, ...] = ()  # as the kernel's controller names them: 2MB, 1GB
    swap_controller: bool = False  # whether the memory controller can limit swap
    swap_capacity: int = 0
    limited_swap: bool = False  # memorySwap.swapBehavior: LimitedSwap; else containers get none
    memory_qos: bool = False  # the gate: memory.high below limits, on version 2
    memory_throttling_factor: float = 0.9
    memory_reservation: bool = False  # memoryReservationPolicy: TieredReservation
    single_process_oom_kill: bool = False
    seccomp_default: bool = False
    selinux: bool = False  # whether files must be labelled for containers to read them
    masked_paths: tuple[str, ...] = MASKED_PATHS
    readonly_paths: tuple[str, ...] = READONLY_PATHS

    def pod_dir(self, uid: str) -> Path:
        """Return the directory of a pod's volumes, hosts file and container files."""
        return self.root_dir / "pods" / uid
