"""Read the kernel's files: cgroups, /proc, filesystems. Everything blocks.

One `read_host` is one call to a worker thread, whatever the number of pods. The result omits a
cgroup or process that ends during the reading.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import structs

from kubelet_trio.model import count_tree
from kubelet_trio.stats import proc_parse
from kubelet_trio.stats.cgroup_files import CgroupFiles
from kubelet_trio.stats.disks import Disk, read_disks
from kubelet_trio.stats.kernel_text import parse_pressure
from kubelet_trio.stats.open_files import Host, content
from kubelet_trio.stats.process_files import Processes
from kubelet_trio.stats.usage import CgroupUsage, Filesystem, Interface, Memory, Psi


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """The machine as a whole."""

    usage: CgroupUsage
    memory_capacity: int
    swap_total: int = 0
    swap_free: int = 0
    network: tuple[Interface, ...] = ()
    max_pid: int | None = None
    processes: int | None = None
    boot_time: float | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """Everything that was read from the kernel at one moment."""

    node: NodeUsage
    cgroups: Mapping[str, CgroupUsage]  # by path below the mount, such as /kubepods/burstable
    own_cgroup: str | None = None  # the agent's
    devices: Mapping[str, str] = field(default_factory=dict)  # `major:minor` to /dev/…
    processes: Mapping[str, Processes] = field(default_factory=dict)  # by cgroup
    disks: tuple[Disk, ...] = ()  # the node's own


def read_host(
    host: Host,
    roots: Iterable[str],
    others: Iterable[str] = (),
    *,
    everything: bool,
    now: float | None = None,
    files: CgroupFiles | None = None,
) -> HostReading:
    """Read the machine and the cgroups at and below `roots`.

    Args:
        host: paths of the kernel's files.
        roots: paths below the cgroup mount; missing ones are skipped.
        others: further paths, without the cgroups below them.
        everything: also read what only `/metrics/cadvisor` shows, which doubles the files.
        now: Unix seconds; None: read the clock.
        files: of the cgroups, which this keeps open; None: all are opened.
    """
    moment = time.time() if now is None else now
    kept = CgroupFiles(host) if files is None else files
    kept.begin()
    # Dicts as ordered sets: `others` can be below `roots`.
    paths = dict.fromkeys(path for root in roots for path in kept.walk(root))
    paths.update(dict.fromkeys(path for root in others for path in kept.walk(root, depth=1)))
    own = proc_parse.parse_own_cgroup(_read(f"{host.proc}/self/cgroup") or "", host.version)
    if own and own != "/":
        paths.setdefault(own)
    cgroups = {path: kept.read(path, everything, moment) for path in paths}
    node = _read_node(host, kept.read("/", everything, moment))
    kept.end()
    devices: dict[str, str] = {}
    processes: dict[str, Processes] = {}
    disks: tuple[Disk, ...] = ()
    if everything:
        numbers = {number for usage in (node.usage, *cgroups.values()) for number in usage.io}
        devices = {number: _device_name(host, number) for number in numbers}
        processes = kept.processes.read(cgroups)
        disks = read_disks(_read, host.proc, kept.mounts.visible())
    return HostReading(node, cgroups, own, devices, processes, disks)


def _read(path: str) -> str | None:
    """Return a small file's text; None if it cannot be read."""
    found = _content(path)
    return None if found is None else found.decode("utf-8", "replace")


