"""Cgroups on disk: made, and their limits written. All of this blocks.

On version 1 a cgroup is made in each hierarchy that limits something; a cpuset without CPUs
would take no process, so a new one has its parent's. On version 2 every level above hands
its controllers down. Made with what is there: that a controller is missing is told by what
could not be written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.limits import Setting

# Those that the Go kubelet and the runtimes limit or count by.
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb")
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
# The machine does not let us: nothing that trying again would change.
NOT_PERMITTED = (errno.EROFS, errno.EACCES, errno.EPERM)


class CgroupError(Exception):
    """A cgroup could not be made or limited; the message names it, the file and the value."""


class CgroupsDeniedError(CgroupError):
    """This process may not write cgroups at all: read-only, or without the right to."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of writing limits."""

    missing: frozenset[str] = frozenset()  # controllers that this machine does not have
    failures: tuple[str, ...] = ()  # file, value and the kernel's answer


def cgroup_directories(host: CgroupHost, path: str) -> dict[str, Path]:
    """Return where a cgroup is, by controller; of version 2, one by the empty name."""
    inside = path.lstrip("/")
    if host.version == 2:
        return {"": host.mounts[""] / inside}
    return {c: host.mounts[c] / inside for c in CONTROLLERS if c in host.mounts}


def make_cgroup(host: CgroupHost, path: str) -> bool:
    """Make a cgroup and those above it; True if any of it was not there.

    Raises `CgroupsDeniedError`, or `CgroupError` for anything else.
    """
    is_new = False
    for controller, directory in cgroup_directories(host, path).items():
        mount = host.mounts[controller]
        try:
            is_new |= make_in(mount, directory, controller)
        except OSError as exc:
            kind = CgroupsDeniedError if exc.errno in NOT_PERMITTED else CgroupError
            raise kind(f"cannot make cgroup {directory}: {exc.strerror}") from exc
    return is_new


def make_in(mount: Path, directory: Path, controller: str) -> bool:
    """Make a cgroup in one hierarchy, top down, with what each level needs; True if it is new."""
    is_new = False
    above = mount
    for part in directory.relative_to(mount).parts:
        if not controller:
            _hand_down(above)
        here = above / part
        try:
            here.mkdir()
        except FileExistsError:
            pass
        else:
            is_new = True
        if controller == "cpuset":
            _inherit_cpuset(above, here)
        above = here
    return is_new


def _hand_down(cgroup: Path) -> None:
    """Give those below a cgroup its controllers, one by one: one refused keeps no other."""
    try:
        given = (cgroup / "cgroup.subtree_control").read_text().split()
        there = (cgroup / "cgroup.controllers").read_text().split()
    except FileNotFoundError:
        return
    for controller in CONTROLLERS:
        if controller in there and controller not in given:
            with suppress(OSError):  # told by the limits that cannot be written
                write_file(cgroup / "cgroup.subtree_control", f"+{controller}")


def _inherit_cpuset(above: Path, cgroup: Path) -> None:
    for name in _CPUSET_FILES:
        with suppress(FileNotFoundError):
            if not (cgroup / name).read_text().strip():
                write_file(cgroup / name, (above / name).read_text())


def write_settings(host: CgroupHost, path: str, settings: Iterable[Setting]) -> Written:
    """Write limits to a cgroup that is there. Never raises for one that is refused."""
    directories = cgroup_directories(host, path)
    missing: set[str] = set()
    failures: list[str] = []
    for setting in settings:
        directory = directories.get("" if host.version == 2 else setting.controller)
        if directory is None:
            missing.add(setting.controller)
            continue
        file = directory / setting.file
        try:
            write_file(file, setting.value)
        except FileNotFoundError:
            if directory.is_dir():
                missing.add(setting.controller)
            else:
                failures.append(f"cgroup {directory} is gone")
        except OSError as exc:
            failures.append(f"cannot write {setting.value!r} to {file}: {exc.strerror}")
    return Written(frozenset(missing), tuple(failures))


def write_file(path: Path, value: str) -> None:
    """Write in one call, and never make a file: on a cgroup file system none can be made."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def memory_usage(host: CgroupHost, path: str) -> int | None:
    """Return the bytes charged to a cgroup; None where that cannot be read."""
    directories = cgroup_directories(host, path)
    directory = directories.get("" if host.version == 2 else "memory")
    name = "memory.current" if host.version == 2 else "memory.usage_in_bytes"
    try:
        return int((directory / name).read_text()) if directory is not None else None
    except (OSError, ValueError):
        return None
