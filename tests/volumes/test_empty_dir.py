from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from lightkube.models.core_v1 import ResourceRequirements

from kubelet_trio.model import inline_offload
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter, NodeFacts, VolumeError, VolumeManager
from kubelet_trio.volumes.empty_dir import tmpfs_noswap_supported
from tests.volumes.make import empty_dir, main, pod

GIB = 1 << 30


def place(root: Path, name: str = "data") -> Path:
    return root / "pods/u-1/volumes/kubernetes.io~empty-dir" / name


async def test_a_directory_that_anyone_may_use_whatever_the_umask(
    volumes: VolumeManager, tmp_path: Path
) -> None:
    umask = os.umask(0o077)
    try:
        await volumes.mount(pod(empty_dir()))
    finally:
        os.umask(umask)
    assert stat.S_IMODE(place(tmp_path).stat().st_mode) == 0o777
    assert (tmp_path / "pods/u-1/plugins/kubernetes.io~empty-dir/data/ready").exists()


async def test_once_it_is_set_up_it_is_the_pods(volumes: VolumeManager, tmp_path: Path) -> None:
    await volumes.mount(pod(empty_dir()))
    place(tmp_path).chmod(0o700)
    (place(tmp_path) / "kept").touch()
    await volumes.mount(pod(empty_dir()))
    assert stat.S_IMODE(place(tmp_path).stat().st_mode) == 0o700
    assert (place(tmp_path) / "kept").exists()


async def test_a_directory_lost_behind_the_marker_is_made_again(
    volumes: VolumeManager, tmp_path: Path
) -> None:
    await volumes.mount(pod(empty_dir()))
    place(tmp_path).rmdir()
    await volumes.mount(pod(empty_dir()))
    assert place(tmp_path).is_dir()


@pytest.mark.parametrize(
    ("limit", "memory", "allocatable", "size"),
    [
        (None, None, 0, None),
        ("64Mi", None, 0, 64 << 20),
        ("64Mi", None, 32 << 20, 32 << 20),
        (None, "1Gi", 2 * GIB, GIB),
        ("2Gi", "1Gi", 4 * GIB, GIB),
        ("0", None, GIB, GIB),
    ],
)
async def test_memory_is_bounded_by_the_smallest_limit(
    tmp_path: Path, limit: str | None, memory: str | None, allocatable: int, size: int | None
) -> None:
    mounter = FakeMounter()
    volumes = VolumeManager(
        tmp_path, mounter, inline_offload, node=NodeFacts(memory_allocatable=allocatable)
    )
    resources = ResourceRequirements(limits={"memory": memory} if memory else None)
    await volumes.mount(pod(empty_dir(medium="Memory", sizeLimit=limit), resources=resources))
    (mount,) = mounter.mounts()
    assert (mount.path, mount.fstype) == (str(place(tmp_path)), "tmpfs")
    assert mount.super_options[1:] == (() if size is None else (f"size={size}",))


async def test_memory_stays_out_of_swap_where_the_kernel_can(tmp_path: Path) -> None:
    mounter = FakeMounter()
    volumes = VolumeManager(tmp_path, mounter, inline_offload, node=NodeFacts(tmpfs_noswap=True))
    await volumes.mount(pod(empty_dir(medium="Memory")))
    assert "noswap" in mounter.mounts()[0].super_options


async def test_memory_is_mounted_once_and_again_after_a_reboot(
    volumes: VolumeManager, mounter: FakeMounter, tmp_path: Path
) -> None:
    await volumes.mount(pod(empty_dir(medium="Memory")))
    await volumes.mount(pod(empty_dir(medium="Memory")))
    assert len(mounter.mounts()) == 1
    rebooted = FakeMounter()
    await VolumeManager(tmp_path, rebooted, inline_offload).mount(pod(empty_dir(medium="Memory")))
    assert len(rebooted.mounts()) == 1


async def test_a_medium_that_is_not_supported_is_refused_by_name(volumes: VolumeManager) -> None:
    with pytest.raises(VolumeError) as caught:
        await volumes.mount(pod(empty_dir(medium="Disk")))
    assert str(caught.value) == (
        'MountVolume.SetUp failed for volume "data" : unknown storage medium "Disk"'
    )


async def test_a_size_limit_that_is_no_quantity_is_refused(volumes: VolumeManager) -> None:
    with pytest.raises(VolumeError, match="'big' is not a quantity"):
        await volumes.mount(pod(empty_dir(medium="Memory", sizeLimit="big")))


async def test_only_volumes_that_a_container_mounts_are_set_up(
    volumes: VolumeManager, tmp_path: Path
) -> None:
    await volumes.mount(pod(empty_dir("used"), empty_dir("spare"), mounts=[]))
    assert not (tmp_path / "pods").exists()


async def test_a_real_tmpfs_has_the_size_it_was_given(
    tmp_path: Path, kernel: KernelMounter
) -> None:
    volumes = VolumeManager(tmp_path, kernel, inline_offload)
    of_pod = pod(empty_dir(medium="Memory", sizeLimit="1Mi"))
    await volumes.mount(of_pod)
    (made,) = await volumes.container_mounts(of_pod, main(of_pod))
    status = os.statvfs(made.host_path)
    assert status.f_blocks * status.f_frsize == 1 << 20


@pytest.mark.parametrize(
    ("release", "supported"),
    [
        ("6.4.0", True),
        ("6.3.9-generic", False),
        ("5.15.0-1", False),
        ("10.0-rc1", True),
        ("x", False),
    ],
)
def test_noswap_came_with_linux_6_4(release: str, supported: bool) -> None:
    assert tmpfs_noswap_supported(release) is supported
