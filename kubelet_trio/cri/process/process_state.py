"""The state of a container's process, read from its shim's files and from /proc.

    created     no `shim.json`, or a shim that has not started the process yet
    running     `shim.json` names a process, and its shim is alive
    exited      `exit.json` exists

A shim that died without writing `exit.json` (reboot, SIGKILL) takes the exit code with it. The
rest of the container is then killed, and its exit is recorded as 255, reason Unknown, as
containerd does. All functions block.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.cri.process.launch import CONTAINER_ID
from kubelet_trio.cri.process.shim import protocol
from kubelet_trio.cri.process.shim.processes import process_stat
from kubelet_trio.model import JSON_ERRORS, write_aside

UNKNOWN_EXIT = 255
_START_TIME = 19  # index into what `process_stat` returns
_KILL_ROUNDS = 200  # of 10 ms each

CREATED = v1.ContainerState.CONTAINER_CREATED
RUNNING = v1.ContainerState.CONTAINER_RUNNING
EXITED = v1.ContainerState.CONTAINER_EXITED


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of one container's process. Times are Unix nanoseconds, 0 for never."""

    state: v1.ContainerState = CREATED
    pid: int = 0  # PID of the main process while it runs
    shim: int = 0  # PID of the shim while it is alive
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _ShimFile(msgspec.Struct):
    shim: int
    shim_start: int
    boot: str
    pid: int = 0
    started_at: int = 0


class _ExitFile(msgspec.Struct):
    code: int
    finished_at: int
    reason: str = ""
    message: str = ""


_decode_shim = msgspec.json.Decoder(_ShimFile).decode
_decode_exit = msgspec.json.Decoder(_ExitFile).decode


def boot_id() -> str:
    """Return the kernel's id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_process_state(directory: Path, container_id: str, boot: str) -> ProcessState:
    """Return the state of the container in a directory.

    If its shim has died, kill what is left of the container and record its exit first.
    """
    state = _read_files(directory, boot)
    if state is None:
        # The shim may have written `exit.json` between our two reads, just before it ended.
        state = _read_files(directory, boot)
    if state is None:
        kill_marked(container_id)
        _write_unknown(directory)
        state = _read_files(directory, boot)
    assert state is not None
    return state


def _read_files(directory: Path, boot: str) -> ProcessState | None:
    """Return the state that the files describe; None if the shim is dead and left no exit."""
    ended = _read_exit(directory)
    shim = _read_shim(directory)
    started_at = shim.started_at if shim is not None else 0
    if ended is not None:
        return ProcessState(
            EXITED,
            started_at=started_at,
            finished_at=ended.finished_at,
            exit_code=ended.code,
            reason=ended.reason,
            message=ended.message,
        )
    if shim is None:
        return None if (directory / protocol.SHIM).exists() else ProcessState()
    stat = process_stat(shim.shim)
    # The same PID is the same process only within one boot and with the same start time.
    if shim.boot != boot or stat is None or int(stat[_START_TIME]) != shim.shim_start:
        return None
    if stat[0] == b"Z":
        return None
    if not shim.pid:
        return ProcessState(shim=shim.shim)
    return ProcessState(RUNNING, pid=shim.pid, shim=shim.shim, started_at=started_at)


def _read_shim(directory: Path) -> _ShimFile | None:
    content = _read(directory / protocol.SHIM)
    try:
        return None if content is None else _decode_shim(content)
    except JSON_ERRORS:
        return None  # truncated by a crash of the machine, or being written for the first time


def _read_exit(directory: Path) -> _ExitFile | None:
    content = _read(directory / protocol.EXIT)
    try:
        return None if content is None else _decode_exit(content)
    except JSON_ERRORS:
        return None


def _read(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def _write_unknown(directory: Path) -> None:
    ending = _ExitFile(
        UNKNOWN_EXIT, time.time_ns(), "Unknown", "its shim ended without recording the exit"
    )
    write_aside(directory / protocol.EXIT, msgspec.json.encode(ending))


def forbid_start(directory: Path) -> bool:
    """Make sure that no shim can start a container any more; False if one has started already.

    A shim creates its `shim.json` as its first step and ends if the file exists.
    """
    new = directory / f"{protocol.SHIM}.agent"
    try:
        new.write_bytes(msgspec.json.encode(_ShimFile(0, 0, "")))
        # link(2) fails if the name exists: either the shim or we create it, never both.
        os.link(new, directory / protocol.SHIM)
    except FileExistsError:
        return False
    except FileNotFoundError:
        return True  # the directory is gone: no shim can start in it
    finally:
        new.unlink(missing_ok=True)
    return True


def kill_shim(directory: Path, boot: str) -> None:
    """Kill the shim of a container. The kernel then kills the main process (PR_SET_PDEATHSIG)."""
    state = _read_files(directory, boot)
    if state is None or not state.shim:
        return
    with suppress(OSError):
        process = os.pidfd_open(state.shim)
        try:
            # The PID may have been reused before pidfd_open: check again with the pidfd held.
            if _read_files(directory, boot) == state:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def kill_marked(container_id: str) -> None:
    """Kill every process whose environment names a container, until none is left.

    For containers whose shim is dead: only the environment still tells which processes are
    theirs.
    """
    mark = f"{CONTAINER_ID}={container_id}".encode()
    for _ in range(_KILL_ROUNDS):
        found = [pid for name in os.listdir("/proc") if name.isdigit() and (pid := int(name))]
        if not [pid for pid in found if _kill_marked(pid, mark)]:
            return
        time.sleep(0.01)


def _kill_marked(pid: int, mark: bytes) -> bool:
    if not _is_marked(pid, mark):
        return False
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The PID may have been reused before pidfd_open: check again with the pidfd held.
        if _is_marked(pid, mark):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False
