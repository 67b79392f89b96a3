"""Answers of a runtime, decoded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.cri import v1
from kubelet_trio.cri.remote.translate import parse_stats
from kubelet_trio.model import encode_bytes, encode_number

_COUNTS = st.integers(0, 2**64 - 1)
_VALUES = st.none() | st.builds(v1.UInt64Value, value=_COUNTS)
_LAYERS = st.builds(
    v1.FilesystemUsage,
    timestamp=st.integers(0, 2**63 - 1),
    fs_id=st.none() | st.builds(v1.FilesystemIdentifier, mountpoint=st.text()),
    used_bytes=_VALUES,
    inodes_used=_VALUES,
)
_STATS = st.builds(
    v1.ContainerStats,
    attributes=st.none()
    | st.builds(
        v1.ContainerAttributes,
        id=st.text(),
        metadata=st.none() | st.builds(v1.ContainerMetadata, name=st.text()),
        labels=st.dictionaries(st.text(), st.text(), max_size=3),
    ),
    cpu=st.none() | st.builds(v1.CpuUsage, timestamp=st.integers(-(2**63), 2**63 - 1)),
    memory=st.none() | st.builds(v1.MemoryUsage, rss_bytes=_VALUES),
    writable_layer=st.none() | _LAYERS,
)


@given(st.lists(_STATS, max_size=4))
def test_of_layers_alone_everything_else_is_left_out(stats: list[v1.ContainerStats]) -> None:
    data = bytes(v1.ListContainerStatsResponse(stats=stats))
    assert parse_stats(data, layers_only=False) == stats
    assert parse_stats(data, layers_only=True) == [
        v1.ContainerStats(
            attributes=one.attributes and v1.ContainerAttributes(id=one.attributes.id),
            writable_layer=one.writable_layer and replace(one.writable_layer, fs_id=None),
        )
        for one in stats
    ]


@pytest.mark.parametrize(
    "entry",
    [
        encode_number(1, 5),  # attributes
        encode_bytes(1, encode_number(1, 5)),  # an id
        encode_bytes(1, encode_bytes(1, b"\xff")),
        encode_number(4, 5),  # a layer
        encode_bytes(4, encode_bytes(1, b"soon")),  # a timestamp
        encode_bytes(4, encode_number(3, 5)),
        encode_bytes(4, encode_bytes(3, encode_bytes(1, b"5"))),
        b"\x22\x05\x08",  # cut short
        b"\x0b",  # a group
    ],
)
def test_what_is_no_layer_is_a_value_error(entry: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 its words are not ours alone
        parse_stats(encode_bytes(1, entry), layers_only=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_layers_or_a_value_error(data: bytes) -> None:
    try:
        found = parse_stats(encode_bytes(1, data), layers_only=True)
    except ValueError:
        return
    assert len(found) == 1
