from __future__ import annotations

import gc
import os
import stat
import sys
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kubelet_trio.volumes.sub_path as sub_path_module
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter
from kubelet_trio.volumes.errors import SubPathError
from kubelet_trio.volumes.hung import HungCalls
from kubelet_trio.volumes.sub_path import bind_sub_path, open_inside, read_inside
from tests.harness.hostile import between_calls


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
        bind_sub_path(volume, sub_path, target, FakeMounter(), HungCalls())
    assert not target.exists()
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_nul_byte_is_refused(volume: Path, tmp_path: Path) -> None:
    """An environment variable that a container wrote to a file can bring one."""
    target = tmp_path / "target"
    with pytest.raises(SubPathError, match="NUL"):
        bind_sub_path(volume, "a\0b", target, FakeMounter(), HungCalls())
    assert not target.exists()
    with pytest.raises(SubPathError, match="NUL"):
        read_inside(volume, "file\0", 99)


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


@pytest.mark.parametrize(
    ("link", "leads_to"),
    [
        ("{volume}/a/b", "a/b"),
        ("{volume}", "."),
        ("a/../inner/..", "a"),
        ("inner/../../file", "file"),
        ("/etc", None),
        ("..", None),
        ("a/../..", None),
        ("../volume/a", None),
        ("{volume}/../outside", None),
        ("{volume}2", None),
    ],
)
def test_a_link_may_lead_anywhere_within(volume: Path, link: str, leads_to: str | None) -> None:
    (volume / "link").symlink_to(link.format(volume=volume))
    (volume.parent / "volume2").mkdir()
    if leads_to is None:
        with pytest.raises(SubPathError, match="volume"):
            open_inside(volume, "link", make=True)
        return
    descriptor = open_inside(volume, "link")
    try:
        assert os.path.samestat(os.fstat(descriptor), (volume / leads_to).stat())
    finally:
        os.close(descriptor)


def test_nothing_outside_is_looked_at(volume: Path, tmp_path: Path) -> None:
    """A dead server's mount point, say: whoever looks at it does not come back."""
    looked = []

    def look(_frame: object, event: str, called: object) -> None:
        if event == "c_call" and getattr(called, "__module__", "") == "posix":
            looked.append(getattr(called, "__name__", ""))

    (volume / "far").symlink_to(tmp_path / "outside/x")
    sys.setprofile(look)
    try:
        with pytest.raises(SubPathError):
            open_inside(volume, "far/y", make=True)
    finally:
        sys.setprofile(None)
    # The volume, the link in it (first as a directory), and nothing else.
    assert looked.count("open") == 3
    assert not {"stat", "lstat", "mkdir"} & set(looked)


@pytest.mark.parametrize("sub_path", ["a/b", "inner", "a/b/../b", "a/new/deep", "self/a/b"])
def test_a_link_swapped_in_at_any_moment_leads_nowhere(
    volume: Path, tmp_path: Path, sub_path: str
) -> None:
    gc.collect()  # files of earlier tests
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "outside/b").mkdir()
    (volume / "self").symlink_to(volume)
    for at in count():
        opened, has_swapped = _open_and_swap(volume, tmp_path / "outside", sub_path, at)
        if opened is not None:
            assert os.readlink(f"/proc/self/fd/{opened}").startswith(f"{volume}/")
            os.close(opened)
        assert os.listdir(tmp_path / "outside") == ["b"]
        assert os.listdir(tmp_path / "outside/b") == []
        assert len(os.listdir("/proc/self/fd")) == before
        if not has_swapped:
            assert opened is not None
            return
        (volume / "a").unlink()
        (volume / "moved").rename(volume / "a")


def _open_and_swap(volume: Path, outside: Path, sub_path: str, at: int) -> tuple[int | None, bool]:
    calls = count()

    def swap() -> bool:
        if next(calls) < at:
            return True
        (volume / "a").rename(volume / "moved")
        (volume / "a").symlink_to(outside)
        return False

    opened = None
    with between_calls(swap), suppress(SubPathError, OSError):
        opened = open_inside(volume, sub_path, make=True)
    return opened, (volume / "moved").exists()


