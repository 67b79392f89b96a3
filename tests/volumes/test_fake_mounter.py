from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.testing import FakeMounter
from kubelet_trio.volumes import KernelMounter, Mounter


def rules(mounter: Mounter, place: Path) -> None:
    """What holds of every mounter, the kernel's first of all."""
    target = place / "target"
    with pytest.raises(OSError, match="No such file"):
        mounter.mount_tmpfs(target)
    with pytest.raises(OSError, match="No such file"):
        mounter.bind(str(place), target)
    target.mkdir()
    with pytest.raises(OSError, match="Invalid argument"):
        mounter.unmount(target)
    mounter.mount_tmpfs(target, ["size=1048576"])
    (mount,) = (m for m in mounter.mounts() if m.path == str(target))
    assert mount.fstype == "tmpfs"
    inner = target / "inner"
    inner.mkdir()
    mounter.mount_tmpfs(inner)
    with pytest.raises(OSError, match="busy"):
        mounter.unmount(target)
    mounter.unmount(inner)
    mounter.unmount(target)
    (place / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        mounter.bind(str(place / "file"), target)
    mounter.bind(str(place), target)
    mounter.mount_tmpfs(target)  # over the other
    mounter.unmount(target)
    assert [m.path for m in mounter.mounts()].count(str(target)) == 1
    mounter.unmount(target)
    assert all(m.path != str(target) for m in mounter.mounts())


def test_the_kernel_keeps_the_rules(tmp_path: Path, kernel: KernelMounter) -> None:
    rules(kernel, tmp_path)


def test_the_fake_keeps_them_too(tmp_path: Path) -> None:
    rules(FakeMounter(), tmp_path)
