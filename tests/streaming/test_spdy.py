"""SPDY's frames: what one side says is what the other reads, however it is cut."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.streaming import spdy
from kubelet_trio.streaming.spdy import (
    DataReceived,
    GoneAway,
    Pinged,
    SpdyError,
    SpdyWire,
    StreamOpened,
    StreamReplied,
    StreamReset,
)

_NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20)
_HEADERS = st.dictionaries(
    _NAMES, st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut `data` at some places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def read(wire: SpdyWire, data: bytes, cuts: list[int]) -> list[spdy.Event]:
    """Return what a side makes of `data`, with pieces of one stream's data joined."""
    found: list[spdy.Event] = []
    for piece in pieces(data, cuts):
        for event in wire.receive(piece):
            if event is None:
                continue
            last = found[-1] if found else None
            if (
                isinstance(event, DataReceived)
                and isinstance(last, DataReceived)
                and last.stream_id == event.stream_id
                and not last.is_last
            ):
                content = bytes(last.content) + event.content
                found[-1] = DataReceived(event.stream_id, content, event.is_last)
            else:
                found.append(event)
    return found


def test_the_dictionary_is_the_published_one() -> None:
    assert len(spdy.DICTIONARY) == 1423
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2  # what every SPDY/3 stream begins with


@given(st.lists(_HEADERS, min_size=1, max_size=4), st.lists(st.integers(0, 1 << 16)))
def test_streams_are_opened_with_their_headers(
    headers: list[dict[str, str]], cuts: list[int]
) -> None:
    client, server = SpdyWire(is_client=True), SpdyWire(is_client=False)
    opened = [client.open(one) for one in headers]
    told = read(server, b"".join(frame for _, frame in opened), cuts)
    assert told == [
        StreamOpened(stream_id, one) for (stream_id, _), one in zip(opened, headers, strict=True)
    ]
    assert [stream_id for stream_id, _ in opened] == list(range(1, 2 * len(headers), 2))
    answer = b"".join(server.reply(stream_id) for stream_id, _ in opened)
    assert read(client, answer, cuts) == [StreamReplied(stream_id) for stream_id, _ in opened]


@given(
    st.lists(st.tuples(st.sampled_from([1, 3]), st.binary(min_size=1, max_size=200)), max_size=8),
    st.lists(st.integers(0, 1 << 16), max_size=40),
)
def test_data_arrives_whole(said: list[tuple[int, bytes]], cuts: list[int]) -> None:
    server = SpdyWire(is_client=False)
    frames = b"".join(spdy.data(stream_id, content) for stream_id, content in said)
    frames += spdy.data(1, b"", is_last=True) + spdy.data(3, b"end", is_last=True)
    heard = {1: b"", 3: b""}
    ended = []
    for event in read(server, frames, cuts):
        assert isinstance(event, DataReceived)
        heard[event.stream_id] += event.content
        ended += [event.stream_id] if event.is_last else []
    wanted = {n: b"".join(content for one, content in said if one == n) for n in (1, 3)}
    assert heard == {1: wanted[1], 3: wanted[3] + b"end"}
    assert ended == [1, 3]


def test_the_other_frames() -> None:
    server = SpdyWire(is_client=False)
    settings = struct.pack(">HHI", 0x8003, 4, 4) + bytes(4)
    window = struct.pack(">HHIII", 0x8003, 9, 8, 1, 65536)
    said = settings + spdy.ping(1) + window + spdy.ping(2) + spdy.go_away()
    said += spdy.reset(7, spdy.ResetStatus.CANCEL)
    assert list(filter(None, server.receive(said))) == [
        Pinged(1, is_ours=False),
        Pinged(2, is_ours=True),
        GoneAway(),
        StreamReset(7, 5),
    ]


def _syn(stream_id: int, plain: bytes, kind: int = 1) -> bytes:
    deflater = zlib.compressobj(zdict=spdy.DICTIONARY)
    block = deflater.compress(plain) + deflater.flush(zlib.Z_SYNC_FLUSH)
    content = struct.pack(">IIxx", stream_id, 0) + block
    return struct.pack(">HHI", 0x8003, kind, len(content)) + content


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">HHI", 0x8002, 1, 0),  # another version
        struct.pack(">HHI", 0x8003, 1, 1 << 20),  # a frame that is too long
        struct.pack(">HHI", 0x8003, 1, 4) + bytes(4),  # no headers
        struct.pack(">HHI", 0x8003, 3, 4) + bytes(4),  # a reset without a reason
        struct.pack(">HHI", 0x8003, 1, 14) + bytes(14),  # not deflated
        _syn(1, struct.pack(">II", 1, 1000)),  # a name longer than all
        _syn(1, struct.pack(">I", 2)),  # fewer headers than announced
        _syn(2, struct.pack(">I", 0)),  # a client's stream has an odd number
        _syn(0, struct.pack(">I", 0)),
        _syn(1, struct.pack(">III", 1, 1, 0) + bytes(1 << 20)),  # a bomb
    ],
)
def test_what_is_no_spdy_is_an_error(said: bytes) -> None:
    with pytest.raises(SpdyError):
        list(SpdyWire(is_client=False).receive(said))


def test_a_stream_is_not_opened_twice() -> None:
    client, server = SpdyWire(is_client=True), SpdyWire(is_client=False)
    _, first = client.open({})
    list(server.receive(first))
    other = SpdyWire(is_client=False)
    other._last_seen = 1
    with pytest.raises(SpdyError, match="stream 1 after 1"):
        list(other.receive(first))


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_noise_ends_in_an_error_or_in_silence(noise: bytes, cuts: list[int]) -> None:
    wire = SpdyWire(is_client=False)
    with suppress(SpdyError):
        read(wire, noise, cuts)
