"""The checkpoint `device-plugins/kubelet_internal_checkpoint`, in the Go kubelet's format.

It lists what containers have, with the plugins' answers, and the resources that were registered:
these are shown with a capacity of 0 after a restart until their plugins are back. Reservations
that a plugin has not confirmed are not in it.

Sources: pkg/kubelet/cm/devicemanager/checkpoint and toCheckpointData in pod_devices.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from kubelet_trio.managers.checksum import (
    GoValue,
    checksum,
    go_json,
    go_map,
    go_slice,
    go_struct,
    go_value,
)
from kubelet_trio.managers.devices.types import DeviceShare, DeviceState
from kubelet_trio.model import JSON_ERRORS, PodUid

CHECKPOINT = "kubelet_internal_checkpoint"
MOST_CHECKPOINT = 64 * 1024 * 1024  # bytes; 250 pods with ordinary plugins have some hundred KiB

_STRINGS = "[]string"


class DeviceCheckpointError(ValueError):
    """A checkpoint that is damaged, or none."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        state: what containers have.
        registered: the healthy devices by resource, when it was written.
    """

    state: DeviceState = field(default_factory=DeviceState)
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class _Entry(msgspec.Struct):
    """PodDevicesEntry."""

    PodUID: str = ""
    ContainerName: str = ""
    ResourceName: str = ""
    DeviceIDs: dict[int, list[str] | None] | None = None
    AllocResp: bytes | None = None

    def printed(self) -> GoValue:
        """Return the entry as Go prints it."""
        numbers = None if self.AllocResp is None else (go_value("uint8", n) for n in self.AllocResp)
        ids = self.DeviceIDs
        by_node = None if ids is None else {node: _strings(names) for node, names in ids.items()}
        return go_struct(
            "checkpoint.PodDevicesEntry",
            {
                "PodUID": go_value("string", self.PodUID),
                "ContainerName": go_value("string", self.ContainerName),
                "ResourceName": go_value("string", self.ResourceName),
                "DeviceIDs": go_map("checkpoint.DevicesPerNUMA", by_node),
                "AllocResp": go_slice("[]uint8", numbers),
            },
        )


class _Data(msgspec.Struct):
    """checkpointData."""

    PodDeviceEntries: list[_Entry] | None = msgspec.field(default_factory=list)
    RegisteredDevices: dict[str, list[str] | None] | None = msgspec.field(default_factory=dict)

    def checksum(self) -> int:
        entries, listed = self.PodDeviceEntries, self.RegisteredDevices
        registered = None if listed is None else {n: _strings(ids) for n, ids in listed.items()}
        fields = {
            "PodDeviceEntries": go_slice(
                "[]checkpoint.PodDevicesEntry",
                None if entries is None else (entry.printed() for entry in entries),
            ),
            "RegisteredDevices": go_map("map[string][]string", registered),
        }
        return checksum(go_struct("checkpoint.checkpointData", fields))


class _File(msgspec.Struct):
    """The document."""

    Data: _Data = msgspec.field(default_factory=_Data)
    Checksum: int = 0


def encode_checkpoint(state: DeviceState, registered: Mapping[str, Iterable[str]]) -> bytes:
    """Return the checkpoint of a state, and of the healthy devices of registered resources.

    Takes some 50 ms for a node with 250 such containers: the checksum goes byte by byte.
    """
    entries = [
        _Entry(
            uid,
            container,
            resource,
            # By their text, as Go writes maps.
            {node: list(share.by_node[node]) for node in sorted(share.by_node, key=str)},
            share.response,
        )
        for uid, container, resource, share in state.each()
        if share.response is not None
    ]
    listed: dict[str, list[str] | None] = {n: list(registered[n]) for n in sorted(registered)}
    data = _Data(entries or None, listed)
    return go_json(_File(data, data.checksum()))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the content of a checkpoint. Raises `DeviceCheckpointError`."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except JSON_ERRORS as exc:
        raise DeviceCheckpointError(f"not a checkpoint of devices: {exc}") from exc
    actual = file.Data.checksum()
    if actual != file.Checksum:
        raise DeviceCheckpointError(f"checksum is {file.Checksum}, expected {actual}")
    # Not by `with_share`, which copies: the file may have any number of entries.
    pods: dict[PodUid, dict[str, dict[str, DeviceShare]]] = {}
    for entry in file.Data.PodDeviceEntries or ():
        containers = pods.setdefault(PodUid(entry.PodUID), {})
        shares = containers.setdefault(entry.ContainerName, {})
        by_node = {node: tuple(ids or ()) for node, ids in (entry.DeviceIDs or {}).items()}
        shares[entry.ResourceName] = DeviceShare(by_node, entry.AllocResp or b"")
    listed = (file.Data.RegisteredDevices or {}).items()
    return Checkpoint(DeviceState(pods), {name: tuple(ids or ()) for name, ids in listed})


def _strings(items: Iterable[str] | None) -> GoValue:
    values = None if items is None else (go_value("string", item) for item in items)
    return go_slice(_STRINGS, values)
