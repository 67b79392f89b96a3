"""Read the limits and the memory usage of a cgroup. All of it blocks."""

from __future__ import annotations

import errno
from pathlib import Path

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.errors import CgroupError
from kubelet_trio.cgroups.limits import UNLIMITED, CgroupLimits, weight_to_shares
from kubelet_trio.cgroups.write import cgroup_directories

# Version 1 counts pages in a signed long: without a limit it reports the greatest multiple of the
# page size, which depends on the machine (PAGE_COUNTER_MAX of the kernel).
_NO_LIMIT_V1 = (1 << 63) - (1 << 20)


def read_limits(host: CgroupHost, path: str) -> CgroupLimits | None:
    """Return the CPU and memory limits of a cgroup; None if it does not exist.

    A limit whose controller this machine does not have is None. On version 2 the shares are
    those that give the weight, see `shares_in`. Raises `CgroupError`.
    """
    directories = cgroup_directories(host, path)
    if not any(directory.is_dir() for directory in directories.values()):
        return None
    return _read_v2(directories[""]) if host.version == 2 else _read_v1(directories)


def _read_v2(directory: Path) -> CgroupLimits:
    weight = _read(directory / "cpu.weight")
    quota, _, period = (_read(directory / "cpu.max") or "").partition(" ")
    return CgroupLimits(
        cpu_shares=None if weight is None else weight_to_shares(int(weight)),
        cpu_quota=_amount(quota or None),
        cpu_period=_amount(period or None),
        memory=_amount(_read(directory / "memory.max")),
    )


def _read_v1(directories: dict[str, Path]) -> CgroupLimits:
    cpu, memory = directories.get("cpu"), directories.get("memory")
    limit = None if memory is None else _amount(_read(memory / "memory.limit_in_bytes"))
    quota = None if cpu is None else _amount(_read(cpu / "cpu.cfs_quota_us"))
    return CgroupLimits(
        cpu_shares=None if cpu is None else _amount(_read(cpu / "cpu.shares")),
        cpu_quota=UNLIMITED if quota is not None and quota <= 0 else quota,
        cpu_period=None if cpu is None else _amount(_read(cpu / "cpu.cfs_period_us")),
        memory=UNLIMITED if limit is not None and limit >= _NO_LIMIT_V1 else limit,
    )


def _amount(text: str | None) -> int | None:
    if text is None:
        return None
    return UNLIMITED if text == "max" else int(text)


def _read(file: Path) -> str | None:
    """Return the text of a file of a cgroup; None if there is no such file."""
    try:
        return file.read_text().strip()
    except OSError as exc:
        # ENODEV: the cgroup is removed while it is read.
        if exc.errno in (errno.ENOENT, errno.ENODEV):
            return None
        raise CgroupError(f"cannot read {file}: {exc.strerror}") from exc


def memory_usage(host: CgroupHost, path: str) -> int | None:
    """Return the memory usage of a cgroup in bytes; None if it cannot be read."""
    directories = cgroup_directories(host, path)
    directory = directories.get("" if host.version == 2 else "memory")
    name = "memory.current" if host.version == 2 else "memory.usage_in_bytes"
    try:
        return int((directory / name).read_text()) if directory is not None else None
    except (OSError, ValueError):
        return None
