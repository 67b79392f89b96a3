"""Devices mapped into pods."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubelet_trio.testing.devices import FakeBlockDevices
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter
from kubelet_trio.volumes.block import DeviceMaps
from kubelet_trio.volumes.loop import KernelBlockDevices
from tests.volumes.conftest import loop_refusal

PLUGIN = "plugins/kubernetes.io~local-volume/volumeDevices/pv"
LINK = "pods/u-1/volumeDevices/kubernetes.io~local-volume/pv"


class Host(NamedTuple):
    mounter: FakeMounter
    devices: FakeBlockDevices
    maps: DeviceMaps
    device: Path
    entry: Path
    link: Path

    def map(self) -> None:
        self.maps.map(self.device, self.entry, self.link)

    def unmap(self) -> None:
        self.maps.unmap(self.entry, self.link)

    @property
    def is_mapped(self) -> bool:
        return self.maps.is_mapped(self.entry, self.link)


def host_in(root: Path) -> Host:
    mounter = FakeMounter()
    devices = FakeBlockDevices(mounter)
    devices.add(root / "dev/sdx", 1)
    maps = DeviceMaps(mounter, devices)
    entry = root / PLUGIN / "u-1"
    return Host(mounter, devices, maps, root / "dev/sdx", entry, root / LINK)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return host_in(tmp_path)


def test_a_device_is_mapped_in_the_go_kubelets_layout(host: Host) -> None:
    assert not host.is_mapped
    for _ in range(2):  # the second time nothing changes
        host.map()
        assert host.is_mapped
        assert os.readlink(host.link) == str(host.device)
        assert [m.path for m in host.mounter.mounts()] == [str(host.entry)]
        assert set(host.devices.loops) == {str(host.entry)}
    host.unmap()
    host.unmap()
    assert not host.is_mapped
    assert not host.mounter.mounts()
    assert not host.devices.loops
    assert not os.path.lexists(host.entry)
    assert not (host.link.parent.parent).exists()
    assert host.device.exists()


def test_the_link_leads_to_the_device_itself(host: Host) -> None:
    by_id = host.device.parent / "by-id"
    by_id.symlink_to(host.device)
    host.maps.map(by_id, host.entry, host.link)
    assert os.readlink(host.link) == str(host.device)


def test_what_is_no_device_is_refused_and_leaves_nothing(host: Host) -> None:
    (host.device.parent / "file").touch()
    with pytest.raises(ValueError, match='file" is no block device'):
        host.maps.map(host.device.parent / "file", host.entry, host.link)
    with pytest.raises(FileNotFoundError):
        host.maps.map(host.device.parent / "none", host.entry, host.link)
    assert not host.link.parent.exists()
    assert not host.entry.parent.exists()


def test_a_device_that_came_back_as_another_one_replaces_it(host: Host) -> None:
    host.map()
    host.devices.add(host.device.parent / "sdy", 2)
    host.maps.map(host.device.parent / "sdy", host.entry, host.link)
    assert host.devices.number(host.entry) == 2
    assert os.readlink(host.link).endswith("/sdy")
    assert len(host.mounter.mounts()) == len(host.devices.loops) == 1


def test_after_a_reboot_the_rest_on_disk_is_no_map(tmp_path: Path, host: Host) -> None:
    host.map()
    rebooted = host_in(tmp_path)  # mounts and loop devices are gone, files are not
    assert not rebooted.is_mapped
    rebooted.map()
    assert rebooted.is_mapped
    rebooted.unmap()
    assert not rebooted.mounter.mounts()


def test_without_loop_devices_a_map_works_and_the_log_says_so_once(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.devices.no_loops = True
    host.map()
    host.maps.map(host.device, tmp_path / PLUGIN / "u-2", tmp_path / LINK.replace("u-1", "u-2"))
    assert host.is_mapped
    assert capsys.readouterr().out.count("volume.device_not_held_open") == 1
    host.unmap()
    assert not host.is_mapped


def test_another_pods_map_of_the_device_stays(tmp_path: Path, host: Host) -> None:
    other = (tmp_path / PLUGIN / "u-2", tmp_path / LINK.replace("u-1", "u-2"))
    host.map()
    host.maps.map(host.device, *other)
    host.unmap()
    assert host.maps.is_mapped(*other)
    assert set(host.devices.loops) == {str(other[0])}


STEPS = st.lists(st.sampled_from(["map", "unmap", "reboot", "lose link", "lose lock"]), max_size=8)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_from_every_state_a_map_and_an_unmap_are_complete(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    root = tmp_path_factory.mktemp("host")
    host = host_in(root)
    for step in steps:
        if step == "map":
            host.map()
        elif step == "unmap":
            host.unmap()
        elif step == "reboot":
            host = host_in(root)
        elif step == "lose link":
            host.link.unlink(missing_ok=True)
        else:
            host.devices.detach(host.entry)
    host.map()
    assert host.is_mapped
    assert set(host.devices.loops) == {m.path for m in host.mounter.mounts()} == {str(host.entry)}
    host.unmap()
    assert not host.devices.loops
    assert not host.mounter.mounts()
    assert not host.link.parent.exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A block device of 1 MiB."""
    if refusal := loop_refusal():
        pytest.skip(refusal)
    file = tmp_path / "disk"
    file.write_bytes(bytes(1 << 20))
    devices = KernelBlockDevices()
    yield devices.attach(file)
    devices.detach(tmp_path / PLUGIN / "u-1")
    devices.detach(file)


def test_a_device_of_this_machine_is_mapped_held_and_unmapped(
    tmp_path: Path, kernel: KernelMounter, disk: Path
) -> None:
    entry, link = tmp_path / PLUGIN / "u-1", tmp_path / LINK
    devices = KernelBlockDevices()
    maps = DeviceMaps(kernel, devices)
    for _ in range(2):
        maps.map(disk, entry, link)
        maps = DeviceMaps(KernelMounter(), devices)  # of an agent that started again
        assert maps.is_mapped(entry, link)
        assert entry.stat().st_rdev == link.stat().st_rdev == disk.stat().st_rdev
        (lock,) = devices.find(entry)
        assert lock != disk
    with link.open("r+b") as opened:
        opened.write(b"raw")
        opened.flush()
        os.fsync(opened.fileno())
    assert (tmp_path / "disk").read_bytes()[:3] == b"raw"
    maps.unmap(entry, link)
    assert devices.find(entry) == []
    assert not os.path.lexists(entry)
    assert not os.path.lexists(link)
    assert not any(m.path.startswith(str(tmp_path)) for m in kernel.mounts())
