"""A hostile container: what it can do to a directory that it may write to, at any moment.

Everything goes by the directory, as in a container that has nothing else mounted. Links may lead
anywhere; that is what the code under test must not follow.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import strategies as st

SECRET = (
    "2024-05-01T10:00:00Z stdout F untold\n"  # what a file of the host holds; a log's line, too
)
DEEP = 1500  # more than Python may recurse, and more than a path may hold


@contextmanager
def no_hang(seconds: float = 30.0) -> Iterator[None]:
    """Fail where what is inside blocks: on a FIFO, say."""

    def fail(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"blocked for {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def small_memory() -> Iterator[None]:
    """Fail where what is inside takes more than a little memory, before it takes the machine's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), hard))
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def between_calls(act: Callable[[], bool | None]) -> Iterator[None]:
    """Call `act` before every call of the `posix` module: the worst scheduler there can be.

    Once it returns False it is not called any more.
    """

    def before(_frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__module__", "") == "posix":
            sys.setprofile(None)
            if act() is not False:
                sys.setprofile(before)

    sys.setprofile(before)
    try:
        yield
    finally:
        sys.setprofile(None)


def nest(directory: Path, depth: int) -> None:
    """Nest directories, however long the path gets."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        for _ in range(depth):
            os.mkdir("d", dir_fd=descriptor)
            below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a container does; what is not possible just then it leaves."""

    what: str
    place: str  # where in the volume; "new": the newest of the agent's own directories
    target: str  # for links and renames

    def do(self, volume: Path) -> None:
        with suppress(OSError):
            place, target = volume / _real(volume, self.place), _real(volume, self.target)
            if _is_inside(place, volume) and _is_inside(volume / target, volume, self.what):
                _ACTS[self.what](place, volume, target)


def _is_inside(place: Path, volume: Path, what: str = "") -> bool:
    """Whether a container gets there: a link out of the volume leads it to no file of the host."""
    if what not in ("", "rename", "hard link"):
        return True  # the target is text
    return Path(os.path.realpath(place.parent)).is_relative_to(os.path.realpath(volume))


def _real(volume: Path, name: str) -> str:
    first, slash, rest = name.partition("/")
    if first != "new":
        return name
    own = [n for n in os.listdir(volume) if n.startswith("..2") and not (volume / n).is_symlink()]
    return max(own, default="..none") + slash + rest


def _replace(place: Path) -> None:
    """Take away what is there: by renaming, which moves whole directories."""
    if os.path.lexists(place):
        place.rename(place.with_name(f"was{len(os.listdir(place.parent))}"))


def _link(place: Path, _volume: Path, target: str) -> None:
    _replace(place)
    place.symlink_to(target)


def _fifo(place: Path, _volume: Path, _target: str) -> None:
    _replace(place)
    os.mkfifo(place)


def _device(place: Path, _volume: Path, _target: str) -> None:
    _replace(place)
    os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero


def _file(place: Path, _volume: Path, _target: str) -> None:
    _replace(place)
    place.write_text("mine")


def _endless(place: Path, _volume: Path, _target: str) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.ftruncate(descriptor, 1 << 40)
    finally:
        os.close(descriptor)


def _directory(place: Path, _volume: Path, _target: str) -> None:
    _replace(place)
    place.mkdir()


def _deep(place: Path, _volume: Path, _target: str) -> None:
    _replace(place)
    place.mkdir()
    nest(place, 60)


def _rename(place: Path, volume: Path, target: str) -> None:
    if ".." in target.split("/") or target.startswith("/"):
        return  # a mount ends there
    place.rename(volume / target)


def _hard_link(place: Path, volume: Path, target: str) -> None:
    _replace(place)
    os.link(volume / target, place, follow_symlinks=False)


def _remove(place: Path, _volume: Path, _target: str) -> None:
    place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()


def _socket(place: Path, _volume: Path, _target: str) -> None:
    _replace(place)
    os.mknod(place, stat.S_IFSOCK | 0o666)


def _odd_names(place: Path, volume: Path, _target: str) -> None:
    """Names that are no UTF-8, or hold what ends a line or begins an option."""
    _replace(place)
    place.mkdir()
    for name in (b"caf\xe9", b"two\nlines", b"-rf", b"\x1b[2J", b"\xff" * 255):
        os.close(os.open(os.fsencode(place) + b"/" + name, os.O_CREAT | os.O_WRONLY, 0o600))
        with suppress(FileExistsError):
            os.symlink(b"caf\xe9", os.fsencode(volume) + b"/" + name)


def _owned(place: Path, _volume: Path, _target: str) -> None:
    """What a container of another user makes."""
    if os.geteuid() == 0:
        os.chown(place, 65534, 65534, follow_symlinks=False)


def _close(place: Path, _volume: Path, _target: str) -> None:
    if os.geteuid() == 0 and not place.is_symlink():  # others could not remove it either
        place.chmod(0)


_ACTS: dict[str, Callable[[Path, Path, str], None]] = {
    "close": _close,
    "deep": _deep,
    "device": _device,
    "directory": _directory,
    "endless": _endless,
    "fifo": _fifo,
    "file": _file,
    "hard link": _hard_link,
    "link": _link,
    "odd names": _odd_names,
    "owned": _owned,
    "remove": _remove,
    "rename": _rename,
    "socket": _socket,
}


def acts(places: list[str], outside: Path) -> st.SearchStrategy[Act]:
    """Anything, anywhere. Links lead to the `outside` and within, renames stay in the volume."""
    host = (str(outside), f"{outside}/fifo", f"{outside}/secret", f"{outside}/dir", "/dev/zero")
    targets = [*host, "..", "../..", ".", *places]
    return st.builds(
        Act, st.sampled_from(sorted(_ACTS)), st.sampled_from(places), st.sampled_from(targets)
    )


class Player:
    """A container that acts before chosen calls of the agent's."""

    def __init__(self, volume: Path, schedule: Mapping[int, Act]) -> None:
        self._volume = volume
        self._schedule = schedule
        self._calls = count()

    def act(self) -> bool:
        now = next(self._calls)
        if now in self._schedule:
            self._schedule[now].do(self._volume)
        return now < max(self._schedule, default=0)


class Outside:
    """The host around a volume: changes of it, and reads, are found."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "dir/deeper").mkdir(parents=True)
        for name in ("key", "secret", "dir/key", "dir/deeper/key"):
            (directory / name).write_text(SECRET)
            (directory / name).chmod(0o600)
        os.mkfifo(directory / "fifo")
        self._before = self._state()

    def check(self) -> None:
        """Fail where anything is not as it was."""
        assert self._state() == self._before

    def _state(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for parent, directories, names in os.walk(self.directory):
            for name in (".", *directories, *names):
                path = os.path.join(parent, name)
                now = os.lstat(path)
                content = Path(path).read_bytes() if stat.S_ISREG(now.st_mode) else b""
                found[path] = (now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns, content)
        return found
