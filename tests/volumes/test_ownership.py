from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from lightkube.models.core_v1 import PodSecurityContext
from structlog.testing import capture_logs

from kubelet_trio.model import PodUid, inline_offload
from kubelet_trio.volumes import KernelMounter, VolumeManager
from kubelet_trio.volumes.ownership import own_volume
from tests.harness.hostile import DEEP, between_calls, nest
from tests.volumes.make import empty_dir, pod

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change groups")

GROUP = 4711


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    volume = tmp_path / "volume"
    (volume / "dir").mkdir(parents=True, mode=0o700)
    volume.chmod(0o755)
    (volume / "dir").chmod(0o700)
    for name, mode in (("file", 0o600), ("dir/run", 0o755)):
        (volume / name).touch()
        (volume / name).chmod(mode)
    (tmp_path / "outside").touch()
    (tmp_path / "outside").chmod(0o600)
    (volume / "link").symlink_to(tmp_path / "outside")
    (volume / "dirlink").symlink_to(tmp_path)
    yield volume
    # pytest's own removal, a few runs later, is recursive and fails as a whole.
    subprocess.run(["rm", "-rf", volume], check=True)


def owned(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_gid, stat.S_IMODE(found.st_mode)


def test_all_below_a_volume_gets_the_group_and_its_bits(volume: Path) -> None:
    own_volume(volume, GROUP, read_only=False)
    assert owned(volume) == (GROUP, 0o2775)
    assert owned(volume / "dir") == (GROUP, 0o2770)
    assert owned(volume / "file") == (GROUP, 0o660)
    assert owned(volume / "dir/run") == (GROUP, 0o775)


def test_a_read_only_volume_gets_reading_bits_alone(volume: Path) -> None:
    own_volume(volume, GROUP, read_only=True)
    assert owned(volume / "dir") == (GROUP, 0o2750)
    assert owned(volume / "file") == (GROUP, 0o640)


def test_links_are_not_followed(volume: Path) -> None:
    own_volume(volume, GROUP, read_only=False)
    assert owned(volume / "link")[0] == GROUP
    assert owned(volume / "dirlink")[0] == GROUP
    assert owned(volume.parent / "outside") == (0, 0o600)
    assert owned(volume.parent)[0] == 0


def test_without_a_group_nothing_changes(volume: Path) -> None:
    before = owned(volume)
    own_volume(volume, None, read_only=False)
    assert owned(volume) == before


def test_a_root_that_is_right_spares_the_walk_where_the_pod_says_so(volume: Path) -> None:
    own_volume(volume, GROUP, read_only=False, policy="OnRootMismatch")
    assert owned(volume / "file") == (GROUP, 0o660)
    (volume / "file").chmod(0o600)
    own_volume(volume, GROUP, read_only=False, policy="OnRootMismatch")
    assert owned(volume / "file") == (GROUP, 0o600)
    own_volume(volume, GROUP, read_only=False, policy="Always")
    assert owned(volume / "file") == (GROUP, 0o660)
    volume.chmod(0o755)  # the bit for new files went
    (volume / "file").chmod(0o600)
    own_volume(volume, GROUP, read_only=False, policy="OnRootMismatch")
    assert owned(volume / "file") == (GROUP, 0o660)


def test_however_deep_a_container_nests_its_directories(volume: Path) -> None:
    nest(volume / "dir", DEEP)
    own_volume(volume, GROUP, read_only=False)
    assert owned(volume / "dir/d/d") == (GROUP, 0o2775)
    assert owned(volume / "file") == (GROUP, 0o660)


def test_few_descriptors_are_enough_for_a_deep_tree(volume: Path) -> None:
    nest(volume / "dir", 200)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    try:
        own_volume(volume, GROUP, read_only=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert owned(volume / "dir/d") == (GROUP, 0o2775)


def test_a_directory_that_is_moved_meanwhile_leads_nowhere_else(volume: Path) -> None:
    (volume / "dir/below/deep").mkdir(parents=True)
    outside = volume.parent / "elsewhere"
    outside.mkdir()
    calls = count()
    moved_at = 0

    def move() -> None:
        nonlocal moved_at
        if next(calls) >= 12 and not moved_at and (volume / "dir/below").exists():
            (volume / "dir/below").rename(outside / "below")
            moved_at = 1

    with between_calls(move), suppress(OSError):
        own_volume(volume, GROUP, read_only=False)
    assert moved_at
    assert owned(outside)[0] == 0


@pytest.mark.parametrize("call", ["chown", "chmod"])
def test_a_file_system_that_keeps_owners_or_modes_holds_up_no_pod(
    volume: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Such as an NFS export with root_squash: changeFilePermission only logs what fails."""

    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(os, call, refuse)
        own_volume(volume, GROUP, read_only=False)
    assert owned(volume / "file") == ((0, 0o660) if call == "chown" else (GROUP, 0o600))
    (told,) = (entry for entry in logs if entry["event"] == "volume.group_not_given")
    assert told["refused"] == (6 if call == "chown" else 4)  # links have no mode of their own
    assert "Operation not permitted" in told["error"]


def test_a_group_that_a_user_namespace_lacks_is_an_error(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(OSError, match="does not exist in this user namespace"):
        own_volume(volume, GROUP, read_only=False)


@pytest.mark.parametrize(("medium", "mode"), [("Memory", 0o3777), ("", 0o2777)])
async def test_a_volume_in_memory_keeps_its_sticky_bit(
    tmp_path: Path, kernel: KernelMounter, medium: str, mode: int
) -> None:
    manager = VolumeManager(tmp_path, kernel, inline_offload)
    of_pod = pod(empty_dir(medium=medium))
    assert of_pod.spec is not None
    of_pod.spec.securityContext = PodSecurityContext(fsGroup=GROUP)
    for _ in range(2):
        await manager.mount(of_pod)
        assert owned(tmp_path / "pods/u-1/volumes/kubernetes.io~empty-dir/data") == (GROUP, mode)
    await manager.unmount(PodUid("u-1"))
