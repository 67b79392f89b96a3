from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.containers import expand_from

VARIABLES = {
    "VAR_A": "A",
    "VAR_B": "B",
    "VAR_C": "C",
    "VAR_REF": "$(VAR_A)",
    "VAR_EMPTY": "",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("___$(VAR_C)", "___C"),
        ("$(VAR_A)-$(VAR_A)", "A-A"),
        ("$(VAR_A)-1", "A-1"),
        ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
        ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
        ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
        ("f000-$$VAR_A", "f000-$VAR_A"),
        ("foo\\$(VAR_C)bar", "foo\\Cbar"),
        ("foo$$$$$(foo)bar", "foo$$$(foo)bar"),
        ("foo$$$(VAR_A)", "foo$A"),
        ("$(VAR_EMPTY)", ""),
        ("foo$(VAR_EMPTY)bar", "foobar"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("$(VAR_UNKNOWN)", "$(VAR_UNKNOWN)"),
        ("$VAR_A", "$VAR_A"),
        ("$", "$"),
        ("foo$", "foo$"),
        ("$$", "$"),
        ("$$$", "$$"),
        ("$(", "$("),
        ("$(VAR_A", "$(VAR_A"),
        ("$()", "$()"),
        ("$(VAR_A)$", "A$"),
        ("$($(VAR_A))", "$($(VAR_A))"),
        ("$(VAR_A(VAR_B)", "$(VAR_A(VAR_B)"),
        ("$ (VAR_A)", "$ (VAR_A)"),
        ("a\n$(VAR_A)\n$\n", "a\nA\n$\n"),
        ("$é$(VAR_A)", "$éA"),
    ],
)
def test_references_expand_as_upstream(text: str, expected: str) -> None:
    assert expand_from(text, VARIABLES) == expected


@given(st.text())
def test_text_whose_dollars_are_doubled_comes_back_as_it_was(text: str) -> None:
    assert expand_from(text.replace("$", "$$"), VARIABLES) == text


@given(st.lists(st.sampled_from(["$", "(", ")", "VAR_A", "x", "$(VAR_A)"]), max_size=12))
def test_expansion_agrees_with_a_scan_by_hand(parts: list[str]) -> None:
    text = "".join(parts)
    assert expand_from(text, VARIABLES) == scan(text)


def scan(text: str) -> str:
    """The rules written out as a scanner: slow, plain, and independent of the other one."""
    out, i = "", 0
    while i < len(text):
        following = text[i + 1 : i + 2]
        if text[i] != "$" or not following:
            out, i = out + text[i], i + 1
        elif following == "$":
            out, i = out + "$", i + 2
        elif following == "(" and (end := text.find(")", i)) > 0:
            name = text[i + 2 : end]
            out, i = out + VARIABLES.get(name, f"$({name})"), end + 1
        else:
            out, i = out + "$" + following, i + 2
    return out


def test_a_result_that_no_program_takes_is_not_made() -> None:
    variables = {"A": "x" * 1000}
    assert len(expand_from("$(A)" * 131, variables)) == 131_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expands to more than 131072 characters"):
            expand_from("$(A)" * 100_000, variables)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
