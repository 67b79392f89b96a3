"""Checks what a recording says of plugins and drivers, before anything is made of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kubelet_trio.managers import AllocateAnswer
from kubelet_trio.recorder import Entry, Kind, read_body
from kubelet_trio.replay.checks import FieldProblemError, converted, needed
from kubelet_trio.sources import syntax

DEVICES_FILE = "device-plugins/kubelet_internal_checkpoint"
_RESOURCE = re.compile(r"[A-Za-z0-9][-\w.]{0,252}/[A-Za-z0-9][-\w.]{0,252}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


class Options(msgspec.Struct):
    """What a device plugin wants to be asked."""

    pre_start: bool = False
    has_preference: bool = False


class ListedDevice(msgspec.Struct):
    """A device as its plugin lists it."""

    health: str
    nodes: list[int] = []


class DeviceOffer(msgspec.Struct):
    """The body of a PLUGIN of a device plugin."""

    options: Options | None = None
    devices: dict[str, ListedDevice] | None = None
    gone: list[str] = []


class Ids(msgspec.Struct):
    """What Allocate and PreStartContainer are asked for."""

    ids: list[str]


class Wish(msgspec.Struct):
    """What GetPreferredAllocation is asked for."""

    available: list[str]
    included: list[str]
    count: int


class Asked(msgspec.Struct):
    """The body of an ASKED: the question if `request` is there, else the answer."""

    call: int
    request: Any = None
    ok: Any = None
    error: str = ""
    text: str = ""


class HeldDevices(msgspec.Struct):
    """What a container has of one resource, in the checkpoint of devices."""

    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[int, list[str] | None] | None = None
    AllocResp: AllocateAnswer | None = None


class _Data(msgspec.Struct):
    PodDeviceEntries: list[HeldDevices] | None = None
    RegisteredDevices: dict[str, list[str] | None] | None = None


class DeviceFile(msgspec.Struct):
    """The checkpoint of devices."""

    Data: _Data


# By method: what is asked, and what is answered.
_METHODS: Mapping[str, tuple[Any, Any]] = {
    "Allocate": (Ids, AllocateAnswer),
    "GetPreferredAllocation": (Wish, list[str]),
    "PreStartContainer": (Ids, None),
}


def check_plugin(entry: Entry) -> None:
    """Check a PLUGIN. Raises `FieldProblemError`."""
    kind, _, rest = entry.key.partition("/")
    name, _, number = rest.rpartition("/")
    if kind != "device" or not _NUMBER.fullmatch(number):
        raise FieldProblemError(f"key: {entry.key[:80]!r} names no plugin")
    _resource("key", name)
    if entry.body:
        converted(read_body(entry.body), DeviceOffer)


def check_asked(entry: Entry) -> None:
    """Check an ASKED. Raises `FieldProblemError`."""
    method, _, name = entry.key.partition("/")
    if method not in _METHODS:
        raise FieldProblemError(f"key: {method[:40]!r} is no question to a plugin")
    _resource("key", name)
    asked, answered = _METHODS[method]
    body: Asked = converted(read_body(entry.body), Asked)
    if body.request is not None:
        converted(body.request, asked, "request")
    elif not body.error:
        converted(body.ok, answered, "ok")


def check_checkpoint(entry: Entry) -> None:
    """Check a CHECKPOINT. Raises `FieldProblemError`."""
    if entry.key != DEVICES_FILE:
        return
    file: DeviceFile = converted(read_body(entry.body), DeviceFile)
    for index, held in enumerate(file.Data.PodDeviceEntries or ()):
        where = f"Data.PodDeviceEntries[{index}]."
        needed(f"{where}PodUID", held.PodUID, syntax.pod_uid)
        needed(f"{where}ContainerName", held.ContainerName, syntax.dns_label)
        _resource(f"{where}ResourceName", held.ResourceName)
    for name in file.Data.RegisteredDevices or ():
        _resource("Data.RegisteredDevices", name)


def _resource(field: str, name: str) -> None:
    if not _RESOURCE.fullmatch(name):
        raise FieldProblemError(f"{field}: {name[:80]!r} is no name of a resource")


CHECKS: Mapping[Kind, Callable[[Entry], None]] = {
    Kind.PLUGIN: check_plugin,
    Kind.ASKED: check_asked,
    Kind.CHECKPOINT: check_checkpoint,
}
