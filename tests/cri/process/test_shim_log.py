"""What a shim writes is what a container said, in CRI's format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.containers import LogOptions
from kubelet_trio.containers.logs.cri_log import parse_line, read_log
from kubelet_trio.cri.process.shim.log import Log
from kubelet_trio.cri.process.shim.protocol import STDERR, STDOUT
from tests.harness.hostile import no_hang

CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([STDOUT, STDERR]),
        st.one_of(
            st.binary(max_size=50),
            st.sampled_from([b"\n", b"a\nb", b"x" * 16384, b"y" * 16385 + b"\n", b"z" * 40000]),
        ),
    ),
    max_size=12,
)


@given(CHUNKS)
def test_every_byte_is_kept_in_order(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[tuple[bytes, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = Log(str(path))
    for stream, content in chunks:
        log.write(stream, content)
    log.finish()
    log.close()
    lines = path.read_bytes().splitlines()
    assert max(map(len, lines), default=0) <= 16384 + 50
    for stream, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        written = b"".join(content for which, content in chunks if which == stream)
        assert b"".join(read_log(path, LogOptions(streams=frozenset({name})))) == written


def test_lines_of_two_streams_do_not_mix(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    log.write(STDOUT, b"begun")
    log.write(STDERR, b"whole\n")
    log.write(STDOUT, b" and ended\n")
    log.close()
    entries = [parse_line(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert [(e.stream, e.text) for e in entries if e] == [
        ("stderr", b"whole\n"),
        ("stdout", b"begun and ended\n"),
    ]


def test_a_log_without_a_path_is_none(tmp_path: Path) -> None:
    log = Log("")
    log.write(STDOUT, b"unheard\n")
    log.reopen()
    log.finish()
    log.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("linked", ["pod", "pod/web", "pod/web/0.log"])
def test_no_link_is_followed(tmp_path: Path, linked: str) -> None:
    """A pod that collects logs may have put it there; the shim may be root."""
    log, outside = tmp_path / "logs/pod/web/0.log", tmp_path / "outside"
    (outside / "web").mkdir(parents=True)
    for place in (outside / "0.log", outside / "web/0.log"):
        place.touch()
    place = tmp_path / "logs" / linked
    place.parent.mkdir(parents=True)
    place.symlink_to(outside / "0.log" if linked == "pod/web/0.log" else outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        Log(str(log))
    assert sorted(path.stat().st_size for path in outside.glob("**/0.log")) == [0, 0]


@pytest.mark.parametrize("has_reader", [True, False])
def test_a_fifo_in_place_of_a_log_is_refused_at_once(tmp_path: Path, has_reader: bool) -> None:
    os.mkfifo(tmp_path / "0.log")
    reader = os.open(tmp_path / "0.log", os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    with no_hang(), pytest.raises(OSError, match=r"expected a file|No such device"):
        Log(str(tmp_path / "0.log"))
    if reader is not None:
        os.close(reader)
