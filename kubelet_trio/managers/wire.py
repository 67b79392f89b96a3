"""Reads lists as plugins send them, one entry after the other: of devices, or of claims.

A list may have tens of thousands of entries. Decoded as one message, it would keep all other tasks
waiting.
"""

from __future__ import annotations

from collections.abc import Iterator

_ENTRY = 1 << 3 | 2  # the tag of the only field: number 1, with a length


def list_entries(data: bytes) -> Iterator[bytes]:
    """Yield the encoded entries of a message whose only field is a list of messages, number 1.

    Raises ValueError for anything else in it.
    """
    at, end = 0, len(data)
    while at < end:
        if data[at] != _ENTRY:
            raise ValueError(f"the message has an unknown field at byte {at}")
        size = shift = 0
        while True:
            at += 1
            if at >= end or shift > 28:
                raise ValueError("the message is cut short")
            size |= (data[at] & 0x7F) << shift
            shift += 7
            if data[at] < 0x80:
                break
        at += 1
        if at + size > end:
            raise ValueError("the message is cut short")
        yield data[at : at + size]
        at += size
