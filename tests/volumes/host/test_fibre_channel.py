"""Fibre Channel volumes: found in /dev, scanned for, flushed and removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import FCVolumeSource

from kubelet_trio.model import inline_offload
from kubelet_trio.testing.devices import FakeBlockDevices
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes.errors import VolumeError, VolumeStepError
from kubelet_trio.volumes.host.disks import DiskVolumes
from kubelet_trio.volumes.host.fibre_channel import (
    FcDisk,
    FcDisks,
    fc_disk,
    fc_unique_name,
    named_disk,
)
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.host.scsi import ScsiDevices
from kubelet_trio.volumes.selinux import mounted_label
from kubelet_trio.volumes.spec import VolumeSpec
from kubelet_trio.volumes.tools import ToolResult
from tests.volumes.host.disk_specs import disk_spec, left_below
from tests.volumes.host.programs import FakeFormats, FakeTools, done

WWN = "50060e801049cfd1"
WWID = "3600508b400105e210000900000490000"


@dataclass(frozen=True)
class FakeFabric(ScsiDevices):
    """Implements the kernel's side: `hidden` is what a scan makes appear."""

    hidden: list[Callable[[], object]] = field(default_factory=list)

    def scan_all(self) -> None:
        while self.hidden:
            self.hidden.pop()()

    def delete(self, device: Path) -> None:
        device.unlink()
        for link in (*self.dev.glob("disk/*/*"), *self.sys.glob(f"block/*/slaves/{device.name}")):
            if not link.exists() or link.name == device.name:
                link.unlink() if link.is_symlink() else link.rmdir()


@dataclass
class Fabric:
    """A node on a fabric; `plugin` is a fresh one, as after a restart."""

    root: Path
    mounter: FakeMounter
    tools: FakeTools
    scsi: FakeFabric
    block: FakeBlockDevices

    @property
    def plugin(self) -> DiskVolumes:
        context = PluginContext(self.root, self.mounter, inline_offload, self.tools, self.block)
        return DiskVolumes(context, FcDisks(context, self.scsi))

    @property
    def pod_dir(self) -> Path:
        return self.root / "pods/u-1"

    def add(self, name: str, number: int, *links: str, multipath: str = "") -> None:
        self.block.add(self.scsi.dev / name, number)
        for link in links:
            (self.scsi.dev / "disk" / link).symlink_to(self.scsi.dev / name)
        if multipath:
            (self.scsi.sys / "block" / multipath / "slaves" / name).mkdir(parents=True)
            if not (self.scsi.dev / multipath).exists():
                self.block.add(self.scsi.dev / multipath, number + 1)

    def flush(self, *arguments: str) -> ToolResult:
        device = Path(arguments[-1])
        if any(m.source == str(device) for m in self.mounter.mounts()):
            return done("map in use", 1)
        device.unlink()
        for slave in (self.scsi.sys / "block" / device.name / "slaves").iterdir():
            slave.rmdir()
        return done()

    def devices(self) -> list[str]:
        return sorted(p.name for p in self.scsi.dev.iterdir() if p.name != "disk")


@pytest.fixture
def fabric(tmp_path: Path, mounter: FakeMounter) -> Fabric:
    scsi = FakeFabric(tmp_path / "sys", tmp_path / "dev")
    for name in ("by-path", "by-id"):
        (scsi.dev / "disk" / name).mkdir(parents=True)
    tools = FakeTools()
    FakeFormats().add_to(tools)
    made = Fabric(tmp_path / "root", mounter, tools, scsi, FakeBlockDevices(mounter))
    tools.programs["multipath"] = made.flush
    tools.programs["blockdev"] = lambda *_: done()
    return made


def by_wwn(**fields: Any) -> VolumeSpec:
    return disk_spec("fc", FCVolumeSource(targetWWNs=[WWN], lun=2), **fields)


def by_wwid(**fields: Any) -> VolumeSpec:
    return disk_spec("fc", FCVolumeSource(wwids=[WWID]), **fields)


