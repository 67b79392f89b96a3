from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import pytest

from kubelet_trio.model import remove_empty, remove_tree

NOBODY = 65534


def test_a_tree_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").touch()
    (root / "c").mkdir()
    (root / ".kubelet-trio-removing-0").mkdir()  # of a removal that was cut short
    (root / ".kubelet-trio-removing-0" / "x").touch()
    os.mkfifo(root / "fifo")
    remove_tree(root)
    remove_tree(root)
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "d" / "link").symlink_to(outside)
    remove_tree(root)
    assert (outside / "kept").exists()
    (tmp_path / "itself").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        remove_tree(tmp_path / "itself")
    assert (outside / "kept").exists()


def test_depth_costs_neither_stack_nor_descriptors(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    deep = os.open(root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 100, dir_fd=deep)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    remove_tree(root)
    assert not root.exists()


def test_many_entries_go_in_batches(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    for number in range(2500):
        (root / "d" / str(number)).touch()
    remove_tree(root)
    assert not root.exists()


def test_another_may_remove_files_meanwhile(tmp_path: Path) -> None:
    """As the garbage collection of logs does, while a pod's removal has come to them."""
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    files = [root / "d" / f"{number}.log" for number in range(500)]
    for file in files:
        file.touch()
    descriptor = os.open(root / "d", os.O_RDONLY | os.O_DIRECTORY)
    begin = Barrier(2)

    def collect() -> None:
        begin.wait()
        for file in reversed(files):
            with suppress(FileNotFoundError):
                os.unlink(file.name, dir_fd=descriptor)

    with ThreadPoolExecutor(1) as pool:
        collected = pool.submit(collect)
        begin.wait()
        remove_tree(root)
        collected.result()
    os.close(descriptor)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_lists_what_is_gone_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_trio.model.removal._entries", lambda _: [("ghost", False)])
    with pytest.raises(FileNotFoundError, match="ghost"):
        remove_tree(tmp_path)


def test_only_an_empty_directory_is_removed_as_one(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_empty(tmp_path / "a")
    assert (tmp_path / "a" / "b").exists()
    remove_empty(tmp_path / "a" / "b")
    remove_empty(tmp_path / "a" / "b")
    assert not (tmp_path / "a" / "b").exists()


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A directory, and the rights, of an ordinary user."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))  # those above pytest's own are root's
    if os.geteuid() != 0:
        yield directory
    else:
        os.chown(directory, NOBODY, -1)
        os.seteuid(NOBODY)
        try:
            yield directory
        finally:
            os.seteuid(0)
    shutil.rmtree(directory)


def test_what_a_container_closed_to_its_own_user_goes_too(nobodys: Path) -> None:
    root = nobodys / "root"
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "b" / "file").touch()
    for closed in ("a/b/c", "a/b/file", "a/b", "a", "."):
        (root / closed).chmod(0)
    remove_tree(root)
    assert not root.exists()


def test_nothing_that_a_link_leads_to_is_opened_to_anybody(nobodys: Path) -> None:
    outside, root = nobodys / "outside", nobodys / "root"
    outside.mkdir(mode=0)
    root.mkdir()
    (root / "link").symlink_to(outside)
    remove_tree(root)
    root.symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        remove_tree(root)
    assert outside.stat().st_mode & 0o777 == 0