def _content(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return content(descriptor)
    except OSError:
        # For example ESRCH: the process ended after the open.
        return None
    finally:
        os.close(descriptor)


def _read_node(host: Host, usage: CgroupUsage) -> NodeUsage:
    info = proc_parse.parse_meminfo(_read(f"{host.proc}/meminfo") or "")
    if host.version == 2:
        usage = _with_root_sums(host, usage, info)
    usage = _with_pressure(host, usage)
    limits = (
        _whole(_read(f"{host.proc}/sys/kernel/{name}")) for name in ("pid_max", "threads-max")
    )
    return NodeUsage(
        usage,
        memory_capacity=info.get("MemTotal", 0),
        swap_total=info.get("SwapTotal", 0),
        swap_free=info.get("SwapFree", 0),
        network=proc_parse.parse_net_dev(_read(f"{host.proc}/net/dev") or ""),
        max_pid=min((limit for limit in limits if limit), default=None),
        processes=proc_parse.parse_process_count(_read(f"{host.proc}/loadavg") or ""),
        boot_time=proc_parse.parse_boot_time(_read(f"{host.proc}/stat") or ""),
    )


def _with_root_sums(host: Host, usage: CgroupUsage, info: Mapping[str, int]) -> CgroupUsage:
    """Fill in from /proc what the root cgroup of version 2 does not have."""
    # memory.current exists on non-root cgroups only (cgroup-v2.html).
    memory = usage.memory or Memory()
    memory = structs.replace(
        memory,
        usage=info.get("MemTotal", 0) - info.get("MemFree", 0),
        rss=memory.rss or info.get("AnonPages", 0),
        inactive_file=memory.inactive_file or info.get("Inactive(file)", 0),
        active_file=memory.active_file or info.get("Active(file)", 0),
    )
    return structs.replace(usage, memory=memory)


def _with_pressure(host: Host, usage: CgroupUsage) -> CgroupUsage:
    """Fill in the node's pressure, which the kernel counts whatever the version of cgroups."""
    cpu, memory = usage.cpu, usage.memory
    return structs.replace(
        usage,
        cpu=cpu and structs.replace(cpu, psi=_node_psi(host, "cpu")),
        memory=memory and structs.replace(memory, psi=_node_psi(host, "memory")),
        io_psi=_node_psi(host, "io"),
    )


def _node_psi(host: Host, resource: str) -> Psi | None:
    text = _content(f"{host.proc}/pressure/{resource}")
    return parse_pressure(text) if text else None


def read_networks(host: Host, pids: Mapping[str, int]) -> dict[str, tuple[Interface, ...]]:
    """Return the interfaces in the network namespaces of processes, by the keys of `pids`."""
    found = {}
    for key, pid in pids.items():
        text = _read(f"{host.proc}/{pid}/net/dev") if pid > 0 else None
        if text is not None:
            found[key] = proc_parse.parse_net_dev(text)
    return found


def read_filesystem(path: str, now: float) -> Filesystem | None:
    """Return the usage of the filesystem of a path; None if it cannot be read."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return Filesystem(
        now,
        capacity=stat.f_blocks * stat.f_frsize,
        # As df(1): blocks reserved for root are neither available nor used.
        available=stat.f_bavail * stat.f_frsize,
        used=(stat.f_blocks - stat.f_bfree) * stat.f_frsize,
        inodes=stat.f_files,
        inodes_free=stat.f_ffree,
        inodes_used=stat.f_files - stat.f_ffree,
    )


def read_filesystems(paths: Iterable[str], now: float) -> dict[str, Filesystem]:
    """Return the usage of each path's filesystem; paths on one filesystem have the same figures."""
    found: dict[str, Filesystem] = {}
    of_device: dict[int, Filesystem] = {}
    for path in paths:
        try:
            device = os.stat(path).st_dev
        except OSError:
            continue
        whole = of_device.get(device) or read_filesystem(path, now)
        if whole is not None:
            found[path] = of_device[device] = whole
    return found


def log_usage(directory: str) -> tuple[int, int] | None:
    """Return the bytes and the number of the files in a container's log directory.

    As upstream (fileMetricsByDir) without the directory and those below it. None if there is none.
    """
    size = files = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):  # a rotation has removed it since
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    files += 1
    except OSError:
        return None
    return size, files


def disk_usage(
    path: str, is_over: Callable[[], bool] = lambda: False, *, cross: bool = False
) -> tuple[int, int] | None:
    """Return the bytes and inodes of a directory, as du(1) counts; None if `is_over` cut it short.

    Other filesystems mounted below it count only with `cross`. See `count_tree`.
    """
    try:
        top = os.lstat(path)
    except OSError:
        return None
    found = count_tree(path, is_over, cross=cross)
    if not found.is_complete:
        return None
    return found.space + top.st_blocks * 512, found.inodes + 1


def file_usage(path: str) -> int | None:
    """Return the disk usage of one file in bytes; None if it does not exist."""
    try:
        return os.lstat(path).st_blocks * 512  # st_blocks is in units of 512 bytes (stat(2))
    except OSError:
        return None


def _device_name(host: Host, number: str) -> str:
    try:
        return "/dev/" + os.path.basename(os.readlink(f"{host.sys}/dev/block/{number}"))
    except OSError:
        return ""


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdecimal() else None
