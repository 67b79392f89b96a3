"""fsGroup: give a volume's files to a group, and report walks that take long as events.

As in the Go kubelet (pkg/volume/volume_linux.go), the walk changes the group of every file and
adds read and write for the group (only read in a read-only volume); directories also get the
search bit and set-group-ID, so that new files inherit the group. It takes no permission away.
What a file system refuses of that, such as an NFS export with `root_squash`, is logged, once for
each walk, and the pod gets the volume as it is.

The walk goes by descriptors and follows no link, so that a container cannot swap a directory for a
link under it. However deeply directories are nested, it holds two descriptors, and a name for
each level.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.model import EventSink, get_logger, open_directory, pod_object_ref
from kubelet_trio.volumes.errors import VolumeError

log = get_logger()

# rwMask, roMask and execMask of pkg/volume/volume_linux.go.
_READ_WRITE = 0o660
_READ_ONLY = 0o440
_SEARCH = 0o110
_OPEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

# Reason, texts and times of the events are the Go kubelet's (pkg/volume/volume_linux.go).
_FIRST = 30.0  # seconds until the first event
_PERIOD = 60.0  # seconds between later events
_LOOK = 1.0

_REASON = "VolumePermissionChangeInProgress"
_ADVICE = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)


@dataclass(eq=False, slots=True)
class Walk:
    """A walk in progress; its thread counts the files."""

    root: Path
    files: int = 0

    def step(self) -> None:
        self.files += 1


@dataclass(slots=True)
class Walks:
    """The walks in progress."""

    # No lock: appending and removing are atomic, and `below` may miss a walk for one look.
    _under_way: list[Walk] = field(default_factory=list)

    @contextmanager
    def walk(self, root: Path) -> Iterator[Walk]:
        """Register a walk while the block runs, in the walk's thread."""
        walk = Walk(root)
        self._under_way.append(walk)
        try:
            yield walk
        finally:
            self._under_way.remove(walk)

    def below(self, directory: Path) -> list[Walk]:
        """Return the walks below a directory."""
        return [walk for walk in self._under_way if directory in walk.root.parents]


