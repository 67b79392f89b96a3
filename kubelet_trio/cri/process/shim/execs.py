"""Commands run in a container beside its main process, each in a process of the shim's."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import time

from .job import BLOCK, Job, StartError, start_job
from .peer import Peer, Wakeup
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    exit_code,
    kill_descendants,
    prctl,
    reap,
)
from .protocol import ANSWER, EXITED, RESIZE, STDIN, STDIN_END

TYPE_CHECKING = False
if TYPE_CHECKING:  # the shim is one program and pays for every import
    from collections.abc import Mapping
    from typing import Any

_ENDING_LIMIT = 10.0  # s


def run_exec(peer: Peer, request: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    """Run one more command in the container for a client, and kill it if the client goes.

    What the command leaves behind when it ends by itself is the container's from then on.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    wakeup = Wakeup()
    peer.socket.setblocking(True)
    try:
        job = start_job(spec, argv=request["argv"], tty=request["tty"], stdin=request["stdin"])
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
    # A client whose input nobody takes is not read, but that it has gone must be seen.
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