def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_its_time(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once for each container, however often its pod tries again."""
    monkeypatch.setattr(sub_path_module, "PATIENCE", 0.05)
    before = len(os.listdir("/proc/self/fd"))
    answer, asked, real = threading.Event(), [], open_inside

    def hang(*args: Any, **kwargs: Any) -> int:
        asked.append(threading.current_thread())
        answer.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(sub_path_module, "open_inside", hang)
    hung, target = HungCalls(), tmp_path / "target"
    for _ in range(3):
        with pytest.raises(TimeoutError, match="did not answer"):
            bind_sub_path(volume, "a", target, FakeMounter(), hung)
    assert len(asked) == 1
    monkeypatch.setattr(sub_path_module, "open_inside", real)
    bind_sub_path(volume, "a", tmp_path / "other", FakeMounter(), hung)
    answer.set()
    asked[0].join(5)
    bind_sub_path(volume, "a", target, FakeMounter(), hung)
    assert len(os.listdir("/proc/self/fd")) == before


# A volume in memory is as the kernel makes a tmpfs, sticky; with a pod's fsGroup it is 3777.
@pytest.mark.parametrize("mode", [0o755, 0o2770, 0o1777, 0o3777])
def test_missing_directories_have_the_volumes_permissions(volume: Path, mode: int) -> None:
    volume.chmod(mode)
    umask = os.umask(0o077)
    try:
        os.close(open_inside(volume, "inner/x/y", make=True))
    finally:
        os.umask(umask)
    for made in (volume / "a/b/x", volume / "a/b/x/y"):
        assert stat.S_IMODE(made.stat().st_mode) == mode


def test_a_file_in_the_way_is_an_error(volume: Path) -> None:
    with pytest.raises(OSError, match="Not a directory"):
        open_inside(volume, "file/x", make=True)


def test_a_bound_directory_is_the_one_inside(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    bind_sub_path(volume, "inner", target, kernel, HungCalls())
    (volume / "a" / "b" / "seen").touch()
    assert (target / "seen").exists()


def test_directories_are_opened_in_the_way_that_autofs_mounts_them(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O_PATH alone mounts nothing (follow_automount in the kernel's fs/namei.c)."""
    flags: dict[str, int] = {}
    really = os.open

    def noted(path: Any, given: int, *args: Any, **named: Any) -> int:
        opened = really(path, given, *args, **named)
        flags[str(path)] = given
        return opened

    monkeypatch.setattr(os, "open", noted)
    for sub_path in ("a/b", "file", "inner", "a/made"):
        os.close(open_inside(volume, sub_path, make=True))
    assert {name for name, given in flags.items() if given & os.O_DIRECTORY} == {"a", "b", "made"}
    assert all(given & os.O_PATH for given in flags.values())


def test_a_bound_file_is_the_one_inside(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    bind_sub_path(volume, "file", target, kernel, HungCalls())
    assert target.read_text() == "in the volume"


def test_the_next_instance_gets_what_the_first_had(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    for _ in range(3):
        bind_sub_path(volume, "a", target, kernel, HungCalls())
    assert [m.path for m in kernel.mounts()].count(str(target)) == 1


def test_a_target_bound_to_something_else_is_bound_anew(
    volume: Path, tmp_path: Path, kernel: KernelMounter
) -> None:
    target = tmp_path / "subpaths" / "0"
    bind_sub_path(volume, "a", target, kernel, HungCalls())
    bind_sub_path(volume, "file", target, kernel, HungCalls())
    assert target.read_text() == "in the volume"
    bind_sub_path(volume, "a", target, kernel, HungCalls())
    assert [m.path for m in kernel.mounts()].count(str(target)) == 1
    assert (target / "b").is_dir()
