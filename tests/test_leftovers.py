"""A test that leaves a mount behind fails."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.leftovers import left_unmounted, mounts_under, unmount_under


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A mount point."""
    point = tmp_path / "mount"
    point.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "none", point], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {made.stderr}")
    yield point
    unmount_under(tmp_path)


def test_a_mount_that_is_left_is_named_and_unmounted(mount: Path) -> None:
    with pytest.raises(AssertionError, match=str(mount)), left_unmounted(mount.parent):
        pass
    assert mounts_under(mount.parent) == []


def test_a_mount_is_below_itself_and_not_below_a_part_of_its_name(mount: Path) -> None:
    assert mounts_under(mount) == [str(mount)]
    assert mounts_under(mount.with_name("mou")) == []
