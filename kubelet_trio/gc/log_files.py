"""The log files on disk: plan a rotation, rename, compress, remove. All but the plan blocks.

The names are the Go kubelet's, so that either agent continues the work of the other, and log
collectors know them (pkg/kubelet/logs/container_log_manager.go):

    0.log                       what the container writes now
    0.log.20240501-101112       the latest rotation; not compressed, so that readers can finish
    0.log.20240501-090000.gz    an earlier rotation, compressed
    0.log.20240501-090000.tmp   a compression in progress, or an interrupted one

After each step the names alone show the next round what to do, so the agent can die at any time.
Pods that collect logs can write to these directories: each step follows no link, opens the log's
directory once, and works only in it.
"""

from __future__ import annotations

import datetime
import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.containers import (
    OWN_DIRECTORY,
    OWN_LOG,
    open_log_directory,
    remove_pod_logs,
)
from kubelet_trio.model import PodUid, next_data, open_directory, open_regular, stat_own

_STAMP = "%Y%m%d-%H%M%S"
COMPRESSED = ".gz"
TEMPORARY = ".tmp"
_LATEST_AND_NEW = 2  # of `max_files`: the file that is about to be rotated, and its successor
_LOG = re.compile(r"(\d+)\.log(\..*)?")
_COPY = 1 << 20  # bytes at a time
_LEVEL = 6  # gzip's own default, and the Go kubelet's


@dataclass(frozen=True, slots=True)
class RotationPlan:
    """What to do with a log's rotated files before the next rotation, in order."""

    remove: tuple[str, ...] = ()
    compress: tuple[str, ...] = ()


def plan_rotation(log: str, names: Iterable[str], max_files: int) -> RotationPlan:
    """Return what to do with the rotated files of `log`, by the names in its directory. Pure.

    The plan removes leftovers of a crash (temporary files, and originals with a compressed copy)
    and the oldest files. `max_files` counts the live log and its next rotation too.
    """
    rotated = {name for name in names if name.startswith(f"{log}.")}
    unused = sorted(name for name in rotated if not _is_in_use(name, rotated))
    used = sorted(rotated.difference(unused))
    surplus = max(len(used) - max(max_files - _LATEST_AND_NEW, 0), 0)
    return RotationPlan(
        (*unused, *used[:surplus]),
        tuple(name for name in used[surplus:] if not name.endswith(COMPRESSED)),
    )


def _is_in_use(name: str, rotated: Collection[str]) -> bool:
    if name.endswith(TEMPORARY):
        return False
    # A compressed copy was renamed into place, so it is complete and its original a leftover.
    return name.endswith(COMPRESSED) or name + COMPRESSED not in rotated


def rotated_name(log: str, names: Iterable[str], now: datetime.datetime) -> str:
    """Return the new name for a log that is rotated at `now` (local time). Pure."""
    # It must sort after all others, because the order is the age: also for two rotations within a
    # second, and in the hour that repeats when summer time ends.
    latest = max(filter(None, (_stamp(log, name) for name in names)), default=None)
    moment = now.replace(microsecond=0, tzinfo=None)
    if latest is not None and moment <= latest:
        with suppress(OverflowError):  # a file named by hand after the end of the year 9999
            moment = latest + datetime.timedelta(seconds=1)
    return f"{log}.{moment.strftime(_STAMP)}"


def _stamp(log: str, name: str) -> datetime.datetime | None:
    if not name.startswith(f"{log}."):
        return None
    text = name.removeprefix(f"{log}.").removesuffix(TEMPORARY).removesuffix(COMPRESSED)
    try:
        return datetime.datetime.strptime(text, _STAMP)
    except ValueError:
        return None


def log_sizes(paths: Iterable[str]) -> Mapping[str, int | OSError | None]:
    """Return the size of each file; None if it does not exist, or the error."""
    sizes: dict[str, int | OSError | None] = {}
    for path in paths:
        try:
            found = stat_own(path, own=OWN_LOG)
            if stat.S_ISLNK(found.st_mode):
                sizes[path] = 0  # cri-dockerd links to Docker's log, which Docker rotates
                continue
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "expected a log, which is a file", path)
            sizes[path] = found.st_size
        except FileNotFoundError:
            sizes[path] = None
        except OSError as exc:
            sizes[path] = exc
    return sizes


