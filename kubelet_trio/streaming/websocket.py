"""The server's side of a WebSocket: handshake, messages, closing. wsproto handles the frames.

A message begins with its channel: one byte or, in protocols with base64, one digit.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import trio
from trio.abc import HalfCloseableStream, SendStream
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError, generate_accept_token

from kubelet_trio.streaming.backpressure import PEER_GONE, send_or_ping, send_ping

Headers = tuple[tuple[str, str], ...]

_PIECE = 256 * 1024  # bytes of one read
_MOST_MESSAGE = 4 << 20  # bytes; kubectl sends 32 KiB
_TURN = 16  # frames after which other tasks run: one read may contain 40,000
_LEAVE_LIMIT = 5.0  # s for the client to answer our Close


def offered_protocols(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the subprotocols that a client offers, in its order."""
    named = headers.get("sec-websocket-protocol", "")
    return tuple(filter(None, (name.strip() for name in named.split(","))))


def handshake(headers: Mapping[str, str], protocol: str) -> Headers:
    """Return the headers of the answer to a client. Raises ValueError for an invalid request."""
    key = headers.get("sec-websocket-key", "")
    if headers.get("sec-websocket-version") != "13" or not key:
        raise ValueError("a WebSocket of version 13 with a key is needed")
    # RFC 6455, section 4.2.2. Without a common protocol the header must be left out.
    answer = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", generate_accept_token(key.encode("latin-1")).decode()),
    ]
    if protocol:
        answer.append(("Sec-WebSocket-Protocol", protocol))
    return tuple(answer)


class WebSocket:
    """A WebSocket after its handshake. One task may receive; any task may send."""

    def __init__(
        self,
        connection: HalfCloseableStream,
        early: bytes = b"",
        *,
        is_text: bool = False,
        beneath: SendStream | None = None,
    ) -> None:
        """Take a connection.

        Args:
            connection: the connection.
            early: data that was read from the connection already.
            is_text: whether messages are text in base64.
            beneath: for our pings, if `connection` counts what is sent as activity.
        """
        self._connection = connection
        self._beneath = beneath or connection
        self._early = early
        self._wire = Connection(ConnectionType.SERVER)
        self._is_text = is_text
        self._sending = trio.Lock()
        self._is_over = False  # the client has sent Close or disconnected
        self._frames = 0  # received since other tasks have run
        self._parts = bytearray()

    async def receive(self) -> bytes | None:
        """Return the next message, with its channel in the first byte; None at the end."""
        while not self._is_over:
            if (event := next(self._wire.events(), None)) is None:
                await self._read()
                continue
            self._frames += 1
            if self._frames > _TURN:
                self._frames = 0
                await trio.lowlevel.checkpoint()
            try:
                message = await self._take(event)
            except (*PEER_GONE, RemoteProtocolError):
                self._is_over = True
            else:
                if message is not None:
                    return message
        return None

    async def _read(self) -> None:
        # First what was read together with the HTTP request.
        data, self._early = self._early, b""
        try:
            data = data or bytes(await self._connection.receive_some(_PIECE))
        except PEER_GONE:
            self._is_over = True
        else:
            # wsproto takes None for the end of the connection.
            self._wire.receive_data(data or None)

    async def deliver(self, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Call `take` with each message until the client disconnects, which cancels `take`.

        Raises what `take` raises, in a group.
        """
        # Unbuffered: while `take` is busy, the connection is not read.
        queue, messages = trio.open_memory_channel[bytes](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_each, messages, take)
            with suppress(*PEER_GONE):
                while (message := await self.receive()) is not None:
                    await send_or_ping(queue, message, self._ping)
            nursery.cancel_scope.cancel()

    async def _ping(self) -> None:
        try:
            frame = self._wire.send(Ping())
        except LocalProtocolError as exc:
            raise trio.BrokenResourceError("the connection is being closed") from exc
        await send_ping(self._beneath, self._sending, frame)

    async def _take(self, event: Event) -> bytes | None:
        """Return the message that an event completes, if any; answer Ping and Close."""
        if isinstance(event, BytesMessage | TextMessage):
            content = event.data
            self._parts += content.encode() if isinstance(content, str) else content
            # Checked at each frame: a message may have any number of them.
            if len(self._parts) > _MOST_MESSAGE:
                raise RemoteProtocolError("a message is too long")
            if event.message_finished:
                message = bytes(self._parts)
                self._parts.clear()
                return self._decoded(message)
        elif isinstance(event, Ping):
            await self._send_raw(self._wire.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._is_over = True
            with suppress(LocalProtocolError):  # it is the answer to our own Close
                await self._send_raw(self._wire.send(event.response()))
        return None

    def _decoded(self, message: bytes) -> bytes:
        if not self._is_text or not message:
            return message
        if not message[:1].isdigit():
            raise RemoteProtocolError("the channel is no digit")
        try:
            return bytes([message[0] - ord("0")]) + base64.b64decode(message[1:], validate=True)
        except binascii.Error as exc:
            raise RemoteProtocolError("a message that is not base64") from exc

    async def send(self, message: bytes) -> None:
        """Send a message. Raises BrokenResourceError."""
        event: BytesMessage | TextMessage = BytesMessage(message)
        if self._is_text and message:
            event = TextMessage(f"{message[0]}{base64.b64encode(message[1:]).decode()}")
        try:
            data = self._wire.send(event)
        except LocalProtocolError as exc:
            raise trio.BrokenResourceError("the WebSocket is closed") from exc
        await self._send_raw(data)

    async def _send_raw(self, data: bytes) -> None:
        async with self._sending:
            await self._connection.send_all(data)

    async def close(self) -> None:
        """Send Close, and wait a little for the client's, so that it reads all our messages."""
        with trio.move_on_after(_LEAVE_LIMIT), suppress(*PEER_GONE, LocalProtocolError):
            await self._send_raw(self._wire.send(CloseConnection(1000)))
            while await self.receive() is not None:
                pass


async def _take_each(
    messages: trio.MemoryReceiveChannel[bytes], take: Callable[[bytes], Awaitable[None]]
) -> None:
    async for message in messages:
        await take(message)


class Tunnel(HalfCloseableStream):
    """The content of a WebSocket's messages, as a stream."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next message, of any size; b"" at the end."""
        while (message := await self._socket.receive()) is not None:
            if message:
                return message
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._socket.send(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await self._socket.close()

    async def aclose(self) -> None:
        await self._socket.close()
