"""Replace a volume's files atomically, in the layout of the Go kubelet's atomic writer.

    <volume>/..2026_01_31_12_00_00.123456789/app/config    the content
    <volume>/..data -> ..2026_01_31_12_00_00.123456789     replaced by rename: the switch
    <volume>/app -> ..data/app                             what users open

A reader that follows `..data` once sees one version, and a watcher sees the rename. Unchanged
content is not written. An interrupted write is invisible to readers, and the next one removes it.

The volume's directory is not trusted: containers of an earlier agent, or on the process runtime,
can write to it (CVE-2017-1002102). So every step goes by descriptors, from the volume's own
downwards, follows no link and opens regular files only.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from kubelet_trio.model import get_logger, open_directory, read_regular, remove_entry

log = get_logger()

DATA = "..data"
_NEW_DATA = "..data_tmp"
# Linux' NAME_MAX and PATH_MAX, as in atomic_writer.go of pkg/volume/util.
_MAX_NAME = 255
_MAX_PATH = 4096
_MOST_CLEARED = 10_000  # entries examined in one write: a container can add any number


@dataclass(frozen=True, slots=True)
class File:
    """One file's content and mode, and its owner if that is not root."""

    content: bytes
    mode: int
    uid: int | None = None


Payload = Mapping[str, File]  # by path within the volume
_Tree: TypeAlias = "dict[str, _Tree | File]"


def write_payload(
    directory: Path, payload: Payload, now: float, own: Callable[[int], None] = lambda _: None
) -> bool:
    """Replace the visible files of a directory by `payload`; return whether anything changed.

    Args:
        directory: the volume's.
        payload: the new files.
        now: Unix seconds, for the name of the content's directory.
        own: called with the descriptor of the content's directory before the switch, to set
            the files' group.

    Raises:
        ValueError: a path leads out of the directory, is too long, or is both file and directory.
        OSError: a step failed; the old content stays visible.
    """
    files = {_clean(path): file for path, file in payload.items()}
    tree = _tree(files)
    volume = open_directory(directory)
    try:
        current = _current(volume)
        if current is not None and _same(volume, current, files, tree):
            _link(volume, tree)  # a container may have removed a link
            return False
        fresh = _write_fresh(volume, files, now, own)
        # After the switch: before it, the link of a new name would dangle.
        _link(volume, tree)
        _clear(volume, {*tree, DATA, fresh})
        return True
    finally:
        os.close(volume)


def check_path(path: str) -> str | None:
    """Return what is wrong with a payload's path, None if it is valid."""
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


def _tree(files: Payload) -> _Tree:
    """Return the files as nested directories."""
    tree: _Tree = {}
    for path, file in files.items():
        *parents, name = path.split("/")
        here = tree
        for part in parents:
            below = here.setdefault(part, {})
            if isinstance(below, File):
                raise ValueError(f"invalid path: {path} lies below a file")
            here = below
        if name in here:
            raise ValueError(f"invalid path: {path} is a directory as well")
        here[name] = file
    return tree


def _current(volume: int) -> str | None:
    """Return the name of the current content's directory, None if no agent has written one."""
    try:
        name = os.readlink(DATA, dir_fd=volume)
    except OSError:  # missing, or no link
        return None
    # Any other target was not written by an agent, and could lead out of the volume.
    is_ours = name.startswith("..") and "/" not in name and name not in ("..", DATA, _NEW_DATA)
    return name if is_ours else None


def _same(volume: int, current: str, files: Payload, tree: _Tree) -> bool:
    """Whether a content directory holds exactly these files."""
    seen: set[int] = set()  # directories already compared, by `id` of their part of the tree
    try:
        return _is_listed(volume, current, tree) and all(
            _is_file(volume, [current, *path.split("/")], file, tree, seen)
            for path, file in files.items()
        )
    except OSError:  # a link, a FIFO, missing or too large: a container changed it
        return False


