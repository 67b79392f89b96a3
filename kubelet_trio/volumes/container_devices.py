"""The CRI devices of a container, from the links to its pod's block volumes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kubelet_trio.cri import v1
from kubelet_trio.model import PodContainer
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.layout import device_link
from kubelet_trio.volumes.spec import VolumeSpec


def container_devices(
    container: PodContainer, specs: Sequence[VolumeSpec], pods_dir: Path
) -> list[v1.Device]:
    """Return the CRI devices of a container, in the order of its spec (makeBlockVolumes). Blocks.

    Raises `VolumeError` for one that is missing; its text reveals nothing about the host.

    Args:
        container: the container.
        specs: the volumes that it names, set up.
        pods_dir: the directory of all pods.
    """
    volumes = {spec.name: spec for spec in specs if spec.is_block}
    found = []
    for device in container.spec.volumeDevices or ():
        if not device.devicePath.startswith("/"):
            text = f"error DevicePath `{device.devicePath}` must be an absolute path"
            raise VolumeError(device.name, text)
        spec = volumes.get(device.name)
        link = device_link(pods_dir / spec.uid, spec.kind, spec.disk_name) if spec else None
        if spec is None or link is None or not link.is_symlink():
            name = container.spec.name
            text = f'cannot find volume "{device.name}" to pass into container "{name}"'
            raise VolumeError(device.name, text)
        # m: mknod, so that the container may also make a node of its own for the device.
        permissions = "r" if spec.read_only else "mrw"
        found.append(
            v1.Device(
                container_path=device.devicePath, host_path=str(link), permissions=permissions
            )
        )
    return found
