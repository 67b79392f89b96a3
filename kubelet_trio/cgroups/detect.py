"""Detect the host's cgroup version, mounts and swap, from /proc.

A host is on version 2 only if the unified hierarchy is mounted at the cgroup root. The hybrid
set-up (controllers on version 1, and an empty version 2 tree at `unified`) counts as version 1,
because that is where limits are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CgroupHost:
    """The cgroup version of this host, and its mounts."""

    version: int  # 1 or 2
    # Mount point by controller (`cpu`, `memory`, `name=systemd`), "" for the unified hierarchy. On
    # version 1 several controllers can share a mount.
    mounts: Mapping[str, Path] = field(default_factory=dict)

    def hierarchies(self) -> list[Path]:
        """Return the mount points, each once."""
        return list(dict.fromkeys(self.mounts.values()))


def cgroup_host(
    mountinfo: Path = Path("/proc/self/mountinfo"), root: Path = CGROUP_ROOT
) -> CgroupHost:
    """Return the host's cgroup mounts. Raises OSError if the table cannot be read."""
    return parse_cgroup_mounts(mountinfo.read_text("utf-8", "surrogateescape"), root)


def parse_cgroup_mounts(mountinfo: str, root: Path = CGROUP_ROOT) -> CgroupHost:
    """Return the cgroup mounts in the text of a mount table."""
    version = 1
    mounts: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        head, separator, tail = line.partition(" - ")
        fields, source = head.split(" "), tail.split(" ")
        if not separator or len(fields) < 6 or len(source) < 3:
            continue
        path = Path(fields[4])
        if path != root and root not in path.parents:
            continue
        if source[0] == "cgroup2":
            version = 2 if path == root else version
            mounts.setdefault("", path)
        elif source[0] == "cgroup":
            for option in source[2].split(","):
                if option not in ("rw", "ro") and "=" not in option.removeprefix("name="):
                    mounts.setdefault(option, path)
    return CgroupHost(version, {"": root} if version == 2 else mounts)


def cgroup_version() -> int:
    """Return the host's cgroup version, 1 or 2. Raises OSError."""
    return cgroup_host().version


def is_swap_on(swaps: Path = Path("/proc/swaps")) -> bool:
    """Whether any swap is active."""
    try:
        lines = swaps.read_text().splitlines()
    except FileNotFoundError:  # a kernel without swap
        return False
    # The first line is a heading.
    return len([line for line in lines if line.strip()]) > 1


def has_swap_controller(host: CgroupHost, own_cgroup: Path = Path("/proc/self/cgroup")) -> bool:
    """Whether the memory controller of this host can limit swap. Raises OSError."""
    if host.version == 2:
        # Our own cgroup, because the root cgroup has no such file. Beside the cgroup namespace, as
        # after nsenter(1), it is `/../x`: then the root of that namespace, a cgroup as any other.
        own = own_cgroup.read_text().rpartition("::")[2].strip().lstrip("/")
        own = "" if own.startswith("..") else own
        return (host.mounts[""] / own / "memory.swap.max").exists()
    memory = host.mounts.get("memory")
    return memory is not None and (memory / "memory.memsw.limit_in_bytes").exists()
