"""CRI's log format: parsing, finding the last lines of a file, and rendering for a reader.

A line is `<RFC 3339 time> <stream> <tags> <text>`. Tags are separated by colons; the first is `F`
for a full line or `P` for a part that the next line continues. Docker's format, one JSON object per
line, is read as well. Lines that do not parse are left out.

Memory is bounded whatever a file contains: it is read in blocks, from its end for `tail`. All
functions that use files block.
"""

from __future__ import annotations

import datetime
import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from kubelet_trio.containers.logs.files import OWN_DIRECTORY
from kubelet_trio.model import JSON_ERRORS, last_data, next_data, open_directory, open_regular

BLOCK = 64 * 1024
MAX_LINE = 1024 * 1024  # longer lines are passed on in pieces

_TIME = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_NANO = 10**9
# Logs of cri-dockerd are links to Docker's log files, which have names of this form.
_DOCKERS = re.compile(r"/.*/([0-9a-f]{64})/\1-json\.log", re.ASCII)


class LogEntry(NamedTuple):
    """One log entry. `text` ends with a newline unless the entry is partial."""

    time: bytes  # as written
    stream: str  # stdout or stderr
    partial: bool
    text: bytes


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which part of a log to render, and how."""

    tail: int | None = None  # only so many last lines; each part of a line counts
    most: int | None = None  # only so many lines, whatever is written meanwhile
    since: float | None = None  # Unix seconds; only entries from then on
    limit: int | None = None  # bytes of output
    timestamps: bool = False  # begin each line with its time
    streams: frozenset[str] = field(default=frozenset(("stdout", "stderr")))


def parse_line(line: bytes) -> LogEntry | None:
    """Parse a line of either format, with or without its newline; None if it does not parse."""
    if line.startswith(b"{"):
        return _docker_entry(line)
    parts = line.rstrip(b"\n").split(b" ", 3)
    if len(parts) < 3 or parts[1] not in (b"stdout", b"stderr"):
        return None
    time, stream, tags = parts[:3]
    text = parts[3] if len(parts) > 3 else b""
    if _TIME.fullmatch(time) is None:
        return None
    # Only the first tag has a meaning so far.
    partial = tags.split(b":", 1)[0] == b"P"
    return LogEntry(time, stream.decode(), partial, text if partial else text + b"\n")


class _DockerLine(msgspec.Struct):
    time: str
    stream: str
    log: str = ""


def _docker_entry(line: bytes) -> LogEntry | None:
    """Parse a line of Docker's json-file driver; its text ends with a newline if it is complete.

    Source: parseDockerJSONLog in k8s.io/cri-client/pkg/logs.
    """
    try:
        parsed = msgspec.json.decode(line, type=_DockerLine)
    except JSON_ERRORS:
        return None
    time, text = parsed.time.encode(), parsed.log.encode()
    if parsed.stream not in ("stdout", "stderr") or _TIME.fullmatch(time) is None:
        return None
    return LogEntry(time, parsed.stream, bool(text) and not text.endswith(b"\n"), text)


def format_line(time: str, stream: str, text: bytes, *, partial: bool = False) -> bytes:
    """Return an entry in the runtime's format; `text` has no newline."""
    return f"{time} {stream} {'P' if partial else 'F'} ".encode() + text + b"\n"


def time_nanoseconds(time: bytes) -> int:
    """Return an entry's time in nanoseconds since the epoch. Raises ValueError."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise ValueError(f"{time!r} is not an RFC 3339 time")
    seconds, fraction, zone = match.groups(b"")
    try:
        moment = datetime.datetime.fromisoformat((seconds + zone).decode())
    except ValueError as exc:  # it matches, but is no date: the 30th of February
        raise ValueError(f"{time!r} is not an RFC 3339 time: {exc}") from exc
    return int(moment.timestamp()) * _NANO + int(fraction.ljust(9, b"0") or b"0")


def fixed_time(time: bytes) -> bytes:
    """Return a time with nine fractional digits, so that columns are aligned."""
    match = _TIME.fullmatch(time)
    if match is None:
        return time
    seconds, fraction, zone = match.groups(b"")
    return seconds + b"." + fraction.ljust(9, b"0") + zone


class LogRenderer:
    """Renders entries according to `LogOptions`, of which it keeps count."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._since = None if options.since is None else int(options.since * _NANO)
        self._left = options.limit
        self._lines_left = options.most
        self._line_begins = True

    @property
    def is_full(self) -> bool:
        """Whether a limit of the output is reached."""
        return (self._left is not None and self._left <= 0) or self._lines_left == 0

    def render(self, entries: Sequence[LogEntry]) -> bytes:
        """Return the text of those entries that the options select."""
        if self._lines_left is not None:
            entries = entries[: self._lines_left]
            self._lines_left -= len(entries)
        return b"".join(self._render(entry) for entry in entries)

    def _render(self, entry: LogEntry) -> bytes:
        if entry.stream not in self._options.streams or self._is_too_old(entry):
            return b""
        text = entry.text
        if self._options.timestamps and self._line_begins:
            text = fixed_time(entry.time) + b" " + text
        # The time stands at the beginning of a line, not of each of its parts.
        self._line_begins = not entry.partial
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        return text

    def _is_too_old(self, entry: LogEntry) -> bool:
        if self._since is None:
            return False
        try:
            return time_nanoseconds(entry.time) < self._since
        except ValueError:
            return True  # leave out a line whose time is invalid


