"""The client's half of HTTP/2, without I/O: what gRPC needs of RFC 9113, and nothing else.

It does what h2 does for a server, with the same events, in a fifth of h2's time: the agent's calls
of its runtime are a large part of what a pod costs. A client needs little of HTTP/2: it opens all
streams, takes no pushes, and its own headers are the same for each call, so they are encoded once,
as literals that touch no table. The header blocks of a peer are decoded by hpack, and again only
when they or the peer's table have changed.

Lenient where a peer harms nobody: what arrives for a stream that is over is dropped. Everything
else that breaks the protocol ends the connection, with a GOAWAY that names the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import NoReturn

from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import FlowControlError, FrameTooLargeError, ProtocolError
from hpack import Decoder, HPACKError

from kubelet_trio.grpc._h2 import (
    CONNECTION_WINDOW,
    DEFAULT_WINDOW,
    MAX_FRAME_BYTES,
    PREFACE,
    goaway_frame,
)
from kubelet_trio.grpc._metadata import Headers

# Types and flags of frames, and settings: RFC 9113, sections 6 and 6.5.2.
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING = range(7)
_WINDOW_UPDATE, _CONTINUATION = 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME = 0x2, 0x3, 0x4, 0x5
_HEADER_BYTES = 9
_LARGEST_WINDOW = 2**31 - 1
_MOST_BLOCK_BYTES = 1 << 16  # of one header block, as h2 limits it
_MOST_KNOWN, _LONGEST_KNOWN = 64, 256  # header blocks whose decoding is remembered; bytes of one

_head = Struct(">BHBBI")  # length (24 bits), type, flags, stream
_setting = Struct(">HI")
_word = Struct(">I")


@dataclass(slots=True)
class _Stream:
    """A stream that is not over in both directions."""

    window: int  # bytes that we may send
    room: int  # bytes that the peer may send
    has_headers: bool = False
    is_ended: bool = False  # by the peer
    is_finished: bool = False  # by us


class ClientH2:
    """The frames of a connection; see `Http2Frames`."""

    highest_inbound_stream_id = 0  # a server opens none

    def __init__(self, stream_window: int) -> None:
        """Queue the preface; `stream_window` is what a stream's peer may send unasked."""
        self.most_streams = 2**32  # no limit, until the peer's settings set one
        self.max_outbound_frame_size = MAX_FRAME_BYTES
        self._stream_window = stream_window
        self._peer_window = DEFAULT_WINDOW  # of its new streams
        self._streams: dict[int, _Stream] = {}
        self._last_id = -1
        self._window = DEFAULT_WINDOW  # bytes that we may send on all streams together
        self._room = DEFAULT_WINDOW
        self._decoder = Decoder(_MOST_BLOCK_BYTES)
        self._known: dict[bytes, Headers] = {}  # by block, as long as the peer's table stays
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags: more follows
        self._in = b""  # an incomplete frame
        self._out = bytearray(PREFACE)
        wanted = _setting.pack(_ENABLE_PUSH, 0) + _setting.pack(_INITIAL_WINDOW, stream_window)
        self._out += _frame(_SETTINGS, 0, 0, wanted)
        self.increment_flow_control_window(CONNECTION_WINDOW - DEFAULT_WINDOW)

    # Sending

    def data_to_send(self) -> bytes:
        """Return what is queued, and forget it."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def get_next_available_stream_id(self) -> int:
        return self._last_id + 2

    def send_headers(self, stream_id: int, headers: Headers, end_stream: bool = False) -> None:
        """Open a stream with its request's headers."""
        self._last_id = stream_id
        self._streams[stream_id] = _Stream(self._peer_window, self._stream_window)
        block = b"".join([_literal(name, value) for name, value in headers])
        kind, most = _HEADERS, self.max_outbound_frame_size
        flags = _END_STREAM if end_stream else 0
        while len(block) > most:
            self._out += _frame(kind, flags, stream_id, block[:most])
            kind, flags, block = _CONTINUATION, 0, block[most:]
        self._out += _frame(kind, flags | _END_HEADERS, stream_id, block)
        if end_stream:
            self._finish(stream_id)

    def send_data(self, stream_id: int, data: memoryview, end_stream: bool = False) -> None:
        """Queue a frame of data, within `local_flow_control_window`."""
        size = len(data)
        self._out += _head.pack(
            size >> 16, size & 0xFFFF, _DATA, _END_STREAM if end_stream else 0, stream_id
        )
        self._out += data
        self._window -= size
        self._streams[stream_id].window -= size
        if end_stream:
            self._finish(stream_id)

    def local_flow_control_window(self, stream_id: int) -> int:
        return min(self._window, self._streams[stream_id].window)

    def increment_flow_control_window(self, amount: int, stream_id: int | None = None) -> None:
        """Let the peer send so many bytes more; does nothing for a stream that is over."""
        if stream_id is None:
            self._room += amount
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.room += amount
        else:
            return
        self._out += _frame(_WINDOW_UPDATE, 0, stream_id or 0, _word.pack(amount))

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        """End a stream in both directions."""
        if self._streams.pop(stream_id, None) is not None:
            self._out += _frame(_RST_STREAM, 0, stream_id, _word.pack(error_code))

    def _finish(self, stream_id: int) -> None:
        stream = self._streams[stream_id]
        stream.is_finished = True
        if stream.is_ended:
            del self._streams[stream_id]

    # Receiving

    def receive_data(self, data: bytes) -> list[Event]:
        """Return what the bytes tell.

        Raises one of h2's errors if the peer breaks the protocol; a GOAWAY is queued then.
        """
        if self._in:
            data = self._in + data
        events: list[Event] = []
        at, size = 0, len(data)
        try:
            while size - at >= _HEADER_BYTES:
                high, low, kind, flags, stream_id = _head.unpack_from(data, at)
                start = at + _HEADER_BYTES
                end = start + (high << 16 | low)
                if end - start > MAX_FRAME_BYTES:
                    raise FrameTooLargeError(f"a frame of {end - start} bytes")
                if end > size:
                    break
                self._receive(kind, flags, stream_id & 0x7FFFFFFF, data[start:end], events)
                at = end
        except ProtocolError as exc:
            self._out += goaway_frame(0, int(exc.error_code))
            raise
        self._in = data[at:]
        return events

    def _receive(
        self, kind: int, flags: int, stream_id: int, body: bytes, events: list[Event]
    ) -> None:
        if self._block is not None and (kind != _CONTINUATION or stream_id != self._block[0]):
            raise ProtocolError("a header block is interrupted")
        receive = _RECEIVERS.get(kind)
        if receive is not None:  # frames of unknown types are to be ignored
            receive(self, flags, stream_id, body, events)

    def _stream_of(self, stream_id: int) -> _Stream | None:
        """Return an open stream; None if it is over. Raises for one that never was."""
        found = self._streams.get(stream_id)
        if found is None and (stream_id > self._last_id or stream_id % 2 == 0):
            raise ProtocolError(f"a frame for stream {stream_id}, which was not opened")
        if found is not None and found.is_ended:
            raise ProtocolError(f"a frame for stream {stream_id} after its end")
        return found

    def _on_data(self, flags: int, stream_id: int, body: bytes, events: list[Event]) -> None:
        stream, counted = self._stream_of(stream_id), len(body)
        self._room -= counted
        if stream is not None:
            if not stream.has_headers:
                raise ProtocolError("data before headers")
            stream.room -= counted
        if self._room < 0 or (stream is not None and stream.room < 0):
            raise FlowControlError("more data than the window allows")
        if flags & _PADDED:
            body = _unpadded(body)
        # Also for a stream that is over: the connection's window is to be given back.
        events.append(DataReceived(stream_id=stream_id, data=body, flow_controlled_length=counted))
        if flags & _END_STREAM and stream is not None:
            self._end(stream_id, stream, events)

    def _on_headers(self, flags: int, stream_id: int, body: bytes, events: list[Event]) -> None:
        if flags & _PADDED:
            body = _unpadded(body)
        if flags & _HAS_PRIORITY:
            body = body[5:]
        if flags & _END_HEADERS:
            self._take_block(flags, stream_id, body, events)
        else:
            self._block = stream_id, flags, bytearray(body)

    def _on_continuation(
        self, flags: int, stream_id: int, body: bytes, events: list[Event]
    ) -> None:
        if self._block is None:
            raise ProtocolError("the rest of no header block")
        _, first, block = self._block
        block += body
        # Empty ones count too: they cost time, and otherwise would never end.
        if len(block) > _MOST_BLOCK_BYTES or not body:
            raise ProtocolError("a header block that is too long")
        if flags & _END_HEADERS:
            self._block = None
            self._take_block(first, stream_id, bytes(block), events)

    def _take_block(self, flags: int, stream_id: int, block: bytes, events: list[Event]) -> None:
        headers = self._decode(block)  # for every stream: it changes the table
        stream = self._stream_of(stream_id)
        if stream is None:
            return
        ends = flags & _END_STREAM
        if not stream.has_headers:
            if not ends and _is_informational(headers):
                return
            stream.has_headers = True
            events.append(ResponseReceived(stream_id=stream_id, headers=headers))
        elif not ends:
            raise ProtocolError("a second header block that does not end its stream")
        else:
            events.append(TrailersReceived(stream_id=stream_id, headers=headers))
        if ends:
            self._end(stream_id, stream, events)

    def _decode(self, block: bytes) -> Headers:
        found = self._known.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table.dynamic_entries
        before = len(table), table[0] if table else None
        try:
            found = [(bytes(n), bytes(v)) for n, v in self._decoder.decode(block, raw=True)]
        except HPACKError as exc:
            raise ProtocolError(f"a header block does not decode: {exc}") from exc
        if len(table) != before[0] or (table and table[0] is not before[1]):
            self._known.clear()  # what blocks mean has changed
        elif len(block) <= _LONGEST_KNOWN and block and block[0] & 0xE0 != 0x20:
            # Not one that begins with a new size of the table: that is to be obeyed each time.
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[block] = found
        return found

    def _end(self, stream_id: int, stream: _Stream, events: list[Event]) -> None:
        stream.is_ended = True
        events.append(StreamEnded(stream_id=stream_id))
        if stream.is_finished:
            del self._streams[stream_id]

    def _on_reset(self, _flags: int, stream_id: int, body: bytes, events: list[Event]) -> None:
        _check_size(body, 4)
        if not stream_id:
            raise ProtocolError("a reset of no stream")
        if self._streams.pop(stream_id, None) is not None:
            events.append(StreamReset(stream_id=stream_id, error_code=_word.unpack(body)[0]))

    def _on_settings(self, flags: int, stream_id: int, body: bytes, events: list[Event]) -> None:
        if stream_id or len(body) % _setting.size or (flags & _ACK and body):
            raise ProtocolError("malformed settings")
        if flags & _ACK:
            return
        for code, value in _setting.iter_unpack(body):
            if code == _MAX_STREAMS:
                self.most_streams = value
            elif code == _MAX_FRAME:
                if not MAX_FRAME_BYTES <= value < 1 << 24:
                    raise ProtocolError(f"SETTINGS_MAX_FRAME_SIZE {value}")
                self.max_outbound_frame_size = value
            elif code == _INITIAL_WINDOW:
                self._resize_windows(value)
        self._out += _frame(_SETTINGS, _ACK, 0, b"")
        events.append(RemoteSettingsChanged())

    def _resize_windows(self, size: int) -> None:
        if size > _LARGEST_WINDOW:
            raise FlowControlError(f"SETTINGS_INITIAL_WINDOW_SIZE {size}")
        for stream in self._streams.values():
            stream.window += size - self._peer_window  # may become negative, section 6.9.2
            _check_window(stream.window)
        self._peer_window = size

    def _on_ping(self, flags: int, stream_id: int, body: bytes, _events: list[Event]) -> None:
        _check_size(body, 8)
        if stream_id:
            raise ProtocolError("a ping of a stream")
        if not flags & _ACK:
            self._out += _frame(_PING, _ACK, 0, body)

    def _on_window(self, _flags: int, stream_id: int, body: bytes, events: list[Event]) -> None:
        _check_size(body, 4)
        amount = _word.unpack(body)[0] & _LARGEST_WINDOW
        if not amount:
            raise ProtocolError("a window is widened by 0")
        if not stream_id:
            self._window += amount
            _check_window(self._window)
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.window += amount
            _check_window(stream.window)
        events.append(WindowUpdated(stream_id=stream_id, delta=amount))

    def _on_priority(self, _flags: int, _stream_id: int, body: bytes, _events: list[Event]) -> None:
        _check_size(body, 5)

    def _on_push(self, *_frame: object) -> NoReturn:
        raise ProtocolError("a push, although our settings forbid it")


