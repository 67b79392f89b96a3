from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kubelet_trio.volumes.ownership import own_volume

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change groups")

GROUP = 4711


@pytest.fixture
def volume(tmp_path: Path) -> Path:
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
    return volume


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
