"""Sets of CPUs are written as the kernel writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.managers.cpus import cpu_ids, cpu_mask, format_mask, parse_mask
from kubelet_trio.model import format_cpus


@given(st.sets(st.integers(0, 600)))
def test_a_mask_is_a_set_of_cpus(cpus: set[int]) -> None:
    mask = cpu_mask(cpus)
    assert cpu_ids(mask) == cpus
    assert format_mask(mask) == format_cpus(cpus)
    assert parse_mask(format_mask(mask)) == mask


@pytest.mark.parametrize(
    "text", ["1.3", "3-1", "a", "-1", "1-", ",", "1,,2", "9999", "0-8192", "1 2"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a CPU or a range"):
        parse_mask(text)
