from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from kubelet_trio.volumes import VolumeError, VolumeManager
from tests.volumes.make import host_path, main, pod


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with one of each kind of file."""
    place = tmp_path / "place"
    (place / "directory").mkdir(parents=True)
    (place / "file").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "socket"))
    (place / "link").symlink_to("directory")
    return place


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (None, "none"),
        ("", "none"),
        ("Directory", "directory"),
        ("Directory", "link"),
        ("DirectoryOrCreate", "directory"),
        ("File", "file"),
        ("FileOrCreate", "file"),
        ("Socket", "socket"),
    ],
)
async def test_what_is_of_the_type_is_used_as_it_is(
    volumes: VolumeManager, place: Path, type_: str | None, name: str
) -> None:
    of_pod = pod(host_path(place / name, type_))
    await volumes.mount(of_pod)
    (made,) = await volumes.container_mounts(of_pod, main(of_pod))
    assert made.host_path == str(place / name)


@pytest.mark.parametrize(
    ("type_", "name", "message"),
    [
        ("Directory", "file", "is not a directory"),
        ("Directory", "none", "is not a directory"),
        ("DirectoryOrCreate", "file", "is not a directory"),
        ("File", "directory", "is not a file"),
        ("File", "none", "is not a file"),
        ("FileOrCreate", "socket", "is not a file"),
        ("Socket", "file", "is not a socket file"),
        ("CharDevice", "file", "is not a character device"),
        ("BlockDevice", "file", "is not a block device"),
    ],
)
async def test_what_is_not_of_the_type_is_refused(
    volumes: VolumeManager, place: Path, type_: str, name: str, message: str
) -> None:
    with pytest.raises(VolumeError) as caught:
        await volumes.mount(pod(host_path(place / name, type_)))
    assert str(caught.value) == (
        f'MountVolume.SetUp failed for volume "host" : '
        f"hostPath type check failed: {place / name} {message}"
    )


async def test_a_type_that_there_is_not_is_refused(volumes: VolumeManager) -> None:
    with pytest.raises(VolumeError, match="Pipe is an invalid volume type"):
        await volumes.mount(pod(host_path("/", "Pipe")))


async def test_a_character_device(volumes: VolumeManager) -> None:
    await volumes.mount(pod(host_path("/dev/null", "CharDevice")))


async def test_missing_directories_are_made(volumes: VolumeManager, place: Path) -> None:
    before = os.umask(0)
    try:
        await volumes.mount(pod(host_path(place / "x" / "y", "DirectoryOrCreate")))
        await volumes.mount(pod(host_path(place / "new", "FileOrCreate")))
    finally:
        os.umask(before)
    made = [place / "x", place / "x" / "y", place / "new"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o755, 0o755, 0o644]


@pytest.mark.parametrize("type_", [None, "Directory", "DirectoryOrCreate"])
async def test_a_path_that_leads_up_is_refused(
    volumes: VolumeManager, place: Path, type_: str | None
) -> None:
    path = f"{place}/directory/../directory"
    with pytest.raises(VolumeError, match="SetUp failed") as caught:
        await volumes.mount(pod(host_path(path, type_)))
    assert str(caught.value).endswith(f"invalid HostPath `{path}`: must not contain '..'")


async def test_a_missing_file_is_made_but_not_its_directory(
    volumes: VolumeManager, place: Path
) -> None:
    await volumes.mount(pod(host_path(place / "new", "FileOrCreate")))
    assert (place / "new").read_bytes() == b""
    with pytest.raises(VolumeError, match="No such file"):
        await volumes.mount(pod(host_path(place / "x" / "new", "FileOrCreate")))
