from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import kubelet_trio.volumes.sub_path as sub_path_module
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter
from kubelet_trio.volumes.sub_path import (
    SubPathError,
    bind_sub_path,
    make_inside,
    open_inside,
    read_inside,
)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    (volume / "a" / "b").mkdir(parents=True)
    (volume / "file").write_text("in the volume")
    (volume / "inner").symlink_to("a/b")
    (volume / "outer").symlink_to("/etc")
    (volume / "up").symlink_to("../outside")
    (volume / "loop").symlink_to("loop")
    (volume / "dangling").symlink_to("nowhere")
    (tmp_path / "outside").mkdir()
    return volume


@pytest.mark.parametrize(
    ("sub_path", "leads_to"),
    [
        ("a", "a"),
        ("a/b", "a/b"),
        ("./a//b/", "a/b"),
        ("inner", "a/b"),
        ("file", "file"),
        (".", "."),
    ],
)
def test_what_is_inside_is_opened(volume: Path, sub_path: str, leads_to: str) -> None:
    descriptor = open_inside(volume, sub_path)
    try:
        assert os.path.samestat(os.fstat(descriptor), (volume / leads_to).stat())
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("sub_path", ["outer", "outer/passwd", "up", "up/x", "loop", "dangling"])
def test_what_leads_outside_is_refused_and_nothing_is_made_there(
    volume: Path, sub_path: str, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    with pytest.raises((SubPathError, OSError)):
        bind_sub_path(volume, sub_path, target, FakeMounter())
    assert not target.exists()
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_file_inside_is_read_and_no_other(volume: Path, tmp_path: Path) -> None:
    (volume / "env").write_text("A='1'")
    (tmp_path / "secret").write_text("no")
    (volume / "out").symlink_to(tmp_path / "secret")
    os.mkfifo(volume / "pipe")
    assert read_inside(volume, "env", 5) == b"A='1'"
    for path, limit in (("out", 9), ("pipe", 9), ("env", 4), ("a", 9)):
        with pytest.raises((SubPathError, OSError)):
            read_inside(volume, path, limit)
    with pytest.raises(FileNotFoundError):
        read_inside(volume, "none", 9)


def test_a_link_swapped_in_after_the_check_is_refused(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))

    def resolve_and_then_swap(path: Path) -> Path:
        resolved = Path(os.path.realpath(path, strict=True))
        os.rename(volume / "a", volume / "moved")
        (volume / "a").symlink_to("/etc")
        return resolved

    monkeypatch.setattr(sub_path_module, "_resolve", resolve_and_then_swap)
    with pytest.raises(SubPathError, match="became a symbolic link"):
        open_inside(volume, "a/b")
    assert len(os.listdir("/proc/self/fd")) == before


def test_missing_directories_have_the_volumes_permissions(volume: Path) -> None:
    volume.chmod(0o2770)
    umask = os.umask(0o077)
    try:
        make_inside(volume, "inner/x/y")
    finally:
        os.umask(umask)
    for made in (volume / "a/b/x", volume / "a/b/x/y"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o2770


def test_a_file_in_the_way_is_an_error(volume: Path) -> None:
    with pytest.raises(OSError, match="Not a directory"):
        make_inside(volume, "file/x")


def test_a_bound_directory_is_the_one_inside(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    bind_sub_path(volume, "inner", target, kernel)
    (volume / "a" / "b" / "seen").touch()
    assert (target / "seen").exists()


def test_a_bound_file_is_the_one_inside(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    bind_sub_path(volume, "file", target, kernel)
    assert target.read_text() == "in the volume"


def test_the_next_instance_gets_what_the_first_had(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    for _ in range(3):
        bind_sub_path(volume, "a", target, kernel)
    assert [m.path for m in kernel.mounts()].count(str(target)) == 1


def test_a_target_bound_to_something_else_is_bound_anew(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    bind_sub_path(volume, "a", target, kernel)
    bind_sub_path(volume, "file", target, kernel)
    assert target.read_text() == "in the volume"
    bind_sub_path(volume, "a", target, kernel)
    assert [m.path for m in kernel.mounts()].count(str(target)) == 1
    assert (target / "b").is_dir()
