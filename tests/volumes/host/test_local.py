"""`local` volumes: directories, real block devices with a file system, and raw ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import LocalVolumeSource, PersistentVolume
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model import EventType, ObjectRef, PodUid, inline_offload, thread_offload
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter, Mounter, host_kinds
from kubelet_trio.volumes.async_volumes import AsyncVolumes
from kubelet_trio.volumes.errors import VolumeError, VolumeStepError
from kubelet_trio.volumes.host.disks import DiskVolumes
from kubelet_trio.volumes.host.local import make_local
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.spec import AsyncVolumePlugin
from kubelet_trio.volumes.tools import HostTools
from kubelet_trio.volumes.unused import UnusedVolumes
from tests.volumes.host.disk_specs import disk_spec, left_below
from tests.volumes.host.programs import FakeTools

PLACE = "plugins/kubernetes.io/local-volume/mounts/pv"


def local(root: Path, mounter: Mounter) -> DiskVolumes:
    """A fresh plugin, as after a restart."""
    tools = FakeTools() if isinstance(mounter, FakeMounter) else HostTools()
    offload = inline_offload if isinstance(mounter, FakeMounter) else thread_offload
    return make_local(PluginContext(root, mounter, offload, tools))


class Told:
    """Keeps kind, reason and text of events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.events.append((involved.kind, reason, message))


def as_async(plugin: DiskVolumes) -> AsyncVolumePlugin:
    return plugin


def mounted(root: Path, mounter: Mounter) -> list[str]:
    below = [m.path for m in mounter.mounts() if m.path.startswith(f"{root}/")]
    return [os.path.relpath(path, root) for path in below]


async def test_a_directory_is_bound_without_a_place(tmp_path: Path, mounter: FakeMounter) -> None:
    disk, root = tmp_path / "disk", tmp_path / "root"
    disk.mkdir()
    plugin = as_async(local(root, mounter))
    spec = disk_spec("local", LocalVolumeSource(str(disk)))
    await plugin.set_up(spec)
    await plugin.set_up(spec)
    assert mounted(root, mounter) == ["pods/u-1/volumes/kubernetes.io~local-volume/pv"]
    assert not (root / "plugins").exists()
    assert await plugin.is_set_up(spec)
    assert await plugin.unused() == {}
    await plugin.tear_down(root / "pods/u-1")
    assert mounter.mounts() == []
    assert left_below(root / "pods/u-1/volumes") == []


async def test_a_directory_has_the_mount_options_of_its_volume(
    tmp_path: Path, kernel: KernelMounter
) -> None:
    disk, root = tmp_path / "disk", tmp_path / "root"
    disk.mkdir()
    plugin = as_async(local(root, kernel))
    spec = disk_spec("local", LocalVolumeSource(str(disk)), mount_options=("noexec", "nodev"))
    for _ in range(2):
        await plugin.set_up(spec)
        (found,) = (m for m in kernel.mounts() if m.path == str(plugin.path(spec)))
        assert {"noexec", "nodev"} <= set(found.options)
        (root / "pods/u-1/plugins/kubernetes.io~local-volume/pv/ready").unlink()  # it was killed
    await plugin.tear_down(root / "pods/u-1")
    assert mounted(root, kernel) == []


@pytest.mark.parametrize("group", [os.getgid(), None])
async def test_only_the_first_pod_sets_the_group(
    tmp_path: Path, mounter: FakeMounter, group: int | None
) -> None:
    disk, root = tmp_path / "disk", tmp_path / "root"
    disk.mkdir()
    plugin, source = local(root, mounter), LocalVolumeSource(str(disk))
    await plugin.set_up(disk_spec("local", source, fs_group=group))
    first = plugin.path(disk_spec("local", source))
    assert bool(first.stat().st_mode & stat.S_ISGID) is (group is not None)
    second = disk_spec("local", source, uid="u-2", name="other", fs_group=os.getgid())
    await plugin.set_up(second)
    assert not plugin.path(second).stat().st_mode & stat.S_ISGID