_RECEIVERS: dict[int, Callable[[ClientH2, int, int, bytes, list[Event]], None]] = {
    _DATA: ClientH2._on_data,
    _HEADERS: ClientH2._on_headers,
    _PRIORITY: ClientH2._on_priority,
    _RST_STREAM: ClientH2._on_reset,
    _SETTINGS: ClientH2._on_settings,
    _PUSH_PROMISE: ClientH2._on_push,
    _PING: ClientH2._on_ping,
    _WINDOW_UPDATE: ClientH2._on_window,
    _CONTINUATION: ClientH2._on_continuation,
}


def _frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    size = len(body)
    return _head.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + body


def _unpadded(body: bytes) -> bytes:
    if not body or body[0] >= len(body):
        raise ProtocolError("more padding than frame")
    return body[1 : len(body) - body[0]]


def _check_size(body: bytes, size: int) -> None:
    if len(body) != size:
        raise FrameTooLargeError(f"a frame of {len(body)} bytes instead of {size}")


def _check_window(window: int) -> None:
    if window > _LARGEST_WINDOW:
        raise FlowControlError("a window of more than 2^31-1 bytes")


def _is_informational(headers: Headers) -> bool:
    return any(name == b":status" and value.startswith(b"1") for name, value in headers)


# HPACK, RFC 7541: of the static table what a request has. Nothing of ours enters the peer's table.
_INDEXED = {(b":method", b"POST"): b"\x83", (b":scheme", b"http"): b"\x86"}
_NAMES = {b":authority": 1, b":path": 4, b"content-type": 31, b"user-agent": 58}


@lru_cache(512)
def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header as a literal field without indexing (section 6.2.2)."""
    if (name, value) in _INDEXED:
        return _INDEXED[name, value]
    index = _NAMES.get(name, 0)
    head = _integer(index, 4) if index else b"\x00" + _integer(len(name), 7) + name
    return head + _integer(len(value), 7) + value


def _integer(value: int, bits: int) -> bytes:
    """Return a number with a prefix of so many bits, the others 0 (section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    found, value = bytearray((most,)), value - most
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
