"""A WebSocket client of the kubelet API, by hand: `v4.channel.k8s.io` or another, over TLS or not.

Every message is binary and begins with its channel: of an exec 0 is stdin, 1 stdout, 2 stderr,
3 the outcome, 4 the terminal's size; of a port-forward 2n is data and 2n+1 the errors of port n.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import struct
from collections.abc import Mapping
from types import MappingProxyType, TracebackType

_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


class RefusedError(Exception):
    """The server did not switch protocols."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status} {body}")
        self.status = status


class ChannelSocket:
    """One connection; `receive` returns messages until the server ends it."""

    def __init__(
        self,
        port: int,
        target: str,
        context: ssl.SSLContext | None,
        *,
        protocol: str = "v4.channel.k8s.io",
        headers: Mapping[str, str] = MappingProxyType({}),
        timeout: float = 60,
    ) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout)
        self._socket: socket.socket = plain
        if context is not None:
            self._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self._data = b""
        key = base64.b64encode(os.urandom(16)).decode()
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Protocol: {protocol}\r\n"
            f"{more}\r\n"
        )
        self._socket.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = self._socket.recv(65536)
            if not piece:
                break
            answer += piece
        told, _, self._data = answer.partition(b"\r\n\r\n")
        status = int(told.split(b" ", 2)[1])
        if status != 101:
            self.close()
            raise RefusedError(status, self._data.decode())

    def send(self, channel: int, data: bytes) -> None:
        payload = bytes([channel]) + data
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        self._socket.sendall(_head(_BINARY, len(payload)) + mask + masked)

    def receive(self) -> tuple[int, bytes] | None:
        """Return the next channel and its data; None at the end."""
        while True:
            first, second = self._take(1), self._take(1)
            if not first or not second:
                return None
            length = second[0] & 0x7F
            if length == 126:
                (length,) = struct.unpack(">H", self._take(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self._take(8))
            payload = self._take(length)
            if first[0] & 0xF == _CLOSE:
                return None
            if first[0] & 0xF not in (_PING, _PONG) and payload:
                return payload[0], payload[1:]

    def receive_all(self) -> dict[int, bytes]:
        """Return what every channel said until the end."""
        said: dict[int, bytes] = {}
        while (message := self.receive()) is not None:
            said[message[0]] = said.get(message[0], b"") + message[1]
        return said

    def receive_until(self, channel: int, wanted: bytes) -> bytes:
        """Read until a channel has said `wanted`; returns all it has said."""
        said = b""
        while wanted not in said:
            message = self.receive()
            assert message is not None, said
            if message[0] == channel:
                said += message[1]
        return said

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> ChannelSocket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            try:
                piece = self._socket.recv(1 << 16)
            except (ConnectionResetError, ssl.SSLEOFError):
                piece = b""
            if not piece:
                return b""
            self._data += piece
        taken, self._data = self._data[:count], self._data[count:]
        return taken


def _head(opcode: int, length: int) -> bytes:
    first = bytes([0x80 | opcode])
    if length < 126:
        return first + bytes([0x80 | length])
    if length < 1 << 16:
        return first + bytes([0x80 | 126]) + struct.pack(">H", length)
    return first + bytes([0x80 | 127]) + struct.pack(">Q", length)
