"""A file is there whole or as it was before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubelet_trio.model import write_aside


def test_a_file_is_replaced_with_the_mode_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"old")
    path.chmod(0o666)
    write_aside(path, b"new", sync=True)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["record"]


def test_what_an_earlier_life_left_half_written_is_no_obstacle(tmp_path: Path) -> None:
    half = tmp_path / ".record.new"
    half.write_bytes(b"half of a record that is longer than the new one")
    half.chmod(0o666)
    write_aside(tmp_path / "record", b"new")
    assert (tmp_path / "record").read_bytes() == b"new"
    assert (tmp_path / "record").stat().st_mode & 0o777 == 0o600


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"theirs")
    (tmp_path / ".record.new").symlink_to(target)
    write_aside(tmp_path / "record", b"ours")
    assert target.read_bytes() == b"theirs"
    assert not (tmp_path / "record").is_symlink()


def test_a_name_is_taken_below_an_open_directory(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        write_aside("record", b"content", directory=directory)
    finally:
        os.close(directory)
    assert (tmp_path / "record").read_bytes() == b"content"


def test_a_write_that_fails_leaves_the_file_as_it_was_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"old")

    def refuse(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no space left"):
        write_aside(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["record"]
