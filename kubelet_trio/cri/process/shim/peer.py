"""The shim's side of a control connection, and a pipe that reports ended children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket

from .protocol import ANSWER, HEADER

TYPE_CHECKING = False
if TYPE_CHECKING:  # the shim is one program and pays for every import
    from collections.abc import Iterator

_BLOCK = 1 << 16
_MAX_FRAME = 1 << 20
_MAX_PENDING = 1 << 20  # bytes of output that a client has not read


class Peer:
    """One connection to the control socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.attached = False
        self.wants_exit = False
        self.gone = False
        self.pending = b""
        self._received = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the complete frames received; `gone` is set at the end of the connection."""
        try:
            content = self.socket.recv(_BLOCK)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self.gone = True
            return
        self._received += content
        while len(self._received) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._received)
            if size > _MAX_FRAME:
                self.gone = True
                return
            end = HEADER.size + size
            if len(self._received) < end:
                return
            body, self._received = self._received[HEADER.size : end], self._received[end:]
            yield kind, body

    def send(self, kind: bytes, content: bytes) -> None:
        """Send a frame, and queue what does not fit. Drop a client that does not read."""
        self.pending += HEADER.pack(kind, len(content)) + content
        self.flush()
        self.gone = self.gone or len(self.pending) > _MAX_PENDING

    def flush(self) -> None:
        try:
            while self.pending:
                self.pending = self.pending[self.socket.send(self.pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self.gone, self.pending = True, b""

    def answer(self, **values: object) -> None:
        self.send(ANSWER, json.dumps(values).encode())

    def finish(self, kind: bytes, content: bytes) -> None:
        """Send a last frame; give a slow client one second to take it."""
        self.send(kind, content)
        self.socket.settimeout(1.0)
        with contextlib.suppress(OSError):  # the client is gone, or too slow
            self.socket.sendall(self.pending)


class Wakeup:
    """A pipe that becomes readable when a child ends."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        # Python writes to the wakeup descriptor only for signals that have a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def clear(self) -> None:
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)
