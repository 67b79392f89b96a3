"""SPDY/3.1 as Kubernetes uses it, without I/O.

It has streams with headers, data, half-close and reset, pings and GOAWAY. There is no flow
control, as in all implementations that Kubernetes uses (moby/spdystream): settings and window
updates are read and have no effect.

A frame begins with eight bytes. Data frames: stream id (31 bits), flags, length. Control frames:
version, kind, flags, length. Header blocks are deflated in one compression context per connection.

Source: the SPDY Protocol, drafts 3 and 3.1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

_VERSION = 3
_CONTROL = 0x8000
_FIN, _UNIDIRECTIONAL = 0x01, 0x02
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _HEADERS, _WINDOW = (
    1, 2, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
_MOST_CONTROL = 64 * 1024  # bytes of a control frame
_MOST_HEADERS = 64 * 1024  # bytes of its inflated headers
_MOST_NAMES = 128  # headers in a frame; clients send four
_MOST_DATA = (1 << 24) - 1
_LAST_ID = (1 << 31) - 1
_SMALL = 4096  # bytes that are rather copied than kept in what was read with them
_HEAD = struct.Struct(">HHI")
_WORD = struct.Struct(">I")
_TWO_WORDS = struct.Struct(">II")

# The dictionary with which both ends start compressing headers (draft 3, section 2.6.10.1).
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language"
    " accept-ranges age allow authorization cache-control connection content-base"
    " content-encoding content-language content-length content-location content-md5"
    " content-range content-type date etag expect expires from host if-match"
    " if-modified-since if-none-match if-range if-unmodified-since last-modified location"
    " max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after"
    " server te trailer transfer-encoding upgrade user-agent vary via warning"
    " www-authenticate method get status"
)
# The draft's remainder, byte for byte: one difference, and no header block can be inflated.
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request"
    "401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented"
    "503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00"
    " Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age="
    "gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    # Each word follows its length in four bytes; the rest has no lengths.
    words = [*_WORDS.split(), "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie"]
    words += ["keep-alive", "origin"]
    return b"".join(_WORD.pack(len(w)) + w.encode() for w in words) + _REST.encode()


DICTIONARY = _dictionary()

Headers = Mapping[str, str]
Content = bytes | memoryview


class SpdyError(Exception):
    """The peer broke the protocol. The connection cannot be parsed any further."""


class ResetStatus(IntEnum):
    """The reason of a reset."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    CANCEL = 5
    INTERNAL_ERROR = 6


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer has opened a stream. Names of headers are in lower case."""

    stream_id: int
    headers: Headers = field(default_factory=dict)
    is_last: bool = False  # the peer has half-closed it


@dataclass(frozen=True, slots=True)
class StreamReplied:
    """The peer has accepted a stream that we opened."""

    stream_id: int
    headers: Headers = field(default_factory=dict)
    is_last: bool = False


class DataReceived(NamedTuple):  # and no frozen dataclass: there are 30,000 of them a gigabyte
    """Some bytes of a stream, possibly a part of a frame."""

    stream_id: int
    content: Content
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class StreamReset:
    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Pinged:
    """A ping of the peer, to be sent back, or the answer to ours (`is_ours`)."""

    ping_id: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The peer accepts no more streams."""


Event = StreamOpened | StreamReplied | DataReceived | StreamReset | Pinged | GoneAway


