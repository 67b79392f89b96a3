from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubelet_trio.volumes import KernelMounter
from kubelet_trio.volumes.removal import remove_empty, remove_tree


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


@pytest.mark.parametrize("place", ["mounted", "a/mounted", "a/b/mounted"])
def test_a_mount_is_never_entered(tmp_path: Path, kernel: KernelMounter, place: str) -> None:
    root = tmp_path / "root"
    mounted = root / place
    mounted.mkdir(parents=True)
    kernel.mount_tmpfs(mounted)
    (mounted / "precious").touch()
    with pytest.raises(OSError, match="busy"):
        remove_tree(root)
    (left,) = (m for m in kernel.mounts() if m.path.startswith(str(root)))
    assert (Path(left.path) / "precious").exists()


def test_a_bind_mount_of_the_same_file_system_is_never_entered(
    tmp_path: Path, kernel: KernelMounter
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    root = tmp_path / "root"
    (root / "mounted").mkdir(parents=True)
    kernel.bind(str(precious), root / "mounted")
    with pytest.raises(OSError, match="busy"):
        remove_tree(root)
    assert (precious / "data").exists()


def test_only_an_empty_directory_is_removed_as_one(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_empty(tmp_path / "a")
    assert (tmp_path / "a" / "b").exists()
    remove_empty(tmp_path / "a" / "b")
    remove_empty(tmp_path / "a" / "b")
    assert not (tmp_path / "a" / "b").exists()
