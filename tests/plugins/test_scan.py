"""One scan of the registry."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kubelet_trio.plugins.scan import SocketIdentity, scan_registry


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_sockets_are_found_with_what_tells_them_apart(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    make_socket(tmp_path / "one.sock")
    make_socket(tmp_path / "a" / "b" / "two.sock")
    first = scan_registry(str(tmp_path), {})
    assert first.problem == ""
    assert sorted(first.sockets) == ["a/b/two.sock", "one.sock"]
    assert set(first.watch) == {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")}
    # A connection and chmod(2) change nothing.
    (tmp_path / "one.sock").chmod(0o600)
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(tmp_path / "one.sock"))
    assert scan_registry(str(tmp_path), first.sockets) == first
    (tmp_path / "one.sock").unlink()
    make_socket(tmp_path / "one.sock")
    again = scan_registry(str(tmp_path), first.sockets)
    assert again.sockets["one.sock"] != first.sockets["one.sock"]
    assert again.sockets["one.sock"] > first.sockets["one.sock"]
    assert again.sockets["a/b/two.sock"] == first.sockets["a/b/two.sock"]


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    root = tmp_path / "plugins_registry"
    listing = scan_registry(str(root), {})
    assert root.stat().st_mode & 0o777 == 0o750
    assert (listing.sockets, listing.problem) == ({}, "")
    below = tmp_path / "missing" / "plugins_registry"
    assert "cannot be created: No such file" in scan_registry(str(below), {}).problem


def test_a_file_in_its_place_is_a_problem(tmp_path: Path) -> None:
    root = tmp_path / "plugins_registry"
    root.touch()
    gone = {"a.sock": SocketIdentity(1, 1, 1)}
    listing = scan_registry(str(root), gone)
    assert listing.sockets == {}
    assert "cannot be read" in listing.problem


def test_links_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "plugins_registry", tmp_path / "outside"
    (root / "inside").mkdir(parents=True)
    outside.mkdir()
    make_socket(outside / "x.sock")
    (root / "link").symlink_to(outside)
    (root / "x.sock").symlink_to(outside / "x.sock")
    (root / "loop").symlink_to(root)
    assert scan_registry(str(root), {}).sockets == {}
    # Nor are those of a socket that was known before.
    assert scan_registry(str(root), {"x.sock": SocketIdentity(1, 1, 1)}).sockets == {}


def test_a_deep_tree_ends(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(12):
        deep = deep / "d"
        deep.mkdir()
        make_socket(deep / "s.sock")
    listing = scan_registry(str(tmp_path), {})
    assert len(listing.sockets) == 8
    assert "more than 8 deep" in listing.problem


def test_many_entries_end_the_scan_but_not_what_is_known(tmp_path: Path) -> None:
    make_socket(tmp_path / "known.sock")
    known = scan_registry(str(tmp_path), {}).sockets
    for number in range(10_001):
        os.mknod(tmp_path / f"{number}")
    listing = scan_registry(str(tmp_path), known)
    assert listing.sockets["known.sock"] == known["known.sock"]
    assert "more than 10000 entries" in listing.problem
