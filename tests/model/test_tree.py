"""Counting a tree: what counts, what it costs, and what a container that changes it gains."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from kubelet_trio.model import count_tree, remove_tree
from kubelet_trio.model import tree as tree_module
from kubelet_trio.model.tree import TreeCount
from tests.harness.hostile import DEEP, between_calls, nest, no_hang


def test_what_is_in_it_counts_and_a_link_as_itself(tmp_path: Path) -> None:
    (tmp_path / "tree/a/b").mkdir(parents=True)
    (tmp_path / "tree/a/file").write_bytes(b"x" * 100_000)
    (tmp_path / "outside").write_bytes(b"x" * 1_000_000)
    (tmp_path / "tree/link").symlink_to("../outside")
    os.mkfifo(tmp_path / "tree/fifo")
    found = count_tree(str(tmp_path / "tree"))
    assert 100_000 <= found.space < 200_000
    assert (found.inodes, found.is_complete) == (5, True)
    assert count_tree(str(tmp_path / "none")) == TreeCount()
    assert count_tree(str(tmp_path / "tree/link")) == TreeCount()


def test_nothing_hides_in_the_depth(tmp_path: Path) -> None:
    nest(tmp_path, DEEP)
    before = len(os.listdir("/proc/self/fd"))
    assert count_tree(str(tmp_path)).inodes == DEEP
    assert len(os.listdir("/proc/self/fd")) == before
    remove_tree(tmp_path / "d")


@pytest.mark.parametrize(("remembered", "counted"), [(10, 4), (2, 6), (0, 8)])
def test_names_of_a_file_count_once_as_far_as_they_are_remembered(
    tmp_path: Path, remembered: int, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_module, "_MOST_LINKED", remembered)
    for name in "abcd":
        (tmp_path / name).touch()
    for name in "abcd":
        os.link(tmp_path / name, tmp_path / f"{name}2")
    assert count_tree(str(tmp_path)).inodes == counted


@pytest.mark.parametrize("way", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("place", ["tree/aside", "tree/a/b/aside", "out"])
def test_a_directory_swapped_for_a_link_leads_nowhere(tmp_path: Path, way: str, place: str) -> None:
    """Before each call in turn a directory goes elsewhere, a link to the host's in its place."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for number in range(50):
        (outside / str(number)).touch()
    if Path(f"tree/{way}") in Path(place).parents:
        place = "out"
    for at in count():
        found, has_swapped = _count_and_swap(tmp_path / str(at), at, way, place, outside)
        assert found <= 13
        if not has_swapped:
            assert found == 11
            return


def _count_and_swap(base: Path, at: int, way: str, place: str, outside: Path) -> tuple[int, bool]:
    tree = base / "tree"
    for directory in ("", "a", "a/b", "a/b/c", "a/b/c/d", "z"):
        (tree / directory).mkdir(parents=True)
        (tree / directory / "file").touch()
    calls = count()

    def swap() -> bool:
        if next(calls) < at:
            return True
        (tree / way).rename(base / place)
        (tree / way).symlink_to(outside)
        return False

    with no_hang(), between_calls(swap):
        found = count_tree(str(tree))
    return found.inodes, (tree / way).is_symlink()
