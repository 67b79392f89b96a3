"""Loop devices of this machine, and what happens without them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet_trio.volumes import KernelMounter, loop
from kubelet_trio.volumes.loop import KernelBlockDevices, LoopUnavailableError
from tests.volumes.conftest import loop_refusal

SIZE = 1 << 20


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[KernelBlockDevices]:
    """The real devices; loop devices of files below the test's directory are detached after it."""
    if refusal := loop_refusal():
        pytest.skip(refusal)
    devices = KernelBlockDevices()
    yield devices
    for left in tmp_path.iterdir():
        devices.detach(left)


def disk(path: Path) -> Path:
    path.write_bytes(bytes(SIZE))
    return path


def test_a_file_becomes_a_device_that_is_found_again(
    tmp_path: Path, devices: KernelBlockDevices
) -> None:
    file = disk(tmp_path / "disk")
    assert devices.find(file) == []
    device = devices.attach(file)
    assert devices.number(device) == device.stat().st_rdev
    assert KernelBlockDevices().attach(file) == device  # a second agent finds the first one's
    assert devices.find(file) == [device]
    with device.open("r+b") as opened:
        opened.write(b"data")
        opened.flush()
        os.fsync(opened.fileno())
    assert file.read_bytes()[:4] == b"data"
    devices.detach(file)
    assert devices.find(file) == []
    devices.detach(file)  # nothing to do


def test_a_device_behind_a_link_is_found_by_both_names(
    tmp_path: Path, devices: KernelBlockDevices
) -> None:
    file, link = disk(tmp_path / "disk"), tmp_path / "link"
    link.symlink_to(file)
    device = devices.attach(link)
    assert devices.find(file) == devices.find(link) == [device]
    devices.detach(link)
    assert devices.find(file) == []


def test_a_read_only_device_refuses_writes(tmp_path: Path, devices: KernelBlockDevices) -> None:
    device = devices.attach(disk(tmp_path / "disk"), read_only=True)
    opened = os.open(device, os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            os.write(opened, b"data")
    finally:
        os.close(opened)
    assert device.read_bytes() == bytes(SIZE)


def test_a_device_of_an_unlinked_file_is_detached(
    tmp_path: Path, devices: KernelBlockDevices
) -> None:
    file = disk(tmp_path / "disk")
    device = devices.attach(file)
    file.unlink()
    assert devices.find(file) == [device]
    devices.detach(file)
    assert devices.find(file) == []


def test_a_device_that_others_have_open_goes_when_they_close_it(
    tmp_path: Path, devices: KernelBlockDevices
) -> None:
    file = disk(tmp_path / "disk")
    device = devices.attach(file)
    with device.open("rb"):
        devices.detach(file)
        assert devices.find(file) == [device]
    assert devices.find(file) == []


def test_a_loop_device_holds_another_device_at_its_bind_mount(
    tmp_path: Path, devices: KernelBlockDevices, kernel: KernelMounter
) -> None:
    """As the lock of a mapped device: the name of the bind mount finds it, and no other's."""
    device = devices.attach(disk(tmp_path / "disk"))
    entries = [tmp_path / name for name in ("a", "b")]
    for entry in entries:
        entry.touch()
        kernel.bind(str(device), entry)
    locks = [devices.attach(entry, read_only=True) for entry in entries]
    assert len({device, *locks}) == 3
    with pytest.raises(OSError, match="busy"):
        kernel.unmount(entries[0])
    devices.detach(entries[0])
    kernel.unmount(entries[0])
    assert devices.find(entries[1]) == [locks[1]]
    devices.detach(entries[1])
    kernel.unmount(entries[1])


def test_only_block_devices_have_a_number(tmp_path: Path) -> None:
    devices = KernelBlockDevices()
    for path in (disk(tmp_path / "disk"), tmp_path, Path("/dev/null")):
        with pytest.raises(ValueError, match=f'path "{path}" is no block device'):
            devices.number(path)
    with pytest.raises(FileNotFoundError):
        devices.number(tmp_path / "none")


def test_what_is_no_disk_is_not_attached(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="neither a file nor a block device"):
            KernelBlockDevices().attach(path)


def test_a_host_without_loop_devices_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_CONTROL", tmp_path / "loop-control")
    monkeypatch.setattr(loop, "_SYSFS", tmp_path / "block")
    file = disk(tmp_path / "disk")
    with pytest.raises(LoopUnavailableError, match="needs the kernel's module loop") as caught:
        KernelBlockDevices().attach(file)
    assert caught.value.errno == errno.ENOENT
    assert KernelBlockDevices().find(file) == []
    KernelBlockDevices().detach(file)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ("/a/disk\n", "/a/disk"),
        ("/a/disk (deleted)\n", "/a/disk"),
        ("/a/with blank\n", "/a/with blank"),
        ("/other\n", None),
    ],
)
def test_backing_files_are_read_as_the_kernel_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, path: str | None
) -> None:
    monkeypatch.setattr(loop, "_SYSFS", tmp_path)
    for name in ("loop7", "loop8", "sda", "loopback"):
        (tmp_path / name).mkdir()
    (tmp_path / "loop7/loop").mkdir()
    (tmp_path / "loop7/loop/backing_file").write_text(content)
    expected = [Path("/dev/loop7")]
    assert KernelBlockDevices().find(Path(path or "/a/disk")) == (expected if path else [])