@pytest.mark.parametrize(
    ("spec", "link", "place"),
    [
        (by_wwn(), f"by-path/pci-0000:41:00.0-fc-0x{WWN}-lun-2", f"{WWN}-lun-2"),
        (by_wwn(), f"by-path/fc-0x{WWN}-lun-2", f"{WWN}-lun-2"),
        (by_wwid(), f"by-id/scsi-{WWID}", WWID),
    ],
)
async def test_a_disk_is_found_mounted_and_removed(
    fabric: Fabric, spec: VolumeSpec, link: str, place: str
) -> None:
    fabric.add("sda", 1, link)
    fabric.add("sdb", 2, f"by-path/fc-0x{WWN}-lun-22", f"by-id/scsi-{WWID}0")
    await fabric.plugin.set_up(spec)
    assert [(m.path, m.source) for m in fabric.mounter.mounts()] == [
        (f"{fabric.root}/plugins/kubernetes.io/fc/{place}", str(fabric.scsi.dev / "sda")),
        (f"{fabric.pod_dir}/volumes/kubernetes.io~fc/pv", str(fabric.scsi.dev / "sda")),
    ]
    await fabric.plugin.tear_down(fabric.pod_dir)
    assert fabric.mounter.mounts() == []
    assert fabric.devices() == ["sdb"]
    assert ("blockdev", "--flushbufs", str(fabric.scsi.dev / "sda")) in fabric.tools.calls
    assert left_below(fabric.root / "plugins/kubernetes.io/fc") == []


async def test_a_disk_that_is_not_there_is_scanned_for(fabric: Fabric) -> None:
    link = f"by-path/fc-0x{WWN}-lun-2"
    fabric.scsi.hidden.append(lambda: fabric.add("sda", 1, link, multipath="dm-0"))
    await fabric.plugin.set_up(by_wwn())
    assert {m.source for m in fabric.mounter.mounts()} == {str(fabric.scsi.dev / "dm-0")}


async def test_no_disk_is_an_error(fabric: Fabric) -> None:
    with pytest.raises(VolumeStepError, match="no fc disk found") as caught:
        await fabric.plugin.set_up(by_wwn())
    assert caught.value.step == "MountVolume.WaitForAttach"
    await fabric.plugin.tear_down(fabric.pod_dir)
    await fabric.plugin.clean()
    assert left_below(fabric.root / "plugins/kubernetes.io/fc") == []


async def test_a_multipath_device_is_flushed_before_its_paths(fabric: Fabric) -> None:
    fabric.add("sda", 1, f"by-path/fc-0x{WWN}-lun-2", multipath="dm-0")
    fabric.add("sdb", 2, "by-path/fc-0x50060e801049cfd2-lun-2", multipath="dm-0")
    source = FCVolumeSource(targetWWNs=[WWN, "50060e801049cfd2"], lun=2)
    await fabric.plugin.set_up(disk_spec("fc", source))
    await fabric.plugin.tear_down(fabric.pod_dir)
    assert fabric.devices() == []
    assert [c[0] for c in fabric.tools.calls][-3:] == ["multipath", "blockdev", "blockdev"]


async def test_a_busy_multipath_device_is_tried_again(fabric: Fabric) -> None:
    """As after the unmount, when the kernel still writes."""
    fabric.add("sda", 1, f"by-path/fc-0x{WWN}-lun-2", multipath="dm-0")
    await fabric.plugin.set_up(by_wwn())
    fabric.tools.programs["multipath"] = lambda *_: done("map in use", 1)
    await fabric.plugin.tear_down(fabric.pod_dir)  # the pod does not wait for it
    with pytest.raises(VolumeError, match=r"failed to flush multipath device .*dm-0: map in use"):
        await fabric.plugin.clean()
    assert "sda" in fabric.devices()
    fabric.tools.programs["multipath"] = fabric.flush
    await fabric.plugin.clean()
    assert fabric.devices() == []
    assert left_below(fabric.root / "plugins/kubernetes.io/fc") == []


async def test_without_wwns_or_wwids_it_is_refused(fabric: Fabric) -> None:
    with pytest.raises(ValueError, match="no fc disk information found"):
        await fabric.plugin.set_up(disk_spec("fc", FCVolumeSource(targetWWNs=[WWN])))


