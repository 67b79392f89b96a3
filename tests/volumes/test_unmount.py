from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.model import PodUid, inline_offload, remove_tree
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter, VolumeError, VolumeManager
from tests.volumes.make import empty_dir, host_path, main, mount, pod

UID = PodUid("u-1")


def place(root: Path, plugin: str = "kubernetes.io~empty-dir", name: str = "data") -> Path:
    return root / "pods" / UID / "volumes" / plugin / name


async def set_up(volumes: VolumeManager, *, sub_path: str = "") -> None:
    of_pod = pod(
        empty_dir(),
        empty_dir("fast", medium="Memory"),
        mounts=[mount("data", subPath=sub_path), mount("fast", "/fast")],
    )
    await volumes.mount(of_pod)
    await volumes.container_mounts(of_pod, main(of_pod))


async def test_nothing_of_the_volumes_is_left(
    volumes: VolumeManager, mounter: FakeMounter, tmp_path: Path
) -> None:
    await set_up(volumes, sub_path="logs")
    (place(tmp_path) / "logs" / "x").touch()
    await volumes.unmount(UID)
    assert mounter.mounts() == []
    assert [p.name for p in (tmp_path / "pods" / UID).iterdir()] == ["plugins"]
    await volumes.unmount(UID)
    await volumes.unmount(PodUid("never-seen"))


async def test_a_mount_that_is_in_use_stays_with_all_that_is_in_it(
    volumes: VolumeManager, mounter: FakeMounter, tmp_path: Path
) -> None:
    await set_up(volumes)
    (place(tmp_path, name="fast") / "precious").touch()
    mounter.busy.add(str(place(tmp_path, name="fast")))
    with pytest.raises(VolumeError, match=r"UnmountVolume\.TearDown failed") as caught:
        await volumes.unmount(UID)
    assert caught.value.volume == "fast"
    assert (place(tmp_path, name="fast") / "precious").exists()
    mounter.busy.clear()
    await volumes.unmount(UID)
    assert mounter.mounts() == []
    assert not place(tmp_path, name="fast").exists()


async def test_a_sub_path_in_use_keeps_the_volume_below_it(
    volumes: VolumeManager, mounter: FakeMounter, tmp_path: Path
) -> None:
    await set_up(volumes, sub_path="logs")
    mounter.busy.add(str(tmp_path / "pods/u-1/volume-subpaths/data/main/0"))
    with pytest.raises(VolumeError):
        await volumes.unmount(UID)
    assert (tmp_path / "pods/u-1/volume-subpaths/data/main/0").exists()


async def test_a_host_path_is_left_as_it_is(volumes: VolumeManager, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "kept").touch()
    of_pod = pod(host_path(tmp_path / "host"), mounts=[mount("host", subPath="kept")])
    await volumes.mount(of_pod)
    await volumes.container_mounts(of_pod, main(of_pod))
    await volumes.unmount(UID)
    assert (tmp_path / "host" / "kept").exists()


async def test_what_the_go_kubelet_left_of_its_own_volumes_goes(
    volumes: VolumeManager, mounter: FakeMounter, tmp_path: Path
) -> None:
    token = place(tmp_path, "kubernetes.io~projected", "token")
    token.mkdir(parents=True)
    mounter.mount_tmpfs(token)
    await volumes.unmount(UID)
    assert not token.exists()


async def test_a_kind_of_volume_that_is_not_ours_is_named_and_not_touched(
    volumes: VolumeManager, mounter: FakeMounter, tmp_path: Path
) -> None:
    disk = place(tmp_path, "kubernetes.io~csi", "disk")
    disk.mkdir(parents=True)
    mounter.mount_tmpfs(disk)
    (disk / "precious").touch()
    with pytest.raises(VolumeError, match="unsupported kind is left") as caught:
        await volumes.unmount(UID)
    assert caught.value.volume == "kubernetes.io~csi"
    assert (disk / "precious").exists()
    assert len(mounter.mounts()) == 1


async def test_pods_on_disk_are_listed(volumes: VolumeManager) -> None:
    assert await volumes.pods_on_disk() == frozenset()
    await set_up(volumes)
    assert await volumes.pods_on_disk() == {UID}


async def test_real_mounts_go_with_what_a_container_mounted_in_them(
    tmp_path: Path, kernel: KernelMounter
) -> None:
    volumes = VolumeManager(tmp_path, kernel, inline_offload)
    await set_up(volumes, sub_path="logs")
    nested = place(tmp_path, name="fast") / "nested"
    nested.mkdir()
    kernel.mount_tmpfs(nested)
    await volumes.unmount(UID)
    assert not any(m.path.startswith(str(tmp_path)) for m in kernel.mounts())
    assert not place(tmp_path).parent.exists()


async def test_a_real_mount_in_use_is_kept(tmp_path: Path, kernel: KernelMounter) -> None:
    volumes = VolumeManager(tmp_path, kernel, inline_offload)
    await set_up(volumes)
    with (place(tmp_path, name="fast") / "open").open("w"):
        with pytest.raises(VolumeError, match="busy"):
            await volumes.unmount(UID)
        assert (place(tmp_path, name="fast") / "open").exists()
    await volumes.unmount(UID)
    assert not place(tmp_path, name="fast").exists()


async def test_the_root_directory_is_shared_once(tmp_path: Path, kernel: KernelMounter) -> None:
    volumes = VolumeManager(tmp_path / "root", kernel, inline_offload)
    await volumes.prepare()
    await volumes.prepare()
    assert (tmp_path / "root" / "pods").is_dir()
    found = [m for m in kernel.mounts() if m.path == str(tmp_path / "root")]
    assert all(m.shared for m in found)
    assert len(found) <= 1


@pytest.mark.parametrize("place", ["mounted", "a/mounted", "a/b/mounted"])
def test_a_mount_is_never_entered(tmp_path: Path, kernel: KernelMounter, place: str) -> None:
    root = tmp_path / "root"
    mounted = root / place
    mounted.mkdir(parents=True)
    kernel.mount_tmpfs(mounted)
    (mounted / "precious").touch()
    with pytest.raises(OSError, match="busy"):
        remove_tree(root)
    (left,) = (m for m in kernel.mounts() if m.path.startswith(str(root)))
    assert (Path(left.path) / "precious").exists()


def test_a_bind_mount_of_the_same_file_system_is_never_entered(
    tmp_path: Path, kernel: KernelMounter
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    root = tmp_path / "root"
    (root / "mounted").mkdir(parents=True)
    kernel.bind(str(precious), root / "mounted")
    with pytest.raises(OSError, match="busy"):
        remove_tree(root)
    assert (precious / "data").exists()


async def test_volumes_on_disk_are_counted_and_unreadable_places_too(
    volumes: VolumeManager, tmp_path: Path
) -> None:
    assert await volumes.volumes_on_disk() == (0, 0)
    await set_up(volumes)
    assert await volumes.volumes_on_disk() == (2, 0)
    plugin = place(tmp_path, "x" * 20)
    plugin.parent.parent.mkdir(parents=True, exist_ok=True)
    plugin.parent.symlink_to(plugin.parent)  # ELOOP
    assert await volumes.volumes_on_disk() == (2, 1)
