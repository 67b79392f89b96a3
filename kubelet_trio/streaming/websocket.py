"""The server's side of a WebSocket: handshake, messages, closing.

A message begins with its channel: one byte or, in protocols with base64, one digit.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol, runtime_checkable

import trio
from trio.abc import HalfCloseableStream, SendStream

from kubelet_trio.streaming import frames
from kubelet_trio.streaming.backpressure import PEER_GONE, Busy, Sending, send_or_ping, send_ping

Headers = tuple[tuple[str, str], ...]
Content = bytes | memoryview
Part = tuple[int, Content]  # a channel, and some bytes of a message on it
Message = tuple[int, Sequence[Content]]  # a channel, and the parts of the content

_PIECE = 256 * 1024  # bytes of one read
_MOST_MESSAGE = 4 << 20  # bytes; kubectl sends 32 KiB
_TURN = 48  # frames after which other tasks run: one read may contain 40,000
# s for the client to read the rest and answer our Close, as upstream's finishTimeout. A connection
# that is closed earlier is reset by the client's next ping, and what it has not read is lost.
_LEAVE_LIMIT = 15 * 60.0
_NORMAL = (1000).to_bytes(2, "big")  # the code of a Close (RFC 6455, section 7.4.1)
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # section 1.3


@runtime_checkable
class GatheringStream(Protocol):
    """A stream that can send parts without joining all of them first."""

    async def send_parts(self, parts: Iterable[Content]) -> None:
        """Send parts, one after the other, as `send_all` does."""
        ...


SendParts = Callable[[Iterable[Content]], Awaitable[None]]


def sending_parts(stream: SendStream) -> SendParts:
    """Return what sends parts over a stream: its own method, if it has one."""
    if isinstance(stream, GatheringStream):
        return stream.send_parts

    async def send(parts: Iterable[Content]) -> None:
        await stream.send_all(b"".join(parts))

    return send


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
        ("Sec-WebSocket-Accept", _accepted(key)),
    ]
    if protocol:
        answer.append(("Sec-WebSocket-Protocol", protocol))
    return tuple(answer)


def _accepted(key: str) -> str:
    digest = hashlib.sha1(key.encode("latin-1") + _ACCEPT, usedforsecurity=False)
    return base64.b64encode(digest.digest()).decode()


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
        self._send_parts = sending_parts(connection)
        self._early = early
        self._reader = frames.FrameReader()
        self._found: Iterator[frames.Piece | frames.Control] = iter(())  # in what was read last
        self._put_off: frames.Piece | frames.Control | None = None  # comes before `_found`
        self._is_text = is_text
        self._sending = Sending()
        self._has_closed = False  # we have sent Close
        self._is_over = False  # the client has sent Close or disconnected
        self._frames = 0  # received since other tasks have run
        self._message = bytearray()
        self._channel = -1  # of the message that `receive_parts` is in

    async def receive(self) -> bytes | None:
        """Return the next message, with its channel in the first byte; None at the end."""
        while (piece := await self._next()) is not None:
            self._message += piece.content
            # Checked at each frame: a message may have any number of them.
            if len(self._message) > _MOST_MESSAGE:
                break
            if piece.is_last:
                message = bytes(self._message)
                self._message.clear()
                with suppress(frames.FrameError):
                    return self._decoded(message)
                break
        self._is_over = True
        return None

    async def receive_parts(self) -> list[Part] | None:
        """Return what has arrived of messages on channels, in order; None at the end.

        Messages that have not arrived whole are not waited for, and empty ones left out. Only for
        protocols without base64, and not together with `receive`.
        """
        while (piece := await self._next()) is not None:
            found: list[Part] = []
            self._add(piece, found)
            # A control frame, or a turn of small ones, ends what is returned in one go.
            try:
                for event in islice(self._found, _TURN - self._frames):
                    self._frames += 1
                    if isinstance(event, frames.Control):
                        self._put_off = event
                        break
                    self._add(event, found)
            except frames.FrameError:
                self._is_over = True
            if found:
                return found
        return None

    def _add(self, piece: frames.Piece, found: list[Part]) -> None:
        """Add what a piece has of its message's content, without the channel at its beginning."""
        content, is_first, _ = piece
        if is_first:
            self._channel = -1
        if not content:
            return
        if self._channel >= 0:
            found.append((self._channel, content))
            return
        self._channel = content[0]
        if len(content) > 1:
            found.append((self._channel, memoryview(content)[1:]))

    async def _next(self) -> frames.Piece | None:
        """Return the next piece of a message; answer Ping and Close. None at the end."""
        while not self._is_over:
            try:
                event, self._put_off = self._put_off or next(self._found, None), None
                if event is None:
                    await self._read()
                    continue
                self._frames += 1
                if self._frames > _TURN:
                    self._frames = 0
                    await trio.lowlevel.checkpoint()
                if isinstance(event, frames.Piece):
                    return event
                await self._answer(event)
            except (*PEER_GONE, frames.FrameError):
                self._is_over = True
        return None

    async def _read(self) -> None:
        # To read is to let others run, but for what TLS has decrypted already.
        self._frames = 0
        # First what was read together with the HTTP request.
        data, self._early = self._early, b""
        data = data or bytes(await self._connection.receive_some(_PIECE))
        if not data:
            raise trio.BrokenResourceError("the client has disconnected without Close")
        self._found = self._reader.receive(data)

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

    async def deliver_parts(self, take: Callable[[list[Part]], Awaitable[None]]) -> None:
        """Like `deliver`, with what `receive_parts` returns.

        In one task, as a change of tasks would cost as much as the rest: that the client has
        gone while `take` is busy is found by pings alone.
        """
        busy = Busy()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ping_while, busy, nursery.cancel_scope)
            while (parts := await self.receive_parts()) is not None:
                with busy:
                    await take(parts)
            nursery.cancel_scope.cancel()

    async def _ping_while(self, busy: Busy, scope: trio.CancelScope) -> None:
        await busy.ping(self._ping)
        scope.cancel()

    async def _ping(self) -> None:
        if self._has_closed:
            raise trio.BrokenResourceError("the connection is being closed")
        await send_ping(self._beneath, self._sending, frames.head(frames.PING, 0))

    async def _answer(self, event: frames.Control) -> None:
        if event.opcode == frames.CLOSE:
            self._is_over = True
        if self._has_closed or event.opcode == frames.PONG:
            return  # a Close is the answer to our own
        opcode = frames.PONG
        if event.opcode == frames.CLOSE:
            opcode, self._has_closed = frames.CLOSE, True
        await self._send_raw((frames.head(opcode, len(event.content)), event.content))

    def _decoded(self, message: bytes) -> bytes:
        if not self._is_text or not message:
            return message
        if not message[:1].isdigit():
            raise frames.FrameError("the channel is no digit")
        try:
            return bytes([message[0] - ord("0")]) + base64.b64decode(message[1:], validate=True)
        except binascii.Error as exc:
            raise frames.FrameError("a message that is not base64") from exc

    async def send(self, message: bytes) -> None:
        """Send a message. Raises BrokenResourceError."""
        opcode = frames.BINARY
        if self._is_text and message:
            opcode = frames.TEXT
            message = b"%d%b" % (message[0], base64.b64encode(message[1:]))
        await self._send_if_open((frames.head(opcode, len(message)), message))

    async def send_parts(self, messages: Iterable[Message]) -> None:
        """Send messages in one go. Raises BrokenResourceError. Not in base64."""
        parts: list[Content] = []
        for channel, contents in messages:
            parts.append(frames.head(frames.BINARY, 1 + sum(map(len, contents))))
            parts.append(bytes([channel]))
            parts += contents
        await self._send_if_open(parts)

    async def _send_if_open(self, parts: Iterable[Content]) -> None:
        if self._has_closed:
            raise trio.BrokenResourceError("the WebSocket is closed")
        await self._send_raw(parts)

    async def _send_raw(self, parts: Iterable[Content]) -> None:
        async with self._sending:
            await self._send_parts(parts)

    async def close(self) -> None:
        """Send Close, and wait for the client's, so that it reads all our messages."""
        with trio.move_on_after(_LEAVE_LIMIT), suppress(*PEER_GONE):
            if not self._has_closed:
                self._has_closed = True
                await self._send_raw((frames.head(frames.CLOSE, len(_NORMAL)), _NORMAL))
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