def _is_file(volume: int, parts: list[str], file: File, tree: _Tree, seen: set[int]) -> bool:
    descriptor = os.dup(volume)
    try:
        node = tree
        for depth, part in enumerate(parts[:-1]):
            below = open_directory(part, directory=descriptor)
            os.close(descriptor)
            descriptor = below
            if depth == 0:
                continue
            found = node[part]
            assert isinstance(found, dict)
            node = found
            if id(node) not in seen:
                seen.add(id(node))
                if not _has_names(descriptor, node):
                    return False
        return read_regular(parts[-1], len(file.content), directory=descriptor) == file.content
    finally:
        os.close(descriptor)


def _is_listed(parent: int, name: str, tree: _Tree) -> bool:
    descriptor = open_directory(name, directory=parent)
    try:
        return _has_names(descriptor, tree)
    finally:
        os.close(descriptor)


def _has_names(directory: int, tree: _Tree) -> bool:
    """Whether a directory has exactly these entries; stops at the first other one."""
    missing = set(tree)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name not in missing:
                return False
            missing.remove(entry.name)
    return not missing


def _write_fresh(volume: int, files: Payload, now: float, own: Callable[[int], None]) -> str:
    """Write a new content directory and switch to it; return its name."""
    name = _make_directory(volume, now)
    try:
        fresh = open_directory(name, directory=volume)
        try:
            os.fchmod(fresh, 0o755)  # mkdir(2) applied the umask
            for path, file in files.items():
                _write(fresh, path, file)
            # Before the switch: users of the group must be able to read the first version they see.
            own(fresh)
        finally:
            os.close(fresh)
        _switch(volume, name)
    except OSError:
        with suppress(OSError):  # the next write removes it
            remove_entry(name, volume)
        raise
    return name


def _make_directory(volume: int, now: float) -> str:
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    stamp = moment.strftime("..%Y_%m_%d_%H_%M_%S")
    # The Go kubelet's format: the time in UTC, and random digits (os.MkdirTemp).
    while True:
        name = f"{stamp}.{random.randrange(10**10)}"
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=volume)
            return name


def _write(fresh: int, path: str, file: File) -> None:
    *parents, name = path.split("/")
    directory = os.dup(fresh)
    try:
        for part in parents:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=directory)
            below = open_directory(part, directory=directory)
            os.close(directory)
            directory = below
        # O_EXCL: the directory is new, so an existing file was planted by a container.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as opened:
            opened.write(file.content)
            # Still 0600: a process that opens it under a wider mode would keep that access.
            if file.uid is not None:
                os.fchown(opened.fileno(), file.uid, -1)
            os.fchmod(opened.fileno(), file.mode)
    finally:
        os.close(directory)


def _switch(volume: int, name: str) -> None:
    _remove_if_exists(volume, _NEW_DATA)
    # A new link and a rename(2), because a link cannot be changed in place.
    os.symlink(name, _NEW_DATA, dir_fd=volume)
    if not _is_link(volume, DATA):
        _remove_if_exists(volume, DATA)  # rename(2) does not replace a directory by a link
    os.rename(_NEW_DATA, DATA, src_dir_fd=volume, dst_dir_fd=volume)


def _link(volume: int, tree: _Tree) -> None:
    for name in tree:
        target = f"{DATA}/{name}"
        if _is_link(volume, name, target):
            continue
        _remove_if_exists(volume, name)
        os.symlink(target, name, dir_fd=volume)


def _is_link(volume: int, name: str, target: str | None = None) -> bool:
    try:
        found = os.readlink(name, dir_fd=volume)
    except OSError:
        return False
    return target is None or found == target


def _remove_if_exists(volume: int, name: str) -> None:
    """Remove an entry of any type, with its content. Raises OSError."""
    with suppress(FileNotFoundError):
        remove_entry(name, volume)


def _clear(volume: int, keep: set[str]) -> None:
    """Remove the links and content directories of earlier versions."""
    with os.scandir(volume) as entries:
        names = [
            entry.name
            for entry in islice(entries, _MOST_CLEARED)
            if entry.name not in keep
            and (
                entry.is_symlink()
                or (entry.name.startswith("..") and entry.is_dir(follow_symlinks=False))
            )
        ]
    for name in names:
        try:
            _remove_if_exists(volume, name)
        except OSError as exc:  # the visible content is right; the next write tries again
            log.warning("volume.old_content_left", name=name, error=str(exc))
