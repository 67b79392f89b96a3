"""The pods' cgroups: made and limited, found where they are left, and removed.

Containers' cgroups below a pod's are the runtime's, and it removes them with the
containers. What is removed here is empty by then. If it is not, the runtime has lost
something: containerd stopped in the middle of a RunPodSandbox leaves a process that it
never tells of again. The cgroup has the pod's UID in its name, so whatever is in it was
the pod's; it is killed, as the Go kubelet does (`tryKillingCgroupProcesses`), or the pod
would end never.

A pod's cgroup is looked for under every QoS class: which class a pod had when its
sandbox was made is not known once its spec is gone.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, get_args

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.limits import CgroupLimits, settings
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
from kubelet_trio.cgroups.write import (
    NOT_PERMITTED,
    CgroupError,
    CgroupsDeniedError,
    Written,
    cgroup_directories,
    make_cgroup,
    memory_usage,
    write_settings,
)
from kubelet_trio.model import Offload, PodUid, get_logger

log = get_logger()

_KILL_TIMEOUT = 1.0  # seconds, for one process
_QOS_CLASSES: tuple[QosClass, ...] = get_args(QosClass)


class CgroupBusyError(Exception):
    """A pod's cgroup cannot be removed, for processes are still in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"cgroup {path} still has processes in it")
        self.path = path


# What comes out of making and removing a pod's cgroup.
CGROUP_ERRORS = (CgroupError, CgroupBusyError, OSError)


class SystemdUnits(Protocol):
    """What is asked of systemd where it owns the cgroups: see `systemd.SystemdBus`."""

    async def start_slice(self, unit: str, limits: CgroupLimits) -> None:
        """Have a slice, with these limits. Raises `CgroupError`."""
        ...

    async def limit_slice(self, unit: str, limits: CgroupLimits) -> None:
        """Limit a slice that is there; it is not made. Raises `CgroupError`."""
        ...

    async def stop_slice(self, unit: str) -> None:
        """Forget a slice whose cgroup is gone; that there was none is no error."""
        ...


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The pods' cgroups, and those above them, below one cgroup root."""

    host: CgroupHost
    driver: CgroupDriver
    offload: Offload
    root: str = ""  # `--cgroup-root`
    units: SystemdUnits | None = None  # only asked under the systemd driver

    async def apply(self, name: CgroupName, limits: CgroupLimits) -> Written:
        """Have a cgroup with these limits; what could not be limited is returned.

        Raises `CgroupsDeniedError` where this process may make none, else `CgroupError`.
        """
        path = cgroup_path(name, self.driver)
        if self.driver == "systemd" and self.units is not None:
            # It would take its own values back at the next reload, had it none of ours.
            await self.units.start_slice(Path(path).name, limits)
        await self.offload(make_cgroup, self.host, path)
        return await self._write(path, limits)

    async def limit(self, path: str, limits: CgroupLimits) -> Written:
        """Limit a cgroup that is there, by its path below the mount; it is not made."""
        written = await self._write(path, limits)
        unit = Path(path).name
        if self.driver == "systemd" and self.units is not None and unit.endswith(".slice"):
            # A daemon-reload writes the unit's own values over what stands in the files.
            try:
                await self.units.limit_slice(unit, limits)
            except CgroupError as exc:
                return replace(written, failures=(*written.failures, str(exc)))
        return written

    async def limit_pod(self, uid: PodUid, limits: CgroupLimits) -> None:
        """Limit a pod's cgroup, whatever its class; where that is refused it stays as it is."""
        for path in await self.offload(self._find, uid):
            written = await self.limit(path, limits)
            if written.failures:
                log.info("cgroup.not_limited", cgroup=path, error="; ".join(written.failures))

    def _find(self, uid: PodUid) -> list[str]:
        """Return the names under which a pod has a cgroup."""
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
        """Whether a cgroup is there in every hierarchy that limits something."""
        directories = cgroup_directories(self.host, path).values()
        return bool(directories) and await self.offload(_all_there, tuple(directories))

    async def memory_usage(self, name: CgroupName) -> int | None:
        """Return the bytes charged to a cgroup; None where that cannot be read."""
        return await self.offload(memory_usage, self.host, cgroup_path(name, self.driver))

    async def remove(self, uid: PodUid) -> None:
        """Remove a pod's cgroup in every hierarchy; one that is gone is no error.

        Called when the runtime has nothing of the pod any more: what is still in it is
        killed. Raises `CgroupBusyError` if that does not come to an end in good time, and
        `CgroupsDeniedError` where this process may remove none.
        """
        await self._forget(await self.offload(self._remove, uid, kill=True))

    async def remove_empty(self, uid: PodUid) -> None:
        """Remove a pod's cgroup if nothing runs in it. Raises `CgroupBusyError` if it does."""
        await self._forget(await self.offload(self._remove, uid, kill=False))

    async def list_pods(self) -> frozenset[PodUid]:
        """Return the pods that have a cgroup: what orphans are looked for among."""
        return await self.offload(self._list)

    async def _forget(self, removed: list[str]) -> None:
        if self.driver == "systemd" and self.units is not None:
            # Stopping a slice kills what is in it: only now is it sure that nothing is.
            for name in removed:
                await self.units.stop_slice(Path(name).name)

    def _remove(self, uid: PodUid, *, kill: bool) -> list[str]:
        """Remove it, and return the names under which there was one.

        Raises `CgroupBusyError` and `CgroupsDeniedError`.
        """
        found = []
        for qos in _QOS_CLASSES:
            name = cgroup_path(pod_cgroup(uid, qos, parse_cgroup(self.root)), self.driver)
            paths = [hierarchy / name.lstrip("/") for hierarchy in self.host.hierarchies()]
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
    """Return where `--cgroup-root` would be and is not, in the hierarchies that limit something.

    Which driver the runtime has is not known at the start: the other one's name will do as well.
    """
    missing = _missing(host, root, driver)
    other: CgroupDriver = "cgroupfs" if driver == "systemd" else "systemd"
    return missing if missing and _missing(host, root, other) else []


