from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.objects.pem import certificates_pem, pem_blocks

A, B = b"first certificate" * 5, b"second"


def block(content: bytes, kind: str = "CERTIFICATE", headers: str = "") -> str:
    body = base64.b64encode(content).decode()
    return f"-----BEGIN {kind}-----\n{headers}{body}\n-----END {kind}-----\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("no certificate", []),
        (block(A) + block(B), [A, B]),
        (f"words\n{block(A)}more words\r\n\r\n{block(B)}end", [A, B]),
        (block(A, headers="Proc-Type: 4,ENCRYPTED\nX: y\n\n"), [A]),
        (block(A).replace("\n", "\r\n"), [A]),
        (block(A) + block(B, "TRUSTED CERTIFICATE"), [A, B]),
        # Damaged blocks are skipped: no end, another end, no base64.
        ("-----BEGIN CERTIFICATE-----\nAAAA\n" + block(B), [B]),
        (block(A).replace("END CERTIFICATE", "END KEY") + block(B), [B]),
        (block(A).replace("Zmly", "%%%%") + block(B), [B]),
    ],
)
def test_what_is_read(text: str, expected: list[bytes]) -> None:
    assert list(pem_blocks(text)) == expected


def test_lines_have_64_characters() -> None:
    lines = certificates_pem([A]).decode().splitlines()
    assert lines[0] == "-----BEGIN CERTIFICATE-----"
    assert lines[-1] == "-----END CERTIFICATE-----"
    assert [len(line) for line in lines[1:-1]] == [64, 52]


@given(st.lists(st.binary(min_size=1)))
def test_what_is_written_is_read_again(contents: list[bytes]) -> None:
    assert list(pem_blocks(certificates_pem(contents).decode())) == contents


@given(st.text(alphabet="-BEGINDC:/= \n\r" + "Aa09"))
def test_no_text_is_too_odd(text: str) -> None:
    assert all(isinstance(content, bytes) for content in pem_blocks(text))
