"""Targets: what device plugins list and answer, and the checkpoint of devices on a damaged disk."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kubelet_trio.managers.devices.checkpoint import (
    Checkpoint,
    DeviceCheckpointError,
    decode_checkpoint,
    encode_checkpoint,
)
from kubelet_trio.managers.devices.generated import v1beta1
from kubelet_trio.managers.devices.hints import device_hints
from kubelet_trio.managers.devices.lists import DeviceListReader
from kubelet_trio.managers.devices.options import merged_options
from kubelet_trio.managers.devices.types import Device, Listed
from kubelet_trio.managers.shares import DeviceOptions
from tests.fuzz.mutate import documents, messages
from tests.fuzz.target import Target, in_trio

_EXPECTED = re.compile(r"expected (\d+)$")


def _checkpoint(data: bytes) -> Checkpoint:
    try:
        found = decode_checkpoint(data)
    except DeviceCheckpointError as exc:
        right = _EXPECTED.search(str(exc))
        if right is None:
            raise
        # As an attacker would write it.
        given = re.compile(rb'"Checksum": ?[^,}]*')
        found = decode_checkpoint(given.sub(b'"Checksum":' + right[1].encode(), data))
    again = decode_checkpoint(encode_checkpoint(found.state, found.registered))
    assert again.state == found.state
    return found


def _listed(data: bytes) -> object:
    async def read() -> Mapping[str, Device]:
        reader = DeviceListReader()
        found = await reader.read(data)
        assert await reader.read(data) == found
        return found

    listed = Listed(in_trio(read))
    device_hints(listed, 0b11, listed.healthy, (), 1)
    return [(d.id, d.health, listed.by_node([d.id])) for d in listed.devices.values()]


def _answered(data: bytes) -> DeviceOptions:
    return merged_options.__wrapped__((data,), "c")  # without its cache


_LIST = bytes(
    v1beta1.ListAndWatchResponse(
        devices=[
            v1beta1.Device(id="a", health="Healthy"),
            v1beta1.Device(
                id="b",
                health="Unhealthy",
                topology=v1beta1.TopologyInfo(
                    nodes=[v1beta1.NumaNode(id=1), v1beta1.NumaNode(id=2**62)]
                ),
            ),
        ]
    )
)
_ANSWER = bytes(
    v1beta1.ContainerAllocateResponse(
        envs={"A": "b"},
        mounts=[v1beta1.Mount(container_path="/a", host_path="/b", read_only=True)],
        devices=[v1beta1.DeviceSpec(container_path="/dev/a", host_path="/dev/b", permissions="rw")],
        annotations={"c": "d"},
        cdi_devices=[v1beta1.CdiDevice(name="example.com/gpu=a")],
    )
)
_FILE = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"a.com/b",'
    b'"DeviceIDs":{"-1":["x"],"0":["y","z"]},"AllocResp":"CgQKAUESAA=="}],"RegisteredDevices":'
    b'{"a.com/b":["x","y","z"]}},"Checksum":0}'
)

TARGETS = [
    Target(
        "a checkpoint of devices",
        _checkpoint,
        [_FILE],
        documents([_FILE]),
        (DeviceCheckpointError,),
    ),
    Target(
        "a plugin's list of devices", _listed, [_LIST], messages([_LIST]), (ValueError, EOFError)
    ),
    Target(
        "a plugin's answer to Allocate",
        _answered,
        [_ANSWER],
        messages([_ANSWER]),
        (ValueError, EOFError),
    ),
]
