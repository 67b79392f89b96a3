"""h2 with the settings that gRPC needs, and with two of its limits worked around.

h2 regards a connection as closed once it reads a GOAWAY, and refuses every later frame, although
streams up to the GOAWAY's last id go on. And it checks the length of a frame only when the whole
frame is there, which may be 16 MiB later. So `GoAwayFilter` takes GOAWAYs out of the bytes before
h2 reads them and refuses frames that are too long; our own GOAWAYs are written past h2.
"""

from __future__ import annotations

from dataclasses import dataclass

import h2.config
import h2.connection
import h2.settings
from h2.exceptions import FrameTooLargeError
from hyperframe.frame import GoAwayFrame

# Error codes, RFC 9113, section 7.
NO_ERROR, REFUSED_STREAM, CANCEL = 0x0, 0x7, 0x8

STREAM_WINDOW = 1 << 20  # bytes
CONNECTION_WINDOW = 1 << 22  # bytes
MAX_STREAMS = 1000  # concurrent streams of a client; h2 closes on one that ignores it
_DEFAULT_WINDOW = 65535  # RFC 9113, section 6.9.2
_HEADER = 9  # bytes before a frame's payload
_DATA, _HEADERS, _GOAWAY = 0, 1, 7  # frame types
# Frames of streams in one piece: four answers of three frames. Each wakes the task of a call, which
# goes on for up to a millisecond.
_FRAMES = 12
MAX_FRAME_BYTES = 1 << 14  # SETTINGS_MAX_FRAME_SIZE, at its default
PREFACE_BYTES = 24  # a client sends "PRI * HTTP/2.0..." before its first frame


class H2(h2.connection.H2Connection):
    """An h2 connection that remembers fewer closed streams."""

    # h2 remembers how each of the last 65536 streams ended: some 10 MB after a day of calls.
    MAX_CLOSED_STREAMS = 256


def open_h2(*, client: bool, streams: int = MAX_STREAMS, stream_window: int = STREAM_WINDOW) -> H2:
    """Return a connection with its first frames queued."""
    config = h2.config.H2Configuration(
        client_side=client,
        header_encoding=None,
        # Ours are valid by construction; `_call` and `_server` check those of the peer.
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
        validate_inbound_headers=False,
        normalize_inbound_headers=False,
    )
    codes = h2.settings.SettingCodes
    values = {codes.INITIAL_WINDOW_SIZE: stream_window}
    values |= {codes.ENABLE_PUSH: 0} if client else {codes.MAX_CONCURRENT_STREAMS: streams}
    connection = H2(config)
    # Replaced before the first frame: h2 would send its own defaults, and ours in a second frame.
    connection.local_settings = h2.settings.Settings(client=client, initial_values=values)
    connection.initiate_connection()
    connection.increment_flow_control_window(CONNECTION_WINDOW - _DEFAULT_WINDOW)
    return connection


@dataclass(frozen=True, slots=True)
class GoAway:
    """A GOAWAY frame: the peer accepts no streams above `last_stream_id`."""

    last_stream_id: int
    error_code: int
    debug: bytes


class GoAwayFilter:
    """Splits received bytes into GOAWAYs and the bytes for h2, in order.

    No piece has more than a few frames of streams, so that others can run between pieces.
    """

    def __init__(self, *, preface: bool) -> None:
        self._held = b""  # an incomplete frame header, or an incomplete GOAWAY
        self._left = (
            PREFACE_BYTES if preface else 0
        )  # bytes of the current frame (or preface) to pass on

    def feed(self, data: bytes) -> list[bytes | GoAway]:
        """Return the pieces that `data` completes. Raises h2's `FrameTooLargeError`."""
        if self._held:
            data, self._held = self._held + data, b""
        size = len(data)
        pieces: list[bytes | GoAway] = []
        start, at, frames = 0, self._left, 0
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
            elif data[at + 3] in (_DATA, _HEADERS):
                frames += 1
                if frames % _FRAMES == 0 and end < size:
                    pieces.append(data[start:end])
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
    """Return the frame that asks a peer to open no further streams on this connection."""
    frame = GoAwayFrame(0, last_stream_id=last_stream_id)
    return frame.serialize()


def _parse(body: bytes) -> GoAway:
    last = int.from_bytes(body[:4], "big") & 0x7FFFFFFF
    return GoAway(last, int.from_bytes(body[4:8], "big"), body[8:])
