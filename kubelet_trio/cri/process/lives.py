"""How a container stands: read from what its shim wrote, and from whether the shim lives.

    created     no `shim.json`, or a shim that has just begun
    running     `shim.json` names a process, and its shim lives
    exited      `exit.json` is there

A shim that is dead without an `exit.json` (the machine was rebooted, or somebody killed it)
has taken the exit code with it: what is left of the container is killed, and the end
is written down as unknown, 255, as containerd does. All of this blocks.
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
_START_TIME = 19  # of the fields that `process_stat` returns
_ROUNDS = 200  # of looking for what is left, 10 ms each

CREATED = v1.ContainerState.CONTAINER_CREATED
RUNNING = v1.ContainerState.CONTAINER_RUNNING
EXITED = v1.ContainerState.CONTAINER_EXITED


@dataclass(frozen=True, slots=True)
class Life:
    """A container's state. Times are Unix nanoseconds, 0 for never."""

    state: v1.ContainerState = CREATED
    pid: int = 0  # of the main process, while it runs
    shim: int = 0  # the shim's, while it lives
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
    """Return what names this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_life(directory: Path, container_id: str, boot: str) -> Life:
    """Return how the container of a directory stands; one whose shim has died is ended."""
    life = _told(directory, boot)
    if life is None:
        # It may have written its last word just before it went.
        life = _told(directory, boot)
    if life is None:
        kill_strays(container_id)
        _write_unknown(directory)
        life = _told(directory, boot)
    assert life is not None
    return life


def _told(directory: Path, boot: str) -> Life | None:
    """Return what the files say; None where a shim was there and is not any more."""
    ended = _read_exit(directory)
    shim = _read_shim(directory)
    started_at = shim.started_at if shim is not None else 0
    if ended is not None:
        return Life(
            EXITED,
            started_at=started_at,
            finished_at=ended.finished_at,
            exit_code=ended.code,
            reason=ended.reason,
            message=ended.message,
        )
    if shim is None:
        return None if (directory / protocol.SHIM).exists() else Life()
    stat = process_stat(shim.shim)
    if shim.boot != boot or stat is None or int(stat[_START_TIME]) != shim.shim_start:
        return None
    if stat[0] == b"Z":
        return None
    if not shim.pid:
        return Life(shim=shim.shim)
    return Life(RUNNING, pid=shim.pid, shim=shim.shim, started_at=started_at)


def _read_shim(directory: Path) -> _ShimFile | None:
    content = _read(directory / protocol.SHIM)
    try:
        return None if content is None else _decode_shim(content)
    except JSON_ERRORS:
        return None  # cut short by a crash of the machine, or being written for the first time


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
        UNKNOWN_EXIT, time.time_ns(), "Unknown", "its shim ended without telling how it ended"
    )
    write_aside(directory / protocol.EXIT, msgspec.json.encode(ending))


def forbid_start(directory: Path) -> bool:
    """Take the place of a container's shim for good; False where there is one already."""
    new = directory / f"{protocol.SHIM}.agent"
    try:
        new.write_bytes(msgspec.json.encode(_ShimFile(0, 0, "")))
        os.link(new, directory / protocol.SHIM)
    except FileExistsError:
        return False
    except FileNotFoundError:
        return True  # its directory is gone: no shim can begin there
    finally:
        new.unlink(missing_ok=True)
    return True


def kill_shim(directory: Path, boot: str) -> None:
    """Kill the shim of a directory, and with it the container's main process."""
    life = _told(directory, boot)
    if life is None or not life.shim:
        return
    with suppress(OSError):
        process = os.pidfd_open(life.shim)
        try:
            # Asked again: the number may have become another's before it was opened.
            if _told(directory, boot) == life:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def kill_strays(container_id: str) -> None:
    """Kill every process with a container's mark in its environment, until none is left.

    For containers whose shim is dead: nothing else tells whose processes they were.
    """
    mark = f"{CONTAINER_ID}={container_id}".encode()
    for _ in range(_ROUNDS):
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
        # Asked again through the descriptor's eyes: the number may be another's by now.
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
