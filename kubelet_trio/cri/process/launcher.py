"""The agent's side of the shims' nursery: a child process, started with the first container.

`run` owns it. A start request names a container's directory and carries a socket for the
answer. The shim that the nursery forks becomes a child of init once the agent is gone.
"""

from __future__ import annotations

import array
import os
import socket
import subprocess
from pathlib import Path

import msgspec
import trio

from kubelet_trio.cri.errors import (
    RuntimeCallError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
)
from kubelet_trio.model import get_logger

log = get_logger()

# A shim sees neither the agent's environment nor its packages.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from shim.nursery import main; main()"
_OPTIONS = ("-I", "-S", "-E", "-X", "utf8")
SHIM_LOG = "shim.log"
_CALL = "StartContainer"
_RESTART_DELAY = 0.5  # s
_START_LIMIT = 10.0  # s for a shim to start its process
_LEAVE_LIMIT = 5.0  # s for the nursery to end once its stdin is closed
_BLOCK = 1 << 16


class StartReply(msgspec.Struct):
    """A shim's answer to a start request: the PID, or the error."""

    pid: int = 0
    error: str = ""


class Launcher:
    """Starts shims."""

    def __init__(self, python: str, state_dir: Path) -> None:
        """Take the interpreter that shims run on, and the directory for their stderr."""
        self._python = python
        self._state_dir = state_dir
        self._channel: trio.socket.SocketType | None = None
        self._wanted = trio.Event()  # set by the first start request
        self._ready = trio.Event()
        self._running = False
        self._failure = ""

    @property
    def problem(self) -> str:
        """Why no container can be started now; "" if one can."""
        return self._failure if self._running else "the runtime's own task does not run"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """From the first start request on, keep a nursery running until cancelled."""
        self._running = True
        task_status.started()
        try:
            await self._wanted.wait()
            while True:
                await self._keep_one()
                await trio.sleep(_RESTART_DELAY)
        finally:
            self._running = False
            self._wake_starters()

    async def _keep_one(self) -> None:
        # SEQPACKET keeps the boundaries of requests, unix(7): they need no framing.
        ours, theirs = _pair(socket.SOCK_SEQPACKET)
        with trio.socket.from_stdlib_socket(ours) as channel:
            with theirs:
                process = await self._open(theirs)
            if process is None:
                self._wake_starters()
                return
            self._channel = channel
            self._wake_starters()
            try:
                await process.wait()
                log.warning("process.nursery_died", returncode=process.returncode)
            finally:
                self._channel = None
                channel.close()
                # Shielded: we own the process. Bounded: it only has to read the end of its stdin.
                with trio.move_on_after(_LEAVE_LIMIT, shield=True):
                    await process.wait()

    async def _open(self, channel: socket.socket) -> trio.Process | None:
        """Start the interpreter; return None, with `problem` set, if that fails."""
        command = [self._python, *_OPTIONS, "-c", _PROGRAM, str(Path(__file__).parent)]
        command.append(str(self._state_dir))  # unused; shows in process lists whose nursery it is
        stderr = -1
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            stderr = os.open(self._state_dir / SHIM_LOG, flags, 0o600)
            process = await trio.lowlevel.open_process(
                command,
                stdin=channel,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env={},
                start_new_session=True,  # Ctrl-C in the agent's terminal must not reach shims
            )
        except OSError as exc:
            self._failure = f"cannot start {self._python or 'a Python interpreter'}: {exc}"
            return None
        finally:
            if stderr >= 0:
                os.close(stderr)
        self._failure = ""
        return process

    def _wake_starters(self) -> None:
        """Wake the calls that wait for a nursery: it runs, or `problem` tells why not."""
        self._ready.set()
        self._ready = trio.Event()

    async def start(self, directory: Path) -> StartReply:
        """Start the container in a directory; return once its process runs or has failed to.

        Raises `RuntimeUnavailableError` without a nursery, `RuntimeTimeoutError` if the shim does
        not answer, and `RuntimeCallError` if it dies.
        """
        channel = await self._get_channel()
        ours, theirs = _pair(socket.SOCK_STREAM)
        with trio.socket.from_stdlib_socket(ours) as answer:
            with theirs:
                rights = array.array("i", [theirs.fileno()])
                carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                try:
                    await channel.sendmsg([os.fsencode(directory)], carried)
                except OSError as exc:
                    raise RuntimeUnavailableError(_CALL, f"the shims' nursery: {exc}") from exc
            # Shielded: a caller that is cancelled goes on to tear the pod down, and that must find
            # the process which this start creates. Bounded by _START_LIMIT.
            with trio.CancelScope(deadline=trio.current_time() + _START_LIMIT, shield=True) as wait:
                reply = await _read_all(answer)
            if wait.cancelled_caught:
                raise RuntimeTimeoutError(_CALL, f"the shim did not answer in {_START_LIMIT:g}s")
        if not reply:
            log_file = self._state_dir / SHIM_LOG
            raise RuntimeCallError(_CALL, f"the shim died at its start: see {log_file}")
        return msgspec.json.decode(reply, type=StartReply)

    async def _get_channel(self) -> trio.socket.SocketType:
        if not self._running:
            raise RuntimeUnavailableError(_CALL, self.problem)
        self._wanted.set()
        if self._channel is None:
            await self._ready.wait()
        if self._channel is None:
            raise RuntimeUnavailableError(_CALL, self.problem)
        return self._channel


def _pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """Return our end, and one on which a plain read waits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    # A program around the agent may have set a default timeout, which makes new sockets
    # non-blocking; shims read and write without a loop.
    theirs.setblocking(True)
    return ours, theirs


async def _read_all(answer: trio.socket.SocketType) -> bytes:
    received = bytearray()
    while block := await answer.recv(_BLOCK):
        received += block
    return bytes(received)
