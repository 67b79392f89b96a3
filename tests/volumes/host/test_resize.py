"""Disks that grow while they are mounted: file systems, multipath devices, raw ones, drivers'."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import (
    FCVolumeSource,
    ISCSIVolumeSource,
    LocalVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
)

from kubelet_trio.model import EventType, ObjectRef, PodUid, thread_offload
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter, VolumeGrowth
from kubelet_trio.volumes.async_volumes import AsyncVolumes
from kubelet_trio.volumes.errors import MissingToolError, VolumeError
from kubelet_trio.volumes.expansion import GrowthError, GrowthProblem
from kubelet_trio.volumes.host.plugins import PluginContext, host_kinds
from kubelet_trio.volumes.host.resize import grow_filesystem, is_larger
from kubelet_trio.volumes.spec import GrowingPlugin, VolumeSpec
from kubelet_trio.volumes.tools import ToolResult
from kubelet_trio.volumes.unused import UnusedVolumes
from tests.volumes.host.controller import FakeController
from tests.volumes.host.disk_specs import disk_spec
from tests.volumes.host.initiator import IQN
from tests.volumes.host.programs import FakeFormats, FakeTools, done
from tests.volumes.host.test_fibre_channel import WWN, Fabric, fabric
from tests.volumes.host.test_flex import FlexNode, flex, node
from tests.volumes.host.test_iscsi import make_node

__all__ = ["fabric", "node"]
MIB = 1 << 20
_SYS_RESOURCE = 24  # capabilities(7): CAP_SYS_RESOURCE


def superblock(fstype: str, block: int, blocks: int) -> bytes:
    """The first bytes of a file system, with its size in them."""
    data = bytearray(80 << 10)

    def put(at: int, size: int, value: int, order: Any = "little") -> None:
        data[at : at + size] = value.to_bytes(size, order)

    if fstype == "xfs":
        data[:4] = b"XFSB"
        put(4, 4, block, "big")
        put(8, 8, blocks, "big")
    elif fstype == "btrfs":
        data[0x10040:0x10048] = b"_BHRfS_M"
        put(0x10090, 4, block)
        put(0x10070, 8, block * blocks)
    else:
        put(1024 + 0x38, 2, 0xEF53)
        put(1024 + 0x18, 4, block.bit_length() - 11)
        put(1024 + 4, 4, blocks & 0xFFFFFFFF)
        put(1024 + 0x60, 4, 0x80)
        put(1024 + 0x150, 4, blocks >> 32)
    return bytes(data)


@pytest.mark.parametrize("fstype", ["ext3", "ext4", "xfs", "btrfs"])
@pytest.mark.parametrize(
    ("blocks", "more", "expected"),
    [(100, 0, False), (100, 1023, False), (100, 1024, True), (1 << 33, 0, False)],
)
def test_a_device_is_larger_if_it_has_a_block_more(
    tmp_path: Path, fstype: str, blocks: int, more: int, expected: bool
) -> None:
    device = tmp_path / "device"
    device.write_bytes(superblock(fstype, 1024, blocks))
    os.truncate(device, blocks * 1024 + more)
    assert is_larger(device, fstype) is expected


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_of_a_superblock_that_says_nothing_the_program_decides(tmp_path: Path, fstype: str) -> None:
    device = tmp_path / "device"
    for content in (b"", bytes(80 << 10), b"\xff" * (80 << 10)):
        device.write_bytes(content)
        assert is_larger(device, fstype)


COMMANDS = {
    "ext3": ("resize2fs", "DEVICE"),
    "ext4": ("resize2fs", "DEVICE"),
    "xfs": ("xfs_growfs", "-d", "/mounted"),
    "btrfs": ("btrfs", "filesystem", "resize", "max", "/mounted"),
}


@pytest.mark.parametrize("fstype", COMMANDS)
def test_each_file_system_has_its_program(tmp_path: Path, fstype: str) -> None:
    tools, device = FakeTools(), tmp_path / "device"
    FakeFormats({str(device): f"TYPE={fstype}"}).add_to(tools)
    device.write_bytes(superblock(fstype, 4096, 32))
    os.truncate(device, 32 * 4096)
    assert not grow_filesystem(tools, device, Path("/mounted"))
    os.truncate(device, 64 * 4096)
    with pytest.raises(MissingToolError):
        grow_filesystem(tools, device, Path("/mounted"))
    command = tuple(str(device) if part == "DEVICE" else part for part in COMMANDS[fstype])
    assert tools.calls[-1] == command
    tools.programs[command[0]] = lambda *_: done("no room", 1)
    with pytest.raises(OSError, match=rf"of device {device} failed: exit status 1. .*: no room"):
        grow_filesystem(tools, device, Path("/mounted"))
    tools.programs[command[0]] = lambda *_: done()
    assert grow_filesystem(tools, device, Path("/mounted"))


def test_what_cannot_grow_is_said(tmp_path: Path) -> None:
    tools, device, formats = FakeTools(), tmp_path / "device", FakeFormats()
    formats.add_to(tools)
    device.touch()
    assert not grow_filesystem(tools, device, tmp_path)
    formats.formats[str(device)] = "TYPE=vfat"
    with pytest.raises(ValueError, match="resize of format vfat is not supported"):
        grow_filesystem(tools, device, tmp_path)


# Real devices


@dataclass
class Loop:
    """A loop device whose backing file can grow."""

    image: Path
    device: Path

    def resize(self, size: int) -> None:
        os.truncate(self.image, size)
        subprocess.run(["losetup", "-c", str(self.device)], check=True)


@pytest.fixture
def loop(loop: Path, tmp_path: Path) -> Loop:
    return Loop(tmp_path / "disk.img", loop)


@pytest.fixture
def online(loop: Loop) -> Loop:
    """A device whose file system the kernel lets grow while it is mounted."""
    status = Path("/proc/self/status").read_text()
    (effective,) = re.findall(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if not int(effective, 16) >> _SYS_RESOURCE & 1:  # EXT4_IOC_RESIZE_FS
        pytest.skip("no file system can grow online here: no CAP_SYS_RESOURCE")
    return loop


def claimed(spec: VolumeSpec, size: int, *, uid: str = "", has: int = 0) -> VolumeSpec:
    """Put a claim of `size` bytes behind a spec, from a document unless it has a UID."""
    capacity = {"storage": str(size)}
    meta = {"name": "c", "namespace": "default", **({"uid": uid} if uid else {})}
    status = {"status": {"capacity": {"storage": str(has)}}} if has else {}
    claim = {"metadata": meta, "spec": {"volumeName": "pv"}, **status}
    volume = {"metadata": {"name": "pv"}, "spec": {"capacity": capacity}}
    return replace(
        spec,
        claim=msgspec.convert(claim, PersistentVolumeClaim),
        persistent=msgspec.convert(volume, PersistentVolume),
    )


class Host:
    """The volumes of a node without an API server; `told` are its events."""

    def __init__(self, root: Path, kernel: KernelMounter) -> None:
        self.root = root
        self.told: list[tuple[str, str]] = []
        self.growth = VolumeGrowth(self, lambda: 0.0)
        kinds = host_kinds(PluginContext(root, kernel, thread_offload, events=self))
        self.volumes = AsyncVolumes(kinds, thread_offload, self, self.growth)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.told.append((reason, message))

    async def set_up(self, spec: VolumeSpec) -> Path:
        await self.volumes.set_up(PodUid(spec.uid), spec, [])
        return self.volumes.plugin(spec.kind).path(spec)

    async def end(self) -> None:
        await self.volumes.tear_down(
            PodUid("u-1"), self.root / "pods/u-1", ["kubernetes.io~local-volume"]
        )
        await UnusedVolumes(self.volumes).clean()


def total(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


async def test_a_mounted_volume_grows_with_its_device(
    tmp_path: Path, kernel: KernelMounter, online: Loop
) -> None:
    host = Host(tmp_path / "root", kernel)
    spec = disk_spec("local", LocalVolumeSource(str(online.device)))
    path = await host.set_up(claimed(spec, 16 * MIB))
    (path / "data").write_text("x")
    assert total(path) < 16 * MIB
    online.resize(64 * MIB)
    plugin = host.volumes.plugin("local")
    assert isinstance(plugin, GrowingPlugin)
    await host.growth.while_mounted(claimed(spec, 16 * MIB), plugin)
    assert total(path) < 16 * MIB
    await host.growth.while_mounted(claimed(spec, 64 * MIB), plugin)
    assert total(path) > 32 * MIB
    assert (path / "data").read_text() == "x"
    assert host.told == []
    await host.end()


async def test_a_device_that_grew_before_it_is_mounted(
    tmp_path: Path, kernel: KernelMounter, online: Loop
) -> None:
    host = Host(tmp_path / "root", kernel)
    await trio.run_process(["mkfs.ext4", "-q", str(online.device)])
    online.resize(64 * MIB)
    spec = disk_spec("local", LocalVolumeSource(str(online.device)))
    assert total(await host.set_up(claimed(spec, 64 * MIB, uid="c-1", has=16 * MIB))) > 32 * MIB
    assert [reason for reason, _ in host.told] == ["FileSystemResizeSuccessful"] * 2
    await host.end()


async def test_a_read_only_document_is_mounted_without_a_word(
    tmp_path: Path, kernel: KernelMounter, loop: Loop
) -> None:
    host = Host(tmp_path / "root", kernel)
    await trio.run_process(["mkfs.ext4", "-q", str(loop.device)])
    spec = disk_spec("local", LocalVolumeSource(str(loop.device)), read_only=True)
    await host.set_up(claimed(spec, 64 * MIB))
    assert host.told == []
    await host.end()


async def test_a_file_system_that_cannot_grow(
    tmp_path: Path, kernel: KernelMounter, loop: Loop
) -> None:
    """Only whoever asks for more is told: of a document's volume nobody knows its size."""
    await trio.run_process(["mkfs.ext2", "-q", str(loop.device)])
    host = Host(tmp_path / "root", kernel)
    spec = disk_spec("local", LocalVolumeSource(str(loop.device), fsType="ext2"))
    await host.set_up(claimed(spec, 16 * MIB))
    await host.end()
    with pytest.raises(VolumeError) as caught:
        await host.set_up(claimed(spec, 32 * MIB, uid="c-1", has=16 * MIB))
    assert str(caught.value) == (
        'MountVolume.Setup failed while expanding volume for volume "pv" : resize of format ext2 '
        f"is not supported for device {loop.device} mounted at "
        f"{host.root}/plugins/kubernetes.io/local-volume/mounts/pv"
    )
    await host.end()


