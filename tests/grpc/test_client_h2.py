"""A client's frames against h2's server, and against what a peer may send."""

from __future__ import annotations

from collections.abc import Iterator

import h2.config
import h2.connection
import h2.events
import pytest
from h2.exceptions import ProtocolError
from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.grpc._client_h2 import ClientH2
from kubelet_trio.grpc._h2 import PREFACE

REQUEST = [(b":method", b"POST"), (b":path", b"/a/B"), (b"te", b"trailers")]
NAMES = st.sampled_from([b"content-type", b"grpc-status", b"grpc-message", b"x-a", b"x-b"])
VALUES = st.one_of(st.sampled_from([b"0", b"application/grpc"]), st.binary(max_size=40))
BLOCKS = st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=5), max_size=12)


def opened() -> ClientH2:
    """Return a client with stream 1 open and finished."""
    client = ClientH2(1000)
    client.send_headers(1, REQUEST)
    client.send_data(1, memoryview(b"asked"), end_stream=True)
    client.data_to_send()
    return client


def frames(wire: bytes) -> Iterator[Frame]:
    while wire:
        frame, size = Frame.parse_frame_header(memoryview(wire[:9]))
        frame.parse_body(memoryview(wire[9 : 9 + size]))
        wire = wire[9 + size :]
        yield frame


def block(stream: int, encoded: bytes, *flags: str) -> bytes:
    frame = HeadersFrame(stream, encoded)
    for flag in ("END_HEADERS", *flags):
        frame.flags.add(flag)
    return frame.serialize()


@given(BLOCKS, st.integers(0, 4096))
def test_blocks_decode_as_the_peers_table_has_it(
    blocks: list[list[tuple[bytes, bytes]]], table: int
) -> None:
    client, encoder = ClientH2(1000), Encoder()
    encoder.header_table_size = table
    # Each twice: the second time it may be known.
    for number, fields in enumerate(one for twice in blocks for one in (twice, twice)):
        stream = 2 * number + 1
        client.send_headers(stream, REQUEST, end_stream=True)
        (received,) = client.receive_data(block(stream, encoder.encode(fields)))
        assert isinstance(received, h2.events.ResponseReceived)
        assert received.headers == fields


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300))))
def test_a_peer_decodes_our_headers(fields: list[tuple[bytes, bytes]]) -> None:
    client = ClientH2(1000)
    client.data_to_send()
    client.send_headers(1, [*REQUEST, *fields])
    sent = list(frames(client.data_to_send()))
    encoded = b"".join(f.data for f in sent if isinstance(f, HeadersFrame | ContinuationFrame))
    decoder = Decoder()
    assert [(n, v) for n, v in decoder.decode(encoded, raw=True)] == [*REQUEST, *fields]
    assert not decoder.header_table.dynamic_entries


def test_long_headers_are_continued_in_frames_that_the_peer_takes() -> None:
    server = h2.connection.H2Connection(
        h2.config.H2Configuration(client_side=False, header_encoding=None)
    )
    server.initiate_connection()
    client, fields = ClientH2(1000), [(b"x", b"y" * 30_000)]
    client.send_headers(1, [*REQUEST, (b":scheme", b"http"), *fields], end_stream=True)
    # h2 checks the order of headers, which is the channel's business.
    server.config.validate_inbound_headers = False
    events = server.receive_data(client.data_to_send())
    (asked,) = [e for e in events if isinstance(e, h2.events.RequestReceived)]
    assert asked.headers[-1:] == fields
    assert any(isinstance(e, h2.events.StreamEnded) for e in events)


def test_the_preface_sets_windows_and_forbids_pushes() -> None:
    wire = ClientH2(4321).data_to_send()
    assert wire.startswith(PREFACE)
    settings, window = frames(wire[len(PREFACE) :])
    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {2: 0, 4: 4321}
    assert isinstance(window, WindowUpdateFrame)
    assert (window.stream_id, window.window_increment) == (0, (1 << 22) - 65535)


