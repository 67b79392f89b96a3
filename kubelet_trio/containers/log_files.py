"""Log files and the links to them, on disk. Everything blocks: callers use a thread.

A pod that collects logs may write to all of it. So from the pod's log directory downwards no link
is followed (containerd and CRI-O make none), and nothing is changed by a path: a directory is
opened first, and what is in it goes by its descriptor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers.directories import make_directories
from kubelet_trio.model import make_directory, open_directory, pod_key, remove_tree, stat_own

_ATTEMPT = re.compile(r"(\d+)\.log(\..*)?")
_LOG = ".log"

# Of a path below the pods' log directory, how many components a pod that collects logs may have
# made: a pod's directory, a container's in it, a log in that.
OWN_DIRECTORY, OWN_LOG = 2, 3
_MOST_ATTEMPTS = 2**31 - 1  # a status has no more room for a restart count


def next_restart_count(directory: Path) -> int:
    """Return the restart count for a container of which the runtime knows no instance.

    It is one more than the highest attempt that has left a log (rotated ones count), so
    that a restart count survives a runtime that lost its state; 0 without any. Raises OSError.
    """
    try:
        opened = open_directory(directory, own=OWN_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        names = os.listdir(opened)
    finally:
        os.close(opened)
    attempts = [int(match[1]) for name in names if (match := _ATTEMPT.match(name))]
    return max((a for a in attempts if a < _MOST_ATTEMPTS), default=-1) + 1


def newest_log(directory: Path) -> Path | None:
    """Return the log of a container's latest attempt, None if there is none."""
    attempt = next_restart_count(directory) - 1
    return directory / f"{attempt}{_LOG}" if attempt >= 0 else None


def make_log_directory(directory: Path, *, own: int = OWN_DIRECTORY) -> None:
    """Make a container's log directory; the runtime makes the files in it.

    Args:
        own: how many components of the path lie below the pods' log directory.
    """
    make_directories(directory.parents[own - 1], 0o755)
    os.close(make_directory(directory, 0o755, own=own))


def link_log(link: Path, log: Path) -> None:
    """Link to a log, if the runtime has written it; a link of the same name gives way."""
    if not _is_there(log):
        return
    make_directories(link.parent, 0o755)
    try:
        link.symlink_to(log)
    except FileExistsError:
        if _target(link) != log:
            link.unlink()
            link.symlink_to(log)


def unlink_logs(container_logs_dir: Path, pod: Pod, log_directory: Path) -> None:
    """Remove the links into a pod's log directory.

    The name says which links may be a pod's, the target which are: another pod's name may
    begin like this one's.
    """
    key = pod_key(pod)
    for link in _links(container_logs_dir, f"{key.name}_{key.namespace}_"):
        target = _target(link)
        if target is not None and log_directory in target.parents:
            link.unlink(missing_ok=True)


def remove_links(container_logs_dir: Path, running: Collection[str] = ()) -> int:
    """Remove links whose log is gone, unless a running container is to write it again.

    A log that is being rotated is gone for a moment. Returns how many are gone.
    """
    removed = 0
    for link in _links(container_logs_dir):
        target = _target(link)
        if target is not None and not _is_there(target) and str(target) not in running:
            link.unlink(missing_ok=True)
            removed += 1
    return removed


def remove_pod_logs(log_directory: Path) -> None:
    """Remove a pod's log directory with all its containers' logs. Raises OSError."""
    remove_tree(log_directory)


def _is_there(log: Path) -> bool:
    try:
        stat_own(log, own=OWN_LOG)
    except OSError:
        return False
    return True


def _target(link: Path) -> Path | None:
    """Return what a link says; None where there is none any more."""
    try:
        return Path(os.readlink(link))
    except OSError:
        return None


def _links(directory: Path, prefix: str = "") -> list[Path]:
    """Return the links to logs; by name first, for there are as many as containers."""
    try:
        with os.scandir(directory) as entries:
            named = (e for e in entries if e.name.startswith(prefix) and e.name.endswith(_LOG))
            return [Path(e.path) for e in named if e.is_symlink()]
    except FileNotFoundError:
        return []
