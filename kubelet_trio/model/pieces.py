"""Small parts of bytes as larger pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def joined(parts: Iterable[bytes | memoryview], least: int) -> Iterator[bytes]:
    """Yield parts joined to pieces of at least so many bytes, but for the last one."""
    found: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size >= least:
            yield b"".join(found)
            found.clear()
            size = 0
    if size:
        yield b"".join(found)
