"""A container's log, in CRI's format: `<time> <stream> <F|P> <text>`."""

from __future__ import annotations

import errno
import os
import stat
import time

from .protocol import STDERR, STDOUT

_OWN = 3  # the last components of the path: the pod's directory, the container's, the file
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
_MAX_LINE = 1 << 14  # containerd's max_container_log_line_size: longer lines are split


class Log:
    """A log file in CRI's format. Lines that cannot be written are dropped."""

    def __init__(self, path: str) -> None:
        """Open the file; an empty path keeps no log. Raises OSError."""
        self._path = path
        self._fd = -1
        self._rest = {STDOUT: b"", STDERR: b""}
        self._second = -1
        self._stamp = b""
        self.reopen()

    def reopen(self) -> None:
        """Continue in the file that is at the path now: a new one after a rotation."""
        if not self._path:
            return
        fd = _open(self._path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Close the file; a forked process closes its copy."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def write(self, stream: bytes, content: bytes) -> None:
        *lines, rest = (self._rest[stream] + content).split(b"\n")
        out: list[bytes] = []
        head = self._head(stream)
        for line in lines:
            rest_of_line = self._parts(out, head, line)
            out.append(head + b"F " + rest_of_line + b"\n")
        self._rest[stream] = self._parts(out, head, rest)
        self._append(b"".join(out))

    def finish(self) -> None:
        """Write what is left without a newline, as a partial line (P)."""
        for stream, rest in self._rest.items():
            if rest:
                self._append(self._head(stream) + b"P " + rest + b"\n")
                self._rest[stream] = b""

    def _parts(self, out: list[bytes], head: bytes, line: bytes) -> bytes:
        while len(line) > _MAX_LINE:
            out.append(head + b"P " + line[:_MAX_LINE] + b"\n")
            line = line[_MAX_LINE:]
        return line

    def _head(self, stream: bytes) -> bytes:
        second, nano = divmod(time.time_ns(), 1_000_000_000)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        name = b"stdout" if stream == STDOUT else b"stderr"
        return b"%s.%09dZ %s " % (self._stamp, nano, name)

    def _append(self, content: bytes) -> None:
        if self._fd < 0:
            return
        try:
            while content:
                content = content[os.write(self._fd, content) :]
        except OSError:
            pass  # a full disk: blocking or failing here would stop the container


def _open(path: str) -> int:
    """Open a log file without following links. Raises OSError for what is no regular file.

    Pods that collect logs may mount this directory and plant links or FIFOs in it.
    """
    top, *parents, name = path.rsplit("/", _OWN)
    here = os.open(top or "/", _DIRECTORY)
    try:
        for part in parents:
            below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        # O_NONBLOCK: opening a FIFO without a reader would block, fifo(7).
        fd = os.open(name, _APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640, dir_fd=here)
    finally:
        os.close(here)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "expected a file", path)
