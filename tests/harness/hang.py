"""Let a child process hang, as a faulty server does: it is connected to, and answers nothing."""

from __future__ import annotations

import os
import signal
import time

_STOPPED = 30.0  # seconds that a stop may take


def hang(pid: int) -> None:
    """Stop a child of this process, and return once none of its threads runs.

    The kernel's kill() returns before: on a busy machine a thread runs on for milliseconds,
    in which a server still answers a request sent after it.
    """
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + _STOPPED
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is None:
        assert time.monotonic() < until, f"process {pid} did not stop within {_STOPPED:g} s"
        time.sleep(0.001)


def resume(pid: int) -> None:
    """End the hang."""
    os.kill(pid, signal.SIGCONT)
