"""Header values: what is encoded decodes, and what peers get wrong does no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.grpc import _metadata as md

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_a_status_message_survives_percent_encoding(message: str) -> None:
    encoded = md.encode_message(message)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert md.decode_message(encoded) == message


@given(st.binary())
def test_any_bytes_decode_to_some_message(value: bytes) -> None:
    assert isinstance(md.decode_message(value), str)


@pytest.mark.parametrize(
    ("value", "message"),
    [(b"100%", "100%"), (b"%zz", "%zz"), (b"%e2%82%ac", "€"), (b"%ff", "\ufffd")],
)
def test_a_broken_escape_stays_as_it_is(value: bytes, message: str) -> None:
    assert md.decode_message(value) == message


@given(st.floats(0, 3e9, allow_nan=False))
def test_a_deadline_sent_is_never_shorter_than_ours(seconds: float) -> None:
    value = md.encode_timeout(seconds)
    assert len(value) <= 9
    told = md.decode_timeout(value)
    # Floats near a unit's edge may lose a nanosecond; nothing more.
    assert told >= seconds * (1 - 1e-9) - 1e-9
    assert told <= seconds * 1.01 + 1e-6 or value.endswith(b"H")


@pytest.mark.parametrize(
    ("seconds", "value"),
    [(120, b"120S"), (0.5, b"500m"), (0, b"0n"), (240.0, b"240S"), (1e-6, b"1u"), (1e12, b"H")],
)
def test_deadlines_take_their_largest_exact_unit(seconds: float, value: bytes) -> None:
    assert md.encode_timeout(seconds).endswith(value)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"-1S", b"123456789S", b"1x", b"1.5S"])
def test_a_malformed_timeout_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="grpc-timeout"):
        md.decode_timeout(value)


@given(
    st.lists(
        st.tuples(st.from_regex(r"x[0-9a-z_.-]{0,9}-bin", fullmatch=True), st.binary())
        | st.tuples(
            st.from_regex(r"x[0-9a-z_.]{0,9}", fullmatch=True),
            st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)),
        )
    )
)
def test_metadata_survives_the_wire(pairs: list[tuple[str, str | bytes]]) -> None:
    assert md.decode_metadata(md.encode_metadata(pairs)) == tuple(pairs)


@pytest.mark.parametrize(
    "pair",
    [
        ("grpc-x", "a"),
        ("te", "a"),
        ("Upper", "a"),
        ("x y", "a"),
        ("x", "a\nb"),
        ("x-bin", "text"),
        ("x", b"bytes"),
    ],
)
def test_metadata_that_grpc_does_not_allow_is_refused(pair: tuple[str, str | bytes]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        md.encode_metadata([pair])


def test_joined_and_padded_binary_values_are_taken_apart() -> None:
    headers = [(b"x-bin", b"AAE=,AgM"), (b"y-bin", b"!"), (b":path", b"/"), (b"grpc-status", b"0")]
    assert md.decode_metadata(headers) == (("x-bin", b"\x00\x01"), ("x-bin", b"\x02\x03"))
