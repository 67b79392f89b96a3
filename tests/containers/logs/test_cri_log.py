from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.containers import LogFile, LogOptions
from kubelet_trio.containers.logs.cri_log import (
    BLOCK,
    MAX_LINE,
    LogEntry,
    format_line,
    parse_line,
    read_log,
    tail_offset,
    time_nanoseconds,
)
from kubelet_trio.model import last_data
from tests.harness.hostile import no_hang

TIME = "2024-05-01T10:00:00.123456789Z"


def rendered(path: Path, options: LogOptions | None = None) -> bytes:
    return b"".join(read_log(path, options or LogOptions()))


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def line(text: bytes, *, second: int = 0, stream: str = "stdout", partial: bool = False) -> bytes:
    return format_line(f"2024-05-01T10:00:{second:02}.5Z", stream, text, partial=partial)


texts = st.binary(max_size=200).map(lambda b: b.replace(b"\n", b" "))


@given(texts, st.sampled_from(["stdout", "stderr"]), st.booleans())
def test_what_a_runtime_writes_is_read_back(text: bytes, stream: str, partial: bool) -> None:
    entry = parse_line(format_line(TIME, stream, text, partial=partial))
    assert entry == LogEntry(TIME.encode(), stream, partial, text if partial else text + b"\n")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\n",
        b"hello world",
        b"2024-05-01T10:00:00Z stdout",
        b"2024-05-01T10:00:00Z stdin F x",
        b"yesterday stdout F x",
        b"2024-05-01 stdout F x",
        b"{}",
    ],
)
def test_what_is_not_cris_format_is_left_out(bad: bytes) -> None:
    assert parse_line(bad) is None


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (
            b'{"log":"a \\u00e9\\n","stream":"stdout","time":"2016-10-20T18:39:20.57606443Z"}\n',
            (b"2016-10-20T18:39:20.57606443Z", "stdout", False, "a \u00e9\n".encode()),
        ),
        (
            b'{"time":"2024-05-01T10:00:00+02:00","stream":"stderr","log":"part","attrs":{}}',
            (b"2024-05-01T10:00:00+02:00", "stderr", True, b"part"),
        ),
        (
            b'{"stream":"stdout","time":"2024-05-01T10:00:00Z"}',
            (b"2024-05-01T10:00:00Z", "stdout", False, b""),
        ),
        (b'{"log":"a\\n","stream":"stdin","time":"2024-05-01T10:00:00Z"}', None),
        (b'{"log":"a\\n","stream":"stdout","time":"yesterday"}', None),
        (b'{"log":"a\\n","stream":"stdout","time":12}', None),
        (b'{"log":"a\\n","stream":"stdout"}', None),
        (b'{"log":["a"],"stream":"stdout","time":"2024-05-01T10:00:00Z"}', None),
        (b'{"log":"a\\n","stream":"stdout","time":"2024-05', None),
        (b'{"log":"\xff","stream":"stdout","time":"2024-05-01T10:00:00Z"}', None),
        (b"{}", None),
        (b"{" * 100_000, None),
    ],
)
def test_lines_of_dockers_json_are_read(
    line: bytes, entry: tuple[bytes, str, bool, bytes] | None
) -> None:
    assert parse_line(line) == (LogEntry(*entry) if entry is not None else None)


def test_a_log_of_dockers_reads_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "c-json.log"
    record = '{{"log":"{}","stream":"{}","time":"2024-05-01T10:00:0{}Z"}}\n'
    lines = [("one ", "stdout", 1), ("two\\n", "stdout", 2), ("bad\\n", "stderr", 3)]
    path.write_text("".join(record.format(*line) for line in lines))
    assert b"".join(read_log(path, LogOptions())) == b"one two\nbad\n"
    assert b"".join(read_log(path, LogOptions(timestamps=True))) == (
        b"2024-05-01T10:00:01.000000000Z one two\n2024-05-01T10:00:03.000000000Z bad\n"
    )


def test_an_empty_line_and_further_tags() -> None:
    assert parse_line(b"2024-05-01T10:00:00Z stdout F ") == LogEntry(
        b"2024-05-01T10:00:00Z", "stdout", False, b"\n"
    )
    tagged = parse_line(b"2024-05-01T10:00:00Z stderr P:x:y abc")
    assert tagged == LogEntry(b"2024-05-01T10:00:00Z", "stderr", True, b"abc")


