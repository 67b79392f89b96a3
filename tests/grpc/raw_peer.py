"""A peer that says exactly the bytes a test wants, right or wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import trio
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)
from trio.testing import memory_stream_pair

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OK_HEADERS = {":status": "200", "content-type": "application/grpc+proto"}


def message(data: bytes, *, flag: int = 0, size: int | None = None) -> bytes:
    return struct.pack(">BI", flag, len(data) if size is None else size) + data


def headers(fields: dict[str, str], *, end: bool = False, stream: int = 1) -> bytes:
    """Encode without the dynamic table, so that the order of frames does not matter."""
    encoder = Encoder()
    encoder.header_table_size = 0
    frame = HeadersFrame(stream, encoder.encode(fields.items(), huffman=False))
    frame.flags.add("END_HEADERS")
    if end:
        frame.flags.add("END_STREAM")
    return frame.serialize()


def data(payload: bytes, *, end: bool = False, stream: int = 1) -> bytes:
    frame = DataFrame(stream, payload)
    if end:
        frame.flags.add("END_STREAM")
    return frame.serialize()


def trailers(status: str | None = "0", *, stream: int = 1, text: str = "") -> bytes:
    fields = {"grpc-message": text}
    if status is not None:
        fields["grpc-status"] = status
    return headers(fields, end=True, stream=stream)


def reset(code: int, *, stream: int = 1) -> bytes:
    return RstStreamFrame(stream, code).serialize()


def settings(**values: int) -> bytes:
    codes = {"max_concurrent_streams": 3, "initial_window_size": 4}
    frame = SettingsFrame(0, {codes[name]: value for name, value in values.items()})
    return frame.serialize()


@dataclass
class RawPeer:
    """Accepts connections; each gets `greeting`, and one of `answers` when a request came."""

    answers: Iterable[bytes | None] = ()
    greeting: bytes = field(default_factory=settings)
    dials: list[float] = field(default_factory=list)
    streams: list[trio.abc.Stream] = field(default_factory=list)
    _dialed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    async def dial(self) -> trio.abc.Stream:
        """Give a client its end; the other end is in `streams`."""
        await trio.lowlevel.checkpoint()
        self.dials.append(trio.current_time())
        near, far = memory_stream_pair()
        self.streams.append(far)
        self._dialed.unpark_all()
        await far.send_all(self.greeting)
        return near

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer the requests of one connection after the other; None hangs up."""
        task_status.started()
        for number, answer in enumerate(self.answers):
            while len(self.streams) <= number:
                await self._dialed.park()
            stream = self.streams[number]
            await read_until(stream, HeadersFrame)
            if answer is None:
                await stream.aclose()
            else:
                await stream.send_all(answer)


async def read_until(stream: trio.abc.Stream, kind: type[Frame]) -> list[Frame]:
    """Read frames up to one of a kind, which is the last one returned."""
    buffer, found = bytearray(), list[Frame]()
    while True:
        chunk = await stream.receive_some()
        assert chunk, f"the peer hung up before {kind.__name__}"
        buffer += chunk
        if buffer.startswith(PREFACE):
            del buffer[: len(PREFACE)]
        while len(buffer) >= 9:
            frame, size = Frame.parse_frame_header(memoryview(bytes(buffer[:9])))
            if len(buffer) < 9 + size:
                break
            frame.parse_body(memoryview(bytes(buffer[9 : 9 + size])))
            del buffer[: 9 + size]
            found.append(frame)
            if isinstance(frame, kind):
                return found


PING = PingFrame(0, b"are you?").serialize()
