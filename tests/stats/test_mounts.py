"""The node's mounts, which are read again when the kernel tells of a change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubelet_trio.stats import Host
from kubelet_trio.stats.disks import Mounts
from kubelet_trio.stats.open_files import Room

# In a namespace of its own: what is mounted here, nobody else sees.
_HIDE_A_DISK = """
import subprocess
from kubelet_trio.stats import Host
from kubelet_trio.stats.disks import Mounts
from kubelet_trio.stats.open_files import Room

room = Room(1, 1)
mounts = Mounts(Host(2, {}), room)
before = mounts.visible()
device, point = next(iter(before.items()))
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
hidden = mounts.visible()
assert hidden == Mounts(Host(2, {}), Room(0, 0)).visible()
assert hidden.get(device) != point
# Not for each look: but others may remove mount points just now.
assert any(mounts.visible() is mounts.visible() for _ in range(100))
assert room.left == 0
mounts.close()
assert room.left == 1
assert mounts.visible() == hidden
"""

# The kernel tells of a change once: what could not be read then is not shown until the next one.
_FAIL_ONCE = """
import os, subprocess, sys
from kubelet_trio.stats import Host
from kubelet_trio.stats.disks import Mounts
from kubelet_trio.stats.open_files import Room

room = Room(1, 1)
mounts = Mounts(Host(2, {}), room)
before = mounts.visible()
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", sys.argv[1]], check=True)
pread = os.pread

def fail(*_):
    raise OSError(12, "Cannot allocate memory")

os.pread = fail
assert mounts.visible() == {}
assert room.left == 1
os.pread = pread
assert mounts.visible() == before
assert room.left == 0
"""


def test_a_new_mount_is_noticed() -> None:
    _in_mounts_of_its_own(_HIDE_A_DISK)


def test_a_table_that_could_not_be_read_once_is_read_again(tmp_path: Path) -> None:
    _in_mounts_of_its_own(_FAIL_ONCE, str(tmp_path))


def _in_mounts_of_its_own(program: str, *args: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    if not Mounts(Host(2, {}), Room(0, 0)).visible():
        pytest.skip("this machine shows no disk with a file system of its own")
    subprocess.run(["unshare", "--mount", sys.executable, "-c", program, *args], check=True)


def test_a_table_that_cannot_be_read_shows_nothing(tmp_path: Path) -> None:
    room = Room(1, 1)
    mounts = Mounts(Host(2, {}, proc=str(tmp_path)), room)
    assert mounts.visible() == {}
    assert room.left == 1
    mounts.close()
