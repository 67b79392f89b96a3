"""Looking at processes from outside: which are there, whose children, doing what."""

from __future__ import annotations

import os
from pathlib import Path


def processes_at(directory: Path) -> list[str]:
    """Return the processes that name a directory in their command line or work below it."""
    found = []
    for pid in pids():
        line = command_line(pid)
        if str(directory) in line or _directory(pid).startswith(str(directory)):
            found.append(f"{pid}: {line}")
    return found


def sleepers(seconds: str) -> list[int]:
    """Return the processes that sleep for so long."""
    return [pid for pid in pids() if command_line(pid) == f"sleep {seconds}"]


def command_line(pid: int) -> str:
    """Return a process' words; "" for one that is dead, reaped or not."""
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return content.decode(errors="replace").strip("\0").replace("\0", " ")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _directory(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
