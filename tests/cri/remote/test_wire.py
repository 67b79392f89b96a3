"""Lists are told apart by what is in them, in whatever order Go wrote it."""

from __future__ import annotations

import itertools
import random

import pytest
from betterproto2 import encode_varint
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.cri import v1
from kubelet_trio.cri.remote.wire import (
    ListDecoder,
    canonical,
    decode_changed,
    entries_of,
    split_fields,
)

TEXTS = st.text(max_size=200)
CONTAINERS = st.builds(
    v1.Container,
    id=st.text(min_size=1, max_size=5),
    pod_sandbox_id=TEXTS,
    metadata=st.builds(v1.ContainerMetadata, name=TEXTS, attempt=st.integers(0, 2**32 - 1)),
    image=st.none() | st.builds(v1.ImageSpec, image=TEXTS),
    state=st.sampled_from(v1.ContainerState),
    created_at=st.integers(-(2**63), 2**63 - 1),
    labels=st.dictionaries(TEXTS, TEXTS, max_size=5),
    annotations=st.dictionaries(TEXTS, TEXTS, max_size=5),
)


def shuffled(entry: bytes, seed: int) -> bytes:
    """The same message as Go might write it another time."""
    fields = split_fields(entry)
    random.Random(seed).shuffle(fields)
    return b"".join(fields)


def answer(*entries: bytes) -> bytes:
    """A list answer of these entries."""
    return b"".join(b"\x0a" + encode_varint(len(entry)) + entry for entry in entries)


@given(CONTAINERS)
def test_fields_put_together_are_the_message(container: v1.Container) -> None:
    encoded = bytes(container)
    assert b"".join(split_fields(encoded)) == encoded
    assert v1.Container.parse(canonical(encoded)) == container


@given(CONTAINERS, st.integers())
def test_order_does_not_count(container: v1.Container, seed: int) -> None:
    assert canonical(shuffled(bytes(container), seed)) == canonical(bytes(container))


@given(CONTAINERS, CONTAINERS)
def test_different_messages_stay_different(one: v1.Container, other: v1.Container) -> None:
    assert (canonical(bytes(one)) == canonical(bytes(other))) == (one == other)


@given(st.lists(CONTAINERS, max_size=6, unique_by=lambda c: c.id), st.integers())
def test_a_list_decodes_as_betterproto_decodes_it(found: list[v1.Container], seed: int) -> None:
    response = v1.ListContainersResponse(containers=found)
    assert answer(*map(bytes, found)) == bytes(response)
    entries, raw = decode_changed(bytes(response), v1.Container.parse, {}, {})
    assert list(entries.values()) == found
    again = answer(*(shuffled(bytes(container), seed) for container in found))
    same, _ = decode_changed(again, v1.Container.parse, raw, entries)
    assert all(same[key] is entry for key, entry in entries.items())


def test_only_what_changed_is_decoded() -> None:
    decoded: list[str] = []

    def parse(data: bytes) -> v1.Container:
        container = v1.Container.parse(data)
        decoded.append(container.id)
        return container

    before = [v1.Container(id=f"c{n}", created_at=n + 1) for n in range(4)]
    entries, raw = decode_changed(answer(*map(bytes, before)), parse, {}, {})
    assert decoded == ["c0", "c1", "c2", "c3"]
    decoded.clear()
    after = [before[0], v1.Container(id="c1", created_at=99), before[3], v1.Container(id="new")]
    now, now_raw = decode_changed(answer(*map(bytes, after)), parse, raw, entries)
    assert decoded == ["c1", "new"]
    assert list(now) == ["c0", "c1", "c3", "new"]
    assert now["c0"] is entries["c0"]
    assert now["c1"] is not entries["c1"]
    assert len(now_raw) == 4


def test_a_nested_map_in_another_order_is_still_the_same_object() -> None:
    pairs = [("a", "1"), ("b", "2")]
    one = v1.Container(id="c", image=v1.ImageSpec(image="i", annotations=dict(pairs)))
    other = v1.Container(id="c", image=v1.ImageSpec(image="i", annotations=dict(pairs[::-1])))
    assert canonical(bytes(one)) != canonical(bytes(other))
    entries, raw = decode_changed(answer(bytes(one)), v1.Container.parse, {}, {})
    again, _ = decode_changed(answer(bytes(other)), v1.Container.parse, raw, entries)
    assert again["c"] is entries["c"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x0a\xff",
        b"\x0b",  # a group
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x09123",
    ],
)
def test_a_malformed_message_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut short|too long|wire type"):
        split_fields(data)


@given(st.binary(max_size=100))
def test_any_bytes_split_or_are_refused(data: bytes) -> None:
    try:
        fields = split_fields(data)
    except ValueError:
        return
    assert b"".join(fields) == data


def exited(count: int) -> list[v1.Container]:
    state = v1.ContainerState.CONTAINER_EXITED
    return [v1.Container(id=f"c{n}", state=state, created_at=n + 1) for n in range(count)]


def has_exited(entry: v1.Container) -> bool:
    return entry.state == v1.ContainerState.CONTAINER_EXITED


def test_many_entries_are_decoded_in_steps_and_known_ones_in_fewer() -> None:
    found = exited(1_000)
    data = answer(*map(bytes, found))
    first = ListDecoder(data, v1.Container.parse, {}, {}, has_exited)
    counts = [len(first.entries) for _ in first.steps()]
    assert len(counts) > 50
    assert all(b - a <= 13 for a, b in itertools.pairwise([0, *counts]))
    assert list(first.entries.values()) == found

    def parse(_: bytes) -> v1.Container:
        raise AssertionError("nothing has changed")

    again = ListDecoder(data, parse, first.by_encoding, first.entries, has_exited)
    assert len(list(again.steps())) <= 1
    assert all(again.entries[key] is entry for key, entry in first.entries.items())
    assert not again.by_encoding  # nor was anything of them compared


def test_what_may_change_is_compared_until_it_cannot() -> None:
    running = v1.Container(id="c", state=v1.ContainerState.CONTAINER_RUNNING, created_at=1)
    first = ListDecoder(answer(bytes(running)), v1.Container.parse, {}, {}, has_exited)
    list(first.steps())
    [dead] = exited(1)
    dead.id = "c"
    second = ListDecoder(
        answer(bytes(dead)), v1.Container.parse, first.by_encoding, first.entries, has_exited
    )
    list(second.steps())
    assert second.entries == {"c": dead}


@given(st.binary(max_size=100))
def test_any_bytes_have_entries_or_are_refused(data: bytes) -> None:
    try:
        found = list(entries_of(data))
    except ValueError:
        return
    assert found == [
        field[len(field) - len(entry) :]
        for field, entry in zip((f for f in split_fields(data) if f[0] == 0x0A), found, strict=True)
    ]