async def test_a_pod_is_told_that_another_one_has_set_the_group(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    disk, root, told, own = tmp_path / "disk", tmp_path / "root", Told(), os.getgid()
    disk.mkdir()
    context = PluginContext(root, mounter, inline_offload, FakeTools(), events=told)
    plugin, source = make_local(context), LocalVolumeSource(str(disk))
    await plugin.set_up(disk_spec("local", source, fs_group=own))
    for uid, group in (("u-2", own), ("u-3", None)):
        await plugin.set_up(disk_spec("local", source, uid=uid, fs_group=group))
    assert told.events == []
    for _ in range(2):
        await plugin.set_up(disk_spec("local", source, uid="u-4", fs_group=4242))
    text = (
        f"The requested fsGroup is 4242, but the volume pv has GID {own}. "
        "The volume may not be shareable."
    )
    assert told.events == [("Pod", "AlreadyMountedVolume", text)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/none/such", 'path "/none/such" does not exist'),
        ("/dev/null", "only directory and block device are supported"),
        ("/tmp/../etc", "must not contain '..'"),
    ],
)
async def test_what_is_no_disk_is_refused(
    tmp_path: Path, mounter: FakeMounter, path: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await local(tmp_path, mounter).set_up(disk_spec("local", LocalVolumeSource(path)))
    assert mounter.mounts() == []


async def test_a_raw_directory_is_refused(tmp_path: Path, mounter: FakeMounter) -> None:
    spec = disk_spec("local", LocalVolumeSource("/tmp"), is_block=True)
    plugin = local(tmp_path, mounter)
    with pytest.raises(VolumeStepError, match="is no block device") as caught:
        await plugin.set_up(spec)
    assert caught.value.step == "MapVolume.MapBlockVolume"
    await plugin.tear_down(tmp_path / "pods/u-1")
    assert left_below(tmp_path / "plugins/kubernetes.io/local-volume") == []


async def test_pods_share_a_formatted_device(
    tmp_path: Path, kernel: KernelMounter, loop: Path
) -> None:
    root, link = tmp_path / "root", tmp_path / "by-id"
    link.symlink_to(loop)
    source = LocalVolumeSource(str(link), fsType="ext4")
    one, two = disk_spec("local", source), disk_spec("local", source, uid="u-2")
    plugin = local(root, kernel)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plugin.set_up, one)
        nursery.start_soon(plugin.set_up, two)
    assert mounted(root, kernel).count(PLACE) == 1
    (plugin.path(one) / "data").write_text("x")
    assert (plugin.path(two) / "data").read_text() == "x"
    await local(root, kernel).tear_down(root / "pods/u-1")
    await local(root, kernel).clean()
    assert mounted(root, kernel) == [PLACE, "pods/u-2/volumes/kubernetes.io~local-volume/pv"]
    await local(root, kernel).tear_down(root / "pods/u-2")
    assert mounted(root, kernel) == []
    assert not (root / PLACE).exists()
    await plugin.set_up(one)
    assert (plugin.path(one) / "data").read_text() == "x"
    await plugin.tear_down(root / "pods/u-1")


async def test_another_file_system_is_told_to_the_volumes_owner(
    tmp_path: Path, kernel: KernelMounter, loop: Path
) -> None:
    await trio.run_process(["mkfs.ext4", "-q", str(loop)])
    told, root = Told(), tmp_path / "root"
    volume = PersistentVolume(metadata=ObjectMeta(name="pv", uid="v-1"))
    spec = disk_spec("local", LocalVolumeSource(str(loop), fsType="vfat"), persistent=volume)
    kinds = host_kinds(PluginContext(root, kernel, thread_offload))
    volumes = AsyncVolumes(kinds, thread_offload, told)
    with pytest.raises(VolumeError, match=r"MountVolume\.MountDevice failed for"):
        await volumes.set_up(PodUid("u-1"), spec, [])
    ((kind, reason, text),) = told.events
    assert (kind, reason) == ("PersistentVolume", "FailedMountOnFilesystemMismatch")
    assert text.startswith('MountVolume failed for volume "pv" mount failed: exit status')
    await volumes.tear_down(PodUid("u-1"), root / "pods/u-1", [])
    await UnusedVolumes(volumes).clean()
    assert mounted(root, kernel) == []


async def test_a_busy_device_stays_until_it_is_free(
    tmp_path: Path, kernel: KernelMounter, loop: Path
) -> None:
    root = tmp_path / "root"
    spec = disk_spec("local", LocalVolumeSource(str(loop)))
    plugin = local(root, kernel)
    await plugin.set_up(spec)
    with (plugin.path(spec) / "open").open("w"):
        with pytest.raises(VolumeError, match=r"UnmountVolume.TearDown failed for volume \"pv\""):
            await plugin.tear_down(root / "pods/u-1")
        await plugin.clean()
        assert len(mounted(root, kernel)) == 2
    await plugin.tear_down(root / "pods/u-1")
    assert mounted(root, kernel) == []


async def test_a_subpath_of_it_keeps_the_device(
    tmp_path: Path, kernel: KernelMounter, loop: Path
) -> None:
    root, sub = tmp_path / "root", tmp_path / "root/pods/u-1/volume-subpaths/data/main/0"
    spec = disk_spec("local", LocalVolumeSource(str(loop)))
    plugin = local(root, kernel)
    await plugin.set_up(spec)
    (plugin.path(spec) / "part").mkdir()
    sub.mkdir(parents=True)
    kernel.bind(str(plugin.path(spec) / "part"), sub)
    await plugin.tear_down(root / "pods/u-1")
    assert PLACE in mounted(root, kernel)
    kernel.unmount(sub)
    await plugin.clean()
    assert mounted(root, kernel) == []


async def test_a_raw_device_is_mapped(tmp_path: Path, kernel: KernelMounter, loop: Path) -> None:
    root = tmp_path / "root"
    spec = disk_spec("local", LocalVolumeSource(str(loop)), is_block=True)
    plugin = local(root, kernel)
    for _ in range(2):
        await plugin.set_up(spec)
    assert plugin.path(spec) == root / "pods/u-1/volumeDevices/kubernetes.io~local-volume/pv"
    assert os.path.samestat(plugin.path(spec).stat(), loop.stat())
    entry = root / "plugins/kubernetes.io~local-volume/volumeDevices/pv/u-1"
    assert entry.stat().st_rdev == loop.stat().st_rdev
    await plugin.tear_down(root / "pods/u-1")
    assert mounted(root, kernel) == []
    assert left_below(root / "pods/u-1", root / "plugins/kubernetes.io/local-volume/pv") == []
    assert not entry.parent.exists()
