"""Create cgroups, and write their limits. All of it blocks.

On version 1 a cgroup is created in each hierarchy that limits something. On version 2 every level
above it passes its controllers down. Both use the controllers that exist: a missing one shows up in
`Written`, when a limit is written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.errors import CgroupError, CgroupsDeniedError
from kubelet_trio.cgroups.limits import Setting

# The controllers that the Go kubelet and the runtimes use for limits or counts.
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb")
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
# Errors of a machine on which this process may not write cgroups; a retry would not help.
NOT_PERMITTED = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing limits."""

    missing: frozenset[str] = frozenset()  # controllers that this machine does not have
    failures: tuple[str, ...] = ()  # file, value and the kernel's error


def cgroup_directories(host: CgroupHost, path: str) -> dict[str, Path]:
    """Return a cgroup's directories, by controller; "" on version 2."""
    inside = path.lstrip("/")
    if host.version == 2:
        return {"": host.mounts[""] / inside}
    return {c: host.mounts[c] / inside for c in CONTROLLERS if c in host.mounts}


def make_cgroup(host: CgroupHost, path: str) -> bool:
    """Create a cgroup and its parents; return True if any of them is new.

    Raises `CgroupsDeniedError`, or `CgroupError` for other errors.
    """
    is_new = False
    done: set[Path] = set()
    for controller, directory in cgroup_directories(host, path).items():
        if directory in done and controller != "cpuset":
            continue  # controllers that share a hierarchy
        done.add(directory)
        mount = host.mounts[controller]
        try:
            is_new |= make_in(mount, directory, controller)
        except OSError as exc:
            kind = CgroupsDeniedError if exc.errno in NOT_PERMITTED else CgroupError
            raise kind(f"cannot make cgroup {directory}: {exc.strerror}") from exc
    return is_new


def make_in(mount: Path, directory: Path, controller: str) -> bool:
    """Create a cgroup in one hierarchy, from the top; return True if any level is new."""
    is_new = False
    # Where the parents are there, which for all pods but the first they are, one call will do. On
    # version 2 each level is looked at again: somebody may have taken its controllers away.
    if controller:
        made = _make_leaf(directory, controller)
        if made is not None:
            return made
    above = mount
    for part in directory.relative_to(mount).parts:
        if not controller:
            _pass_controllers(above)
        here = above / part
        try:
            here.mkdir()
        except FileExistsError:
            pass
        else:
            is_new = True
        if controller == "cpuset":
            # A cpuset without CPUs and memory nodes takes no process (cgroup-v1/cpusets.html).
            _inherit_cpuset(above, here)
        above = here
    return is_new


def _make_leaf(directory: Path, controller: str) -> bool | None:
    """Create a cgroup of version 1; return None if its parents are to be made first."""
    is_new = True
    try:
        os.mkdir(directory)
    except FileNotFoundError:
        return None
    except FileExistsError:
        is_new = False
    if controller == "cpuset" and not _inherit_cpuset(directory.parent, directory):
        return None
    return is_new


def _pass_controllers(cgroup: Path) -> None:
    """Enable a cgroup's controllers for its children, one by one, so that each can be refused."""
    try:
        given = (cgroup / "cgroup.subtree_control").read_text().split()
        there = (cgroup / "cgroup.controllers").read_text().split()
    except FileNotFoundError:
        return
    for controller in CONTROLLERS:
        if controller in there and controller not in given:
            with suppress(OSError):  # its limits then fail, which `Written` reports
                write_file(cgroup / "cgroup.subtree_control", f"+{controller}")


def _inherit_cpuset(above: Path, cgroup: Path) -> bool:
    """Copy CPUs and memory nodes to a cgroup that has none; False if its parent has none either."""
    is_usable = True
    for name in _CPUSET_FILES:
        with suppress(FileNotFoundError):
            if not _read_file(cgroup / name).strip():
                given = _read_file(above / name)
                is_usable &= bool(given.strip())
                write_file(cgroup / name, given)
    return is_usable


def _read_file(path: Path) -> str:
    """Read one of the kernel's small files in one call."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode()
    finally:
        os.close(fd)


def write_settings(host: CgroupHost, path: str, settings: Iterable[Setting]) -> Written:
    """Write limits to an existing cgroup; return refused ones instead of raising."""
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
                if not setting.is_optional:
                    missing.add(setting.controller)
            else:
                failures.append(f"cgroup {directory} is gone")
        except OSError as exc:
            failures.append(f"cannot write {setting.value!r} to {file}: {exc.strerror}")
    return Written(frozenset(missing), tuple(failures))


def write_file(path: Path, value: str) -> None:
    """Write in one call, because the kernel parses each write alone; never create a file."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
