from __future__ import annotations

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
