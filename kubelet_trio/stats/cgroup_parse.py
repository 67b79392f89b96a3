"""Parse a cgroup's files into `CgroupUsage`, for both versions. No I/O.

Each number has the meaning that cAdvisor gives it (lib/container/libcontainer/handler.go), so
that dashboards made for the Go kubelet work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from kubelet_trio.stats.kernel_text import flat, parse_pressure, read_counts, whole
from kubelet_trio.stats.usage import CgroupUsage, Cpu, DeviceIo, Memory, Psi

# The files of a cgroup on version 2; MORE_FILES_V2 are only for `/metrics/cadvisor`.
FILES_V2 = (
    "cpu.stat",
    "memory.current",
    "memory.stat",
    "memory.max",
    "memory.swap.current",
    "memory.swap.max",
    "cpu.pressure",
    "memory.pressure",
    "io.pressure",
    "pids.current",
    "cgroup.procs",
)
MORE_FILES_V2 = (
    # Linux 5.19
    "memory.peak",
    "memory.events",
    "memory.low",
    "cpu.max",
    "cpu.weight",
    "io.stat",
    "pids.max",
)
# By controller on version 1.
FILES_V1: Mapping[str, tuple[str, ...]] = {
    "cpuacct": ("cpuacct.usage", "cpuacct.stat"),
    "memory": (
        "memory.usage_in_bytes",
        "memory.stat",
        "memory.limit_in_bytes",
        "memory.memsw.usage_in_bytes",
        "memory.memsw.limit_in_bytes",
    ),
    "pids": ("pids.current", "cgroup.procs"),
}
MORE_FILES_V1: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu.stat", "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "memory": (
        "memory.max_usage_in_bytes",
        "memory.failcnt",
        "memory.soft_limit_in_bytes",
        "memory.kmem.usage_in_bytes",
        "memory.oom_control",
    ),
    # Unlike blkio.io_service_bytes, the `throttle` files count with every I/O scheduler.
    "blkio": ("blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"),
    "pids": ("pids.max",),
}
ALL_FILES_V2 = FILES_V2 + MORE_FILES_V2
ALL_FILES_V1: Mapping[str, tuple[str, ...]] = {
    controller: FILES_V1.get(controller, ()) + MORE_FILES_V1.get(controller, ())
    for controller in dict.fromkeys((*FILES_V1, *MORE_FILES_V1))
}
# Files that only change when somebody writes one of their directory.
LIMITS = frozenset(
    (
        "memory.max",
        "memory.low",
        "memory.swap.max",
        "cpu.max",
        "cpu.weight",
        "pids.max",
        "cpu.shares",
        "cpu.cfs_quota_us",
        "cpu.cfs_period_us",
        "memory.limit_in_bytes",
        "memory.soft_limit_in_bytes",
        "memory.memsw.limit_in_bytes",
    )
)
# As long as these are the same, none of the cgroup's processes has run, ...
WITNESSES_V2 = frozenset(("cpu.stat", "memory.current"))
WITNESSES_V1 = frozenset(("cpuacct.usage", "memory.usage_in_bytes"))
# ... and these are too. Others are not: I/O and reclaim go on without them, and a process that
# waits counts as pressure.
AFTER_RUN_V2 = frozenset(
    ("memory.swap.current", "memory.peak", "memory.events", "pids.current", "cgroup.procs")
)
AFTER_RUN_V1 = frozenset(
    (
        "cpuacct.stat",
        "cpu.stat",
        "memory.memsw.usage_in_bytes",
        "memory.max_usage_in_bytes",
        "memory.failcnt",
        "memory.kmem.usage_in_bytes",
        "memory.oom_control",
        "pids.current",
        "cgroup.procs",
    )
)
# Files of the parts of a `CgroupUsage`.
_CPU_V2 = frozenset(("cpu.stat", "cpu.pressure", "cpu.max", "cpu.weight"))
_MEMORY_LIMITS = frozenset(("memory.max", "memory.low", "memory.swap.max"))
_MEMORY_V2 = frozenset(name for name in ALL_FILES_V2 if name.startswith("memory."))
_CPU_V1 = frozenset((*FILES_V1["cpuacct"], *MORE_FILES_V1["cpu"]))
_MEMORY_V1 = frozenset(ALL_FILES_V1["memory"])
_IO_V1 = frozenset(ALL_FILES_V1["blkio"])

_COUNT = rb"(\d{1,20})"
_IO = re.compile(
    rb"^(\S+) rbytes=%b wbytes=%b rios=%b wios=%b(?![^\s])" % ((_COUNT,) * 4), re.MULTILINE
)
_NANO = 1_000_000_000
_TICK = _NANO // 100  # USER_HZ is 100 on every architecture that Kubernetes supports
# Larger limits mean "unlimited": version 1 shows that as the largest number of pages, in bytes.
_UNLIMITED = 1 << 62
_NONE = b"max"
_NOTHING = CgroupUsage(0.0)


class _CpuStat(Struct, gc=False):
    """Of cpu.stat."""

    usage_usec: int = 0
    user_usec: int = 0
    system_usec: int = 0
    nr_periods: int = 0
    nr_throttled: int = 0
    throttled_usec: int = 0
    nr_bursts: int = 0
    burst_usec: int = 0


class _MemoryEvents(Struct, gc=False):
    """Of memory.events."""

    max: int = 0
    oom_kill: int = 0


class _MemoryStat(Struct, gc=False):
    """Of memory.stat on version 2."""

    anon: int = 0
    file: int = 0
    kernel: int | None = None
    kernel_stack: int = 0
    file_mapped: int = 0
    inactive_file: int = 0
    active_file: int = 0
    slab: int = 0
    pgfault: int = 0
    pgmajfault: int = 0


class _MemoryStatV1(Struct, gc=False):
    """Of memory.stat on version 1; `total_` includes the cgroups below."""

    pgfault: int = 0
    pgmajfault: int = 0
    total_cache: int = 0
    total_rss: int = 0
    total_mapped_file: int = 0
    total_inactive_file: int = 0
    total_active_file: int = 0
    total_pgfault: int = 0
    total_pgmajfault: int = 0


_ANY = frozenset((*ALL_FILES_V2, *(name for names in ALL_FILES_V1.values() for name in names)))


def parse_v2(
    files: Mapping[str, bytes],
    time: float,
    known: CgroupUsage | None = None,
    changed: AbstractSet[str] = frozenset(),
) -> CgroupUsage:
    """Return the usage of a cgroup of version 2 from the files that could be read.

    Args:
        files: content by name.
        time: when they were read, Unix seconds.
        known: of the same cgroup and the same files, earlier; None: all are parsed.
        changed: the files that are not as they were then, came, or are gone.
    """
    threads = files.get("pids.current")
    if known is None:
        known, changed = _NOTHING, _ANY
    return CgroupUsage(
        time,
        known.cpu if changed.isdisjoint(_CPU_V2) else _cpu_v2(files, known.cpu, changed),
        known.memory
        if changed.isdisjoint(_MEMORY_V2)
        else _memory_v2(files, known.memory, changed),
        _io_v2(files.get("io.stat", b"")) if "io.stat" in changed else known.io,
        _psi(files.get("io.pressure")) if "io.pressure" in changed else known.io_psi,
        _number(threads) if threads else None,
        _limit(files.get("pids.max")) if "pids.max" in changed else known.threads_max,
        _pids(files.get("cgroup.procs", b"")) if "cgroup.procs" in changed else known.pids,
    )


def parse_v1(
    files: Mapping[str, bytes],
    time: float,
    known: CgroupUsage | None = None,
    changed: AbstractSet[str] = frozenset(),
) -> CgroupUsage:
    """Return the usage of a cgroup of version 1 from the files of all its hierarchies.

    The arguments are those of `parse_v2`.
    """
    threads = files.get("pids.current")
    if known is None:
        known, changed = _NOTHING, _ANY
    return CgroupUsage(
        time,
        known.cpu if changed.isdisjoint(_CPU_V1) else _cpu_v1(files),
        known.memory if changed.isdisjoint(_MEMORY_V1) else _memory_v1(files),
        known.io if changed.isdisjoint(_IO_V1) else _io_v1(files),
        None,
        _number(threads) if threads else None,
        _limit(files.get("pids.max")) if "pids.max" in changed else known.threads_max,
        _pids(files.get("cgroup.procs", b"")) if "cgroup.procs" in changed else known.pids,
    )


def _cpu_v2(files: Mapping[str, bytes], known: Cpu | None, changed: AbstractSet[str]) -> Cpu | None:
    if "cpu.stat" not in files:
        return None
    if known is None:
        known, changed = Cpu(), _ANY
    shares, quota, period, psi = known.shares, known.quota, known.period, known.psi
    if "cpu.weight" in changed:
        weight = files.get("cpu.weight")
        shares = shares_of_weight(_number(weight)) if weight else None
    if "cpu.max" in changed:
        most, _, every = files.get("cpu.max", b"max 100000").strip().partition(b" ")
        quota, period = None if most == _NONE else _number(most), _number(every) or 100_000
    if "cpu.pressure" in changed:
        psi = _psi(files.get("cpu.pressure"))
    stat = read_counts(_CpuStat, files["cpu.stat"])
    return Cpu(
        stat.usage_usec * 1000,
        stat.user_usec * 1000,
        stat.system_usec * 1000,
        stat.nr_periods,
        stat.nr_throttled,
        stat.throttled_usec * 1000,
        stat.nr_bursts,
        stat.burst_usec * 1000,
        shares,
        quota,
        period,
        psi,
    )


def shares_of_weight(weight: int) -> int:
    """Return the cpu.shares (version 1) for a cpu.weight, as cAdvisor converts it."""
    # convertCPUWeightToCPULimit in lib/container/common/helpers.go: the inverse of KEP-2254's
    # formula. A runtime with another formula gives other shares than the container's request.
    return max(2 + ((weight - 1) * 262142) // 9999, 2) if weight > 0 else 0


def _cpu_v1(files: Mapping[str, bytes]) -> Cpu | None:
    if "cpuacct.usage" not in files:
        return None
    ticks, stat = flat(files.get("cpuacct.stat", b"")), flat(files.get("cpu.stat", b""))
    quota, shares = files.get("cpu.cfs_quota_us"), files.get("cpu.shares")
    return Cpu(
        usage=_number(files["cpuacct.usage"]),
        user=ticks.get("user", 0) * _TICK,
        system=ticks.get("system", 0) * _TICK,
        periods=stat.get("nr_periods", 0),
        throttled_periods=stat.get("nr_throttled", 0),
        throttled=stat.get("throttled_time", 0),
        burst_periods=stat.get("nr_bursts", 0),
        burst=stat.get("burst_time", 0),
        shares=_number(shares) if shares else None,
        # -1: no limit
        quota=_number(quota) if quota and not quota.startswith(b"-") else None,
        period=_number(files.get("cpu.cfs_period_us", b"")) or 100_000,
    )


def _memory_v2(
    files: Mapping[str, bytes], known: Memory | None, changed: AbstractSet[str]
) -> Memory | None:
    if "memory.stat" not in files:
        return None
    if known is None:
        known, changed = Memory(), _ANY
    failcnt, oom_kills = known.failcnt, known.oom_kills
    if "memory.events" in changed:
        events = read_counts(_MemoryEvents, files.get("memory.events", b""))
        # How often the usage met memory.max: what failcnt was on version 1.
        failcnt, oom_kills = events.max, events.oom_kill
    limit, reservation, swap_limit = known.limit, known.reservation, known.swap_limit
    if not changed.isdisjoint(_MEMORY_LIMITS):
        limit, swap_limit = _limit(files.get("memory.max")), _limit(files.get("memory.swap.max"))
        # runc writes a reservation to memory.low (fs2/memory.go); cAdvisor reads memory.min.
        reservation = _number(files.get("memory.low", b"")) or None
    psi = _psi(files.get("memory.pressure")) if "memory.pressure" in changed else known.psi
    most = _number(files.get("memory.peak", b"")) if "memory.peak" in changed else known.max_usage
    stat = read_counts(_MemoryStat, files["memory.stat"])
    usage, swap = files.get("memory.current"), files.get("memory.swap.current")
    # Older kernels have no `kernel` in memory.stat.
    kernel = stat.slab + stat.kernel_stack if stat.kernel is None else stat.kernel
    # By place, which is faster by a third: see `Memory` for the order.
    return Memory(
        # The root cgroup has no memory.current; `read_host` fills in the node's usage.
        _number(usage) if usage else stat.anon + stat.file,
        stat.inactive_file,
        stat.active_file,
        stat.anon,
        stat.file,
        stat.file_mapped,
        kernel,
        most,
        failcnt,
        # Version 2 counts the whole subtree only; cAdvisor shows it for both scopes
        # (setMemoryStats).
        stat.pgfault,
        stat.pgmajfault,
        stat.pgfault,
        stat.pgmajfault,
        oom_kills,
        limit,
        reservation,
        # The file does not exist with swapaccount=0. As cAdvisor: none is in use then.
        _number(swap) if swap else 0,
        swap_limit,
        psi,
    )


def _memory_v1(files: Mapping[str, bytes]) -> Memory | None:
    if "memory.usage_in_bytes" not in files:
        return None
    stat = read_counts(_MemoryStatV1, files.get("memory.stat", b""))
    usage = _number(files["memory.usage_in_bytes"])
    limit = _limit(files.get("memory.limit_in_bytes"))
    # memsw counts memory and swap together (cgroup-v1/memory.html).
    both, both_limit = files.get("memory.memsw.usage_in_bytes"), None
    if both:
        both_limit = _limit(files.get("memory.memsw.limit_in_bytes"))
    return Memory(
        usage=usage,
        # `total_` values include the cgroups below.
        inactive_file=stat.total_inactive_file,
        active_file=stat.total_active_file,
        rss=stat.total_rss,
        cache=stat.total_cache,
        mapped_file=stat.total_mapped_file,
        kernel=_number(files.get("memory.kmem.usage_in_bytes", b"")),
        max_usage=_number(files.get("memory.max_usage_in_bytes", b"")),
        failcnt=_number(files.get("memory.failcnt", b"")),
        page_faults=stat.total_pgfault,
        major_page_faults=stat.total_pgmajfault,
        own_page_faults=stat.pgfault,
        own_major_page_faults=stat.pgmajfault,
        oom_kills=flat(files.get("memory.oom_control", b"")).get("oom_kill", 0),
        limit=limit,
        reservation=_limit(files.get("memory.soft_limit_in_bytes")),
        # Two files are never read at the same moment: the difference can be negative.
        swap=max(_number(both) - usage, 0) if both else 0,
        swap_limit=None if both_limit is None else max(both_limit - (limit or 0), 0),
    )


def _io_v2(text: bytes) -> dict[str, DeviceIo]:
    lines = _IO.findall(text)
    # The kernel's order (blkcg_print_one_stat); a device can have a line without counts.
    if len(lines) == text.count(b"rbytes="):
        return {
            _name(device): DeviceIo(int(read), int(written), int(reads), int(writes))
            for device, read, written, reads, writes in lines
        }
    devices = {}
    for line in text.splitlines():
        device, *pairs = line.split() or [b""]
        counts = dict(pair.partition(b"=")[::2] for pair in pairs if b"=" in pair)
        if b"rbytes" in counts:
            devices[_name(device)] = DeviceIo(
                *(
                    _number(counts.get(name, b""))
                    for name in (b"rbytes", b"wbytes", b"rios", b"wios")
                )
            )
    return devices


def _io_v1(files: Mapping[str, bytes]) -> dict[str, DeviceIo]:
    moved = _by_device(files.get("blkio.throttle.io_service_bytes", b""))
    served = _by_device(files.get("blkio.throttle.io_serviced", b""))
    return {
        device: DeviceIo(
            moved.get(device, {}).get("Read", 0),
            moved.get(device, {}).get("Write", 0),
            served.get(device, {}).get("Read", 0),
            served.get(device, {}).get("Write", 0),
        )
        for device in dict.fromkeys((*moved, *served))
    }


def _by_device(text: bytes) -> dict[str, dict[str, int]]:
    devices: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        parts = line.split()
        # The last line is the `Total` of all devices.
        if len(parts) == 3:
            devices.setdefault(_name(parts[0]), {})[_name(parts[1])] = _number(parts[2])
    return devices


def _psi(text: bytes | None) -> Psi | None:
    return parse_pressure(text) if text else None


def _name(device: bytes) -> str:
    return device.decode("utf-8", "replace")


def _number(text: bytes) -> int:
    return whole(text) or 0


def _limit(text: bytes | None) -> int | None:
    value = None if text is None else whole(text)
    return value if value is not None and value < _UNLIMITED else None


def _pids(text: bytes) -> tuple[int, ...]:
    return tuple(pid for word in text.split() if (pid := _number(word)))