@dataclass(slots=True)
class _Unchanged:
    """What a file system refuses during a walk."""

    changes: int = 0
    first: str = ""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the failure of the block. Raises OSError: the group does not exist."""
        try:
            yield
        except OSError as exc:
            if exc.errno == errno.EINVAL:  # of `_give`
                raise
            self.changes += 1
            self.first = self.first or str(exc)

    def tell(self, descriptor: int) -> None:
        """Log the failures of a walk that began at a descriptor. Raises OSError."""
        if self.changes:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            log.warning("volume.group_not_given", path=path, refused=self.changes, error=self.first)


def own_volume(
    root: Path,
    group: int | None,
    *,
    read_only: bool,
    policy: str = "Always",
    walks: Walks | None = None,
) -> None:
    """Give a volume to a group; None changes nothing. Raises OSError.

    Args:
        root: the volume's directory.
        group: the fsGroup.
        read_only: whether the group may only read.
        policy: with `OnRootMismatch`, skip the walk if the root already has group and mode.
        walks: where to register the walk, for progress events.
    """
    if group is None:
        return
    descriptor = open_directory(root)
    try:
        found = os.fstat(descriptor)
        if policy == "OnRootMismatch" and _is_right(found, group, read_only=read_only):
            return
        with (walks or Walks()).walk(root) as walk:
            own_tree(descriptor, group, read_only=read_only, step=walk.step)
    finally:
        os.close(descriptor)


def own_tree(
    root: int, group: int | None, *, read_only: bool, step: Callable[[], object] = lambda: None
) -> None:
    """Give an open directory and everything in it to a group; None changes nothing.

    A directory comes after its content, so that `OnRootMismatch` sees a walk that was cut short.
    `step` is called for each file and directory.

    Raises OSError: ESTALE if a directory was moved during the walk.
    """
    if group is None:
        return
    refused = _Unchanged()
    names = _own_files(root, group, step, refused, read_only=read_only)
    levels = [_Level(os.fstat(root), names)]
    here = os.dup(root)  # the walk closes `here`, the caller `root`
    try:
        while levels:
            below = _enter(here, levels[-1])
            if below is not None:
                os.close(here)
                here = below
                names = _own_files(here, group, step, refused, read_only=read_only)
                levels.append(_Level(os.fstat(here), names))
                continue
            _own_entry(here, group, refused, read_only=read_only)
            step()
            levels.pop()
            if levels:
                above = _leave(here, levels[-1])
                os.close(here)
                here = above
    finally:
        os.close(here)
    refused.tell(root)


def own_entry(descriptor: int, group: int | None, *, read_only: bool) -> None:
    """Give one open file or directory to a group; None changes nothing. Raises OSError."""
    if group is not None:
        refused = _Unchanged()
        _own_entry(descriptor, group, refused, read_only=read_only)
        refused.tell(descriptor)


def _own_entry(descriptor: int, group: int, refused: _Unchanged, *, read_only: bool) -> None:
    found = os.fstat(descriptor)
    # fchown(2) and fchmod(2) refuse an O_PATH descriptor (open(2)); its link in /proc works, and
    # always leads to the file that was opened.
    place = f"/proc/self/fd/{descriptor}"
    with refused.noted():
        _give(place, group)
    with refused.noted():
        wanted = _wanted(is_directory=stat.S_ISDIR(found.st_mode), read_only=read_only)
        # After chown(2), which clears the set-ID bits of executable files: this restores them.
        os.chmod(place, stat.S_IMODE(found.st_mode) | wanted)


def _give(
    name: str, group: int, *, directory: int | None = None, follow_links: bool = True
) -> None:
    try:
        os.chown(name, -1, group, dir_fd=directory, follow_symlinks=follow_links)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        # The kernel's only reason for EINVAL here: user_namespaces(7).
        text = f"group {group} does not exist in this user namespace: see /etc/subgid of its user"
        raise OSError(errno.EINVAL, text) from exc


@dataclass(slots=True)
class _Level:
    """A directory on the way down, and its subdirectories that the walk has not yet entered."""

    found: os.stat_result
    directories: list[str]


def _enter(here: int, level: _Level) -> int | None:
    """Open the next subdirectory of a level; None after the last one. Raises OSError."""
    while level.directories:
        try:
            return open_directory(level.directories.pop(), directory=here)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed by another user of the volume
    return None


def _leave(here: int, level: _Level) -> int:
    """Return to the parent by `..`, which must be the directory that the walk came from."""
    above = open_directory("..", directory=here)
    if os.path.samestat(os.fstat(above), level.found):
        return above
    os.close(above)
    raise OSError(errno.ESTALE, "a directory was moved while its group was being changed")


def _own_files(
    directory: int, group: int, step: Callable[[], object], refused: _Unchanged, *, read_only: bool
) -> list[str]:
    """Own the files in a directory; return the names of its subdirectories."""
    directories: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                _own_file(entry.name, group, directory, refused, read_only=read_only)
                step()
    return directories


def _is_right(found: os.stat_result, group: int, *, read_only: bool) -> bool:
    wanted = _wanted(is_directory=stat.S_ISDIR(found.st_mode), read_only=read_only)
    return found.st_gid == group and stat.S_IMODE(found.st_mode) & wanted == wanted


def _wanted(*, is_directory: bool, read_only: bool) -> int:
    bits = _READ_ONLY if read_only else _READ_WRITE
    return bits | stat.S_ISGID | _SEARCH if is_directory else bits


def _own_file(
    name: str, group: int, directory: int, refused: _Unchanged, *, read_only: bool
) -> None:
    """Own a file or a link; skip a directory that has replaced it since the listing."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=directory)
    except FileNotFoundError:
        return  # removed by another user of the volume
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):  # the link's own group; its target may be outside the volume
            with refused.noted():
                _give(name, group, directory=directory, follow_links=False)
        elif not stat.S_ISDIR(mode):
            _own_entry(descriptor, group, refused, read_only=read_only)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def progress_events(
    walks: Walks, pod: Pod, pod_dir: Path, events: EventSink
) -> AsyncIterator[None]:
    """Emit events about a pod's walks that take long, while the block runs them."""
    failure = None
    async with trio.open_nursery() as reports:
        reports.start_soon(_report_progress, walks, pod, pod_dir, events)
        try:
            yield
        except VolumeError as exc:  # raised below: a nursery would wrap it in a group
            failure = exc
        reports.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _report_progress(walks: Walks, pod: Pod, pod_dir: Path, events: EventSink) -> None:
    due: dict[Walk, float] = {}
    reported: set[Walk] = set()
    while True:
        now = trio.current_time()
        for walk in walks.below(pod_dir):
            if due.setdefault(walk, now + _FIRST) > now:
                continue
            place = walk.root.relative_to(pod_dir.parent)
            text = f"Setting volume ownership for {place}"
            if walk in reported:
                text = f"{text}, processed {walk.files} files."
            else:
                text += (
                    f" is taking longer than expected, consider using OnRootMismatch - {_ADVICE}"
                )
            events.emit(pod_object_ref(pod), "Warning", _REASON, text)
            reported.add(walk)
            due[walk] = now + _PERIOD
        await trio.sleep(_LOOK)
