"""The ring keeps its limit whatever is written, and the newest entries whatever happens."""

from __future__ import annotations

import errno
import os
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubelet_trio.recorder import Entry, Kind, encode_entry, read_entries
from kubelet_trio.recorder.ring import Ring, segment_contents, segments

LIMIT = 4096


def frame(number: int, size: int) -> bytes:
    return encode_entry(Entry(float(number), Kind.READ, str(number), bytes(size)))


def limited(size: int, limit: int) -> list[bytes]:
    """Return a snapshot of some size, which is within the limit."""
    assert size < limit
    start = encode_entry(Entry(0.0, Kind.START, "", bytes(size)))
    return [start, encode_entry(Entry(0.0, Kind.SNAPSHOT, ""))]


def disk_size(directory: Path) -> int:
    return sum(path.stat().st_size for path in segments(directory))


def numbers(directory: Path) -> list[int]:
    """Return the numbers of all entries that can be read, each segment with its snapshot."""
    found = []
    for path, data in segment_contents(directory):
        first, second, *rest = read_entries(data, str(path))
        assert (first.kind, second.kind) == (Kind.START, Kind.SNAPSHOT)
        found += [int(entry.key) for entry in rest]
    return found


STEPS = st.lists(
    st.tuples(
        st.integers(0, 900),  # size of an entry
        st.integers(0, 800),  # size of the snapshot, should a segment begin
        st.sampled_from(["", "flush", "flush", "close", "reopen"]),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_any_sizes_stay_within_the_limit_and_the_newest_are_readable(
    steps: list[tuple[int, int, str]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "recorder"
        ring, written = Ring(directory, LIMIT), 0
        for number, (size, snapshot_size, action) in enumerate(steps):
            one = frame(number, size)
            if not ring.fits(len(one)):
                one = frame(number, 0)
            written += ring.add(one, partial(limited, snapshot_size))
            if action:
                written += ring.flush()
                assert written == number + 1
            if action == "close":
                ring.close()
            if action == "reopen":
                ring.close()
                ring = Ring(directory, LIMIT)
            assert disk_size(directory) <= LIMIT
            if action != "reopen":
                assert ring.size == disk_size(directory)
            found = numbers(directory)
            assert found == list(range(written))[-len(found) :] if found else written == 0
        # At least the last eighth of the limit, if there was as much.
        written += ring.flush()
        kept = sum(len(frame(n, 0)) + steps[n][0] for n in numbers(directory))
        assert written == len(steps)
        if sum(size for size, _, _ in steps) > LIMIT and all(s[2] in ("", "flush") for s in steps):
            assert kept > LIMIT // 8
        ring.close()


def fill(ring: Ring, start: int, count: int) -> int:
    written = 0
    for number in range(start, start + count):
        written += ring.add(frame(number, 100), partial(limited, 0))
    return written + ring.flush()


def test_another_agent_goes_on_with_the_ring_and_its_limit(tmp_path: Path) -> None:
    first = Ring(tmp_path, 8192)
    assert fill(first, 0, 100) == 100
    first.close()
    assert 4096 < disk_size(tmp_path) <= 8192
    (tmp_path / "notes.txt").write_text("of somebody else")
    second = Ring(tmp_path, LIMIT)
    assert fill(second, 100, 1) == 1
    second.close()
    assert disk_size(tmp_path) <= LIMIT
    assert numbers(tmp_path)[-2:] == [99, 100]
    assert (tmp_path / "notes.txt").exists()


def test_the_ring_is_for_its_user_only(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "recorder", LIMIT)
    fill(ring, 0, 1)
    ring.close()
    (segment,) = segments(tmp_path / "recorder")
    assert segment.stat().st_mode & 0o777 == 0o600
    assert segment.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_leaves_no_torn_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(tmp_path, 64 * 1024)
    assert fill(ring, 0, 3) == 3
    really_write = os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) > 20:
            return really_write(fd, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        ring.add(frame(3, 100), partial(limited, 0))
        with pytest.raises(OSError, match="No space left"):
            ring.flush()
    assert numbers(tmp_path) == [0, 1, 2]
    assert fill(ring, 4, 1) == 1
    ring.close()
    assert numbers(tmp_path) == [0, 1, 2, 4]


def test_a_disk_that_refuses_everything_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring(tmp_path, 64 * 1024)
    assert fill(ring, 0, 3) == 3

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        for name in ("write", "ftruncate", "open"):
            patch.setattr(os, name, refuse)
        ring.add(frame(3, 100), partial(limited, 0))
        with pytest.raises(OSError, match="Input/output"):
            ring.flush()
        with pytest.raises(OSError, match="Input/output"):
            ring.add(frame(4, 100), partial(limited, 0))
    assert fill(ring, 5, 1) == 1
    ring.close()
    assert numbers(tmp_path) == [0, 1, 2, 5]


def test_a_ring_whose_directory_was_removed_begins_again(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "recorder", LIMIT)
    fill(ring, 0, 1)
    (segment,) = segments(tmp_path / "recorder")
    segment.unlink()
    segment.parent.rmdir()
    fill(ring, 1, 100)
    ring.close()
    assert numbers(tmp_path / "recorder")[-1] == 100
    assert disk_size(tmp_path / "recorder") <= LIMIT
