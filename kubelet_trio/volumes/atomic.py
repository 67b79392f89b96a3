"""Files that change all at once, in the layout of the Go kubelet's atomic writer.

    <volume>/..2026_01_31_12_00_00.123456789/app/config    the content
    <volume>/..data -> ..2026_01_31_12_00_00.123456789     renamed into place: the switch
    <volume>/app -> ..data/app                             what users open

A reader that follows `..data` once sees one version; a watcher is told by the rename. What
did not change is not written. A write that was cut short leaves nothing that a reader could
see, and the next one clears it away.
"""

from __future__ import annotations

import datetime
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_DATA = "..data"
_NEW_DATA = "..data_tmp"
_MAX_NAME = 255
_MAX_PATH = 4096


@dataclass(frozen=True, slots=True)
class File:
    """One file's content and mode, and its owner where that is not root."""

    content: bytes
    mode: int
    uid: int | None = None


Payload = Mapping[str, File]  # by path within the volume


def write_payload(
    directory: Path, payload: Payload, now: float, own: Callable[[], None] = lambda: None
) -> bool:
    """Make `payload` what is visible in a directory; return whether anything changed.

    Args:
        now: Unix seconds, for the name of the content's directory.
        own: called when the content is there and not yet visible: to set its owner.

    Raises:
        ValueError: a path leads out of the directory, or is too long.
        OSError: and the old content stays visible.
    """
    files = {_clean(path): file for path, file in payload.items()}
    current = _current(directory)
    if current is not None and _same(directory / current, files):
        _link(directory, files)
        return False
    fresh = _make_directory(directory, now)
    try:
        for path, file in files.items():
            _write(fresh / path, file)
        own()
        new_link = directory / _NEW_DATA
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(fresh.name)
        new_link.rename(directory / _DATA)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    _link(directory, files)
    _clear(directory, {path.partition("/")[0] for path in files}, fresh.name)
    return True


def check_path(path: str) -> str | None:
    """Return what is wrong with a path of a payload, None if nothing."""
    if not path:
        return "invalid path: must not be empty"
    if path.startswith("/"):
        return f"invalid path: must be relative path: {path}"
    if len(path) > _MAX_PATH:
        return f"invalid path: must be less than or equal to {_MAX_PATH} characters"
    parts = path.split("/")
    if ".." in parts:
        return f"invalid path: must not contain '..': {path}"
    if any(len(os.fsencode(part)) > _MAX_NAME for part in parts):
        return f"invalid path: filenames must be less than or equal to {_MAX_NAME} characters"
    if parts[0].startswith(".."):
        return f"invalid path: must not start with '..': {path}"
    return None


def _clean(path: str) -> str:
    problem = check_path(path)
    if problem is not None:
        raise ValueError(problem)
    return os.path.normpath(path)


def _current(directory: Path) -> str | None:
    try:
        return os.readlink(directory / _DATA)
    except FileNotFoundError:
        return None


def _same(current: Path, files: Payload) -> bool:
    """Whether a content directory has these files and no others."""
    if set(_paths(current)) != set(files):
        return False
    return all((current / path).read_bytes() == file.content for path, file in files.items())


def _paths(current: Path) -> Iterator[str]:
    for parent, _, names in os.walk(current):
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), current)


def _make_directory(directory: Path, now: float) -> Path:
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    stamp = moment.strftime("..%Y_%m_%d_%H_%M_%S")
    while True:
        fresh = directory / f"{stamp}.{random.randrange(10**10)}"
        try:
            fresh.mkdir()
        except FileExistsError:
            continue
        fresh.chmod(0o755)  # whatever the umask
        return fresh


def _write(path: Path, file: File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(file.content)
        if file.uid is not None:
            os.fchown(descriptor, file.uid, -1)
        os.fchmod(descriptor, file.mode)


def _link(directory: Path, files: Payload) -> None:
    for name in {path.partition("/")[0] for path in files}:
        link = directory / name
        if not os.path.lexists(link):
            link.symlink_to(os.path.join(_DATA, name))


def _clear(directory: Path, names: set[str], current: str) -> None:
    """Remove the links and content directories of versions before this one."""
    for entry in directory.iterdir():
        if entry.name in (_DATA, current) or entry.name in names:
            continue
        if entry.is_symlink():
            entry.unlink()
        elif entry.name.startswith("..") and entry.is_dir():
            shutil.rmtree(entry)
