"""The CRI devices of containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightkube.models.core_v1 import Container, LocalVolumeSource, VolumeDevice

from kubelet_trio.cri import v1
from kubelet_trio.model import ContainerKind, PodContainer
from kubelet_trio.volumes import VolumeError
from kubelet_trio.volumes.container_devices import container_devices
from kubelet_trio.volumes.layout import device_link
from kubelet_trio.volumes.spec import VolumeSpec
from tests.volumes.make import pod


def block_spec(name: str, *, read_only: bool = False, is_block: bool = True) -> VolumeSpec:
    source = LocalVolumeSource("/dev/sdx")
    return VolumeSpec(
        pod(), name, "local", source, f"pv-{name}", read_only=read_only, is_block=is_block
    )


def with_devices(**paths: str) -> PodContainer:
    devices = [VolumeDevice(devicePath=path, name=name) for name, path in paths.items()]
    return PodContainer(ContainerKind.MAIN, Container(name="main", volumeDevices=devices))


def test_a_container_gets_its_devices_in_order(tmp_path: Path) -> None:
    specs = [block_spec("a"), block_spec("b", read_only=True)]
    links = [device_link(tmp_path / "u-1", "local", spec.disk_name) for spec in specs]
    for link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/dev/sdx")
    assert container_devices(with_devices(b="/dev/b", a="/dev/a"), specs, tmp_path) == [
        v1.Device(container_path="/dev/b", host_path=str(links[1]), permissions="r"),
        v1.Device(container_path="/dev/a", host_path=str(links[0]), permissions="mrw"),
    ]
    assert container_devices(with_devices(), specs, tmp_path) == []


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        (block_spec("a"), "dev/a", "error DevicePath `dev/a` must be an absolute path"),
        # It is not mapped; or it is no device; or it is no volume of the pod.
        (block_spec("a"), "/dev/a", 'cannot find volume "a" to pass into container "main"'),
        (
            block_spec("a", is_block=False),
            "/dev/a",
            'cannot find volume "a" to pass into container "main"',
        ),
        (block_spec("b"), "/dev/a", 'cannot find volume "a" to pass into container "main"'),
    ],
)
def test_a_device_that_is_missing_is_told(
    tmp_path: Path, spec: VolumeSpec, path: str, message: str
) -> None:
    with pytest.raises(VolumeError) as caught:
        container_devices(with_devices(a=path), [spec], tmp_path)
    assert str(caught.value) == message
