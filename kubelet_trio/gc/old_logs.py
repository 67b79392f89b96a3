"""Log files that nobody needs any more, on disk. Everything blocks: callers use a thread."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from kubelet_trio.containers import OWN_DIRECTORY, remove_pod_logs
from kubelet_trio.model import PodUid, open_directory

_LOG = re.compile(r"(\d+)\.log(\..*)?")


def pod_log_directories(pod_logs_dir: Path) -> dict[PodUid, list[Path]]:
    """Return the directories named `<namespace>_<name>_<uid>`, by UID."""
    found: dict[PodUid, list[Path]] = {}
    try:
        with os.scandir(pod_logs_dir) as entries:
            directories = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return found
    for name in directories:
        namespace, _, rest = name.partition("_")
        pod, _, uid = rest.partition("_")
        if namespace and pod and uid and "_" not in uid:
            found.setdefault(PodUid(uid), []).append(pod_logs_dir / name)
    return found


def remove_log_directories(directories: Iterable[Path]) -> None:
    """Remove pods' log directories with all that is in them. Raises OSError."""
    for directory in directories:
        remove_pod_logs(directory)


def remove_old_logs(directory: Path, kept: Collection[int]) -> int:
    """Remove the logs of a container's attempts, but for `kept` and the highest one.

    The highest tells the next restart count if the runtime has lost its records. Returns how
    many files are gone. Raises OSError.
    """
    try:
        opened = open_directory(directory, own=OWN_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        names = os.listdir(opened)
        attempts = {name: int(match[1]) for name in names if (match := _LOG.fullmatch(name))}
        spared = {*kept, max(attempts.values(), default=0)}
        old = [name for name, attempt in attempts.items() if attempt not in spared]
        for name in old:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=opened)
    finally:
        os.close(opened)
    return len(old)
