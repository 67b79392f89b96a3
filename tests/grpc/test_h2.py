"""GOAWAY is taken out of the stream wherever the reads happen to cut it."""

from __future__ import annotations

from contextlib import suppress

from h2.exceptions import FrameTooLargeError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, PingFrame
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.grpc._h2 import GoAway, GoAwayFilter, goaway_frame

FRAMES = st.one_of(
    st.builds(lambda data: DataFrame(1, data), st.binary(max_size=300)),
    st.builds(lambda data: PingFrame(0, data), st.binary(min_size=8, max_size=8)),
    st.builds(
        lambda last, code, debug: GoAwayFrame(0, last, code, debug),
        st.integers(0, 2**31 - 1),
        st.integers(0, 13),
        st.binary(max_size=50),
    ),
)


@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 400), max_size=30), st.booleans())
def test_any_cut_gives_the_same_frames(frames: list[Frame], cuts: list[int], preface: bool) -> None:
    head = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if preface else b""
    wire = head + b"".join(frame.serialize() for frame in frames)
    expected = [
        GoAway(frame.last_stream_id, frame.error_code, frame.additional_data)
        for frame in frames
        if isinstance(frame, GoAwayFrame)
    ]

    found: list[bytes | GoAway] = []
    filter_ = GoAwayFilter(preface=preface)
    at = 0
    for cut in [*cuts, len(wire)]:
        if at < len(wire):
            found += filter_.feed(wire[at : at + cut])
            at += cut

    assert [piece for piece in found if isinstance(piece, GoAway)] == expected
    others = b"".join(f.serialize() for f in frames if not isinstance(f, GoAwayFrame))
    assert b"".join(piece for piece in found if isinstance(piece, bytes)) == head + others


def test_order_is_kept() -> None:
    ping = PingFrame(0, b"12345678").serialize()
    pieces = GoAwayFilter(preface=False).feed(ping + goaway_frame(7) + ping)
    assert pieces == [ping, GoAway(7, 0, b""), ping]


@given(st.lists(st.binary(max_size=200)))
def test_garbage_passes_through_for_h2_to_refuse(chunks: list[bytes]) -> None:
    filter_ = GoAwayFilter(preface=False)
    with suppress(FrameTooLargeError):
        for chunk in chunks:
            filter_.feed(chunk)


@given(st.integers(0, 200), st.integers(1, 400))
def test_no_piece_has_the_answers_of_many_calls(count: int, cut: int) -> None:
    wire = b"".join(DataFrame(2 * n + 1, b"answer").serialize() for n in range(count))
    one, filter_, pieces = len(DataFrame(1, b"answer").serialize()), GoAwayFilter(preface=False), []
    for at in range(0, len(wire), one * cut):
        pieces += filter_.feed(wire[at : at + one * cut])
    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == wire
    assert all(isinstance(piece, bytes) and len(piece) <= 12 * one for piece in pieces)
