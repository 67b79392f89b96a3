"""Checks what a recording says of plugins and drivers, before anything is made of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kubelet_trio.managers import AllocateAnswer, ClaimDevice, decode_claims
from kubelet_trio.objects import KINDS
from kubelet_trio.recorder import Entry, Kind, read_body
from kubelet_trio.replay.checks import FieldProblemError, converted, needed
from kubelet_trio.sources import syntax

DEVICES_FILE = "device-plugins/kubelet_internal_checkpoint"
CLAIMS_FILE = "dra_manager_state"
LOCAL_FILE = "resource_claims.json"
_FILES = (
    *("cpu_manager_state", "memory_manager_state"),
    *(DEVICES_FILE, CLAIMS_FILE, LOCAL_FILE),
)
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


class ShownHealth(msgspec.Struct):
    """What a driver says of a device."""

    health: str
    message: str = ""


class DriverOffer(msgspec.Struct):
    """The body of a PLUGIN of a driver; devices are `pool/device`."""

    connected: bool | None = None
    devices: dict[str, ShownHealth] | None = None


class Claims(msgspec.Struct):
    """What drivers are asked to prepare, or to undo: names of claims."""

    claims: list[str]


class Prepared(msgspec.Struct):
    """What a driver has prepared for a claim, or the error."""

    devices: list[ClaimDevice] = []
    error: str = ""


class Slices(msgspec.Struct):
    """The slices in files of drivers."""

    slices: list[dict[str, Any]]
    problems: list[str] = []


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
    pod: str = ""
    container: str = ""
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


class _LocalFile(msgspec.Struct):
    claims: list[dict[str, Any]]


class DeviceFile(msgspec.Struct):
    """The checkpoint of devices."""

    Data: _Data


# By method: what is asked, and what is answered.
_METHODS: Mapping[str, tuple[Any, Any]] = {
    "Allocate": (Ids, AllocateAnswer),
    "GetPreferredAllocation": (Wish, list[str]),
    "PreStartContainer": (Ids, None),
    "NodePrepareResources": (Claims, dict[str, Prepared]),
    "NodeUnprepareResources": (Claims, dict[str, str]),
    "ResourceClaim": (dict[str, str], dict[str, Any]),
}


def check_plugin(entry: Entry) -> None:
    """Check a PLUGIN. Raises `FieldProblemError`."""
    kind, _, rest = entry.key.partition("/")
    name, _, number = rest.rpartition("/")
    if kind not in ("device", "driver") or not _NUMBER.fullmatch(number):
        raise FieldProblemError(f"key: {entry.key[:80]!r} names no plugin")
    if kind == "device":
        _resource("key", name)
    else:
        needed("key", name, syntax.dns_subdomain)
    if entry.body:
        converted(read_body(entry.body), DeviceOffer if kind == "device" else DriverOffer)


def check_asked(entry: Entry) -> None:
    """Check an ASKED. Raises `FieldProblemError`."""
    method, _, name = entry.key.partition("/")
    if method not in _METHODS:
        raise FieldProblemError(f"key: {method[:40]!r} is no question to a plugin")
    if method == "ResourceClaim":
        _claim_name("key", name)
    elif method.startswith("Node"):
        needed("key", name, syntax.dns_subdomain)
    else:
        _resource("key", name)
    asked, answered = _METHODS[method]
    body: Asked = converted(read_body(entry.body), Asked)
    if body.pod:
        needed("pod", body.pod, syntax.pod_uid)
    if body.container:
        needed("container", body.container, syntax.dns_label)
    if body.request is not None:
        converted(body.request, asked, "request")
    elif not body.error:
        converted(body.ok, answered, "ok")
        if method == "ResourceClaim":
            converted(body.ok, KINDS["ResourceClaim"], "ok")


def check_checkpoint(entry: Entry) -> None:
    """Check a CHECKPOINT. Raises `FieldProblemError`."""
    if entry.key not in _FILES:
        raise FieldProblemError(f"key: {entry.key[:80]!r} is no checkpoint of a manager")
    if entry.key == CLAIMS_FILE:
        _claims_file(entry.body)
    elif entry.key == LOCAL_FILE:
        for claim in converted(read_body(entry.body), _LocalFile).claims:
            converted(claim, KINDS["ResourceClaim"], "claims")
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


def _claims_file(body: bytes) -> None:
    try:
        decode_claims(body)
    except ValueError as exc:
        raise FieldProblemError(f"Data: {exc}") from exc


def check_slices(content: Any) -> None:
    """Check the answer of a READ of slices. Raises `FieldProblemError`."""
    for index, each in enumerate(converted(content, Slices, "ok").slices):
        converted(each, KINDS["ResourceSlice"], f"ok.slices[{index}]")


def _claim_name(field: str, key: str) -> None:
    namespace, _, name = key.partition("/")
    needed(field, namespace, syntax.dns_label)
    needed(field, name, syntax.dns_subdomain)


def _resource(field: str, name: str) -> None:
    if not _RESOURCE.fullmatch(name):
        raise FieldProblemError(f"{field}: {name[:80]!r} is no name of a resource")


CHECKS: Mapping[Kind, Callable[[Entry], None]] = {
    Kind.PLUGIN: check_plugin,
    Kind.ASKED: check_asked,
    Kind.CHECKPOINT: check_checkpoint,
}