class SpdyWire:
    """One side of a connection: it turns received bytes into events, and makes frames to send.

    Send the returned frames in the order of the calls: headers share a compression context.
    """

    def __init__(self, *, is_client: bool) -> None:
        self._is_client = is_client
        self._next_id = 1 if is_client else 2
        self._last_seen = 0  # id of the peer's newest stream
        self._rest = b""  # of a frame's head or a control frame that is incomplete
        self._left = 0  # bytes missing of the current data frame
        self._data_of = 0  # its stream
        self._data_ends = False  # whether it half-closes the stream
        self._inflater = zlib.decompressobj(zdict=DICTIONARY)
        self._deflater = zlib.compressobj(zdict=DICTIONARY)

    # Receiving

    def receive(self, data: bytes) -> Iterator[Event | None]:
        """Yield the events in received data. Raises `SpdyError`.

        A frame without an event yields None, so that the caller can count frames. The contents
        of frames with data are not copied, unless they are small.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        view, at, size = memoryview(data), 0, len(data)
        # In one function: a gigabyte has 100,000 frames, and each call would cost as much as this.
        while at < size:
            if not self._left:
                if size - at < _HEAD.size:
                    break
                first, second, word = _HEAD.unpack_from(data, at)
                if first & _CONTROL:
                    if (found := self._next_control(view, at)) is None:
                        break
                    at, event = found
                    yield event
                    continue
                at += _HEAD.size
                self._data_of, self._data_ends = first << 16 | second, bool(word >> 24 & _FIN)
                self._left = word & _MOST_DATA
            end = min(at + self._left, size)
            self._left -= end - at
            is_last = self._data_ends and not self._left
            if end > at or is_last:
                yield DataReceived(self._data_of, _content(view[at:end]), is_last)
            else:
                yield None
            at = end
        self._rest = data[at:]

    def _next_control(self, received: memoryview, at: int) -> tuple[int, Event | None] | None:
        """Return the end of the next control frame and its event; None if it is incomplete."""
        first, kind, word = _HEAD.unpack_from(received, at)
        flags, length = word >> 24, word & _MOST_DATA
        if first & ~_CONTROL != _VERSION:
            raise SpdyError(f"version {first & ~_CONTROL} of the protocol, not {_VERSION}")
        if length > _MOST_CONTROL:
            raise SpdyError(f"a control frame of {length} bytes")
        start, end = at + _HEAD.size, at + _HEAD.size + length
        if end > len(received):
            return None
        return end, self._control(kind, flags, bytes(received[start:end]))

    def _control(self, kind: int, flags: int, content: bytes) -> Event | None:
        is_last = bool(flags & _FIN)
        try:
            if kind == _SYN_STREAM:
                return self._opened(content, is_last)
            if kind == _SYN_REPLY:
                return StreamReplied(_id(content), self._headers(content[4:]), is_last)
            if kind == _HEADERS:  # inflated although unused: the compression context must advance
                stream_id = _id(content)
                self._headers(content[4:])
                return DataReceived(stream_id, b"", is_last=True) if is_last else None
            if kind == _RST_STREAM:
                stream_id, status = _TWO_WORDS.unpack(content)
                return StreamReset(stream_id & _LAST_ID, status)
            if kind == _PING:
                # Odd ids are of pings that the client began, even ones of the server.
                [ping_id] = _WORD.unpack(content)
                return Pinged(ping_id, bool(ping_id % 2) == self._is_client)
            if kind == _GOAWAY:
                return GoneAway()
        except struct.error as exc:
            raise SpdyError(f"a control frame of kind {kind} is too short or too long") from exc
        return None  # settings, window updates, unknown kinds

    def _opened(self, content: bytes, is_last: bool) -> StreamOpened:
        stream_id = _id(content)
        headers = self._headers(content[10:])  # after stream id, associated id, priority and slot
        # A client's ids are odd, a server's even, and both only increase.
        if stream_id % 2 == self._is_client or stream_id <= self._last_seen:
            raise SpdyError(f"stream {stream_id} after {self._last_seen}")
        self._last_seen = stream_id
        return StreamOpened(stream_id, headers, is_last)

    def _headers(self, block: bytes) -> Headers:
        try:
            plain = self._inflater.decompress(block, _MOST_HEADERS)
        except zlib.error as exc:
            raise SpdyError(f"headers: {exc}") from exc
        # A small block can inflate to a huge one: `decompress` stops at the limit.
        if self._inflater.unconsumed_tail:
            raise SpdyError(f"more than {_MOST_HEADERS} bytes of headers")
        [count] = _WORD.unpack_from(plain)
        if count > _MOST_NAMES:
            raise SpdyError(f"{count} headers in one frame")
        at, found = _WORD.size, {}
        for _ in range(count):
            name, at = _text(plain, at)
            value, at = _text(plain, at)
            found[name.lower()] = value.split("\0", 1)[0]  # NUL separates several values
        return found

    # Sending

    def open(self, headers: Headers) -> tuple[int, bytes]:
        """Return a new stream's id and the frame that opens it."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        # No associated stream, priority and slot 0 (draft 3, section 2.6.1).
        content = _TWO_WORDS.pack(stream_id, 0) + b"\0\0" + self._deflated(headers)
        return stream_id, _control(_SYN_STREAM, content)

    def reply(self, stream_id: int) -> bytes:
        """Return the frame that accepts a stream."""
        return _control(_SYN_REPLY, _WORD.pack(stream_id) + self._deflated({}))

    def _deflated(self, headers: Headers) -> bytes:
        plain = _WORD.pack(len(headers))
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                plain += _WORD.pack(len(text)) + text
        # A sync flush completes the block, so that the peer can inflate it at once.
        return self._deflater.compress(plain) + self._deflater.flush(zlib.Z_SYNC_FLUSH)


def data(stream_id: int, *contents: Content, is_last: bool = False) -> bytes:
    """Return a data frame. Raises ValueError for 16 MiB or more."""
    size = sum(map(len, contents))
    if size > _MOST_DATA:
        raise ValueError(f"{size} bytes in one frame")
    flags = _FIN if is_last else 0
    return b"".join((_TWO_WORDS.pack(stream_id, flags << 24 | size), *contents))


def reset(stream_id: int, status: ResetStatus) -> bytes:
    """Return the frame that resets a stream."""
    return _control(_RST_STREAM, _TWO_WORDS.pack(stream_id, status))


def ping(ping_id: int) -> bytes:
    """Return a ping (a client's ids are odd, a server's even), or the answer to one."""
    return _control(_PING, _WORD.pack(ping_id))


def go_away(last_id: int = 0) -> bytes:
    """Return the frame that ends the connection (GOAWAY)."""
    return _control(_GOAWAY, _TWO_WORDS.pack(last_id, 0))


def _control(kind: int, content: bytes) -> bytes:
    return _HEAD.pack(_CONTROL | _VERSION, kind, len(content)) + content


def _content(view: memoryview) -> Content:
    # A small part of a read must not keep all of it in memory.
    return bytes(view) if len(view) < _SMALL else view


def _id(content: bytes) -> int:
    [stream_id] = _WORD.unpack_from(content)
    return int(stream_id) & _LAST_ID


def _text(plain: bytes, at: int) -> tuple[str, int]:
    [length] = _WORD.unpack_from(plain, at)
    at += _WORD.size
    if at + length > len(plain):
        raise SpdyError("a header is longer than the headers")
    return plain[at : at + length].decode("utf-8", "replace"), at + length