async def test_a_directory_and_a_raw_device_have_nothing_to_grow(
    tmp_path: Path, kernel: KernelMounter, loop: Loop
) -> None:
    host = Host(tmp_path / "root", kernel)
    (tmp_path / "disk").mkdir()
    for source, fields in (
        (LocalVolumeSource(str(tmp_path / "disk")), {}),
        (LocalVolumeSource(str(loop.device)), {"is_block": True}),
    ):
        spec = disk_spec("local", source, **fields)  # type: ignore[arg-type]
        await host.set_up(claimed(spec, 32 * MIB, uid="c-1", has=16 * MIB))
        grown = [reason for reason, _ in host.told if reason != "SuccessfulMountVolume"]
        assert grown == ["FileSystemResizeSuccessful"] * 2
        host.told.clear()
        await host.end()


# Disks of networks


async def test_every_path_of_an_iscsi_disk_is_read_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    portals = {"10.0.0.1:3260", "10.0.0.2:3260"}
    made = make_node(tmp_path, portals=portals, has_multipath=True)
    source = ISCSIVolumeSource(
        iqn=IQN, lun=0, targetPortal="10.0.0.1", portals=["10.0.0.2"], fsType="ext4"
    )
    spec = disk_spec("iscsi", source)
    await made.plugin.set_up(spec)
    rescans = [made.initiator.sys / f"block/{name}/device/rescan" for name in ("sda", "sdb")]
    for rescan in rescans:
        rescan.parent.mkdir(parents=True)
        rescan.write_text("")
    seen: list[list[str]] = []

    def multipathd(*_: str) -> ToolResult:
        seen.append([p.read_text() for p in rescans])
        return done("ok")

    made.tools.programs["multipathd"] = multipathd
    made.tools.programs["resize2fs"] = lambda *_: done()
    await made.plugin.grow(spec, 64 * MIB)
    assert seen == [["1", "1"]]
    assert ("multipathd", "resize", "map", "dm-0") in made.tools.calls
    assert made.tools.calls[-1] == ("resize2fs", str(made.initiator.dev / "dm-0"))
    made.tools.programs["multipathd"] = lambda *_: done("fail", 1)
    with pytest.raises(GrowthError, match="failed to resize multipath device") as caught:
        await made.plugin.grow(spec, 64 * MIB)
    assert caught.value.problem is GrowthProblem.FAILED


