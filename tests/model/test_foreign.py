from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from pathlib import Path

import pytest

from kubelet_trio.model import open_directory, open_regular, read_regular
from tests.harness.hostile import no_hang


def test_a_file_is_read_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="expected 4 bytes at most") as caught:
        read_regular(tmp_path / "file", 4)
    assert caught.value.errno == errno.EFBIG


def test_a_descriptor_of_the_directory_serves_for_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    directory = open_directory(tmp_path)
    try:
        assert read_regular("file", 10, directory=directory) == b"1"
    finally:
        os.close(directory)


@pytest.mark.parametrize("kind", ["FIFO", "socket", "directory", "character device", "link"])
def test_what_is_no_file_is_not_opened_and_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "file").touch()
        path.symlink_to(tmp_path / "file")
    else:
        path = Path("/dev/null")
    before = set(os.listdir("/proc/self/fd"))
    with no_hang(), pytest.raises(OSError, match=f"expected a file, found .*{kind}"):
        open_regular(path)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_lease_on_a_file_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    with path.open("rb+") as held:
        before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's word to the holder
        fcntl.fcntl(held.fileno(), fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with no_hang(), pytest.raises(BlockingIOError):
            open_regular(path)
        fcntl.fcntl(held.fileno(), fcntl.F_SETLEASE, fcntl.F_UNLCK)
        signal.signal(signal.SIGIO, before)


def test_a_directory_behind_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(NotADirectoryError):
        open_directory(tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    with no_hang(), pytest.raises(NotADirectoryError):
        open_directory(tmp_path / "fifo")
