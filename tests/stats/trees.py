"""Recorded files of hosts on cgroup version 1 and 2, and a writer of them into a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kubelet_trio.stats import Host

UID = "11111111-2222-3333-4444-555555555555"
CONTAINER = "c" * 64
SANDBOX = "5" * 64
POD_V2 = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice".format(
    UID.replace("-", "_")
)
POD_V1 = f"/kubepods/burstable/pod{UID}"
CONTAINER_V2 = f"{POD_V2}/cri-containerd-{CONTAINER}.scope"
CONTAINER_V1 = f"{POD_V1}/{CONTAINER}"

PRESSURE = (
    "some avg10=1.50 avg60=0.75 avg300=0.20 total=123456\n"
    "full avg10=0.50 avg60=0.25 avg300=0.10 total=65432\n"
)

V2 = {
    "cpu.stat": (
        "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"
        "nr_periods 40\nnr_throttled 4\nthrottled_usec 250000\nnr_bursts 3\nburst_usec 125000\n"
    ),
    "cpu.max": "50000 100000\n",
    "cpu.weight": "20\n",
    "memory.current": "104857600\n",
    "memory.stat": (
        "anon 41943040\nfile 52428800\nkernel 4194304\nfile_mapped 8388608\n"
        "inactive_anon 0\nactive_anon 41943040\ninactive_file 20971520\nactive_file 31457280\n"
        "pgfault 1000\npgmajfault 7\n"
    ),
    "memory.max": "134217728\n",
    "memory.low": "0\n",
    "memory.peak": "110000000\n",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n",
    "memory.swap.current": "4096\n",
    "memory.swap.max": "max\n",
    "cpu.pressure": PRESSURE,
    "memory.pressure": PRESSURE,
    "io.pressure": PRESSURE,
    "io.stat": ("8:0 rbytes=1048576 wbytes=2097152 rios=10 wios=20 dbytes=0 dios=0\n253:0 \n"),
    "pids.current": "9\n",
    "pids.max": "max\n",
    "cgroup.procs": "101\n102\n",
}

V1: Mapping[str, Mapping[str, str]] = {
    "cpuacct": {
        "cpuacct.usage": "2500000000\n",
        "cpuacct.stat": "user 200\nsystem 50\n",
    },
    "cpu": {
        "cpu.stat": "nr_periods 40\nnr_throttled 4\nthrottled_time 250000000\n"
        "nr_bursts 3\nburst_time 125000000\n",
        "cpu.shares": "512\n",
        "cpu.cfs_quota_us": "50000\n",
        "cpu.cfs_period_us": "100000\n",
    },
    "memory": {
        "memory.usage_in_bytes": "104857600\n",
        "memory.max_usage_in_bytes": "110000000\n",
        "memory.failcnt": "3\n",
        "memory.limit_in_bytes": "134217728\n",
        "memory.soft_limit_in_bytes": "9223372036854771712\n",
        "memory.memsw.usage_in_bytes": "104861696\n",
        "memory.memsw.limit_in_bytes": "9223372036854771712\n",
        "memory.kmem.usage_in_bytes": "4194304\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "memory.stat": (
            "cache 1\nrss 2\npgfault 900\npgmajfault 5\nhierarchical_memory_limit 134217728\n"
            "total_cache 52428800\ntotal_rss 41943040\ntotal_mapped_file 8388608\n"
            "total_inactive_file 20971520\ntotal_active_file 31457280\n"
            "total_pgfault 1000\ntotal_pgmajfault 7\n"
        ),
    },
    "blkio": {
        "blkio.throttle.io_service_bytes": (
            "8:0 Read 1048576\n8:0 Write 2097152\n8:0 Sync 0\n8:0 Async 0\n8:0 Total 3145728\n"
            "Total 3145728\n"
        ),
        "blkio.throttle.io_serviced": "8:0 Read 10\n8:0 Write 20\nTotal 30\n",
    },
    "pids": {"pids.current": "9\n", "pids.max": "max\n", "cgroup.procs": "101\n102\n"},
}

MEMINFO = """\
MemTotal:       16000000 kB
MemFree:         4000000 kB
AnonPages:       2000000 kB
Active(file):    1500000 kB
Inactive(file):  3000000 kB
SwapTotal:       1000000 kB
SwapFree:         600000 kB
HugePages_Total:       8
"""

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo:     100       1    0    0    0     0          0         0      100       1    0    0 0 0 0 0
  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
 veth12: 5 5 5 5 0 0 0 0 5 5 5 5 0 0 0 0
"""


MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
"""
DISKS = """\
   8       0 sda 900 80 7000 600 500 40 3000 200 1 650 800 0 0 0 0 0 0
   8       1 sda1 90 8 700 60 50 4 300 20 1 65 80 0 0 0 0 0 0
"""


def write_v2(base: Path, *cgroups: str) -> Host:
    """Write a host on version 2 with these cgroups; return it."""
    root = base / "cgroup"
    for path in cgroups:
        _write(root / path.lstrip("/"), V2)
    _write(root, {k: v for k, v in V2.items() if k in ("cpu.stat", "memory.stat", "io.stat")})
    return Host(2, {"": str(root)}, str(_proc(base)), str(_sys(base)))


def write_v1(base: Path, *cgroups: str) -> Host:
    """Write a host on version 1 with these cgroups; return it."""
    mounts = {}
    for controller, files in V1.items():
        root = base / controller
        mounts[controller] = str(root)
        for path in ("", *cgroups):
            _write(root / path.lstrip("/"), files)
    return Host(1, mounts, str(_proc(base)), str(_sys(base)))


def _proc(base: Path) -> Path:
    proc = base / "proc"
    _write(
        proc,
        {
            "meminfo": MEMINFO,
            "net/dev": NET_DEV,
            "101/net/dev": NET_DEV,
            "101/limits": "Max open files            1024                 4096         files\n",
            "loadavg": "0.1 0.2 0.3 2/345 999\n",
            "stat": "cpu 1 2 3\nbtime 1700000000\n",
            "sys/kernel/pid_max": "4194304\n",
            "sys/kernel/threads-max": "126000\n",
            "self/mountinfo": MOUNTS,
            "diskstats": DISKS,
            "101/stat": "101 (web) server) S 1 101 101 0\n",
            "102/stat": "102 (worker) R 1 101 101 0\n",
            "pressure/cpu": PRESSURE,
            "pressure/memory": PRESSURE,
            "pressure/io": PRESSURE,
            "self/cgroup": "0::/system.slice/agent.service\n2:memory:/system.slice/agent.service\n",
        },
    )
    for pid, target in (("101", "socket:[77]"), ("101", "/dev/null"), ("102", "/dev/null")):
        fds = proc / pid / "fd"
        fds.mkdir(parents=True, exist_ok=True)
        (fds / str(len(list(fds.iterdir())))).symlink_to(target)
    return proc


def _sys(base: Path) -> Path:
    block = base / "sys" / "dev" / "block"
    block.mkdir(parents=True)
    (block / "8:0").symlink_to("../../devices/virtual/block/sda")
    return base / "sys"


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
