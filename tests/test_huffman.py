"""The small decoder says of any bytes what hpack's own says."""

from __future__ import annotations

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as decode_by_table
from hypothesis import example, given
from hypothesis import strategies as st

from kubelet_trio._huffman import decode_huffman

_encoder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@given(st.binary())
@example(bytes(range(256)))
@example(b"application/grpc")
def test_what_was_encoded_is_decoded(field: bytes) -> None:
    assert decode_huffman(_encoder.encode(field)) == field


@given(st.binary())
@example(b"\xff" * 4)  # the end, which nobody may send
@example(b"\xff")  # eight bits of padding
@example(b"\x07")
@example(b"")
def test_any_bytes_are_taken_or_refused_as_by_the_table(encoded: bytes) -> None:
    try:
        expected = decode_by_table(encoded)
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError):
            decode_huffman(encoded)
    else:
        assert decode_huffman(memoryview(encoded)) == expected
