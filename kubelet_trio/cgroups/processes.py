"""Cgroups of the machine's own processes: find a process' cgroup, and move processes. Blocks.

Unlike a pod's, such a cgroup exists in every mounted version 1 hierarchy, as with runc's cgroup
library for `--kubelet-cgroups`; it has no limits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.errors import CgroupError, CgroupsDeniedError
from kubelet_trio.cgroups.write import (
    NOT_PERMITTED,
    make_in,
    write_file,
)

_PROC = Path("/proc")


def process_directories(host: CgroupHost, path: str) -> dict[str, Path]:
    """Return a cgroup's directory in each hierarchy, by controller; "" on version 2."""
    inside = path.lstrip("/")
    if host.version == 2:
        return {"": host.mounts[""] / inside}
    # Without "": the unified hierarchy of a hybrid machine has no controllers.
    return {name: mount / inside for name, mount in host.mounts.items() if name}


def move_process(host: CgroupHost, path: str, pid: int) -> None:
    """Move a process to a cgroup, creating it if missing. Ignores a process that has ended.

    Raises `CgroupsDeniedError` if that is not permitted, else `CgroupError`.
    """
    for controller, directory in process_directories(host, path).items():
        file = directory / "cgroup.procs"
        try:
            make_in(host.mounts[controller], directory, controller)
            write_file(file, str(pid))
        except ProcessLookupError:
            return
        except OSError as exc:
            kind = CgroupsDeniedError if exc.errno in NOT_PERMITTED else CgroupError
            raise kind(f"cannot write {pid} to {file}: {exc.strerror}") from exc


def is_in_cgroup(host: CgroupHost, path: str, pid: int, proc: Path = _PROC) -> bool:
    """Whether a process is in a cgroup already. Raises OSError if the process has ended."""
    text = (proc / str(pid) / "cgroup").read_text("utf-8", "surrogateescape")
    return _cgroup_of(host, parse_process_cgroups(text)) == "/" + path.strip("/")


def _cgroup_of(host: CgroupHost, found: Mapping[str, str]) -> str | None:
    if host.version == 2:
        return found.get("")
    if found.get("cpu") != found.get("memory"):
        return None
    # As the Go kubelet's getContainer: systemd's own hierarchy decides, because a unit without
    # accounting is in the root cgroup of the others.
    return found.get("name=systemd", found.get("cpu"))


def parse_process_cgroups(text: str) -> dict[str, str]:
    """Return the cgroups in /proc/<pid>/cgroup, by controller; "" for the unified hierarchy."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def user_processes(host: CgroupHost, path: str, proc: Path = _PROC) -> list[int]:
    """Return a cgroup's own processes, without init and kernel threads.

    Raises OSError if the cgroup cannot be read.
    """
    directories = process_directories(host, path)
    # On version 1 the Go kubelet reads the `devices` hierarchy.
    directory = directories.get("devices") or next(iter(directories.values()))
    listed = (directory / "cgroup.procs").read_text().split()
    return [int(pid) for pid in listed if int(pid) > 1 and not _is_kernel_thread(proc / pid)]


def _is_kernel_thread(directory: Path) -> bool:
    """Whether a process has no executable: a kernel thread, or one that has just ended."""
    try:
        os.readlink(directory / "exe")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
