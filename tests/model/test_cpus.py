"""Lists of CPUs, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.model import format_cpus, parse_cpus


def test_lists_of_cpus() -> None:
    assert parse_cpus("0-3, 8") == {0, 1, 2, 3, 8}
    assert parse_cpus("") == frozenset()
    for wrong in ("3-1", "a", "1-", "-1"):
        with pytest.raises(ValueError, match="is not a list of CPUs"):
            parse_cpus(wrong)
    with pytest.raises(ValueError, match="'5-999999999': no machine has a CPU above 65535"):
        parse_cpus("0,5-999999999")


@given(st.frozensets(st.integers(0, 70)))
def test_what_is_written_is_read_again(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_lists_are_short_and_in_order() -> None:
    assert format_cpus([8, 0, 1, 2, 3, 5, 6]) == "0-3,5-6,8"
    assert format_cpus([]) == ""


def test_a_list_that_repeats_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="again and again"):
        parse_cpus("0-65535," * 1000)
