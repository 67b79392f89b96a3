from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.model import (
    NANO,
    canonical_quantity,
    parse_quantity,
    quantity_like,
    to_milli,
    to_units,
)

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E-2"]
quantities = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{fraction}{suffix}",
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**9).map(str),
    st.one_of(st.just(""), st.integers(0, 10**6).map(lambda n: f".{n}")),
    st.sampled_from(SUFFIXES),
)


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("1", NANO),
        ("500m", NANO // 2),
        ("0.5", NANO // 2),
        (".5", NANO // 2),
        ("1.5Gi", 3 * 2**29 * NANO),
        ("1e3", 1000 * NANO),
        ("1E", 10**18 * NANO),
        ("0.1n", 1),  # the finest there is: rounded up
        ("-0.1n", -1),
        (2, 2 * NANO),
    ],
)
def test_a_quantity_is_counted_in_nano_units(text: object, nano: int) -> None:
    assert parse_quantity(text) == nano


@pytest.mark.parametrize("text", ["", ".", "-", "1 Gi", "Gi", "1gi", "1e", "0x10", "1_000", "1Kii"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1500M", "1500M"),
        ("1000k", "1M"),
        ("1e3", "1e3"),
        ("1000e3", "1e6"),
        ("0Mi", "0"),
        ("-1000m", "-1"),
        ("2048", "2048"),
    ],
)
def test_the_api_has_one_spelling_for_a_quantity(written: str, canonical: str) -> None:
    assert canonical_quantity(written) == canonical


@given(quantities)
def test_the_canonical_spelling_is_the_same_quantity(text: str) -> None:
    spelled = canonical_quantity(text)
    assert parse_quantity(spelled) == parse_quantity(text)
    assert canonical_quantity(spelled) == spelled


def test_whole_and_milli_units_round_up() -> None:
    assert to_units(1) == 1
    assert to_milli(NANO // 1000 + 1) == 2


@pytest.mark.parametrize(
    ("nano", "example", "text"),
    [
        (2**27 * NANO, "1Ki", "128Mi"),
        (2**27 * NANO, "1k", "134217728"),
        (128_000_000 * NANO, "1Gi", "125000Ki"),
        (128_000_000 * NANO, "1", "128M"),
        (1000 * NANO, "1Ki", "1k"),
        (NANO // 10, "2", "100m"),
        (2 * NANO, "1e3", "2"),
        (0, "1Gi", "0"),
    ],
)
def test_an_amount_is_written_like_another_quantity(nano: int, example: str, text: str) -> None:
    assert quantity_like(nano, example) == text
