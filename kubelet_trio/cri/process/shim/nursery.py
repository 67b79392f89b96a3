"""The nursery: a warm interpreter that forks a shim for every request from its stdin."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from .container import Shim
from .processes import PR_SET_CHILD_SUBREAPER, PR_SET_NAME, prctl
from .protocol import NAME

TYPE_CHECKING = False
if TYPE_CHECKING:  # the shim is one program and pays for every import
    from typing import NoReturn

_BLOCK = 1 << 16


def main() -> None:
    """Fork a shim for every request, which is a directory and a socket for the answer."""
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)  # stdin becomes /dev/null, as stdout is
    prctl(PR_SET_NAME, NAME)
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the shims, sigaction(2)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Without collections, and with all objects in the permanent generation, shims do not write to
    # the pages that they share with us.
    gc.disable()
    gc.freeze()
    while True:
        directory, fds, _, _ = socket.recv_fds(channel, _BLOCK, 1)
        if not directory:
            return
        for fd in fds:
            os.set_inheritable(fd, False)  # else the container's process inherits it
        if os.fork() == 0:
            _be_shim(channel, os.fsdecode(directory), fds[0])
        for fd in fds:
            os.close(fd)


def _be_shim(channel: socket.socket, directory: str, reply: int) -> NoReturn:
    code = 1
    try:
        channel.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        Shim(directory).run(reply)
        code = 0
    finally:  # in every case: the forked process must not return into the nursery's loop
        if code:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        os._exit(code)
