"""Frames, looked at before h2 sees them: GOAWAY is kept from it, and overlong ones refused.

h2 regards a connection as closed the moment it sees a GOAWAY and refuses every later
frame, although the streams that the GOAWAY spares go on. So GOAWAY frames are taken out
of the bytes before h2 reads them, and ours are written past it. And h2 looks at a frame's
length only once all of it is there, which may be 16 MiB of rubbish later.
"""

from __future__ import annotations

from dataclasses import dataclass

from h2.exceptions import FrameTooLargeError
from hyperframe.frame import GoAwayFrame

_HEADER = 9
_GOAWAY = 7
MAX_FRAME_BYTES = 1 << 14  # HTTP/2's default, which we do not raise
PREFACE_BYTES = 24


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer takes no streams above `last_stream_id`."""

    last_stream_id: int
    error_code: int
    debug: bytes


class GoAwayFilter:
    """Splits received bytes into what h2 may see and GOAWAYs, in order."""

    def __init__(self, *, preface: bool) -> None:
        self._held = b""  # the start of a frame that is not decided on yet
        self._left = PREFACE_BYTES if preface else 0  # of the current frame, to let through

    def feed(self, data: bytes) -> list[bytes | GoAway]:
        """Return the pieces that `data` completes. Raises h2's `FrameTooLargeError`."""
        if self._held:
            data, self._held = self._held + data, b""
        size = len(data)
        pieces: list[bytes | GoAway] = []
        start, at = 0, self._left
        while size - at >= _HEADER:
            length = int.from_bytes(data[at : at + 3], "big")
            if length > MAX_FRAME_BYTES:
                raise FrameTooLargeError(f"a frame of {length} bytes")
            end = at + _HEADER + length
            if data[at + 3] == _GOAWAY and length >= 8:
                if end > size:
                    break
                pieces += (data[start:at], _parse(data[at + _HEADER : end]))
                start = end
            at = end
        if at < size:
            self._left, self._held = 0, data[at:]
            pieces.append(data[start:at])
        else:
            self._left = at - size
            pieces.append(data[start:] if start else data)
        return [piece for piece in pieces if piece]


def goaway_frame(last_stream_id: int) -> bytes:
    """Return the frame that asks a peer to start no further streams here."""
    frame = GoAwayFrame(0, last_stream_id=last_stream_id)
    return frame.serialize()


def _parse(body: bytes) -> GoAway:
    last = int.from_bytes(body[:4], "big") & 0x7FFFFFFF
    return GoAway(last, int.from_bytes(body[4:8], "big"), body[8:])
