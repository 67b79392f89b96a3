"""The frames of a WebSocket server, without I/O (RFC 6455, section 5).

A frame of a message is passed on as far as it has arrived: nothing waits for the end of a large
one, and a byte is copied only to take off its mask.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import NamedTuple

from kubelet_trio.streaming.masks import apply_mask

CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_FIN, _RESERVED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F
_MOST_CONTROL = 125
_IN_TWO, _IN_EIGHT = 126, 127  # where the length follows in more bytes
_OK_CODES = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})

_decoder = codecs.getincrementaldecoder("utf-8")


class FrameError(Exception):
    """The client broke the protocol. The connection cannot be parsed any further."""


class Piece(NamedTuple):
    """Some bytes of a message."""

    content: bytes
    is_first: bool  # of its message
    is_last: bool


class Control(NamedTuple):
    """A whole Close, Ping or Pong."""

    opcode: int
    content: bytes


class FrameReader:
    """Turns what a client sends into pieces of messages and control frames."""

    def __init__(self) -> None:
        self._rest = b""  # of a head or a control frame that is incomplete
        self._left = 0  # bytes missing of the current data frame
        self._mask = b""  # of the next of them
        self._is_final = False  # whether the current data frame is its message's last
        self._in_message = self._is_begun = False  # begun: a piece of it was passed on
        self._text: codecs.IncrementalDecoder | None = None

    def receive(self, data: bytes) -> Iterator[Piece | Control]:
        """Yield what is in received data. Raises `FrameError`."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        view, at, size = memoryview(data), 0, len(data)
        while at < size:
            if not self._left:
                head = _read_head(data, at)
                if head is None or (head[0] >= CLOSE and head[4] + head[2] > size):
                    self._rest = data[at:]
                    return
                opcode, is_final, length, mask, at = head
                if opcode >= CLOSE:
                    yield _control(opcode, apply_mask(view[at : at + length], mask))
                    at += length
                    continue
                self._begin(opcode, length, mask, is_final=is_final)
                if length and at == size:
                    return
            end = min(at + self._left, size)
            yield self._piece(apply_mask(view[at:end], self._mask))
            at = end

    def _begin(self, opcode: int, length: int, mask: bytes, *, is_final: bool) -> None:
        if (opcode == CONTINUED) != self._in_message:
            raise FrameError("a message begins within another, or continues none")
        if opcode != CONTINUED:
            self._is_begun = False
            self._text = _decoder() if opcode == TEXT else None
        self._left, self._mask, self._is_final = length, mask, is_final
        self._in_message = not is_final

    def _piece(self, content: bytes) -> Piece:
        size = len(content)
        self._left -= size
        if self._left and (shift := size % 4):
            self._mask = self._mask[shift:] + self._mask[:shift]
        is_first, self._is_begun = not self._is_begun, True
        is_last = self._is_final and not self._left
        if self._text is not None:
            try:
                self._text.decode(content, final=is_last)
            except UnicodeDecodeError as exc:
                raise FrameError("text that is not UTF-8") from exc
        return Piece(content, is_first, is_last)


# Of a frame: opcode, whether it is its message's last, length, mask, and where its payload begins.
# A plain tuple: kubectl sends a frame of a single byte after each large one.
_Head = tuple[int, bool, int, bytes, int]


def _read_head(data: bytes, at: int) -> _Head | None:
    """Return the head at `at`; None if it is incomplete. Raises `FrameError`."""
    have = len(data) - at
    if have < 2:
        return None
    first, second = data[at], data[at + 1]
    opcode, length, at = first & _OPCODE, second & _LENGTH, at + 2
    if first & _RESERVED or (BINARY < opcode < CLOSE) or opcode > PONG:
        raise FrameError(f"a frame that begins with {first:#x}")
    if second < _MASKED:
        raise FrameError("a client's frame without a mask")
    if opcode >= CLOSE and (length > _MOST_CONTROL or first < _FIN):
        raise FrameError("a control frame that is long or in fragments")
    if length == _IN_TWO:
        if have < 8:
            return None
        length, at = data[at] << 8 | data[at + 1], at + 2
        if length < _IN_TWO:
            raise FrameError(f"a length of {length} in two bytes")
    elif length == _IN_EIGHT:
        if have < 14:
            return None
        length, at = int.from_bytes(data[at : at + 8], "big"), at + 8
        if length < 1 << 16 or length >> 63:
            raise FrameError(f"a length of {length} in eight bytes")
    elif have < 6:
        return None
    return opcode, first >= _FIN, length, data[at : at + 4], at + 4


def _control(opcode: int, content: bytes) -> Control:
    """Return a control frame. Raises `FrameError` for a Close that says nothing valid."""
    if opcode == CLOSE and content:
        try:
            content[2:].decode()
        except UnicodeDecodeError as exc:
            raise FrameError("a reason that is not UTF-8") from exc
        if len(content) < 2 or int.from_bytes(content[:2], "big") not in _OK_CODES:
            raise FrameError("a Close without a valid code")
    return Control(opcode, content)


def head(opcode: int, length: int) -> bytes:
    """Return the head of a server's frame: whole, and without a mask."""
    first = _FIN | opcode
    if length < _IN_TWO:
        return bytes([first, length])
    if length < 1 << 16:
        return bytes([first, _IN_TWO]) + length.to_bytes(2, "big")
    return bytes([first, _IN_EIGHT]) + length.to_bytes(8, "big")
