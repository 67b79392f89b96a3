"""Create, limit, find and remove the pods' cgroups, and those above them.

The runtime creates and removes the containers' cgroups below a pod's. A pod's cgroup is looked up
under every QoS class, because an orphan's spec, and so its class, is unknown.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, get_args

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.errors import CgroupBusyError, CgroupError, CgroupsDeniedError
from kubelet_trio.cgroups.limits import CgroupLimits, Setting, settings
from kubelet_trio.cgroups.names import (
    CgroupDriver,
    CgroupName,
    QosClass,
    cgroup_path,
    parse_cgroup,
    pod_cgroup,
    qos_cgroup,
    uid_of_pod_cgroup,
)
from kubelet_trio.cgroups.read import memory_usage, read_limits
from kubelet_trio.cgroups.write import (
    NOT_PERMITTED,
    Written,
    cgroup_directories,
    make_cgroup,
    write_settings,
)
from kubelet_trio.model import Offload, PodUid, get_logger

log = get_logger()

_KILL_TIMEOUT = 1.0  # seconds, for one process
_QOS_CLASSES: tuple[QosClass, ...] = get_args(QosClass)


class SystemdUnits(Protocol):
    """The slices of the systemd driver; implemented by `systemd.SystemdBus`."""

    async def start_slice(self, unit: str, limits: CgroupLimits) -> None:
        """Create or limit a slice. Raises `CgroupError`."""
        ...

    async def limit_slice(self, unit: str, limits: CgroupLimits) -> None:
        """Limit an existing slice. Raises `CgroupError`."""
        ...

    async def stop_slice(self, unit: str) -> None:
        """Stop a slice whose cgroup was removed; ignores an unknown one."""
        ...


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The cgroups of pods, and those above them, below one cgroup root."""

    host: CgroupHost
    driver: CgroupDriver
    offload: Offload
    root: str = ""  # `--cgroup-root`
    units: SystemdUnits | None = None  # used under the systemd driver only

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written:
        """Create a cgroup if it is missing, and limit it; the result has refused limits.

        Raises `CgroupsDeniedError` if that is not permitted, else `CgroupError`.
        """
        path = cgroup_path(name, self.driver)
        if self.driver == "systemd" and self.units is not None:
            # First, with the limits: a daemon-reload writes systemd's values over the files.
            await self.units.start_slice(Path(path).name, limits)
        wanted = settings(limits, self.host.version)
        return await self.offload(_make_limited, self.host, path, wanted)

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        """Limit an existing cgroup, by its path below the mount."""
        written = await self._write(path, limits)
        unit = Path(path).name
        # What the kernel refuses must not become a property: systemd would write it later.
        is_unit = self.units is not None and unit.endswith(".slice") and not written.failures
        if self.driver == "systemd" and self.units is not None and is_unit:
            # A daemon-reload writes the unit's properties over the files.
            try:
                await self.units.limit_slice(unit, limits)
            except CgroupError as exc:
                return replace(written, failures=(str(exc),))
            # systemd rounds a quota up, see `limit_properties`.
            return await self._write(path, limits)
        return written

    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None:
        """Limit a pod's cgroup, whatever its QoS class; only log refused limits."""
        for path in await self.offload(self._find, uid):
            written = await self.limit(path, limits)
            if written.failures:
                log.info("cgroup.not_limited", cgroup=path, error="; ".join(written.failures))

    def _find(self, uid: PodUid) -> list[str]:
        """Return the paths of a pod's cgroups below the mount."""
        names = (
            cgroup_path(pod_cgroup(uid, qos, parse_cgroup(self.root)), self.driver)
            for qos in _QOS_CLASSES
        )
        tops = self.host.hierarchies()
        return [name for name in names if any((top / name.lstrip("/")).is_dir() for top in tops)]

    async def _write(self, path: str, limits: CgroupLimits) -> Written:
        wanted = settings(limits, self.host.version)
        return await self.offload(write_settings, self.host, path, wanted)

    async def exists(self, path: str) -> bool:
        """Whether a cgroup exists in every hierarchy that limits something."""
        directories = cgroup_directories(self.host, path).values()
        return bool(directories) and await self.offload(_all_there, tuple(directories))

    async def read(self, name: CgroupName) -> CgroupLimits | None:
        """Return the CPU and memory limits of a cgroup, None if it does not exist.

        Raises `CgroupError`.
        """
        return await self.offload(read_limits, self.host, cgroup_path(name, self.driver))

    async def memory_usage(self, name: CgroupName) -> int | None:
        """Return the memory usage of a cgroup in bytes; None if it cannot be read."""
        return await self.offload(memory_usage, self.host, cgroup_path(name, self.driver))

    async def remove(self, uid: PodUid) -> None:
        """Remove a pod's cgroup in every hierarchy, and kill processes in it. Idempotent.

        Call it after the runtime has removed everything of the pod. Raises `CgroupBusyError` if
        processes survive, and `CgroupsDeniedError` if removal is not permitted.
        """
        # containerd stopped in the middle of a RunPodSandbox leaves a process that it does not
        # report again. Without the kill, which the Go kubelet does as well
        # (tryKillingCgroupProcesses), the pod would never terminate.
        await self._forget(await self.offload(self._remove, uid, kill=True))

    async def remove_empty(self, uid: PodUid) -> None:
        """Remove a pod's cgroup; raise `CgroupBusyError` if it has processes."""
        await self._forget(await self.offload(self._remove, uid, kill=False))

    async def list_pods(self) -> frozenset[PodUid]:
        """Return the pods that have a cgroup, orphans included."""
        return await self.offload(self._list)

    async def _forget(self, removed: list[str]) -> None:
        if self.driver == "systemd" and self.units is not None:
            # Last, because systemd kills the processes of a slice that it stops.
            for name in removed:
                await self.units.stop_slice(Path(name).name)

    def _remove(self, uid: PodUid, *, kill: bool) -> list[str]:
        """Remove a pod's cgroups; return the paths of those that existed.

        Raises `CgroupBusyError` and `CgroupsDeniedError`.
        """
        found, hierarchies = [], self.host.hierarchies()
        for qos in _QOS_CLASSES:
            name = cgroup_path(pod_cgroup(uid, qos, parse_cgroup(self.root)), self.driver)
            paths = [hierarchy / name.lstrip("/") for hierarchy in hierarchies]
            try:
                removed = [remove_cgroup(path) for path in paths]
            except CgroupBusyError:
                if not kill:
                    raise
                for path in paths:
                    kill_processes(path)
                removed = [remove_cgroup(path) for path in paths]
            if any(removed):
                found.append(name)
        return found

    def _list(self) -> frozenset[PodUid]:
        return frozenset(
            uid
            for directory in self._qos_directories()
            for entry in _subdirectories(directory)
            if (uid := uid_of_pod_cgroup(entry, self.driver)) is not None
        )

    def _qos_directories(self) -> Iterator[Path]:
        for hierarchy in self.host.hierarchies():
            for qos in _QOS_CLASSES:
                name = qos_cgroup(qos, parse_cgroup(self.root))
                yield hierarchy / cgroup_path(name, self.driver).lstrip("/")