class LogFile:
    """An open log, read forward in blocks. Close it, or use it as a context manager."""

    def __init__(self, path: Path, tail: int | None = None) -> None:
        """Open at the beginning, or at the last `tail` lines.

        Raises OSError, also for what is no regular file.
        """
        self.path = path
        self._file: BinaryIO = os.fdopen(_open_log(path), "rb", buffering=0)
        self._rest = b""  # the beginning of a line whose end is not read yet
        if tail is not None:
            self._file.seek(tail_offset(self._file, tail))

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self) -> list[LogEntry] | None:
        """Return the entries of the next block; None at the current end of the file."""
        block = self._file.read(BLOCK)
        if not block:
            return None
        if _is_hole(block):
            self._rest = b""
            self._file.seek(next_data(self._file.fileno(), self._file.tell()))
            return []
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        # Bound the memory for a file without newlines: pass the piece on as a line.
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [entry for line in lines if (entry := parse_line(line)) is not None]

    def read_unfinished(self) -> list[LogEntry]:
        """Return the last entry of a file that ends without a newline and will not be continued."""
        entry = parse_line(self._rest)
        self._rest = b""
        return [] if entry is None else [entry]

    def has_more(self) -> bool:
        """Return whether the file has grown beyond what was read."""
        return os.fstat(self._file.fileno()).st_size > self._file.tell()

    def is_replaced(self) -> bool:
        """Return whether another file is at the path now, as after a rotation."""
        try:
            current = _open_log(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False  # between the two renames of a rotation, or removed
        except OSError:  # something else than a log
            return True
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), os.fstat(current))
        finally:
            os.close(current)

    def is_truncated(self) -> bool:
        """Return whether the file is shorter now than what was read of it."""
        return os.fstat(self._file.fileno()).st_size < self._file.tell()


def _open_log(path: Path) -> int:
    # From the pod's log directory on, links are not followed: a pod that collects logs could
    # point one at any file of the host. Only the log itself may be a link, to one of Docker's.
    directory = open_directory(path.parent, own=OWN_DIRECTORY)
    try:
        return open_regular(path.name, directory=directory)
    except OSError as exc:
        if exc.errno != errno.ELOOP:
            raise
        target = os.readlink(path.name, dir_fd=directory)
        if _DOCKERS.fullmatch(target) is None:
            raise
    finally:
        os.close(directory)
    directory = open_directory(os.path.dirname(target))
    try:
        return open_regular(os.path.basename(target), directory=directory)
    finally:
        os.close(directory)


def tail_offset(file: BinaryIO, lines: int) -> int:
    """Return the offset of the last `lines` lines of a file, reading blocks from its end."""
    position = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return position
    missing = lines + 1  # newlines to find: also the one before the first of these lines
    if position and _read_at(file, position - 1, 1) != b"\n":
        missing -= 1  # the last line has no newline of its own
    while position > 0:
        start = max(position - BLOCK, 0)
        block = _read_at(file, start, position - start)
        if _is_hole(block):
            position = last_data(file.fileno(), start, BLOCK)
            continue
        found = block.count(b"\n")
        if found >= missing:
            end = len(block)
            for _ in range(missing):
                end = block.rindex(b"\n", 0, end)
            return start + end + 1
        missing -= found
        position = start
    return 0


def read_log(path: Path, options: LogOptions) -> Iterator[bytes]:
    """Yield the current content of a log, rendered, in pieces of bounded size. Raises OSError."""
    renderer = LogRenderer(options)
    with LogFile(path, options.tail) as log:
        while not renderer.is_full and (entries := log.read()) is not None:
            yield renderer.render(entries)
        yield renderer.render(log.read_unfinished())


def _is_hole(block: bytes) -> bool:
    """Return whether a block may be part of a hole, which is skipped to bound the time.

    Runtimes write no blocks of zeros, but a pod may truncate a log to a huge size.
    """
    return len(block) == BLOCK and not any(block)


def _read_at(file: BinaryIO, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)
