"""Cgroups of the machine's own processes: which one a process is in, and moving it. Blocks.

Other than a pod's, such a cgroup is made and entered in every version 1 hierarchy that is
mounted, as runc's cgroup library does for `--kubelet-cgroups`; no limit is written to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.write import (
    NOT_PERMITTED,
    CgroupError,
    CgroupsDeniedError,
    make_in,
    write_file,
)

_PROC = Path("/proc")


def process_directories(host: CgroupHost, path: str) -> dict[str, Path]:
    """Return where a cgroup is in each hierarchy, by controller; "" on version 2.

    The unified hierarchy of a hybrid machine is left out: it holds no controllers.
    """
    inside = path.lstrip("/")
    if host.version == 2:
        return {"": host.mounts[""] / inside}
    return {name: mount / inside for name, mount in host.mounts.items() if name}


def move_process(host: CgroupHost, path: str, pid: int) -> None:
    """Put a process into a cgroup, made if it is not there. One that has ended is no error.

    Raises `CgroupsDeniedError` where this process may not, else `CgroupError`.
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
    """Whether a process is in a cgroup already, so that it is not moved.

    On version 1 systemd's own hierarchy decides, as with the Go kubelet (getContainer): a unit
    without accounting is in the root of the others, and is left there. Raises OSError where
    the process is gone.
    """
    text = (proc / str(pid) / "cgroup").read_text("utf-8", "surrogateescape")
    return _cgroup_of(host, parse_process_cgroups(text)) == "/" + path.strip("/")


def _cgroup_of(host: CgroupHost, found: Mapping[str, str]) -> str | None:
    if host.version == 2:
        return found.get("")
    if found.get("cpu") != found.get("memory"):
        return None
    return found.get("name=systemd", found.get("cpu"))


def parse_process_cgroups(text: str) -> dict[str, str]:
    """Return the cgroups that /proc/<pid>/cgroup names, by controller; the unified one's is ""."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def user_processes(host: CgroupHost, path: str, proc: Path = _PROC) -> list[int]:
    """Return the processes of a cgroup (not of those below it) without init and kernel threads.

    Raises OSError where the cgroup cannot be read.
    """
    directories = process_directories(host, path)
    # The Go kubelet looks at `devices` on version 1.
    directory = directories.get("devices") or next(iter(directories.values()))
    listed = (directory / "cgroup.procs").read_text().split()
    return [int(pid) for pid in listed if int(pid) > 1 and not _is_kernel_thread(proc / pid)]


def _is_kernel_thread(directory: Path) -> bool:
    """Kernel threads have no program. Nor has what ended meanwhile: nothing to move either."""
    try:
        os.readlink(directory / "exe")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
