"""What a WebSocket client sends, in whatever pieces it arrives, against wsproto's client."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.abc import SendStream
from trio.testing import MockClock, memory_stream_pair
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from kubelet_trio.streaming import WebSocket, frames
from kubelet_trio.streaming.frames import Control, FrameError, FrameReader, Piece
from kubelet_trio.streaming.masks import apply_mask
from kubelet_trio.streaming.websocket import Part, sending_parts

MASK = b"\x01\x80\xff\x3c"
Sent = BytesMessage | TextMessage | Ping


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Cut data at places, which are taken modulo its length."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


def read(pieces: Sequence[bytes]) -> list[Control | bytes]:
    """Return the messages and control frames, in order."""
    reader, found, message = FrameReader(), list[Control | bytes](), b""
    for piece in pieces:
        for event in reader.receive(piece):
            if isinstance(event, Control):
                found.append(event)
                continue
            assert event.is_first == (not message) or not event.content
            message += event.content
            if event.is_last:
                found.append(message)
                message = b""
    assert not message
    return found


_FRAMES = st.one_of(
    st.builds(BytesMessage, st.binary(max_size=200), message_finished=st.just(True)),
    st.builds(BytesMessage, st.binary(min_size=60_000, max_size=70_000)),
    st.builds(TextMessage, st.text(max_size=40)),
    st.builds(Ping, st.binary(max_size=125)),
)


@given(st.lists(_FRAMES, max_size=5), st.lists(st.integers(0, 1 << 18), max_size=6))
@example([BytesMessage(b"x" * 125), BytesMessage(b"y" * 126), BytesMessage(b"z" * (1 << 16))], [1])
def test_all_that_a_client_sends_arrives_however_it_is_cut(
    sent: list[Sent], places: list[int]
) -> None:
    client = Connection(ConnectionType.CLIENT)
    data = b"".join(client.send(event) for event in sent)
    data += client.send(CloseConnection(1000, "done"))
    wanted: list[Control | bytes] = []
    for event in sent:
        if isinstance(event, Ping):
            wanted.append(Control(frames.PING, bytes(event.payload)))
        else:
            content = event.data
            wanted.append(content.encode() if isinstance(content, str) else bytes(content))
    wanted.append(Control(frames.CLOSE, b"\x03\xe8done"))
    assert read(cut(data, places)) == wanted


def _frame(first: int, masked: bytes, second: int | None = None) -> bytes:
    size = len(masked)
    if second is not None:
        return bytes([first, second]) + MASK + masked
    if size < 126:
        return bytes([first, 0x80 | size]) + MASK + masked
    return bytes([first, 0x80 | 126]) + size.to_bytes(2, "big") + MASK + masked


def _masked(content: bytes) -> bytes:
    return apply_mask(content, MASK)


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("reserved bits", _frame(0xC2, b"")),
        ("an unknown kind", _frame(0x83, b"")),
        ("an unknown control", _frame(0x8B, b"")),
        ("no mask", b"\x82\x01x"),
        ("a fragment of a Ping", _frame(0x09, b"")),
        ("a Ping of 126 bytes", b"\x89\xfe\x00\x7e" + MASK + bytes(126)),
        ("continues nothing", _frame(0x80, b"")),
        ("a message in a message", _frame(0x02, b"") + _frame(0x82, b"")),
        ("a short length in two bytes", b"\x82\xfe\x00\x05" + MASK + bytes(5)),
        ("a short length in eight bytes", b"\x82\xff" + (300).to_bytes(8, "big") + MASK),
        ("a negative length", b"\x82\xff" + (1 << 63).to_bytes(8, "big") + MASK),
        ("text that is no UTF-8", _frame(0x81, _masked(b"\xff"))),
        ("text that ends too early", _frame(0x81, _masked(b"\xc3"))),
        ("a Close of one byte", _frame(0x88, _masked(b"\x03"))),
        ("a Close with a code that none sends", _frame(0x88, _masked(b"\x03\xee"))),
        ("a Close whose reason is no UTF-8", _frame(0x88, _masked(b"\x03\xe8\xff"))),
    ],
)
def test_what_is_not_allowed_ends_the_connection(what: str, data: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().receive(data))


def test_a_large_frame_is_passed_on_as_it_arrives() -> None:
    reader = FrameReader()
    head = b"\x82\xff" + (4 << 20).to_bytes(8, "big") + MASK
    found = [list(reader.receive(data)) for data in (head, _masked(b"abcde"), b"")]
    assert found == [[], [Piece(b"abcde", True, False)], []]


async def test_the_parts_of_messages_keep_their_channels_and_their_order() -> None:
    client = Connection(ConnectionType.CLIENT)
    data = client.send(BytesMessage(b"\x00on", message_finished=False))
    data += client.send(BytesMessage(b"e")) + client.send(BytesMessage(b"\x04{}"))
    data += client.send(BytesMessage(b"")) + client.send(BytesMessage(b"\x00"))
    data += client.send(Ping(b"p")) + client.send(BytesMessage(b"\xff\x00"))
    ours, theirs = memory_stream_pair()
    socket, found, pongs = WebSocket(ours, data), list[list[tuple[int, bytes]]](), b""

    async def hear() -> None:
        nonlocal pongs
        pongs = bytes(await theirs.receive_some())
        await theirs.send_eof()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            while (parts := await socket.receive_parts()) is not None:
                found.append([(channel, bytes(part)) for channel, part in parts])
    assert found == [[(0, b"on"), (0, b"e"), (4, b"{}")], [(255, b"\x00")]]
    assert pongs == b"\x8a\x01p"


async def test_a_client_that_goes_while_its_input_is_not_taken(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    client, taken = Connection(ConnectionType.CLIENT), list[bytes]()

    async def take(parts: list[Part]) -> None:
        taken.extend(bytes(part) for _channel, part in parts)
        await trio.sleep_forever()

    await theirs.send_all(client.send(BytesMessage(b"\x00x")))
    await theirs.aclose()
    with trio.fail_after(21):
        await WebSocket(ours).deliver_parts(take)
    assert taken == [b"x"]


async def test_messages_are_sent_in_one_go() -> None:
    ours, theirs = memory_stream_pair()
    await WebSocket(ours).send_parts([(1, [b"a", memoryview(b"b")]), (2, [b"c"])])
    assert bytes(await theirs.receive_some()) == b"\x82\x03\x01ab\x82\x02\x02c"


class Gathering(SendStream):
    """Takes parts as they are."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    async def send_parts(self, parts: Iterable[bytes | memoryview]) -> None:
        for part in parts:
            await self.send_all(part)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.taken.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_parts_are_not_joined_for_a_stream_that_takes_them() -> None:
    stream = Gathering()
    await sending_parts(stream)([b"a", b"b"])
    assert stream.taken == [b"a", b"b"]
