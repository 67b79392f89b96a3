"""A SPDY connection, with its streams as Trio streams.

One task reads the connection (`run`) and passes data to the streams. SPDY as used here has no flow
control, so a stream that is not read blocks the others once `_BUFFERED` reads wait for it, as in
Go. Reset streams that are not wanted.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio
from trio.abc import HalfCloseableStream, SendStream, Stream

from kubelet_trio.streaming import spdy
from kubelet_trio.streaming.backpressure import PEER_GONE, Sending, send_or_ping, send_ping

_PIECE = 256 * 1024  # bytes of one read
_FRAME = 64 * 1024  # bytes of data in a frame that we send
_BUFFERED = 4  # reads with data of one stream that wait for its reader
_MOST_STREAMS = 512  # concurrent streams; a forwarded connection has two
_MOST_RESETS = 1000  # in `_RESET_WINDOW`
_RESET_WINDOW = 10.0  # s
_TURN = 64  # frames after which other tasks run: one read may contain 30,000


class SpdyStream(HalfCloseableStream):
    """One stream. As with TCP, each direction is closed separately."""

    def __init__(
        self,
        link: SpdyLink,
        stream_id: int,
        headers: spdy.Headers,
        deliver: Deliver | None = None,
    ) -> None:
        """Take a stream of a link; `deliver`: see `SpdyLink.open`."""
        self.stream_id, self.headers = stream_id, headers
        self._link = link
        self._in, self._out = trio.open_memory_channel[list[spdy.Content]](_BUFFERED)
        self.deliver: Deliver = deliver or self._put_runs
        self.replied = trio.Event()
        self.input_ended = trio.Event()  # all that the peer has sent was delivered
        self.was_reset = False
        self._has_ended = False  # whether we have closed our direction

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next data, of any size; b"" at the end. Raises BrokenResourceError."""
        try:
            return b"".join(await self._out.receive())
        except trio.EndOfChannel:
            if self.was_reset:
                raise trio.BrokenResourceError("the stream was reset") from None
            return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as view:
            for start in range(0, len(view), _FRAME):
                with view[start : start + _FRAME] as piece:
                    await self.send_parts([piece])

    async def send_parts(self, parts: Sequence[spdy.Content]) -> None:
        """Send data in one frame. Raises BrokenResourceError, and ValueError for 16 MiB or more."""
        if self._has_ended or self.was_reset:
            raise trio.BrokenResourceError("the stream is over")
        await self._link.send(spdy.data(self.stream_id, *parts))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        if not (self._has_ended or self.was_reset):
            self._has_ended = True
            await self._link.send(spdy.data(self.stream_id, b"", is_last=True))
            self._link.forget_ended(self)

    async def aclose(self) -> None:
        """Reset the stream, unless it has ended in both directions."""
        if self.is_open:
            self.was_reset = self._has_ended = True
            self._link.forget(self)
            self.end_input()
            with suppress(*PEER_GONE):
                await self._link.send(spdy.reset(self.stream_id, spdy.ResetStatus.CANCEL))
        await trio.lowlevel.checkpoint()

    # For the link

    @property
    def is_open(self) -> bool:
        return not (self.was_reset or (self._has_ended and self.input_ended.is_set()))

    async def _put_runs(self, runs: list[Run]) -> None:
        for _, contents in runs:
            await self.put(contents)

    async def put(self, contents: list[spdy.Content]) -> None:
        """Pass data, at least a byte, to the stream's reader; ping while it does not take it.

        Raises BrokenResourceError if the peer has disconnected.
        """
        await send_or_ping(self._in, contents, self._link.ping)

    def end_input(self) -> None:
        self.input_ended.set()
        self._in.close()


Run = tuple[SpdyStream, list[spdy.Content]]  # what follows each other on one stream
Deliver = Callable[[list[Run]], Awaitable[None]]