def _missing(host: CgroupHost, root: str, driver: CgroupDriver) -> list[Path]:
    directories = cgroup_directories(host, cgroup_path(parse_cgroup(root), driver)).values()
    return [d for d in dict.fromkeys(directories) if not d.is_dir()]


def _all_there(directories: tuple[Path, ...]) -> bool:
    return all(directory.is_dir() for directory in directories)


def remove_cgroup(path: Path) -> bool:
    """Remove a cgroup and those below it, from the bottom up; False where there was none.

    Raises `CgroupBusyError`, or `CgroupsDeniedError` where it is not ours to remove.
    """
    if not path.is_dir():
        return False  # a read-only file system refuses even what is not there
    for entry in _subdirectories(path):
        remove_cgroup(path / entry)
    try:
        path.rmdir()
    except FileNotFoundError:
        return False
    except OSError as exc:
        if exc.errno in NOT_PERMITTED:
            raise CgroupsDeniedError(f"cannot remove cgroup {path}: {exc.strerror}") from exc
        if exc.errno != errno.EBUSY:
            raise
        raise CgroupBusyError(path) from exc
    return True


def kill_processes(cgroup: Path) -> None:
    """Kill what is in a cgroup or below it, and wait a moment for each to be gone."""
    for entry in _subdirectories(cgroup):
        kill_processes(cgroup / entry)
    for pid in _pids(cgroup):
        with suppress(ProcessLookupError):  # gone by itself
            _kill_member(cgroup, pid)


def _kill_member(cgroup: Path, pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        # The number may have passed to someone else's process since it was read.
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
    return [int(pid) for pid in listed if pid != "0"]  # 0: in a PID namespace not below ours


def _subdirectories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