def test_a_changed_initial_window_holds_for_open_streams_and_may_be_used_up() -> None:
    client = ClientH2(1000)
    client.send_headers(1, REQUEST)
    client.send_data(1, memoryview(b"x" * 100))
    client.receive_data(SettingsFrame(0, {4: 60}).serialize())
    assert client.local_flow_control_window(1) == -40
    client.receive_data(WindowUpdateFrame(1, 50).serialize())
    assert client.local_flow_control_window(1) == 10
    client.send_headers(3, REQUEST)
    assert client.local_flow_control_window(3) == 60


def test_what_arrives_for_a_stream_that_is_over_counts_for_the_connection_alone() -> None:
    client, encoder = opened(), Encoder()
    client.reset_stream(1, 8)
    late = block(1, encoder.encode([(b"x-late", b"1")]))
    late += DataFrame(1, b"late").serialize() + RstStreamFrame(1, 0).serialize()
    (received,) = client.receive_data(late)
    assert isinstance(received, h2.events.DataReceived)
    assert received.flow_controlled_length == 4
    # The block that nobody read has changed the peer's table, and so ours.
    client.send_headers(3, REQUEST)
    (received,) = client.receive_data(block(3, encoder.encode([(b"x-late", b"1")])))
    assert isinstance(received, h2.events.ResponseReceived)
    assert received.headers == [(b"x-late", b"1")]


def test_bytes_may_arrive_one_by_one() -> None:
    client, answer = opened(), block(1, b"\x88") + DataFrame(1, b"yes").serialize()
    events = [event for at in range(len(answer)) for event in client.receive_data(answer[at:][:1])]
    assert [type(e) for e in events] == [h2.events.ResponseReceived, h2.events.DataReceived]


def test_padding_and_priority_are_left_out() -> None:
    client, padded = opened(), DataFrame(1, b"yes", pad_length=7)
    padded.flags.add("PADDED")
    first = HeadersFrame(1, b"\x88", pad_length=3, depends_on=0, stream_weight=1)
    for flag in ("PADDED", "PRIORITY", "END_HEADERS"):
        first.flags.add(flag)
    _, received = client.receive_data(first.serialize() + padded.serialize())
    assert isinstance(received, h2.events.DataReceived)
    assert (received.data, received.flow_controlled_length) == (b"yes", 3 + 7 + 1)


@pytest.mark.parametrize(
    "wire",
    [
        DataFrame(1, b"before the headers").serialize(),
        block(1, b"\x88") + DataFrame(1, b"x" * 1001).serialize(),  # beyond the window
        block(1, b"\x88") + block(1, b"\x88"),  # no trailers, they end nothing
        block(1, b"\x88", "END_STREAM").replace(b"\x00\x01\x88", b"\x00\x03\x88"),  # not opened
        block(2, b"\x88"),
        block(1, b"\x20\xff"),  # HPACK, cut short
        PushPromiseFrame(1, 2, b"\x88").serialize(),
        ContinuationFrame(1, b"\x88").serialize(),
        HeadersFrame(1, b"\x88").serialize() + DataFrame(1, b"x").serialize(),
        HeadersFrame(1, b"").serialize() + ContinuationFrame(1, b"").serialize(),
        HeadersFrame(1, b"").serialize() + ContinuationFrame(1, b"\x00" * 16000).serialize() * 5,
        SettingsFrame(0, {4: 2**31}).serialize(),
        SettingsFrame(0, {5: 1}).serialize(),
        SettingsFrame(0, {4: 65535}).serialize() + WindowUpdateFrame(0, 2**31 - 1).serialize(),
        WindowUpdateFrame(1, 2**31 - 1).serialize(),
        b"\x00\x00\x03\x06\x00\x00\x00\x00\x00abc",  # a ping of three bytes
        b"\x00\x00\x02\x00\x08\x00\x00\x00\x01\x09x",  # padding alone, and too much
    ],
)
def test_a_peer_that_breaks_the_protocol_is_told_so(wire: bytes) -> None:
    client = opened()
    with pytest.raises(ProtocolError) as caught:
        client.receive_data(wire)
    *_, said = frames(client.data_to_send())
    assert isinstance(said, GoAwayFrame)
    assert said.error_code == int(caught.value.error_code) != 0
