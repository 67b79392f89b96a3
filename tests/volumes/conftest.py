from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kubelet_trio.model import inline_offload
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter, VolumeManager
from kubelet_trio.volumes.loop import KernelBlockDevices


@pytest.fixture
def mounter() -> FakeMounter:
    return FakeMounter()


@pytest.fixture
def volumes(tmp_path: Path, mounter: FakeMounter) -> VolumeManager:
    return VolumeManager(tmp_path, mounter, inline_offload)


@cache
def mount_refusal() -> str:
    """Why this machine does not let us mount; empty where it does."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            KernelMounter().mount_tmpfs(Path(directory))
            KernelMounter().unmount(Path(directory))
        except OSError as exc:
            return f"mounting is not permitted here: {exc}"
    return ""


@cache
def loop_refusal() -> str:
    """Why this machine gives us no loop devices; empty where it does."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(1 << 20)
        try:
            KernelBlockDevices().attach(Path(file.name))
            KernelBlockDevices().detach(Path(file.name))
        except OSError as exc:
            return f"loop devices are not permitted here: {exc}"
    return ""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelMounter]:
    """The real mounter; whatever a test leaves mounted below its directory is unmounted."""
    if refusal := mount_refusal():
        pytest.skip(refusal)
    kernel = KernelMounter()
    yield kernel
    for left in reversed(kernel.mounts()):
        if left.path.startswith(str(tmp_path)):
            kernel.unmount(Path(left.path))


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    """An empty loop device of 16 MiB."""
    missing = [t for t in ("losetup", "blkid", "mkfs.ext4") if shutil.which(t) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no loop device here: {missing or 'not root'}")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    made = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no loop device here: {made.stderr}")
    yield Path(made.stdout.strip())
    # Lazy while a mount is left: the fixture of the mounter, which ends later, unmounts it.
    subprocess.run(["losetup", "-d", made.stdout.strip()], check=True)
