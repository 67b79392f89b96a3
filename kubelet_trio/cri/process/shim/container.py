"""One container's shim, from its start to `exit.json`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time

from .files import fill_json, reserve, write_json
from .job import BLOCK, Job, StartError, start_job
from .log import Log
from .peer import Peer, Wakeup
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    exit_code,
    kill_descendants,
    prctl,
    process_stat,
    reap,
    send_signal,
)
from .protocol import (
    ANSWER,
    CONTROL,
    EXIT,
    EXITED,
    REQUEST,
    RESIZE,
    SHIM,
    SPEC,
    START_ERROR,
    STDIN,
    STDIN_END,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # the shim is one program and pays for every import
    from collections.abc import Mapping
    from typing import Any

_ENDING_LIMIT = 10.0  # s for the descendants to die; an unkillable one is left behind


class Shim:
    """Runs one container and serves its control socket."""

    def __init__(self, directory: str) -> None:
        os.chdir(directory)
        with open(SPEC) as file:
            self.spec: dict[str, Any] = json.load(file)
        self._wakeup = Wakeup()
        self._peers: list[Peer] = []
        self._status: int | None = None  # of the main process, once it has ended
        self._deadline = 0.0
        self._operations = {
            "signal": self._do_signal,
            "kill": self._do_kill,
            "reopen": self._do_reopen,
            "attach": self._do_attach,
            "exec": self._do_exec,
        }

    def run(self, reply: int) -> None:
        """Start the container, answer on the descriptor `reply`, and stay until its end."""
        own = self._describe()
        write_json(SHIM, own, only_new=True)  # fails for a second start of the same container
        # A full disk may be the reason for the exit; it must not prevent us from recording it.
        self._room = reserve(EXIT)
        try:
            self._start(own)
        except (StartError, OSError) as exc:
            kill_descendants()  # a full disk may show only after the process was started
            fill_json(self._room, EXIT, _ending(START_ERROR, "StartError", str(exc)))
            os.write(reply, json.dumps({"error": str(exc)}).encode())
            return
        os.write(reply, json.dumps({"pid": self._job.pid}).encode())
        os.close(reply)
        self._watch()

    def _describe(self) -> dict[str, Any]:
        stat = process_stat(os.getpid())
        assert stat is not None
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return {"shim": os.getpid(), "shim_start": int(stat[19]), "boot": boot, "pid": 0}

    def _start(self, own: dict[str, Any]) -> None:
        spec = self.spec
        try:
            self._log = Log(spec["log"])
        except OSError as exc:
            raise StartError(f"failed to open log file: {exc}") from exc
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(CONTROL)
        os.chmod(CONTROL, 0o600)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._job = start_job(spec, argv=spec["argv"], tty=spec["tty"], stdin=spec["stdin"])
        # A shim ends with its container only: pass a request to end on to the container.
        signal.signal(signal.SIGTERM, lambda *_: send_signal(self._job.pid, signal.SIGTERM))
        stat = process_stat(self._job.pid)
        start = int(stat[19]) if stat else 0
        write_json(
            SHIM, {**own, "pid": self._job.pid, "pid_start": start, "started_at": time.time_ns()}
        )

    def _watch(self) -> None:
        left = True
        while self._status is None or (left and time.monotonic() < self._deadline):
            self._wait()
            ended, left = reap()
            if self._job.pid in ended:
                # As in a PID namespace, where all processes die with PID 1, pid_namespaces(7).
                self._status = ended[self._job.pid]
                self._deadline = time.monotonic() + _ENDING_LIMIT
            if self._status is not None and left:
                kill_descendants(self.spec["cgroup_kill"])
        for stream, content in self._job.drain():
            self._emit(stream, content)
        self._log.finish()
        self._record_exit(left)

    def _record_exit(self, left: bool) -> None:
        assert self._status is not None
        code = exit_code(self._status)
        reason = "Error" if code else "Completed"
        if code == 128 + signal.SIGKILL and _was_oom_killed(self.spec["oom_file"]):
            reason = "OOMKilled"
        message = "some of its processes could not be killed" if left else ""
        fill_json(self._room, EXIT, _ending(code, reason, message))
        os.unlink(CONTROL)
        for peer in self._peers:
            if peer.attached or peer.wants_exit:
                peer.finish(EXITED, json.dumps({"code": code}).encode())

    def _wait(self) -> None:
        """Wait for and handle the next output, input, connection, request or signal."""
        poll = select.poll()
        poll.register(self._wakeup.fd, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        self._job.register(poll)
        input_full = len(self._job.pending) > BLOCK
        for peer in self._peers:
            reads = 0 if peer.attached and input_full else select.POLLIN
            poll.register(peer, reads | (select.POLLOUT if peer.pending else 0))
        # Poll while descendants are killed: one that forked meanwhile needs another round.
        ready = {fd for fd, _ in poll.poll(None if self._status is None else 50)}
        self._wakeup.clear()
        self._job.flush()
        for fd in ready & self._job.outputs.keys():
            self._read(fd)
        for peer in self._peers:
            if peer.fileno() in ready:
                peer.flush()
                for kind, content in peer.frames():
                    self._handle(peer, kind, content)
        self._drop_gone()
        if self._listener.fileno() in ready:
            self._accept()

    def _read(self, fd: int) -> None:
        stream = self._job.outputs[fd]
        try:
            content = self._job.read(fd)
        except BlockingIOError:
            return
        if content:
            self._emit(stream, content)

    def _emit(self, stream: bytes, content: bytes) -> None:
        self._log.write(stream, content)
        for peer in self._peers:
            if peer.attached:
                peer.send(stream, content)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._peers.append(Peer(connection))

    def _drop_gone(self) -> None:
        for peer in [peer for peer in self._peers if peer.gone]:
            self._peers.remove(peer)
            peer.socket.close()
            # CRI's stdin_once: stdin ends with the first client that was attached.
            if peer.attached and self.spec["stdin_once"]:
                self._job.end_input()

    def _handle(self, peer: Peer, kind: bytes, content: bytes) -> None:
        try:
            if kind == REQUEST:
                request = json.loads(content)
                self._operations[request["op"]](peer, request)
            elif kind == STDIN:
                self._job.feed(content)
            elif kind == STDIN_END:
                if self.spec["stdin_once"]:
                    self._job.end_input()
            elif kind == RESIZE:
                self._job.resize(*json.loads(content))
        except (ValueError, KeyError, TypeError):
            peer.gone = True  # a malformed request

    def _do_signal(self, peer: Peer, request: dict[str, Any]) -> None:
        if self._status is None:
            send_signal(self._job.pid, request["signal"])
        peer.wants_exit = True
        peer.answer()

    def _do_kill(self, peer: Peer, _: dict[str, Any]) -> None:
        kill_descendants(self.spec["cgroup_kill"])
        peer.wants_exit = True
        peer.answer()

    def _do_reopen(self, peer: Peer, _: dict[str, Any]) -> None:
        try:
            self._log.reopen()
        except OSError as exc:
            peer.answer(error=str(exc))
        else:
            peer.answer()

    def _do_attach(self, peer: Peer, _: dict[str, Any]) -> None:
        peer.answer()
        peer.attached = True

    def _do_exec(self, peer: Peer, request: dict[str, Any]) -> None:
        """Fork a process that serves this connection until the command ends."""
        if self._status is None and os.fork() == 0:
            code = 1
            try:
                self._leave(peer)
                run_exec(peer, request, self.spec)
                code = 0
            finally:
                os._exit(code)
        peer.gone = True

    def _leave(self, kept: Peer) -> None:
        """In a forked process: close the shim's descriptors, except the connection `kept`."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._wakeup.close()
        self._listener.close()
        self._log.close()
        for fd in {*self._job.outputs, *(() if self._job.stdin is None else (self._job.stdin,))}:
            os.close(fd)
        for peer in self._peers:
            if peer is not kept:
                peer.socket.close()


