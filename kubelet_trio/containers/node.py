"""The node as pods' configs see it: its settings, and facts read from this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kubelet_trio.cgroups import CgroupDriver
from kubelet_trio.model import read_start

# The Go kubelet's defaults for unprivileged containers (securitycontext/util.go).
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
_MAX_RESOLV_CONF = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """A resolv.conf, parsed."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of the node for pods' configs. Sizes in bytes, times in seconds."""

    node_name: str
    hostname: str
    root_dir: Path = Path("/var/lib/kubelet")
    pod_logs_dir: Path = Path("/var/log/pods")
    container_logs_dir: Path = Path("/var/log/containers")
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    standalone: bool = False  # no API server: a missing cluster DNS is no mistake
    resolv_conf: ResolvConf | None = field(default_factory=ResolvConf)  # None: `resolvConf: ""`
    resolver_file: str = ""  # what `resolv_conf` was read from, and is again; "": it stays
    host_ips: tuple[str, ...] = ()
    cgroup_driver: CgroupDriver = "cgroupfs"
    cgroups_per_qos: bool = True
    cgroup_root: str = ""
    cgroup_version: int = 2
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: float = 0.1
    memory_capacity: int = 0
    capacity: Mapping[str, int] = field(default_factory=dict)  # in nano-units, by resource
    allocatable: Mapping[str, int] = field(default_factory=dict)  # the part of it for pods
    hugepage_sizes: tuple[str, ...] = ()  # as the kernel's controller names them: 2MB, 1GB
    swap_controller: bool = False  # whether the memory controller can limit swap
    swap_capacity: int = 0
    limited_swap: bool = False  # memorySwap.swapBehavior is LimitedSwap, not NoSwap
    memory_qos: bool = False  # the MemoryQoS gate, which needs cgroup v2
    memory_throttling_factor: float = 0.9
    memory_reservation: bool = False  # memoryReservationPolicy is TieredReservation
    single_process_oom_kill: bool = False
    seccomp_default: bool = False
    selinux: bool = False  # whether files must be labelled for containers to read them
    selinux_mount: bool = False  # the SELinuxMount gate: label mounts for all access modes
    stop_signals: bool = False  # the ContainerStopSignals gate: lifecycle.stopSignal is obeyed
    # The gate InPlacePodLevelResourcesVerticalScaling: `resources` of a pod may be resized, and
    # its status has what it holds.
    pod_level_resizes: bool = True
    image_digests: bool = False  # the ImageVolumeWithDigest gate: statuses show them
    masked_paths: tuple[str, ...] = MASKED_PATHS
    readonly_paths: tuple[str, ...] = READONLY_PATHS
    # Of FlexVolume drivers.
    volume_plugin_dir: Path = Path("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")

    def pod_dir(self, uid: str) -> Path:
        """Return the directory of a pod's volumes, hosts file and container files."""
        return self.root_dir / "pods" / uid


def without_quota(node: NodeSettings) -> NodeSettings:
    """Return the settings for what has CPUs of its own: a CFS quota would only throttle it."""
    return replace(node, cpu_cfs_quota=False)


def memory_capacity(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the machine's memory in bytes."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def hugepage_sizes(directory: Path = Path("/sys/kernel/mm/hugepages")) -> tuple[str, ...]:
    """Return the huge page sizes as the hugetlb controller names them: 2MB, 1GB."""
    if not directory.is_dir():
        return ()
    sizes = (re.fullmatch(r"hugepages-(\d+)kB", entry.name) for entry in directory.iterdir())
    return tuple(_size_name(kb) for kb in sorted(int(match[1]) for match in sizes if match))


def masked_paths(cpus: Path = Path("/sys/devices/system/cpu")) -> tuple[str, ...]:
    """Return the paths to hide from containers: the fixed list, and each CPU's thermal events."""
    thermal = sorted(str(path) for path in cpus.glob("cpu[0-9]*/thermal_throttle"))
    return (*MASKED_PATHS, *thermal)


def is_selinux_on(enforce: Path = Path("/sys/fs/selinux/enforce")) -> bool:
    """Return whether SELinux is on, so that files need a label for containers to read them."""
    return enforce.exists()


def read_resolv_conf(path: str) -> ResolvConf | None:
    """Read the node's resolver settings; None for an empty path, which means to use none.

    Raises OSError if the file cannot be read, ValueError if it does not parse.
    """
    if not path:
        return None
    with open(path, "rb") as file:
        text = read_start(file.fileno(), _MAX_RESOLV_CONF).decode(errors="replace")
    return parse_resolv_conf(text)


def _size_name(kilobytes: int) -> str:
    for unit in ("KB", "MB"):
        if kilobytes % 1024:
            return f"{kilobytes}{unit}"
        kilobytes //= 1024
    return f"{kilobytes}GB"


def parse_resolv_conf(text: str) -> ResolvConf:
    """Parse a resolv.conf: all nameservers and options, the last line of search.

    Search domains lose a trailing dot, so that both spellings are equal. The last option of a name
    counts. Raises ValueError for a nameserver line without a server.
    """
    nameservers: list[str] = []
    searches: Sequence[str] = ()
    options: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        keyword, values = words[0], words[1:]
        if keyword == "nameserver":
            if not values:
                raise ValueError("nameserver list is empty")
            nameservers.append(values[0])
        elif keyword == "search":
            # As parseResolvConf of dns.go: systemd-resolved writes `search .`, the root, and musl
            # fails to look up names with it behind the cluster's domains.
            searches = [s.removesuffix(".") for s in values if s != "."]
        elif keyword == "options":
            options |= {option.partition(":")[0]: option for option in values}
    return ResolvConf(tuple(nameservers), tuple(searches), tuple(options.values()))
