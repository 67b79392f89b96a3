"""The pods' cgroups on disk: finding those that are left, and removing them.

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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import structlog

from kubelet_trio.cgroups.detect import CgroupHost
from kubelet_trio.cgroups.names import (
    CgroupDriver,
    QosClass,
    cgroup_path,
    parse_cgroup,
    pod_cgroup,
    qos_cgroup,
    uid_of_pod_cgroup,
)
from kubelet_trio.model import Offload, PodUid

log = structlog.get_logger()

_SYSTEMCTL_TIMEOUT = 10.0  # seconds
_KILL_TIMEOUT = 1.0  # seconds, for one process
_QOS_CLASSES: tuple[QosClass, ...] = get_args(QosClass)


class CgroupBusyError(Exception):
    """A pod's cgroup cannot be removed, for processes are still in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"cgroup {path} still has processes in it")
        self.path = path


def stop_slice(unit: str) -> None:
    """Have systemd forget a slice whose cgroup is gone; that it never knew it is no error."""
    import subprocess  # only nodes with the systemd driver need it

    command = ["systemctl", "stop", unit]
    try:
        subprocess.run(command, check=False, capture_output=True, timeout=_SYSTEMCTL_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as exc:
        log.warning("cgroup.stop_slice_failed", unit=unit, error=str(exc))


@dataclass(frozen=True, slots=True)
class PodCgroups:
    """The pods' cgroups below one cgroup root."""

    host: CgroupHost
    driver: CgroupDriver
    offload: Offload
    root: str = ""  # `--cgroup-root`
    stop_unit: Callable[[str], None] = stop_slice

    async def remove(self, uid: PodUid) -> None:
        """Remove a pod's cgroup in every hierarchy; one that is gone is no error.

        Called when the runtime has nothing of the pod any more: what is still in it is
        killed. Raises `CgroupBusyError` if that does not come to an end in good time.
        """
        await self.offload(self._remove, uid)

    async def list_pods(self) -> frozenset[PodUid]:
        """Return the pods that have a cgroup: what orphans are looked for among."""
        return await self.offload(self._list)

    def _remove(self, uid: PodUid) -> None:
        for qos in _QOS_CLASSES:
            name = cgroup_path(pod_cgroup(uid, qos, parse_cgroup(self.root)), self.driver)
            paths = [hierarchy / name.lstrip("/") for hierarchy in self.host.hierarchies()]
            try:
                removed = [remove_cgroup(path) for path in paths]
            except CgroupBusyError:
                for path in paths:
                    kill_processes(path)
                removed = [remove_cgroup(path) for path in paths]
            # Stopping a slice kills what is in it: only now is it sure that nothing is.
            if self.driver == "systemd" and any(removed):
                self.stop_unit(Path(name).name)

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


def remove_cgroup(path: Path) -> bool:
    """Remove a cgroup and those below it, from the bottom up; False where there was none.

    Raises `CgroupBusyError`.
    """
    for entry in _subdirectories(path):
        remove_cgroup(path / entry)
    try:
        path.rmdir()
    except FileNotFoundError:
        return False
    except OSError as exc:
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
