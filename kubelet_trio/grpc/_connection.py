"""One HTTP/2 connection on a Trio stream, as client or server.

Two tasks use the transport: the caller of `run` reads, a child writes. Other tasks change h2's
state without an await and leave the bytes to the writer. So a cancelled task cannot leave half a
frame on the wire, and frames that are queued together are sent together.

A connection ends when the peer hangs up or breaks the protocol or, once draining (GOAWAY), with
its last stream. Streams in flight are lost. Reconnecting is the channel's or the peer's task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import h2.events
import h2.exceptions
import trio

from kubelet_trio.grpc._h2 import (
    CONNECTION_WINDOW,
    REFUSED_STREAM,
    GoAway,
    GoAwayFilter,
    goaway_frame,
    open_h2,
)
from kubelet_trio.grpc._limits import ServerLimits
from kubelet_trio.grpc._metadata import Headers
from kubelet_trio.grpc._stream import Http2Stream, StreamLostError

CONGESTED = 1 << 20  # queued bytes from which on senders of data wait
FLUSH_SECONDS = 1.0  # to send what is queued when the connection ends
_LAST_STREAM_ID = 2**31 - 1
_TURN = 16 * 1024  # bytes of a read after which other tasks run


class Http2Connection:
    """HTTP/2 over `transport`.

    A server's `on_request` is called with every stream that the client opens; a client's
    `on_draining` is called once when the connection takes no more streams.
    """

    def __init__(
        self,
        transport: trio.abc.Stream,
        *,
        client: bool,
        on_request: Callable[[Http2Stream], None] | None = None,
        on_draining: Callable[[], None] | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self.client = client
        self.streams: dict[int, Http2Stream] = {}
        self.draining = False  # no new streams
        self.closed = False
        self.reason = "the connection was closed"  # why it ended, for the errors of its streams
        self._transport = transport
        self._on_request = on_request
        self._on_draining = on_draining
        limits = limits or ServerLimits()
        self._most_queued = limits.queued_bytes
        self._h2 = open_h2(
            client=client, streams=limits.streams, stream_window=limits.stream_window
        )
        self._filter = GoAwayFilter(preface=not client)
        self._output = bytearray()
        self._sending = False
        self._uncredited = 0  # bytes received and not yet given back to the connection's window
        self._ready = trio.Event()
        self._wake_writer = trio.lowlevel.ParkingLot()
        self._drained = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()

    # Running and ending

    async def run(self) -> None:
        """Serve the connection to its end, then fail its remaining streams."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    self.flush()
                    await self._read()
                    self._shut()
                    # The peer may still read: our GOAWAY names the error that it made.
                    with trio.move_on_after(FLUSH_SECONDS):
                        await self._wait_flushed()
                    nursery.cancel_scope.cancel()
        finally:
            # Again, for a `run` that was cancelled: whoever waits for a stream must see its loss.
            self._shut()
            await trio.aclose_forcefully(self._transport)

    async def wait_ready(self) -> None:
        """Wait for the peer's SETTINGS, which prove HTTP/2, or for the end (see `closed`)."""
        await self._ready.wait()

    def drain(self) -> None:
        """Send GOAWAY, take no further streams, and end with the last one."""
        self._output += goaway_frame(self._h2.highest_inbound_stream_id)
        self._take_no_more()
        self._end_if_drained()
        self.flush()

    def _take_no_more(self) -> None:
        if not self.draining:
            self.draining = True
            if self._on_draining is not None:
                self._on_draining()
            self._room.unpark_all()

    def _end_if_drained(self) -> None:
        if self.draining and not self.streams:
            # A client hangs up by itself once it has read our GOAWAY.
            grace = 0 if self.client else FLUSH_SECONDS
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + grace)

    def _shut(self) -> None:
        self.closed = True
        self._take_no_more()
        self._ready.set()
        lost = list(self.streams.values())
        self.streams.clear()
        for stream in lost:
            stream.lose(StreamLostError(self.reason))
        self._drained.unpark_all()

    # Opening and closing streams

    @property
    def is_usable(self) -> bool:
        return not (self.closed or self.draining)

    @property
    def has_room(self) -> bool:
        """Whether the peer allows one more stream now (MAX_CONCURRENT_STREAMS)."""
        return len(self.streams) < self._h2.remote_settings.max_concurrent_streams

    async def wait_room(self) -> None:
        """Wait until there may be room for a stream, or the connection takes no more."""
        await self._room.park()

    def open_stream(self, headers: Headers) -> Http2Stream:
        """Open a stream. Call it only while `is_usable` and `has_room`."""
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, headers)
        stream = self.streams[stream_id] = Http2Stream(self, stream_id)
        if stream_id + 2 > _LAST_STREAM_ID:  # ids are used once, RFC 9113, section 5.1.1
            self._take_no_more()
        self.flush()
        return stream

    def close_stream(self, stream: Http2Stream, code: int) -> None:
        """Reset a stream that has not ended in both directions; otherwise do nothing."""
        if self.streams.pop(stream.id, None) is None:
            return
        self._h2.reset_stream(stream.id, code)
        stream.on_lost = None  # we end it ourselves
        stream.lose(StreamLostError("the call was ended here", code=code))
        self._stream_gone()
        self.flush()

    def _forget_if_done(self, stream: Http2Stream) -> None:
        if stream.ended and stream.finished:
            self.streams.pop(stream.id, None)
            self._stream_gone()

    def _stream_gone(self) -> None:
        if self._room:
            self._room.unpark_all()
        self._end_if_drained()

    # Sending: called by streams, never blocks

    def send_room(self, stream_id: int) -> int:
        """Return how many bytes of data may be queued for a stream in one frame now."""
        if self.is_congested:
            return 0
        window = self._h2.local_flow_control_window(stream_id)
        return max(0, min(window, self._h2.max_outbound_frame_size))

    @property
    def is_congested(self) -> bool:
        return len(self._output) >= CONGESTED

    async def wait_drained(self) -> None:
        """Wait until the writer has sent what was queued, or the connection is gone."""
        await self._drained.park()

    def send_data(self, stream: Http2Stream, data: memoryview, *, end: bool) -> None:
        self._h2.send_data(stream.id, data, end_stream=end)
        self._sent(stream, end)

    def send_headers(self, stream: Http2Stream, headers: Headers, *, end: bool) -> None:
        self._h2.send_headers(stream.id, headers, end_stream=end)
        self._sent(stream, end)

    def widen_window(self, amount: int, stream_id: int | None = None) -> None:
        self._h2.increment_flow_control_window(amount, stream_id)
        self.flush()

    def flush(self) -> None:
        """Pass what h2 wants to send to the writer."""
        self._output += self._h2.data_to_send()
        if self._output and self._wake_writer:
            self._wake_writer.unpark_all()

    def _sent(self, stream: Http2Stream, end: bool) -> None:
        if end:
            stream.finished = True
            self._forget_if_done(stream)
        self.flush()

    # The two tasks

    async def _write(self) -> None:
        try:
            while True:
                while self._output:
                    # What is queued while this is sent collects in a new buffer.
                    data, self._output = self._output, bytearray()
                    self._sending = True
                    await self._transport.send_all(data)
                    self._sending = False
                    self._drained.unpark_all()
                await self._wake_writer.park()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self.reason = f"the connection was lost: {exc.__cause__ or exc}"
            self._scope.cancel()

    async def _wait_flushed(self) -> None:
        while self._output or self._sending:
            await self._drained.park()

    async def _read(self) -> None:
        try:
            while data := await self._transport.receive_some():
                for number, piece in enumerate(self._filter.feed(bytes(data))):
                    if isinstance(piece, GoAway):
                        # At once: no call may begin after what came right before it.
                        self._go_away(piece)
                    else:
                        if number:
                            await trio.lowlevel.checkpoint()
                        await self._receive_in_turns(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self.reason = f"the connection was lost: {exc.__cause__ or exc}"
        except h2.exceptions.H2Error as exc:
            self.reason = f"the peer broke the HTTP/2 protocol: {exc}"
            self.flush()
        else:
            self.reason = "the peer closed the connection"

    async def _receive_in_turns(self, data: bytes) -> None:
        # One read may hold the answers of a hundred calls, and decoding their headers takes long.
        for start in range(0, len(data), _TURN):
            if start:
                await trio.lowlevel.checkpoint()
            self._receive(data[start : start + _TURN])

    def _receive(self, data: bytes) -> None:
        # h2 has processed all of `data` before we see its first event: a stream may be closed in
        # h2 already. So h2 is not asked about a stream before all events are handled.
        fed: list[Http2Stream] = []
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                counted = event.flow_controlled_length or 0
                self._uncredited += counted
                if (stream := self.streams.get(event.stream_id or 0)) is not None:
                    stream.feed(bytes(event.data or b""), counted)
                    fed.append(stream)
            elif (handler := _HANDLERS.get(type(event))) is not None:
                handler(self, event)
        for stream in fed:
            stream.credit()
            stream.wake()
        # The connection's window is given back as data arrives, a stream's only as a task reads
        # it: a slow reader holds up its own stream and no other.
        if self._uncredited >= CONNECTION_WINDOW // 4:
            self.widen_window(self._uncredited)
            self._uncredited = 0
        self.flush()
        if len(self._output) > self._most_queued:
            raise h2.exceptions.ProtocolError("it requests answers and does not read them")

    # Events of the peer

    def _on_headers(self, event: Any) -> None:
        if (stream := self.streams.get(event.stream_id)) is not None:
            stream.headers = event.headers
            stream.wake()

    def _on_trailers(self, event: Any) -> None:
        if (stream := self.streams.get(event.stream_id)) is not None:
            stream.trailers = event.headers  # they end the stream, and `_on_ended` wakes it

    def _on_ended(self, event: Any) -> None:
        if (stream := self.streams.get(event.stream_id)) is not None:
            stream.ended = True
            stream.wake()
            self._forget_if_done(stream)

    def _on_request_received(self, event: Any) -> None:
        if self.draining or self._on_request is None:
            # REFUSED_STREAM tells the client that a retry elsewhere is safe, RFC 9113, section 8.7.
            with contextlib.suppress(h2.exceptions.StreamClosedError):
                self._h2.reset_stream(event.stream_id, REFUSED_STREAM)
            return
        stream = self.streams[event.stream_id] = Http2Stream(self, event.stream_id)
        stream.headers = event.headers
        self._on_request(stream)

    def _on_reset(self, event: Any) -> None:
        if (stream := self.streams.pop(event.stream_id, None)) is not None:
            code = int(event.error_code)
            stream.lose(
                StreamLostError(
                    f"the peer reset the stream with error code {code}",
                    code=code,
                    unprocessed=code == REFUSED_STREAM,
                )
            )
            self._stream_gone()

    def _on_window(self, event: Any) -> None:
        if event.stream_id:
            if (stream := self.streams.get(event.stream_id)) is not None:
                stream.wake()
        else:
            self._wake_all()

    def _on_settings(self, _event: Any) -> None:
        self._ready.set()
        self._room.unpark_all()
        self._wake_all()

    def _wake_all(self) -> None:
        for stream in self.streams.values():
            if not stream.finished:  # it may wait for room to send
                stream.wake()

    def _go_away(self, frame: GoAway) -> None:
        if not self.client:
            return  # a client's GOAWAY needs no action: we open no streams towards it
        debug = frame.debug.decode("utf-8", "replace")
        reason = f"the peer is going away with error code {frame.error_code} {debug}".rstrip()
        self.reason = reason
        for stream in [s for s in self.streams.values() if s.id > frame.last_stream_id]:
            del self.streams[stream.id]
            stream.lose(StreamLostError(reason, unprocessed=True))
        self._take_no_more()
        self._end_if_drained()


_HANDLERS: dict[type, Callable[[Http2Connection, Any], None]] = {
    h2.events.ResponseReceived: Http2Connection._on_headers,
    h2.events.TrailersReceived: Http2Connection._on_trailers,
    h2.events.StreamEnded: Http2Connection._on_ended,
    h2.events.RequestReceived: Http2Connection._on_request_received,
    h2.events.StreamReset: Http2Connection._on_reset,
    h2.events.WindowUpdated: Http2Connection._on_window,
    h2.events.RemoteSettingsChanged: Http2Connection._on_settings,
}
