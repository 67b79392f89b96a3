"""Log directories, log files, and the links to them. All functions block.

Pods that collect logs may write to these directories. So from a pod's log directory on, no link
is followed (containerd and CRI-O create none), and files are accessed relative to the descriptor
of their opened directory, not by path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from lightkube.models.core_v1 import Pod

from kubelet_trio.containers.paths import make_directories
from kubelet_trio.model import make_directory, open_directory, pod_key, remove_tree, stat_own

_ATTEMPT = re.compile(r"(\d+)\.log(\..*)?")
_LOG = ".log"

# How many components of a path below the pods' log directory a pod may have created: the pod's
# directory and the container's, and the log file.
OWN_DIRECTORY, OWN_LOG = 2, 3
_MOST_ATTEMPTS = 2**31 - 1  # restartCount is an int32


@contextmanager
def open_log_directory(directory: Path) -> Iterator[int | None]:
    """Open a container's log directory; yield its descriptor, None if it is missing.

    Raises OSError.
    """
    try:
        opened = open_directory(directory, own=OWN_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield opened
    finally:
        os.close(opened)


def next_restart_count(directory: Path) -> int:
    """Return the restart count for a container of which the runtime has no instance.

    It is the highest attempt with a log (rotated ones included) plus one, so the restart count
    survives a runtime that lost its state; 0 without any log. Raises OSError.
    """
    with open_log_directory(directory) as opened:
        names = os.listdir(opened) if opened is not None else []
    attempts = [int(match[1]) for name in names if (match := _ATTEMPT.match(name))]
    return max((a for a in attempts if a < _MOST_ATTEMPTS), default=-1) + 1


def newest_log(directory: Path) -> Path | None:
    """Return the log of a container's latest attempt; None if there is none. Raises OSError."""
    attempt = next_restart_count(directory) - 1
    return directory / f"{attempt}{_LOG}" if attempt >= 0 else None


def make_log_directory(directory: Path, *, own: int = OWN_DIRECTORY) -> None:
    """Create a container's log directory; the runtime creates the files in it. Raises OSError.

    Args:
        directory: the container's log directory.
        own: how many components of the path are below the pods' log directory.
    """
    make_directories(directory.parents[own - 1], 0o755)
    os.close(make_directory(directory, 0o755, own=own))


def link_log(link: Path, log: Path) -> None:
    """Link to a log if it exists; replace a link of the same name. Raises OSError."""
    if not _is_there(log):
        return
    make_directories(link.parent, 0o755)
    try:
        link.symlink_to(log)
    except FileExistsError:
        # An earlier attempt may have used the same name, which is cut to 255 bytes.
        if _target(link) != log:
            link.unlink()
            link.symlink_to(log)


def unlink_logs(container_logs_dir: Path, pod: Pod, log_directory: Path) -> None:
    """Remove the links into a pod's log directory. Raises OSError."""
    key = pod_key(pod)
    for link in _links(container_logs_dir, f"{key.name}_{key.namespace}_"):
        # By the target too: the name of another pod may begin with this prefix.
        target = _target(link)
        if target is not None and log_directory in target.parents:
            link.unlink(missing_ok=True)


def remove_links(container_logs_dir: Path, running: Collection[str] = ()) -> int:
    """Remove links whose log is gone; return how many. Raises OSError.

    Links to logs in `running` stay: a log that is being rotated is missing for a moment.
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
    """Return the target of a link; None if the link is gone."""
    try:
        return Path(os.readlink(link))
    except OSError:
        return None


def _links(directory: Path, prefix: str = "") -> list[Path]:
    """Return the links to logs whose names begin with `prefix`."""
    try:
        with os.scandir(directory) as entries:
            # By name first: `is_symlink` may need a system call for each entry.
            named = (e for e in entries if e.name.startswith(prefix) and e.name.endswith(_LOG))
            return [Path(e.path) for e in named if e.is_symlink()]
    except FileNotFoundError:
        return []
