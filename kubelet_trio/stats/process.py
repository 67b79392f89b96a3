"""The figures of the agent's own process, under the names that Go programs use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import kubelet_trio
from kubelet_trio.stats.metered import Sample


def build_info() -> tuple[str, ...]:
    """Return the label values of `kubernetes_build_info`: build date, compiler, commit, ..."""
    import platform  # only who asks for the metric needs it

    version = kubelet_trio.__version__
    major, _, rest = version.partition(".")
    return (
        "",
        platform.python_implementation(),
        "",
        "",
        f"v{version}",
        f"python{platform.python_version()}",
        major,
        rest.partition(".")[0],
        f"{sys.platform}/{platform.machine()}",
    )


def process_samples() -> Iterator[Sample]:
    """Yield the process' figures from /proc/self; nothing where it cannot be read."""
    try:
        # The second field, the command in parentheses, may have spaces and parentheses itself.
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        descriptors = len(os.listdir("/proc/self/fd"))
    except (OSError, StopIteration):
        return
    try:
        with open("/proc/self/net/netstat", "rb") as file:
            received, sent = octets(file.read())
    except OSError:  # a kernel without it
        received = sent = 0
    import resource

    # `fields` begins with the third field of proc_pid_stat(5): subtract 3 from the page's numbers.
    ticks = os.sysconf("SC_CLK_TCK")
    yield "process_cpu_seconds_total", (), (int(fields[11]) + int(fields[12])) / ticks
    yield "process_start_time_seconds", (), boot + int(fields[19]) / ticks
    yield "process_virtual_memory_bytes", (), int(fields[20])
    yield "process_resident_memory_bytes", (), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    # -1: unlimited. Go's collector shows the same as the largest number of 64 bits.
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    yield "process_virtual_memory_max_bytes", (), limit if limit >= 0 else float(2**64 - 1)
    yield "process_network_receive_bytes_total", (), received
    yield "process_network_transmit_bytes_total", (), sent
    yield "process_open_fds", (), descriptors
    yield "process_max_fds", (), resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def octets(netstat: bytes) -> tuple[int, int]:
    """Return the bytes of IP received and sent, from /proc/<pid>/net/netstat; 0 if unknown.

    They are those of the process' network namespace, as those of Go's collector.
    """
    lines = [line.split() for line in netstat.splitlines() if line.startswith(b"IpExt:")]
    if len(lines) != 2:
        return 0, 0
    counts = dict(zip(*lines, strict=False))
    return int(counts.get(b"InOctets", 0)), int(counts.get(b"OutOctets", 0))