def make_room(log: Path, max_files: int) -> list[OSError]:
    """Remove surplus rotated files, and compress the others.

    Returns the errors of single files, which do not prevent the rotation. Raises OSError if the
    directory cannot be listed.
    """
    failed: list[OSError] = []
    with _directory(log) as directory:
        plan = plan_rotation(log.name, os.listdir(directory), max_files)
        for name in plan.remove:
            try:
                _remove(name, directory)
            except OSError as exc:
                failed.append(exc)
        for name in plan.compress:
            try:
                _compress(name, directory)
            except OSError as exc:
                failed.append(exc)
    return failed


def compress(log: Path) -> None:
    """Replace a log by its compressed copy, atomically. Raises OSError."""
    with _directory(log) as directory:
        _compress(log.name, directory)


def _compress(name: str, directory: int) -> None:
    import gzip  # deferred: only a node that rotates logs needs it

    temporary = name + TEMPORARY
    with (
        open(open_regular(name, directory=directory), "rb") as source,
        open(_create(temporary, directory), "wb") as target,
    ):
        try:
            # 0600 until here; then the readers of the log can read the copy, whatever the umask.
            os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o7777)
            with gzip.GzipFile(name, "wb", _LEVEL, target) as packed:
                for part in _data(source.fileno()):
                    packed.write(part)
            target.flush()
            # The original is removed next, so its content must be on disk.
            os.fsync(target.fileno())
            _rename(temporary, name + COMPRESSED, directory)
        finally:
            with suppress(OSError):
                _remove(temporary, directory)
    os.unlink(name, dir_fd=directory)


def set_aside(log: Path, now: datetime.datetime) -> Path:
    """Rename the live log; return its new path. The container still writes to it. OSError."""
    with _directory(log) as directory:
        rotated = rotated_name(log.name, os.listdir(directory), now)
        _rename(log.name, rotated, directory)
    return log.with_name(rotated)


def put_back(rotated: Path, log: Path) -> None:
    """Undo `set_aside`, unless the runtime has created the new log. Raises OSError."""
    # link(2), unlike rename(2), does not replace a new log.
    with _directory(log) as directory, suppress(FileExistsError):
        os.link(
            rotated.name,
            log.name,
            src_dir_fd=directory,
            dst_dir_fd=directory,
            follow_symlinks=False,
        )
        os.unlink(rotated.name, dir_fd=directory)


def _data(source: int) -> Iterator[bytes]:
    """Yield a file's content without its holes."""
    # A container can make a sparse file of a terabyte, whose zeros would take hours.
    while part := os.read(source, _COPY):
        yield part
        if not any(part):
            here = os.lseek(source, 0, os.SEEK_CUR)
            os.lseek(source, next_data(source, here), os.SEEK_SET)


@contextmanager
def _directory(log: Path) -> Iterator[int]:
    descriptor = open_directory(log.parent, own=OWN_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _create(name: str, directory: int) -> int:
    """Create a new file; fail if the name exists, also as a link to a file of the host."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=directory)


def _remove(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _rename(name: str, new: str, directory: int) -> None:
    os.rename(name, new, src_dir_fd=directory, dst_dir_fd=directory)


def pod_log_directories(pod_logs_dir: Path) -> dict[PodUid, list[Path]]:
    """Return the directories named `<namespace>_<name>_<uid>`, by UID. Raises OSError."""
    found: dict[PodUid, list[Path]] = {}
    try:
        with os.scandir(pod_logs_dir) as entries:
            directories = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return found
    for name in directories:
        namespace, _, rest = name.partition("_")
        pod, _, uid = rest.partition("_")
        # Namespaces, names and UIDs have no underscore: with more of them it is not a pod's.
        if namespace and pod and uid and "_" not in uid:
            found.setdefault(PodUid(uid), []).append(pod_logs_dir / name)
    return found


def remove_log_directories(directories: Iterable[Path]) -> None:
    """Remove pods' log directories with their content. Raises OSError."""
    for directory in directories:
        remove_pod_logs(directory)


def remove_old_logs(directory: Path, kept: Collection[int]) -> int:
    """Remove the logs of a container's old attempts; return the number of files.

    Keeps the attempts in `kept`, and the highest: the restart count is derived from it if the
    runtime has lost its records. Raises OSError.
    """
    with open_log_directory(directory) as opened:
        if opened is None:
            return 0
        names = os.listdir(opened)
        attempts = {name: int(match[1]) for name in names if (match := _LOG.fullmatch(name))}
        spared = {*kept, max(attempts.values(), default=0)}
        old = [name for name, attempt in attempts.items() if attempt not in spared]
        for name in old:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=opened)
    return len(old)