@pytest.mark.parametrize("wwid", ["../x", "a/b", ".."])
async def test_a_wwid_that_leaves_the_place_is_refused(fabric: Fabric, wwid: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a path"):
        await fabric.plugin.set_up(disk_spec("fc", FCVolumeSource(wwids=[wwid])))


async def test_a_raw_device_is_mapped_and_removed(fabric: Fabric) -> None:
    fabric.add("sda", 1, f"by-id/scsi-{WWID}")
    spec = by_wwid(is_block=True)
    await fabric.plugin.set_up(spec)
    assert fabric.plugin.path(spec).readlink() == fabric.scsi.dev / "sda"
    await fabric.plugin.tear_down(fabric.pod_dir)
    assert fabric.devices() == []
    assert left_below(fabric.root / "plugins/kubernetes.io/fc/volumeDevices") == []


@pytest.mark.parametrize(
    ("source", "name", "unique"),
    [
        (
            FCVolumeSource(targetWWNs=["a", "b"], lun=0),
            "a-b-lun-0",
            "kubernetes.io/fc/[a b]:0",
        ),
        (FCVolumeSource(wwids=["v n"]), "v_n", "kubernetes.io/fc/[v n]"),
    ],
)
def test_names(source: FCVolumeSource, name: str, unique: str) -> None:
    spec = disk_spec("fc", source)
    assert fc_disk(spec).name == name
    assert named_disk(name) == fc_disk(spec)
    assert fc_unique_name(spec) == unique
    assert named_disk("lun-0") == FcDisk(wwids=("lun", "0"))


def test_multipath_and_paths_are_read_from_sysfs(fabric: Fabric) -> None:
    fabric.add("sda", 1, "by-id/scsi-x", multipath="dm-3")
    plain = ScsiDevices(fabric.scsi.sys, fabric.scsi.dev)
    assert plain.multipath(fabric.scsi.dev / "disk/by-id/scsi-x") == fabric.scsi.dev / "dm-3"
    assert plain.multipath(fabric.scsi.dev / "dm-3") == fabric.scsi.dev / "dm-3"
    assert plain.paths(fabric.scsi.dev / "dm-3") == [fabric.scsi.dev / "sda"]
    assert plain.multipath(Path("/etc/passwd")) is None


def test_the_kernel_is_told_to_scan_and_to_delete(tmp_path: Path) -> None:
    scsi = ScsiDevices(tmp_path / "sys", tmp_path / "dev")
    hosts = [tmp_path / f"sys/class/scsi_host/host{n}" for n in (1, 2)]
    device = tmp_path / "sys/block/sda/device"
    for place in (*hosts, device):
        place.mkdir(parents=True)
    (hosts[0] / "scan").touch()
    (device / "delete").touch()
    scsi.scan_all()  # the second host has no such attribute
    assert (hosts[0] / "scan").read_text() == "- - -"
    assert not (hosts[1] / "scan").exists()
    scsi.scan_lun(1, 7)
    assert (hosts[0] / "scan").read_text() == "0 0 7"
    scsi.delete(Path("/dev/sda"))
    scsi.delete(Path("/dev/sdz"))
    assert (device / "delete").read_text() == "1"
    with pytest.raises(FileNotFoundError):
        scsi.scan_lun(9, 0)


LABEL = "system_u:object_r:container_file_t:s0:c1,c2"


def labels(fabric: Fabric) -> list[str]:
    return [mounted_label(mount.super_options) for mount in fabric.mounter.mounts()]


async def test_a_disk_is_mounted_with_the_label_of_its_pods(fabric: Fabric) -> None:
    fabric.add("sda", 1, f"by-path/fc-0x{WWN}-lun-2")
    await fabric.plugin.set_up(by_wwn(selinux_label=LABEL))
    assert labels(fabric)[0] == LABEL
    text = f'waiting for unmount of volume "kubernetes.io/fc/\\[{WWN}\\]:2", because it is already'
    with pytest.raises(VolumeError, match=text):
        await fabric.plugin.set_up(by_wwn(uid="u-2", selinux_label=""))
    await fabric.plugin.set_up(by_wwn(uid="u-3", selinux_label=LABEL))
    assert len(fabric.mounter.mounts()) == 3


async def test_a_disk_that_nobody_uses_is_mounted_again_with_another_label(fabric: Fabric) -> None:
    fabric.add("sda", 1, f"by-path/fc-0x{WWN}-lun-2")
    await fabric.plugin.set_up(by_wwn(selinux_label=LABEL))
    # As after a crash between the two steps of a teardown.
    fabric.mounter.unmount(fabric.pod_dir / "volumes/kubernetes.io~fc/pv")
    await fabric.plugin.set_up(by_wwn(uid="u-2", selinux_label=""))
    assert labels(fabric)[0] == ""
    await fabric.plugin.tear_down(fabric.root / "pods/u-2")
    assert fabric.mounter.mounts() == []


@pytest.mark.parametrize("wanted", ["", None])
async def test_a_label_in_the_volumes_own_options_disturbs_no_second_pod(
    fabric: Fabric, wanted: str | None
) -> None:
    fabric.add("sda", 1, f"by-path/fc-0x{WWN}-lun-2")
    for uid in ("u-1", "u-2"):
        options = (f'context="{LABEL}"',)
        await fabric.plugin.set_up(by_wwn(uid=uid, selinux_label=wanted, mount_options=options))
    assert len(fabric.mounter.mounts()) == 3
