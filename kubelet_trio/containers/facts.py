"""Facts of this machine that configs depend on, read once at start. Blocks."""

from __future__ import annotations

import re
from pathlib import Path

from kubelet_trio.containers.dns import ResolvConf, parse_resolv_conf
from kubelet_trio.containers.node import MASKED_PATHS

_MAX_RESOLV_CONF = 10 * 1024 * 1024


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
    """Return what containers shall not see: the fixed list and each CPU's thermal events."""
    thermal = sorted(str(path) for path in cpus.glob("cpu[0-9]*/thermal_throttle"))
    return (*MASKED_PATHS, *thermal)


def is_selinux_on(enforce: Path = Path("/sys/fs/selinux/enforce")) -> bool:
    """Whether files must be labelled for containers to read them."""
    return enforce.exists()


def read_resolv_conf(path: str) -> ResolvConf | None:
    """Read the node's resolver settings; None where none are to be used (an empty path).

    Raises OSError where the file cannot be read, ValueError where it does not parse.
    """
    if not path:
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        return parse_resolv_conf(file.read(_MAX_RESOLV_CONF))


def _size_name(kilobytes: int) -> str:
    for unit in ("KB", "MB"):
        if kilobytes % 1024:
            return f"{kilobytes}{unit}"
        kilobytes //= 1024
    return f"{kilobytes}GB"