@pytest.mark.parametrize(
    ("time", "nanoseconds"),
    [
        (b"1970-01-01T00:00:01Z", 10**9),
        (b"1970-01-01T00:00:01.000000001Z", 10**9 + 1),
        (b"1970-01-01T00:00:01.5Z", 1_500_000_000),
        (b"1970-01-01T02:00:00.25+02:00", 250_000_000),
        (b"2024-05-01T10:00:00.123456789Z", 1714557600_123456789),
    ],
)
def test_times_are_exact_to_the_nanosecond(time: bytes, nanoseconds: int) -> None:
    assert time_nanoseconds(time) == nanoseconds


def test_a_time_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="not an RFC 3339 time"):
        time_nanoseconds(b"now")


def test_parts_of_a_line_join(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", line(b"a", partial=True), line(b"b"), line(b"c"))
    assert rendered(path) == b"ab\nc\n"


def test_a_line_has_its_time_once(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", line(b"a", partial=True), line(b"b"), line(b"c", second=9))
    assert rendered(path, LogOptions(timestamps=True)) == (
        b"2024-05-01T10:00:00.500000000Z ab\n2024-05-01T10:00:09.500000000Z c\n"
    )


def test_since_is_inclusive(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", *(line(b"%d" % n, second=n) for n in range(3)))
    since = time_nanoseconds(b"2024-05-01T10:00:01.5Z") / 10**9
    assert rendered(path, LogOptions(since=since)) == b"1\n2\n"


def test_a_limit_is_in_bytes_of_output(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", line(b"abc"), line(b"def"))
    assert rendered(path, LogOptions(limit=5)) == b"abc\nd"
    assert rendered(path, LogOptions(limit=0)) == b""


def test_so_many_lines_at_most_count_those_that_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", *(line(b"%d" % n, second=n) for n in range(4)))
    since = time_nanoseconds(b"2024-05-01T10:00:01.5Z") / 10**9
    assert rendered(path, LogOptions(most=3, since=since)) == b"1\n2\n"
    assert rendered(path, LogOptions(most=0)) == b""


def test_one_stream_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", line(b"out"), line(b"err", stream="stderr"))
    assert rendered(path, LogOptions(streams=frozenset(["stderr"]))) == b"err\n"


def test_a_last_line_without_a_newline_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", line(b"a"), line(b"b")[:-1])
    assert rendered(path) == b"a\nb\n"


def test_garbage_between_lines_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", line(b"a"), b"\x00\xffgarbage\n", line(b"b"))
    assert rendered(path) == b"a\nb\n"


def test_a_line_longer_than_any_block_is_whole(tmp_path: Path) -> None:
    long = b"x" * (3 * BLOCK)
    path = write(tmp_path / "0.log", line(long), line(b"b"))
    assert rendered(path) == long + b"\nb\n"


def test_memory_is_bounded_for_a_file_without_newlines(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", b"\x00" * (MAX_LINE * 3), b"\n", line(b"b"))
    with LogFile(path) as log:
        held = 0
        while log.read() is not None:
            held = max(held, len(log._rest))
    assert held <= MAX_LINE + BLOCK
    assert rendered(path) == b"b\n"


@given(
    lines=st.lists(st.integers(0, 400).map(lambda n: b"l" * n), max_size=30),
    wanted=st.integers(0, 35),
    ends=st.booleans(),
)
def test_the_tail_is_the_last_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], wanted: int, ends: bool
) -> None:
    content = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    path = write(tmp_path_factory.mktemp("tail") / "f", content)
    with path.open("rb") as file:
        start = tail_offset(file, wanted)
    expected = content.splitlines(keepends=True)[-wanted:] if wanted else []
    assert content[start:] == b"".join(expected)


def test_the_tail_of_a_large_file_is_found_over_many_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "0.log", *(line(b"%d" % n + b"." * 1000) for n in range(500)))
    shown = rendered(path, LogOptions(tail=200)).split(b"\n")
    assert [int(text.split(b".")[0]) for text in shown[:-1]] == list(range(300, 500))
    assert rendered(path, LogOptions(tail=0)) == b""


class Counted(io.FileIO):
    """A file that counts what is read of it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = super().read(size) or b""
        self.taken += len(data)
        return data


@pytest.mark.parametrize("lines", [0, 1, 10, 1000])
def test_a_tail_reads_no_more_than_what_it_shows_and_a_block(tmp_path: Path, lines: int) -> None:
    entry = line(b"x" * 200)
    path = write(tmp_path / "0.log", entry * 100_000)
    with Counted(str(path)) as file:
        start = tail_offset(cast("BinaryIO", file), lines)
        assert start == path.stat().st_size - lines * len(entry)
        assert file.taken <= lines * len(entry) + 2 * BLOCK


@pytest.mark.parametrize(
    "time", [b"2024-99-99T00:00:00Z", b"2024-01-01T25:61:00Z", b"2024-02-30T00:00:00Z"]
)
def test_a_time_that_cannot_be_is_not_cris_format(tmp_path: Path, time: bytes) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(time + b" stdout F never\n2024-05-01T10:00:00Z stdout F real\n")
    assert b"".join(read_log(path, LogOptions(since=1.0))) == b"real\n"
    with pytest.raises(ValueError, match="RFC 3339"):
        time_nanoseconds(time)


def test_a_fifo_in_place_of_a_log_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.log")
    with pytest.raises(OSError, match="found a FIFO"):
        LogFile(tmp_path / "0.log")


@pytest.mark.parametrize("linked", ["pod/web/0.log", "pod/web", "pod"])
def test_no_link_below_the_pods_logs_is_followed(tmp_path: Path, linked: str) -> None:
    line = b"2024-05-01T10:00:00Z stdout F real\n"
    (tmp_path / "host/web").mkdir(parents=True)
    (tmp_path / "host/web/0.log").write_bytes(line)
    (tmp_path / "logs/pod/web").mkdir(parents=True)
    log = tmp_path / "logs/pod/web/0.log"
    log.write_bytes(line)
    with LogFile(log) as opened:
        (tmp_path / "logs" / linked).rename(tmp_path / "logs/aside")
        (tmp_path / "logs" / linked).symlink_to(tmp_path / "host" / linked.removeprefix("pod/"))
        if linked == "pod":
            (tmp_path / "logs/pod").unlink()
            (tmp_path / "logs/pod").symlink_to(tmp_path / "host")
        assert opened.is_replaced() == (linked == "pod/web/0.log")
    with pytest.raises(OSError, match=r"found a symbolic link|Not a directory"):
        LogFile(log)


@pytest.mark.parametrize("is_dockers", [True, False])
def test_dockers_log_may_be_linked_to_and_nothing_else(tmp_path: Path, is_dockers: bool) -> None:
    id_ = "0123456789abcdef" * 4
    target = tmp_path / "docker/containers" / id_ / f"{id_ if is_dockers else 'secret'}-json.log"
    target.parent.mkdir(parents=True)
    target.write_text('{"log":"hi\\n","stream":"stdout","time":"2024-05-01T10:00:00Z"}\n')
    log = tmp_path / "0.log"
    log.symlink_to(target)
    if not is_dockers:
        with pytest.raises(OSError, match="found a symbolic link"):
            LogFile(log)
        return
    assert b"".join(read_log(log, LogOptions())) == b"hi\n"
    with LogFile(log) as opened:
        assert not opened.is_replaced()
        target.rename(target.with_name("aside"))
        assert not opened.is_replaced()
        target.touch()
        assert opened.is_replaced()
    target.unlink()
    target.symlink_to("aside")
    with pytest.raises(OSError, match="found a symbolic link"):
        LogFile(log)


def test_the_pods_log_directory_itself_may_lie_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk/pod/web").mkdir(parents=True)
    (tmp_path / "disk/pod/web/0.log").write_bytes(b"2024-05-01T10:00:00Z stdout F real\n")
    (tmp_path / "pods").symlink_to("disk")
    assert b"".join(read_log(tmp_path / "pods/pod/web/0.log", LogOptions())) == b"real\n"


@pytest.mark.parametrize("tail", [None, 1, 2, 3, 4])
def test_a_hole_of_a_terabyte_costs_no_time(tmp_path: Path, tail: int | None) -> None:
    path = tmp_path / "0.log"
    lines = [b"2024-05-01T10:00:00Z stdout F %d\n" % number for number in range(3)]
    with path.open("wb") as file:
        for number, line in enumerate(lines):
            file.seek(number << 39)
            file.write(line)
        file.truncate(1 << 41)
    with no_hang(10):
        shown = {None: b"0\n1\n2\n", 1: b"", 2: b"2\n", 3: b"1\n2\n", 4: b"0\n1\n2\n"}
        # The hole at the end is a line that was not finished.
        assert b"".join(read_log(path, LogOptions(tail=tail))) == shown[tail]


@pytest.mark.parametrize(
    "places", [[0], [1 << 30], [5, 1 << 20, 1 << 35], [(1 << 36) + 70_000], []]
)
def test_the_last_data_before_a_hole_is_found(tmp_path: Path, places: list[int]) -> None:
    with (tmp_path / "file").open("w+b") as file:
        for place in places:
            file.seek(place)
            file.write(b"x")
        file.truncate(1 << 40)
        block = 1 << 16
        found = last_data(file.fileno(), 1 << 40, block)
        if places:
            assert found - block <= max(places) < found
        else:
            assert found == 0
