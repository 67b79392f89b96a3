"""Messages of CRI as JSON: their fields by name, enums as numbers, bytes in base64.

betterproto2 takes 400 us to encode a container's status as protobuf; msgspec, which sees a
dataclass in it, takes 4.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


def write_message(message: Any) -> bytes:
    """Return a message, or an object with messages in it, as JSON."""
    return _encoder.encode(message)


def read_body(body: bytes) -> Any:
    """Return the content of an entry's body as dicts and lists. Raises ValueError."""
    try:
        return msgspec.json.decode(body)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def read_message(message_type: type[T], content: Any) -> T:
    """Return the message that a part of a body holds.

    Args:
        message_type: a message of `cri.v1`.
        content: its JSON as `read_body` returns it; fields that it lacks have their default.

    Raises ValueError if it is not of that type.
    """
    return msgspec.convert(content, message_type)
