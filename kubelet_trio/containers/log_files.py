"""Log files and the links to them, on disk. Everything blocks: callers use a thread."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers.directories import make_directories
from kubelet_trio.model import pod_key

_ATTEMPT = re.compile(r"(\d+)\.log(\..*)?")
_LOG = ".log"


def next_restart_count(directory: Path) -> int:
    """Return the restart count for a container of which the runtime knows no instance.

    It is one more than the highest attempt that has left a log (rotated ones count), so
    that a restart count survives a runtime that lost its state; 0 without any.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return 0
    attempts = [int(match[1]) for name in names if (match := _ATTEMPT.match(name))]
    return max(attempts, default=-1) + 1


def newest_log(directory: Path) -> Path | None:
    """Return the log of a container's latest attempt, None if there is none."""
    attempt = next_restart_count(directory) - 1
    return directory / f"{attempt}{_LOG}" if attempt >= 0 else None


def make_log_directory(directory: Path) -> None:
    """Make a container's log directory; the runtime makes the files in it."""
    make_directories(directory, 0o755)


def link_log(link: Path, log: Path) -> None:
    """Link to a log, if the runtime has written it; a link of the same name gives way."""
    if not log.exists():
        return
    make_directories(link.parent, 0o755)
    try:
        link.symlink_to(log)
    except FileExistsError:
        if os.readlink(link) != str(log):
            link.unlink()
            link.symlink_to(log)


def unlink_logs(container_logs_dir: Path, pod: Pod, log_directory: Path) -> None:
    """Remove the links into a pod's log directory.

    The name says which links may be a pod's, the target which are: another pod's name may
    begin like this one's.
    """
    key = pod_key(pod)
    for link in _links(container_logs_dir, f"{key.name}_{key.namespace}_"):
        if log_directory in Path(os.readlink(link)).parents:
            link.unlink(missing_ok=True)


def remove_dangling_links(container_logs_dir: Path) -> int:
    """Remove links whose log is gone; return how many."""
    dangling = [link for link in _links(container_logs_dir) if not link.exists()]
    for link in dangling:
        link.unlink(missing_ok=True)
    return len(dangling)


def remove_pod_logs(log_directory: Path) -> None:
    """Remove a pod's log directory with all its containers' logs."""
    try:
        shutil.rmtree(log_directory)
    except FileNotFoundError:
        return


def _links(directory: Path, prefix: str = "") -> list[Path]:
    """Return the links to logs; by name first, for there are as many as containers."""
    try:
        with os.scandir(directory) as entries:
            named = (e for e in entries if e.name.startswith(prefix) and e.name.endswith(_LOG))
            return [Path(e.path) for e in named if e.is_symlink()]
    except FileNotFoundError:
        return []
