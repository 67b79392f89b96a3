"""Entries are read as they were written, and what was cut off or damaged is told apart."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.recorder import (
    MAGIC,
    Entry,
    Kind,
    RecordingError,
    encode_entry,
    read_entries,
    read_recording,
    write_recording,
)

ENTRIES = st.builds(
    Entry,
    st.floats(allow_nan=False),
    st.sampled_from(Kind),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=50),
)


def encoded(entries: list[Entry]) -> bytes:
    return MAGIC + b"".join(map(encode_entry, entries))


@given(st.lists(ENTRIES, max_size=5))
def test_entries_are_read_as_they_were_written(entries: list[Entry]) -> None:
    assert list(read_entries(encoded(entries))) == entries


@given(st.lists(ENTRIES, min_size=1, max_size=4), st.data())
def test_what_is_cut_off_anywhere_reads_up_to_the_cut(
    entries: list[Entry], data: st.DataObject
) -> None:
    whole = encoded(entries)
    cut = data.draw(st.integers(0, len(whole)))
    read = list(read_entries(whole[:cut]))
    assert read == entries[: len(read)]
    # Every entry that is there as a whole is read.
    assert len(encoded(entries[: len(read) + 1])) > cut or len(read) == len(entries)


@given(st.lists(ENTRIES, min_size=1, max_size=3), st.data())
def test_damage_is_noticed_with_its_place(entries: list[Entry], data: st.DataObject) -> None:
    whole = bytearray(encoded(entries))
    # Not in the length of a frame: a wrong one may reach beyond the end, as in a cut-off file.
    place = data.draw(st.integers(len(MAGIC) + 4, len(encoded(entries[:1])) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordingError, match=rf"^ring/1: offset {len(MAGIC)}: "):
        list(read_entries(bytes(whole), "ring/1"))


def test_entries_before_the_damage_are_read() -> None:
    entries = [Entry(1.0, Kind.EXIT, "a", b"{}"), Entry(2.0, Kind.EXIT, "b", b"{}")]
    read = read_entries(encoded(entries) + bytes(64))
    assert [next(read), next(read)] == entries
    with pytest.raises(RecordingError, match="a frame of 0 bytes"):
        next(read)


def test_kinds_of_a_later_version_are_skipped() -> None:
    known = Entry(1.0, Kind.EXIT, "a", b"")
    later = encode_entry(known)[8:].replace(bytes([Kind.EXIT]), b"\xfe")
    from binascii import crc32

    frame = len(later).to_bytes(4, "big") + crc32(later).to_bytes(4, "big") + later
    assert list(read_entries(MAGIC + frame + encode_entry(known))) == [known]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{}", "this is no recording"),
        (b"kubelet-trio recording 9\n...", "a recording of format 9; this version reads format 1"),
        (gzip.compress(b"hello", mtime=0), "this is no recording"),
        (b"\x1f\x8bnot gzip", "the gzip is damaged"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "file.rec"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=text) as caught:
        list(read_recording(path))
    assert str(caught.value).startswith(str(path))


def test_a_packed_recording(tmp_path: Path) -> None:
    entries = [Entry(float(n), Kind.READ, f"status:{n}", b"{}" * 100) for n in range(50)]
    path = tmp_path / "node.rec"
    size = write_recording(path, entries)
    assert size == path.stat().st_size < 5000
    assert list(read_recording(path)) == entries
    # One whose copying was cut off reads up to there.
    path.write_bytes(path.read_bytes()[: size // 2])
    read = list(read_recording(path))
    assert 0 < len(read) < 50
    assert read == entries[: len(read)]


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        encode_entry(Entry(0.0, Kind.READ, "", bytes(16 * 1024 * 1024)))
    with pytest.raises(ValueError, match="key"):
        encode_entry(Entry(0.0, Kind.READ, "k" * 70_000, b""))
