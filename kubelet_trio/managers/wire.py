"""Reads lists of devices as plugins send them, one entry after the other.

A list may have tens of thousands of entries. Decoded as one message, it would keep all other tasks
waiting.
"""

from __future__ import annotations

from collections.abc import Iterator

_DEVICES = 1 << 3 | 2  # the tag of the only field: number 1, with a length


def list_entries(data: bytes) -> Iterator[bytes]:
    """Yield the encoded entries of a message whose only field is a list of messages, number 1.

    Raises ValueError for anything else in it.
    """
    at, end = 0, len(data)
    while at < end:
        if data[at] != _DEVICES:
            raise ValueError(f"a list of devices has an unknown field at byte {at}")
        size = shift = 0
        while True:
            at += 1
            if at >= end or shift > 28:
                raise ValueError("a list of devices is cut short")
            size |= (data[at] & 0x7F) << shift
            shift += 7
            if data[at] < 0x80:
                break
        at += 1
        if at + size > end:
            raise ValueError("a list of devices is cut short")
        yield data[at : at + size]
        at += size
