"""The ring on disk: segments in a directory, of which the oldest make room for the newest.

Everything here blocks. Nothing is synced: the page cache outlives the agent.

The sum of the segments' sizes never exceeds the limit. A segment begins with a snapshot, and ends
when what follows that is an eighth of the limit, or as large as the snapshot if that is larger.
So a ring holds at least two segments, and mostly eight.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubelet_trio.recorder.format import MAGIC

LEAST_LIMIT = 64 * 1024  # bytes; below that hardly anything fits
_SEGMENTS = 8
_SNAPSHOT_SHARE = 4  # a snapshot, or an entry, has at most one part in this many of the limit
_NAME = re.compile(r"\d{10}\.rec")

Snapshot = Callable[[int], Sequence[bytes]]  # takes the bytes that it may have


def segments(directory: Path) -> list[Path]:
    """Return the segments of a ring, oldest first. Raises OSError."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(names) if _NAME.fullmatch(name)]


@dataclass(slots=True)
class _Segment:
    path: Path
    size: int


class Ring:
    """The one writer of a ring. After an OSError of a method the next call tries again."""

    def __init__(self, directory: Path, limit: int) -> None:
        """Make the writer; nothing is read or written yet. `limit` in bytes."""
        self._directory = directory
        self._limit = limit
        self._part = limit // _SNAPSHOT_SHARE
        self._old: list[_Segment] | None = None  # None: not listed yet
        self._current: _Segment | None = None
        self._fd = -1
        self._end_at = 0  # size at which the current segment ends
        self._pending = bytearray()  # of the current segment
        self._pending_frames = 0
        self.size = 0  # bytes on disk

    def fits(self, size: int) -> bool:
        """Whether a frame of `size` bytes may be added at all."""
        return size <= self._part - len(MAGIC)

    def add(self, frame: bytes, snapshot: Snapshot) -> int:
        """Add a frame to what `flush` writes, and begin a segment if it is time.

        Args:
            frame: a frame that `fits`.
            snapshot: returns the frames that a segment begins with, of limited size in sum.

        Returns the number of earlier frames that this has written. Raises OSError: the frame, and
        those that were not written yet, are dropped.
        """
        written = 0
        current = self._current
        length = current.size + len(self._pending) if current is not None else 0
        if current is None or length + len(frame) > self._end_at:
            written = self.flush()
            self.begin(snapshot)
        self._pending += frame
        self._pending_frames += 1
        return written

    def flush(self) -> int:
        """Write what was added; return the number of frames.

        Raises OSError: nothing of it has been written, and it is dropped.
        """
        count, data = self._pending_frames, self._pending
        self._pending, self._pending_frames = bytearray(), 0
        current = self._current
        if not count or current is None:
            return 0
        try:
            self._make_room(len(data))
            _write(self._fd, data)
        except OSError:
            self._undo(current)
            raise
        current.size += len(data)
        self.size += len(data)
        return count

    def close(self) -> None:
        """Close the segment; the next `add` begins another one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._current is not None and self._old is not None:
            self._old.append(self._current)
        self._current = None

    def begin(self, snapshot: Snapshot) -> None:
        """Begin a segment. Raises OSError."""
        self.close()
        old = self._listed()
        frames = snapshot(self._part - len(MAGIC))
        data = MAGIC + b"".join(frames)
        number = int(old[-1].path.stem) + 1 if old else 1
        path = self._directory / f"{number:010}.rec"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(len(data))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags | os.O_NOFOLLOW, 0o600)
        try:
            _write(fd, data)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        self._fd, self._current = fd, _Segment(path, len(data))
        self.size += len(data)
        # At most half of the limit, as the one frame that is added in any case: so the segment
        # before stays, whatever the sizes.
        self._end_at = len(data) + max(self._limit // _SEGMENTS, len(data))

    def _listed(self) -> list[_Segment]:
        """Return the earlier segments; list them first, if need be."""
        if self._old is None:
            found = [_Segment(path, path.lstat().st_size) for path in segments(self._directory)]
            self._old, self.size = found, sum(segment.size for segment in found)
        return self._old

    def _make_room(self, size: int) -> None:
        """Remove the oldest segments, so that `size` more bytes do not exceed the limit."""
        old = self._listed()
        while old and self.size + size > self._limit:
            old[0].path.unlink(missing_ok=True)
            self.size -= old.pop(0).size

    def _undo(self, current: _Segment) -> None:
        """Cut off what a failed write has left, or go on with another segment."""
        try:
            os.ftruncate(self._fd, current.size)
        except OSError:
            self._old = None  # sizes are read anew
            os.close(self._fd)
            self._fd, self._current = -1, None


def _write(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def segment_contents(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the segments of a ring, oldest first; one that goes meanwhile is left out.

    Raises OSError.
    """
    for path in segments(directory):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        yield path, data
