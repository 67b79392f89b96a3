"""Protocols, outcomes and terminal sizes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.streaming import channels
from kubelet_trio.streaming.channels import SizeReader


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["v5.channel.k8s.io", "v4.channel.k8s.io"], "v5.channel.k8s.io"),
        (["v9.channel.k8s.io", "channel.k8s.io"], "channel.k8s.io"),
        (["v9.channel.k8s.io"], None),
        ([], None),
    ],
)
def test_the_clients_first_choice_that_is_spoken(wanted: list[str], found: str | None) -> None:
    assert channels.chosen(wanted, channels.COMMAND_WEBSOCKET) == found


def test_how_a_command_ended() -> None:
    assert json.loads(channels.exited(0).encoded("v4.channel.k8s.io")) == {
        "metadata": {},
        "status": "Success",
    }
    told = json.loads(channels.exited(3).encoded("v5.channel.k8s.io"))
    assert told["reason"] == "NonZeroExitCode"
    assert told["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    told = json.loads(channels.failed("no such file").encoded("v4.channel.k8s.io"))
    assert (told["code"], told["message"]) == (500, "Internal error occurred: no such file")


def test_old_protocols_have_text_and_nothing_for_success() -> None:
    assert channels.exited(0).encoded("v2.channel.k8s.io") == b""
    told = channels.exited(3).encoded("channel.k8s.io")
    assert told == b"command terminated with non-zero exit code: exit status 3"


@given(st.lists(st.integers(0, 200), max_size=6))
def test_sizes_are_read_however_they_are_cut(cuts: list[int]) -> None:
    said = b'{"Width":80,"Height":24}\n{"Width":100,"Height":40}{"width":0,"height":65535}\n'
    places = [0, *sorted(cut % (len(said) + 1) for cut in cuts), len(said)]
    sizes = SizeReader()
    found = [size for a, b in pairwise(places) if (size := sizes.feed(said[a:b])) is not None]
    assert found[-1] == (65535, 0)
    assert found == [size for size in [(24, 80), (40, 100), (65535, 0)] if size in found]


def test_of_several_sizes_the_newest_counts() -> None:
    assert SizeReader().feed(b'{"Width":80,"Height":24}{"Width":8,"Height":9}[]{}') == (0, 0)
    assert SizeReader().feed(b'{"Width":80,"Height":24}{"Width":8,"Height":9}[1]') == (9, 8)


@pytest.mark.parametrize(
    "said", [b"[1]", b'{"Width":"80"}', b'{"Width":70000}', b'{"Height":-1}', b'{"Width":true}']
)
def test_what_is_no_size_is_dropped(said: bytes) -> None:
    sizes = SizeReader()
    assert sizes.feed(said) is None
    assert sizes.feed(b'{"Width":8,"Height":9}') == (9, 8)


@pytest.mark.parametrize("piece", [b"{", b"[", b"[]", b"{}x", b'{"Width":', b'"', b"\xff", b"1"])
def test_endless_nonsense_is_not_kept(piece: bytes) -> None:
    sizes = SizeReader()
    for _ in range(3):
        sizes.feed(piece * 100_000)
    assert sizes.feed(b'\n{"Width":8,"Height":9}') == (9, 8)