class SpdyLink:
    """A connection that speaks SPDY from now on."""

    def __init__(
        self,
        connection: Stream,
        *,
        is_client: bool,
        early: bytes = b"",
        beneath: SendStream | None = None,
    ) -> None:
        """Take a connection.

        Args:
            connection: the connection.
            is_client: whether our side is the client.
            early: data that was read from the connection already.
            beneath: for our pings, if `connection` counts what is sent as activity.
        """
        self._connection = connection
        self._beneath = beneath or connection
        self._pings = itertools.count(1 if is_client else 2, 2)
        self._early = early
        self._wire = spdy.SpdyWire(is_client=is_client)
        self._sending = Sending()
        self._runs: list[Run] = []  # in what was read last
        self._run_of: int | None = None  # stream of the last of them
        self._run: list[spdy.Content] = []
        self._deliver: Deliver | None = None  # takes them all
        self._streams: dict[int, SpdyStream] = {}
        self.ended = trio.Event()  # nothing more will be received
        self._offer, self.offered = trio.open_memory_channel[SpdyStream](_MOST_STREAMS)
        self._resets = 0  # since `_resets_from`
        self._resets_from = 0.0

    async def run(self) -> None:
        """Read until the peer disconnects or breaks the protocol, then end all streams."""
        try:
            await self._receive(self._early)
            while data := await self._connection.receive_some(_PIECE):
                await self._receive(bytes(data))
        except (spdy.SpdyError, *PEER_GONE):
            # Their readers must not take a lost connection for the end of the data.
            for stream in self._streams.values():
                stream.was_reset = True
        finally:
            self.ended.set()
            self._offer.close()
            for stream in self._streams.values():
                stream.end_input()
                stream.replied.set()

    async def _receive(self, data: bytes) -> None:
        for number, event in enumerate(self._wire.receive(data), 1):
            if number % _TURN == 0:
                await self._pass_on()
                await trio.lowlevel.checkpoint()
            if isinstance(event, spdy.DataReceived):
                if event.stream_id == self._run_of and not event.is_last:
                    self._run.append(event.content)
                else:
                    await self._take(event)
            elif event is not None:
                await self._pass_on()
                await self._react(event)
        await self._pass_on()

    async def _react(self, event: spdy.Event) -> None:
        if isinstance(event, spdy.StreamOpened):
            await self._open(event)
        elif isinstance(event, spdy.StreamReplied):
            if (stream := self._streams.get(event.stream_id)) is not None:
                stream.replied.set()
        elif isinstance(event, spdy.StreamReset):
            self._note_reset()
            if (stream := self._streams.pop(event.stream_id, None)) is not None:
                stream.was_reset = True
                stream.end_input()
                stream.replied.set()
        # client-go pings to keep idle connections open (PingPeriod of its SPDY transport).
        elif isinstance(event, spdy.Pinged) and not event.is_ours:
            await self.send(spdy.ping(event.ping_id))

    async def _take(self, event: spdy.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.input_ended.is_set():
            return
        if stream.deliver is not self._deliver:
            await self._pass_on()
            self._deliver = stream.deliver
        if event.content:
            if event.stream_id != self._run_of:
                self._run_of, self._run = event.stream_id, []
                self._runs.append((stream, self._run))
            self._run.append(event.content)
        if event.is_last:
            await self._pass_on()
            stream.end_input()
            self.forget_ended(stream)

    async def _pass_on(self) -> None:
        """Deliver what was found: each time has a cost at both ends."""
        if self._runs and self._deliver is not None:
            runs, self._runs, self._run_of = self._runs, [], None
            await self._deliver(runs)

    def _note_reset(self) -> None:
        """Count a reset. Raises `SpdyError` for a peer that opens streams only to reset them.

        Such a flood costs us more than the peer, like HTTP/2's Rapid Reset (CVE-2023-44487).
        """
        if trio.current_time() > self._resets_from + _RESET_WINDOW:
            self._resets, self._resets_from = 0, trio.current_time()
        self._resets += 1
        if self._resets > _MOST_RESETS:
            raise spdy.SpdyError("too many streams were reset")

    async def _open(self, event: spdy.StreamOpened) -> None:
        waiting = self._offer.statistics().current_buffer_used  # including streams reset since
        # Both, or `send_nowait` below could fail: streams that were reset still fill the channel.
        if len(self._streams) >= _MOST_STREAMS or waiting >= _MOST_STREAMS:
            await self.send(spdy.reset(event.stream_id, spdy.ResetStatus.REFUSED_STREAM))
            return
        stream = SpdyStream(self, event.stream_id, event.headers)
        self._streams[event.stream_id] = stream
        if event.is_last:
            stream.end_input()
        # The frame is made under the lock: headers must be sent in the order of their compression.
        async with self._sending:
            await self._connection.send_all(self._wire.reply(event.stream_id))
        self._offer.send_nowait(stream)

    async def open(self, headers: spdy.Headers, deliver: Deliver | None = None) -> SpdyStream:
        """Open a stream and wait until the peer accepts it. Raises BrokenResourceError.

        With `deliver` the stream is not to be read: `run` awaits `deliver` with what one read has
        brought of all streams that were opened with it, in the order in which it was sent.
        """
        async with self._sending:
            if self.ended.is_set():
                raise trio.BrokenResourceError("the connection is over")
            stream_id, frame = self._wire.open(headers)
            stream = self._streams[stream_id] = SpdyStream(self, stream_id, headers, deliver)
            await self._connection.send_all(frame)
        # Also set when the connection ends, so that no caller waits for ever.
        await stream.replied.wait()
        if stream.was_reset or (stream.input_ended.is_set() and not stream.is_open):
            raise trio.BrokenResourceError("the stream was refused")
        return stream

    async def ping(self) -> None:
        """Ping the peer. Raises BrokenResourceError if it has disconnected."""
        frame = spdy.ping(next(self._pings))
        await send_ping(self._beneath, self._sending, frame)

    async def send(self, frame: bytes) -> None:
        async with self._sending:
            await self._connection.send_all(frame)

    def forget(self, stream: SpdyStream) -> None:
        self._streams.pop(stream.stream_id, None)

    def forget_ended(self, stream: SpdyStream) -> None:
        """Forget a stream that has ended in both directions."""
        if not stream.is_open:
            self.forget(stream)

    async def go_away(self) -> None:
        with suppress(*PEER_GONE):
            await self.send(spdy.go_away())
