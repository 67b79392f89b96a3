"""Formatting: what is on a device is never lost, whatever a volume asks for."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter
from kubelet_trio.volumes.errors import FilesystemMismatchError
from kubelet_trio.volumes.host.format import disk_format, format_and_mount
from kubelet_trio.volumes.tools import HostTools
from tests.volumes.host.programs import FakeFormats, FakeTools, done


@pytest.fixture
def formats() -> FakeFormats:
    return FakeFormats()


@pytest.fixture
def tools(formats: FakeFormats) -> FakeTools:
    tools = FakeTools()
    formats.add_to(tools)
    return tools


@pytest.fixture
def device(tmp_path: Path) -> Path:
    device = tmp_path / "sdz"
    device.touch()
    return device


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "mnt"
    target.mkdir()
    return target


@pytest.mark.parametrize(
    ("fstype", "command"),
    [
        ("", ("mkfs.ext4", "-F", "-m0")),
        ("ext4", ("mkfs.ext4", "-F", "-m0")),
        ("xfs", ("mkfs.xfs", "-f")),
    ],
)
def test_an_empty_device_is_formatted(
    tools: FakeTools,
    mounter: FakeMounter,
    device: Path,
    target: Path,
    fstype: str,
    command: tuple[str, ...],
) -> None:
    format_and_mount(tools, mounter, device, target, fstype, ["noatime"])
    assert [c for c in tools.calls if c[0].startswith("mkfs")] == [(*command, str(device))]
    (mount,) = mounter.mounts()
    assert (mount.path, mount.source, mount.fstype) == (str(target), str(device), fstype or "ext4")
    assert mount.super_options == ("noatime", "defaults")
    assert tools.called("fsck") == []


def test_what_is_formatted_is_checked_and_kept(
    tools: FakeTools, formats: FakeFormats, mounter: FakeMounter, device: Path, target: Path
) -> None:
    formats.formats[str(device)] = "TYPE=ext4"
    format_and_mount(tools, mounter, device, target, "ext4")
    assert [call[0] for call in tools.calls] == ["blkid", "fsck"]
    assert mounter.mounts()


def test_read_only_neither_formats_nor_checks(
    tools: FakeTools, formats: FakeFormats, mounter: FakeMounter, device: Path, target: Path
) -> None:
    with pytest.raises(OSError, match=r"cannot mount unformatted disk .* in read-only mode"):
        format_and_mount(tools, mounter, device, target, "ext4", ["ro"])
    formats.formats[str(device)] = "TYPE=ext4"
    format_and_mount(tools, mounter, device, target, "ext4", ["ro"])
    assert {call[0] for call in tools.calls} == {"blkid"}


class RefusingMounter(FakeMounter):
    """The kernel's answer to the wrong type of file system."""

    def mount_device(self, *_: object) -> None:
        raise OSError("mount failed: exit status 32\nOutput: wrong fs type")


@pytest.mark.parametrize("found", ["TYPE=xfs", "PTTYPE=gpt", "TYPE=ext4\nPTTYPE=dos"])
def test_another_file_system_or_partitions_are_a_mismatch_and_stay(
    tools: FakeTools, formats: FakeFormats, device: Path, target: Path, found: str
) -> None:
    formats.formats[str(device)] = found
    with pytest.raises(FilesystemMismatchError, match="wrong fs type"):
        format_and_mount(tools, RefusingMounter(), device, target, "ext4")
    assert formats.formats[str(device)] == found


def test_the_right_file_system_that_cannot_be_mounted_is_no_mismatch(
    tools: FakeTools, formats: FakeFormats, device: Path, target: Path
) -> None:
    formats.formats[str(device)] = "TYPE=ext4"
    with pytest.raises(OSError, match="wrong fs type") as caught:
        format_and_mount(tools, RefusingMounter(), device, target, "ext4")
    assert not isinstance(caught.value, FilesystemMismatchError)


@pytest.mark.parametrize(
    ("code", "is_mounted"), [(0, True), (1, True), (4, False), (8, True), (128, True)]
)
def test_fsck_stops_the_mount_only_if_errors_are_left(
    tools: FakeTools,
    formats: FakeFormats,
    mounter: FakeMounter,
    device: Path,
    target: Path,
    code: int,
    is_mounted: bool,
) -> None:
    formats.formats[str(device)], formats.fsck = "TYPE=ext4", code
    with contextlib.nullcontext() if is_mounted else pytest.raises(OSError, match="could not"):
        format_and_mount(tools, mounter, device, target)
    assert bool(mounter.mounts()) is is_mounted


def test_without_fsck_it_is_mounted(
    tools: FakeTools, formats: FakeFormats, mounter: FakeMounter, device: Path, target: Path
) -> None:
    formats.formats[str(device)] = "TYPE=ext4"
    del tools.programs["fsck"]
    format_and_mount(tools, mounter, device, target)
    assert mounter.mounts()


@pytest.mark.parametrize(("output", "code"), [("", 8), ("", 4), ("nonsense", 0)])
def test_what_blkid_cannot_tell_is_not_formatted(
    tools: FakeTools, mounter: FakeMounter, device: Path, target: Path, output: str, code: int
) -> None:
    tools.programs["blkid"] = lambda *_: done(output, code)
    with pytest.raises(OSError, match="failed to get disk format of disk"):
        format_and_mount(tools, mounter, device, target)
    assert not any(call[0].startswith("mkfs") for call in tools.calls)


def test_a_device_that_cannot_be_read_is_not_formatted(
    tools: FakeTools, mounter: FakeMounter, tmp_path: Path, target: Path
) -> None:
    """blkid's exit status is 2 also if it could not open the device."""
    with pytest.raises(FileNotFoundError):
        format_and_mount(tools, mounter, tmp_path / "none", target)
    assert not any(call[0].startswith("mkfs") for call in tools.calls)


@pytest.mark.parametrize("fstype", ["ext4/../../../tmp/x", "-x", "a b", ".."])
def test_a_bad_type_runs_no_program(
    tools: FakeTools, mounter: FakeMounter, device: Path, target: Path, fstype: str
) -> None:
    with pytest.raises(ValueError, match="is not a file system type"):
        format_and_mount(tools, mounter, device, target, fstype)
    assert tools.calls == []


def test_a_real_device_is_formatted_once(loop: Path, kernel: KernelMounter, target: Path) -> None:
    tools = HostTools()
    assert disk_format(tools, loop) == ""
    for _ in range(2):
        format_and_mount(tools, kernel, loop, target)
        with (target / "data").open("a") as data:
            data.write("x")
        kernel.unmount(target)
    assert disk_format(tools, loop) == "ext4"
    format_and_mount(tools, kernel, loop, target, options=["ro"])
    assert (target / "data").read_text() == "xx"
    (mount,) = [m for m in kernel.mounts() if m.path == str(target)]
    number = os.stat(loop).st_rdev
    assert mount.device == f"{os.major(number)}:{os.minor(number)}"
    kernel.unmount(target)


def test_a_real_device_with_another_type_is_a_mismatch(
    loop: Path, kernel: KernelMounter, target: Path
) -> None:
    format_and_mount(HostTools(), kernel, loop, target, "ext4")
    kernel.unmount(target)
    with pytest.raises(FilesystemMismatchError, match="mount failed: exit status"):
        format_and_mount(HostTools(), kernel, loop, target, "vfat")
    assert disk_format(HostTools(), loop) == "ext4"