async def test_a_raw_fc_disk_is_read_again(fabric: Fabric) -> None:
    fabric.add("sda", 1, f"by-path/fc-0x{WWN}-lun-2")
    rescan = fabric.scsi.sys / "block/sda/device/rescan"
    rescan.parent.mkdir(parents=True)
    rescan.write_text("")
    spec = disk_spec("fc", FCVolumeSource(targetWWNs=[WWN], lun=2), is_block=True)
    with pytest.raises(GrowthError) as caught:
        await fabric.plugin.grow(spec, MIB)
    assert caught.value.problem is GrowthProblem.GONE
    await fabric.plugin.set_up(spec)
    await fabric.plugin.grow(spec, MIB)
    assert rescan.read_text() == "1"
    assert fabric.tools.called("resize2fs") == []
    rescan.write_text("")
    os.truncate(fabric.scsi.dev / "sda", 2 * MIB)
    await fabric.plugin.grow(spec, MIB)  # it has the size
    assert rescan.read_text() == ""


# FlexVolumes

ABLE = "init) ok ;;\nmountdevice) ok ;;\nmount) ok ;;\n"


async def test_a_flex_driver_lets_its_volume_grow(node: FlexNode) -> None:
    node.install(ABLE + "expandvolume) ok ;;\nexpandfs) ok ;;")
    spec = claimed(flex(), 2 * MIB, uid="c-1", has=MIB)
    await node.plugin.set_up(spec)
    await node.plugin.grow(spec, 2 * MIB)
    volume, fs = node.calls()[-2:]
    place = node.root / "plugins/kubernetes.io/flexvolume/example/disk/mounts/pv"
    assert volume[0] == "expandvolume"
    assert volume[2:] == [str(place), str(2 * MIB), str(MIB)]
    assert fs[0] == "expandfs"
    assert fs[2:] == ["", str(node.plugin.path(spec)), str(2 * MIB), str(MIB)]
    node.install(ABLE + 'expandfs) fail "no" ;;')
    with pytest.raises(GrowthError, match="reason: no"):
        await node.plugin.grow(spec, 2 * MIB)
    node.install(ABLE)
    await node.plugin.grow(spec, 2 * MIB)  # without a device nothing is left to do
    node.install(
        """init) echo '{"status": "Success", "capabilities": {"requiresFSResize": false}}' ;;"""
    )
    with pytest.raises(GrowthError) as caught:
        await node.plugin.grow(spec, 2 * MIB)
    assert caught.value.problem is GrowthProblem.UNSUPPORTED


