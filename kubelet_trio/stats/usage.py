"""The usage of one cgroup, as plain values for both cgroup versions.

None means that the kernel, the version or the controller does not report a value.

Structs of msgspec, because a scrape of a full node makes thousands of them: one is made in a
tenth of a dataclass' time, and as none can be part of a cycle, no garbage collection looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class PsiLine(Struct, frozen=True, gc=False):
    """One line of a pressure file: averages in percent, `total` in microseconds."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total: int = 0


class Psi(Struct, frozen=True, gc=False):
    some: PsiLine = PsiLine()
    full: PsiLine = PsiLine()


class Cpu(Struct, frozen=True, gc=False):
    usage: int = 0  # ns
    user: int = 0  # ns
    system: int = 0  # ns
    periods: int = 0
    throttled_periods: int = 0
    throttled: int = 0  # ns
    burst_periods: int = 0
    burst: int = 0  # ns
    shares: int | None = None  # as version 1 counts them
    quota: int | None = None  # µs per period; None: no limit
    period: int = 100_000  # µs
    psi: Psi | None = None


class Memory(Struct, frozen=True, gc=False):
    """Bytes and counts. `limit` and `swap_limit` are None where there is no limit."""

    usage: int = 0
    inactive_file: int = 0
    active_file: int = 0
    rss: int = 0
    cache: int = 0
    mapped_file: int = 0
    kernel: int = 0
    max_usage: int = 0
    failcnt: int = 0
    page_faults: int = 0
    major_page_faults: int = 0
    own_page_faults: int = 0  # without those of the cgroups below
    own_major_page_faults: int = 0
    oom_kills: int = 0
    limit: int | None = None
    reservation: int | None = None
    swap: int | None = None
    swap_limit: int | None = None  # of swap alone
    psi: Psi | None = None

    @property
    def working_set(self) -> int:
        """Usage without inactive file pages, which the kernel can reclaim easily."""
        return max(self.usage - self.inactive_file, 0)


class DeviceIo(Struct, frozen=True, gc=False):
    """Bytes and operations of one device."""

    read_bytes: int = 0
    write_bytes: int = 0
    reads: int = 0
    writes: int = 0


class CgroupUsage(Struct, frozen=True, gc=False):
    """The usage of one cgroup at `time` (Unix seconds)."""

    time: float
    cpu: Cpu | None = None
    memory: Memory | None = None
    io: Mapping[str, DeviceIo] = field(default_factory=dict)  # by `major:minor`
    io_psi: Psi | None = None
    threads: int | None = None
    threads_max: int | None = None  # None: no limit
    pids: tuple[int, ...] = ()  # its own processes, without those of the cgroups below

    def at(self, time: float) -> CgroupUsage:
        """Return the same usage at another time."""
        # `dataclasses.replace` takes four times as long.
        return CgroupUsage(
            time,
            self.cpu,
            self.memory,
            self.io,
            self.io_psi,
            self.threads,
            self.threads_max,
            self.pids,
        )


class Interface(Struct, frozen=True, gc=False):
    """Counters of one network interface."""

    name: str
    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


class Filesystem(Struct, frozen=True, gc=False):
    """A filesystem as in statvfs(3), or the part that a directory uses (only `used` fields)."""

    time: float
    capacity: int | None = None
    available: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None
    device: str = ""
    abnormal: bool | None = None  # what a CSI driver says of the volume
    message: str = ""  # and why
