"""Messages to bytes and back, and their framing within a stream."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, Self, TypeVar

from kubelet_trio.grpc._status import GRPCError, Status
from kubelet_trio.model import encode_message, parse_message

MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # what the Go kubelet and containerd allow for CRI
CONTENT_TYPE = b"application/grpc"
_PREFIX = struct.Struct(">BI")
PREFIX_BYTES = _PREFIX.size


class Message(Protocol):
    """What the codec needs of a message; betterproto2's messages and `RawMessage` have it."""

    def __bytes__(self) -> bytes: ...

    @classmethod
    def parse(cls, data: bytes) -> Self: ...


MessageT = TypeVar("MessageT", bound=Message)


class RawMessage(bytes):
    """A message that stays encoded, for callers that read the wire format themselves."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        return cls(data)


class Codec(Protocol):
    """Encodes and decodes messages; `content_subtype` follows `application/grpc+`."""

    content_subtype: str

    def encode(self, message: Any, message_type: type[Any]) -> bytes: ...

    def decode(self, data: bytes, message_type: type[Any]) -> Any: ...


class ProtoCodec:
    """Protocol Buffers."""

    content_subtype = "proto"

    def encode(self, message: Any, message_type: type[Any]) -> bytes:
        """Encode a message. Raises TypeError for a message of another type."""
        if not isinstance(message, message_type):
            raise TypeError(f"{message_type.__name__} expected, not {type(message).__name__}")
        return encode_message(message)

    def decode(self, data: bytes, message_type: type[MessageT]) -> MessageT:
        """Decode a message. Raises ValueError or EOFError."""
        return parse_message(message_type, data)


def frame_message(data: bytes, limit: int) -> bytes:
    """Prefix an encoded message. Raises RESOURCE_EXHAUSTED beyond `limit` bytes."""
    if len(data) > limit:
        raise GRPCError(
            Status.RESOURCE_EXHAUSTED, f"message to send is too large: {len(data)} > {limit} bytes"
        )
    return _PREFIX.pack(0, len(data)) + data


async def read_frame(read: Callable[[int], Awaitable[bytes]], limit: int) -> bytes | None:
    """Read one message's bytes; None at the end. `read(n)` returns n bytes, or b"" at the end.

    Raises RESOURCE_EXHAUSTED for a message beyond `limit`, UNIMPLEMENTED for a compressed one.
    """
    prefix = await read(PREFIX_BYTES)
    if not prefix:
        return None
    compressed, size = _PREFIX.unpack(prefix)
    if compressed:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported")
    if size > limit:
        raise GRPCError(
            Status.RESOURCE_EXHAUSTED, f"received message is too large: {size} > {limit} bytes"
        )
    if not size:
        return b""  # an empty message; `read(0)` would look like the end
    data = await read(size)
    if not data:
        raise GRPCError(Status.INTERNAL, "the stream ended within a message")
    return data
