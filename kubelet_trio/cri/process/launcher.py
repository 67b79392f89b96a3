"""The nursery of shims, seen from the agent: one child process, there once it is needed.

`run` owns it. A start request names a container's directory and carries a socket for the
answer; the shim that comes of it is nobody's child but init's once the agent is gone.
"""

from __future__ import annotations

import array
import os
import socket
import subprocess
from pathlib import Path

import msgspec
import trio

from kubelet_trio.cri._errors import (
    RuntimeCallError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
)
from kubelet_trio.model import get_logger

log = get_logger()

# Nothing of the agent's environment or packages reaches a shim.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from shim.nursery import main; main()"
_OPTIONS = ("-I", "-S", "-E", "-X", "utf8")
SHIM_LOG = "shim.log"
_CALL = "StartContainer"
_RESTART_DELAY = 0.5  # s
_START_LIMIT = 10.0  # s for a shim to start its process
_LEAVE_LIMIT = 5.0  # s for the nursery to end once its input has
_BLOCK = 1 << 16


class StartReply(msgspec.Struct):
    """What a shim says of its start: a PID, or why there is none."""

    pid: int = 0
    error: str = ""


class Launcher:
    """Starts shims."""

    def __init__(self, python: str, state_dir: Path) -> None:
        """Take the interpreter that shims run on, and the directory for their last words."""
        self._python = python
        self._state_dir = state_dir
        self._channel: trio.socket.SocketType | None = None
        self._wanted = trio.Event()
        self._ready = trio.Event()
        self._running = False
        self._failure = ""

    @property
    def problem(self) -> str:
        """Why no container could be started now, "" if one could."""
        return self._failure if self._running else "the runtime's own task does not run"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a nursery from the first start on, a new one should it die, until cancelled."""
        self._running = True
        task_status.started()
        try:
            await self._wanted.wait()
            while True:
                await self._keep_one()
                await trio.sleep(_RESTART_DELAY)
        finally:
            self._running = False
            self._tell_ready()

    async def _keep_one(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with trio.socket.from_stdlib_socket(ours) as channel:
            with theirs:
                process = await self._open(theirs)
            if process is None:
                self._tell_ready()
                return
            self._channel = channel
            self._tell_ready()
            try:
                await process.wait()
                log.warning("process.nursery_died", returncode=process.returncode)
            finally:
                self._channel = None
                channel.close()
                # Bounded: it only has to read the end of its input.
                with trio.move_on_after(_LEAVE_LIMIT, shield=True):
                    await process.wait()

    async def _open(self, channel: socket.socket) -> trio.Process | None:
        """Start the interpreter; None, with `problem` set, where that is not possible."""
        command = [self._python, *_OPTIONS, "-c", _PROGRAM, str(Path(__file__).parent)]
        command.append(str(self._state_dir))  # for whoever reads a process list
        last_words = -1
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            last_words = os.open(self._state_dir / SHIM_LOG, flags, 0o600)
            process = await trio.lowlevel.open_process(
                command,
                stdin=channel,
                stdout=subprocess.DEVNULL,
                stderr=last_words,
                env={},
                start_new_session=True,
            )
        except OSError as exc:
            self._failure = f"cannot start {self._python or 'a Python interpreter'}: {exc}"
            return None
        finally:
            if last_words >= 0:
                os.close(last_words)
        self._failure = ""
        return process

    def _tell_ready(self) -> None:
        """Wake who waits for a nursery: there is one, or `problem` says why there is none."""
        self._ready.set()
        self._ready = trio.Event()

    async def start(self, directory: Path) -> StartReply:
        """Start the container of a directory; return once its process runs or cannot.

        Raises `RuntimeUnavailableError` where there is nobody to do it.
        """
        channel = await self._get_channel()
        ours, theirs = socket.socketpair()
        with trio.socket.from_stdlib_socket(ours) as answer:
            with theirs:
                rights = array.array("i", [theirs.fileno()])
                carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                try:
                    await channel.sendmsg([os.fsencode(directory)], carried)
                except OSError as exc:
                    raise RuntimeUnavailableError(_CALL, f"the shims' nursery: {exc}") from exc
            # Shielded: who cancels a start goes on to tear down, and must find what it made.
            with trio.CancelScope(deadline=trio.current_time() + _START_LIMIT, shield=True) as wait:
                told = await _read_all(answer)
            if wait.cancelled_caught:
                raise RuntimeTimeoutError(_CALL, f"the shim did not answer in {_START_LIMIT:g}s")
        if not told:
            place = self._state_dir / SHIM_LOG
            raise RuntimeCallError(_CALL, f"the shim died at its start: see {place}")
        return msgspec.json.decode(told, type=StartReply)

    async def _get_channel(self) -> trio.socket.SocketType:
        if not self._running:
            raise RuntimeUnavailableError(_CALL, self.problem)
        self._wanted.set()
        if self._channel is None:
            await self._ready.wait()
        if self._channel is None:
            raise RuntimeUnavailableError(_CALL, self.problem)
        return self._channel


async def _read_all(answer: trio.socket.SocketType) -> bytes:
    told = bytearray()
    while block := await answer.recv(_BLOCK):
        told += block
    return bytes(told)
