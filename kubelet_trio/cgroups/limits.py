"""The limits of a cgroup, and the kernel's files for them in both versions. Pure.

A limit that is None is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MIN_SHARES = 2
MAX_SHARES = 262144
MIN_QUOTA = 1000  # microseconds
MIN_MILLI_CPU_LIMIT = 10  # what MIN_QUOTA is with the default period of 100 ms
UNLIMITED = -1
# The Go kubelet's value for the QoS classes (qos_container_manager_linux.go): no real limit.
UNBOUNDED_HUGEPAGES = 1 << 62
_RESERVED = ".rsvd."  # in the names of files that limit reservations of huge pages


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Memory and huge pages in bytes, times in microseconds; UNLIMITED (-1) lifts a limit."""

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory: int | None = None
    pids: int | None = None
    hugepages: Mapping[str, int] = field(default_factory=dict)  # by size: 2MB, 1GB
    unified: Mapping[str, str] = field(default_factory=dict)  # further files of version 2


class Setting(NamedTuple):
    """One file of a cgroup, and the value to write."""

    controller: str
    file: str
    value: str

    @property
    def is_optional(self) -> bool:
        """Whether a kernel with the controller may lack the file, as those before 5.7 do."""
        return _RESERVED in self.file


def milli_cpu_to_shares(milli_cpu: int) -> int:
    """Return CPU shares (1024 a core), within the kernel's bounds."""
    return min(max(milli_cpu * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def milli_cpu_to_quota(milli_cpu: int, period: int) -> int:
    """Return the CFS quota in microseconds for a period in microseconds; 0 is no limit."""
    return max(milli_cpu * period // 1000, MIN_QUOTA) if milli_cpu else 0


def shares_to_milli_cpu(shares: int) -> int:
    """Return the milli-CPU request that CPU shares stand for; 0 below the kernel's minimum."""
    # SharesToMilliCPU: rounded up, so that every request from 2m to 256 CPUs is found again.
    return -(-shares * 1000 // 1024) if shares >= MIN_SHARES else 0


def quota_to_milli_cpu(quota: int, period: int) -> int:
    """Return the milli-CPU limit of a CFS quota, both in microseconds; 0 is no limit."""
    return max(quota, 0) * 1000 // period if period > 0 else 0


def shares_to_weight(shares: int) -> int:
    """Return the cpu.weight (version 2) for cpu.shares (version 1)."""
    # The Go kubelet's linear mapping of 2..262144 to 1..10000 for its own cgroups. Newer runtimes
    # use another curve for containers (opencontainers/cgroups, ConvertCPUSharesToCgroupV2Value).
    return 1 + (min(max(shares, MIN_SHARES), MAX_SHARES) - MIN_SHARES) * 9999 // 262142


def weight_to_shares(weight: int) -> int:
    """Return the least cpu.shares that `shares_to_weight` maps to a cpu.weight."""
    return MIN_SHARES - (1 - min(max(weight, 1), 10000)) * 262142 // 9999


def page_size_name(size: int) -> str:
    """Return the kernel's name for a page size: 2097152 is 2MB."""
    for unit in ("", "KB", "MB"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}GB"


def shares_in(shares: int, version: int) -> int:
    """Return CPU shares in the unit of a cgroup version: shares or weight.

    Shares that were read back from a weight differ from those that were written, by rounding;
    in this unit they are equal.
    """
    return shares_to_weight(shares) if version == 2 else min(max(shares, MIN_SHARES), MAX_SHARES)


def settings(limits: CgroupLimits, version: int) -> list[Setting]:
    """Return the settings in the order of writing: a quota after its period."""
    return _settings_v2(limits) if version == 2 else _settings_v1(limits)


def _settings_v1(limits: CgroupLimits) -> list[Setting]:
    found = []
    if limits.cpu_shares is not None:
        found.append(Setting("cpu", "cpu.shares", str(limits.cpu_shares)))
    if limits.cpu_quota is not None:
        if limits.cpu_period is not None:
            found.append(Setting("cpu", "cpu.cfs_period_us", str(limits.cpu_period)))
        found.append(Setting("cpu", "cpu.cfs_quota_us", str(_quota(limits.cpu_quota))))
    if limits.memory is not None:
        found.append(Setting("memory", "memory.limit_in_bytes", str(limits.memory)))
    if limits.pids is not None:
        found.append(Setting("pids", "pids.max", _or_max(limits.pids)))
    for size, amount in limits.hugepages.items():
        found += _huge_pages(size, "limit_in_bytes", amount)
    return found


def _settings_v2(limits: CgroupLimits) -> list[Setting]:
    found = []
    if limits.cpu_shares is not None:
        weight = shares_to_weight(limits.cpu_shares)
        found.append(Setting("cpu", "cpu.weight", str(weight)))
    if limits.cpu_quota is not None:
        quota = _or_max(_quota(limits.cpu_quota))
        period = "" if limits.cpu_period is None else f" {limits.cpu_period}"
        found.append(Setting("cpu", "cpu.max", quota + period))
    if limits.memory is not None:
        found.append(Setting("memory", "memory.max", _or_max(limits.memory)))
    if limits.pids is not None:
        found.append(Setting("pids", "pids.max", _or_max(limits.pids)))
    for size, amount in limits.hugepages.items():
        found += _huge_pages(size, "max", amount)
    for file, value in limits.unified.items():
        found.append(Setting(file.partition(".")[0], file, value))
    return found


def _huge_pages(size: str, limit: str, amount: int) -> list[Setting]:
    # Reservations too: mmap fails at the limit, where a fault would end the process with SIGBUS.
    files = (f"hugetlb.{size}.{limit}", f"hugetlb.{size}{_RESERVED}{limit}")
    return [Setting("hugetlb", file, str(amount)) for file in files]


def _quota(quota: int) -> int:
    return quota if quota > 0 else UNLIMITED


def _or_max(value: int) -> str:
    return "max" if value == UNLIMITED else str(value)