def missing_cgroup_root(host: CgroupHost, root: str, driver: CgroupDriver) -> list[Path]:
    """Return the directories of `--cgroup-root` that do not exist, by hierarchy."""
    missing = _missing(host, root, driver)
    # At the start the runtime's driver is not yet known: the path under the other one will do.
    other: CgroupDriver = "cgroupfs" if driver == "systemd" else "systemd"
    return missing if missing and _missing(host, root, other) else []


def _missing(host: CgroupHost, root: str, driver: CgroupDriver) -> list[Path]:
    directories = cgroup_directories(host, cgroup_path(parse_cgroup(root), driver)).values()
    return [d for d in dict.fromkeys(directories) if not d.is_dir()]


def _make_limited(host: CgroupHost, path: str, wanted: Iterable[Setting]) -> Written:
    make_cgroup(host, path)
    return write_settings(host, path, wanted)


def _all_there(directories: tuple[Path, ...]) -> bool:
    return all(directory.is_dir() for directory in directories)


def remove_cgroup(path: Path) -> bool:
    """Remove a cgroup and those below it, from the bottom up; return False if it did not exist.

    Raises `CgroupBusyError`, and `CgroupsDeniedError` if that is not permitted.
    """
    for is_emptied in (False, True):  # most have none below
        if is_emptied:
            for entry in _subdirectories(path):
                remove_cgroup(path / entry)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return False
        except OSError as exc:
            if not path.is_dir():
                return False  # a read-only file system returns EROFS for a missing one too
            if exc.errno in NOT_PERMITTED:
                raise CgroupsDeniedError(f"cannot remove cgroup {path}: {exc.strerror}") from exc
            if exc.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            if is_emptied:
                raise CgroupBusyError(path) from exc
        else:
            return True
    raise AssertionError("the second try returns or raises")


def kill_processes(cgroup: Path) -> None:
    """Kill the processes in a cgroup and below it, and wait briefly for the end of each."""
    for entry in _subdirectories(cgroup):
        kill_processes(cgroup / entry)
    for pid in _pids(cgroup):
        with suppress(ProcessLookupError):  # it has ended by itself
            _kill_member(cgroup, pid)


def _kill_member(cgroup: Path, pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        # Read again: the PID may have been reused before the pidfd was opened.
        if pid in _pids(cgroup):
            log.warning("cgroup.process_killed", pid=pid, cgroup=str(cgroup))
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [], _KILL_TIMEOUT)
    finally:
        os.close(fd)


def _pids(cgroup: Path) -> list[int]:
    try:
        listed = (cgroup / "cgroup.procs").read_text().split()
    except FileNotFoundError:
        return []
    # 0 is a process of a PID namespace that is not visible from ours.
    return [int(pid) for pid in listed if pid != "0"]


def _subdirectories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
