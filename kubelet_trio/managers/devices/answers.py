"""The answer of a device plugin for one container, as plain values and as its message."""

from __future__ import annotations

import msgspec

from kubelet_trio.managers.devices.generated import v1beta1
from kubelet_trio.model import parse_message


class AnsweredMount(msgspec.Struct, frozen=True):
    """A file or directory of the host that the container gets."""

    container_path: str
    host_path: str
    read_only: bool = False


class AnsweredDevice(msgspec.Struct, frozen=True):
    """A device file that the container gets."""

    container_path: str
    host_path: str
    permissions: str = ""


class AllocateAnswer(msgspec.Struct, omit_defaults=True):
    """ContainerAllocateResponse; `cdi_devices` are names."""

    envs: dict[str, str] = {}
    mounts: list[AnsweredMount] = []
    devices: list[AnsweredDevice] = []
    annotations: dict[str, str] = {}
    cdi_devices: list[str] = []


def read_answer(response: bytes) -> AllocateAnswer:
    """Return an answer's content. Raises ValueError or EOFError for bytes that are none."""
    found = parse_message(v1beta1.ContainerAllocateResponse, response)
    return AllocateAnswer(
        envs=dict(found.envs),
        mounts=[AnsweredMount(m.container_path, m.host_path, m.read_only) for m in found.mounts],
        devices=[
            AnsweredDevice(d.container_path, d.host_path, d.permissions) for d in found.devices
        ],
        annotations=dict(found.annotations),
        cdi_devices=[d.name for d in found.cdi_devices],
    )


def write_answer(answer: AllocateAnswer) -> bytes:
    """Return an answer's message. Raises ValueError for text that none can hold."""
    message = v1beta1.ContainerAllocateResponse(
        envs=dict(answer.envs),
        mounts=[
            v1beta1.Mount(
                container_path=m.container_path, host_path=m.host_path, read_only=m.read_only
            )
            for m in answer.mounts
        ],
        devices=[
            v1beta1.DeviceSpec(
                container_path=d.container_path,
                host_path=d.host_path,
                permissions=d.permissions,
            )
            for d in answer.devices
        ],
        annotations=dict(answer.annotations),
        cdi_devices=[v1beta1.CdiDevice(name=name) for name in answer.cdi_devices],
    )
    return bytes(message)