def _ending(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "code": code,
        "reason": reason,
        "message": message,
        "finished_at": time.time_ns(),
    }


def _was_oom_killed(path: str) -> bool:
    """Return whether a cgroup's memory.events (v2) or memory.oom_control (v1) counts a kill."""
    try:
        with open(path) as file:
            return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in file)
    except OSError:
        return False


def run_exec(peer: Peer, request: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    """Run a command in the container for a client, and kill it if the client hangs up.

    Processes that the command leaves running when it ends by itself become part of the container.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # its orphans become our children, until we exit
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # die with the shim
    wakeup = Wakeup()
    peer.socket.setblocking(True)
    try:
        # As containerd: a command with a terminal knows its kind, whatever the container has.
        kind = {"TERM": "xterm"} if request["tty"] else {}
        own = {**spec, "env": {**kind, **spec["env"]}}
        job = start_job(own, argv=request["argv"], tty=request["tty"], stdin=request["stdin"])
    except (StartError, OSError) as exc:
        peer.finish(ANSWER, json.dumps({"error": str(exc)}).encode())
        return
    peer.answer(pid=job.pid)
    status = None
    while status is None and not peer.gone:
        _exec_step(peer, job, wakeup)
        status = reap()[0].get(job.pid)
    if status is None:
        kill_descendants()
        _reap_all()
        return
    for stream, content in job.drain():
        peer.send(stream, content)
    peer.finish(EXITED, json.dumps({"code": exit_code(status)}).encode())


def _exec_step(peer: Peer, job: Job, wakeup: Wakeup) -> None:
    poll = select.poll()
    poll.register(wakeup.fd, select.POLLIN)
    job.register(poll)
    # While the command does not read its input, we read no more of it from the client. POLLRDHUP
    # still shows a client that hangs up: its FIN would be hidden behind unread input.
    is_read = len(job.pending) <= BLOCK
    poll.register(peer, select.POLLIN if is_read else select.POLLRDHUP)
    ready = {fd for fd, _ in poll.poll()}
    wakeup.clear()
    if not is_read and peer.fileno() in ready:
        peer.gone = True
        return
    job.flush()
    for fd in ready & job.outputs.keys():
        stream = job.outputs[fd]
        with contextlib.suppress(BlockingIOError):
            if content := job.read(fd):
                peer.send(stream, content)
    if peer.fileno() in ready:
        for kind, content in peer.frames():
            if kind == STDIN:
                job.feed(content)
            elif kind == STDIN_END:
                job.end_input()
            elif kind == RESIZE:
                job.resize(*json.loads(content))


def _reap_all() -> None:
    deadline = time.monotonic() + _ENDING_LIMIT
    while reap()[1] and time.monotonic() < deadline:
        time.sleep(0.005)
        kill_descendants()
