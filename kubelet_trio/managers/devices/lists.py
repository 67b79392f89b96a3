"""Reads the device lists of a plugin: ListAndWatchResponse of deviceplugin/v1beta1.

A plugin may list tens of thousands of devices, of which one has changed. So entries are compared
as bytes, only new ones are decoded, and other tasks run in between.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio

from kubelet_trio.managers.devices.generated.v1beta1 import Device as DeviceMessage
from kubelet_trio.managers.devices.types import Device
from kubelet_trio.managers.wire import list_entries
from kubelet_trio.model import parse_message

_AT_ONCE = 50  # entries between two checkpoints; each takes some 30 us


class DeviceListReader:
    """Decodes one plugin's lists, one after the other."""

    def __init__(self) -> None:
        self._known: Mapping[bytes, Device] = {}

    async def read(self, data: bytes) -> dict[str, Device]:
        """Return the devices of a list by ID; of two with one ID, the last.

        Raises ValueError or EOFError if it is no such message.
        """
        known, fresh, found = {}, 0, {}
        for entry in list_entries(data):
            device = self._known.get(entry)
            if device is None:
                device = _device(entry)
                fresh += 1
                if fresh % _AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            known[entry] = found[device.id] = device
        self._known = known
        await trio.lowlevel.checkpoint()
        return found


def _device(entry: bytes) -> Device:
    message = parse_message(DeviceMessage, entry)
    nodes = message.topology.nodes if message.topology is not None else ()
    return Device(message.id, message.health, tuple(node.id for node in nodes))