async def test_in_a_cluster_the_controller_lets_the_volume_grow(node: FlexNode) -> None:
    node.install(ABLE + "expandvolume) ok ;;\nexpandfs) ok ;;")
    context = PluginContext(
        *(node.root, FakeMounter(), thread_offload),
        flex_dir=node.drivers,
        controller=FakeController().seams,
    )
    kinds = {known.kind: known for known in host_kinds(context)}
    plugin = kinds["flexVolume"].make()
    assert isinstance(plugin, GrowingPlugin)
    spec = claimed(flex(), 2 * MIB, uid="c-1", has=MIB)
    await node.plugin.set_up(spec)
    await plugin.grow(spec, 2 * MIB)
    assert [call[0] for call in node.calls()[-2:]] == ["init", "expandfs"]


async def test_a_flex_volume_that_its_pod_has_lost_meanwhile_does_not_grow(node: FlexNode) -> None:
    node.install(ABLE + "unmount) ok ;;\nunmountdevice) ok ;;\nexpandfs) ok ;;")
    spec = claimed(flex(), 2 * MIB, uid="c-1", has=MIB)
    await node.plugin.set_up(spec)
    await node.plugin.tear_down(node.root / "pods" / spec.uid)
    with pytest.raises(GrowthError) as caught:
        await node.plugin.grow(spec, 2 * MIB)
    assert caught.value.problem is GrowthProblem.GONE
    assert "expandfs" not in {call[0] for call in node.calls()}
