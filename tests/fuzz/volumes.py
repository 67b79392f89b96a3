"""Targets: what CSI drivers answer, records of volumes on a damaged disk, outputs of tools."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
from trio.testing import memory_stream_pair
from trio_util import AsyncValue

from kubelet_trio.grpc import (
    Channel,
    GRPCError,
    Handler,
    RawMessage,
    Server,
    Status,
    open_channel,
    unary_unary,
)
from kubelet_trio.model import Meter
from kubelet_trio.stats import DriverStatsError
from kubelet_trio.volumes.csi.client import Access, DriverClient, PublishRequest
from kubelet_trio.volumes.csi.data import (
    published_of,
    read_record,
    staged_volumes,
    volumes_on_disk,
)
from kubelet_trio.volumes.csi.drivers import DriverTable
from kubelet_trio.volumes.csi.generated.csi import v1
from kubelet_trio.volumes.csi.types import Capability, CsiVolume, Driver
from kubelet_trio.volumes.csi.usage import DriverUsage
from kubelet_trio.volumes.errors import CsiCallError
from kubelet_trio.volumes.host.fibre_channel import named_disk
from kubelet_trio.volumes.host.flex_driver import FlexDriver, _answer
from kubelet_trio.volumes.host.format import disk_format
from kubelet_trio.volumes.host.iscsi import _iface_parameters, _transport, read_disk
from kubelet_trio.volumes.tools import LIMIT, ToolResult
from tests.fuzz.mutate import documents, edited, messages, texts
from tests.fuzz.records import in_directory
from tests.fuzz.target import Target, in_trio

DRIVER = "disk.example.com"
_INFO, _CAPABILITIES = "NodeGetInfo", "NodeGetCapabilities"
_STATS, _PUBLISH = "NodeGetVolumeStats", "NodePublishVolume"


class _Node:
    """A node service that answers each call with these bytes, or with an error."""

    def __init__(self, answers: Mapping[str, bytes], error: GRPCError | None = None) -> None:
        self._answers = answers
        self._error = error

    async def _answer(self, method: str, _: RawMessage) -> RawMessage:
        await trio.lowlevel.checkpoint()
        if self._error is not None:
            raise self._error
        return RawMessage(self._answers[method])

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            f"/csi.v1.Node/{method}": unary_unary(
                partial(self._answer, method), RawMessage, RawMessage
            )
            for method in (_INFO, _CAPABILITIES, _STATS, _PUBLISH)
        }


def _registered(node: _Node) -> Mapping[str, Driver]:
    """Register a driver; return what the table shows of it."""
    shown: Mapping[str, Driver] = {}
    failure: CsiCallError | None = None

    async def main() -> None:
        nonlocal shown, failure
        async with trio.open_nursery() as serving:
            dial = partial(_dial, node, serving)
            table = DriverTable(connect=lambda _: Channel(dial))
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(table.run_plugin, DRIVER, "/csi.sock", ["1.0.0"])
                    shown = table.drivers.value
                    nursery.cancel_scope.cancel()
            except* CsiCallError as group:
                failure = _first(group)
            serving.cancel_scope.cancel()

    in_trio(main)
    if failure is not None:
        raise failure
    return shown


def _first(group: BaseExceptionGroup[CsiCallError]) -> CsiCallError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, CsiCallError)
    return found


async def _dial(node: _Node, serving: trio.Nursery) -> trio.abc.Stream:
    await trio.lowlevel.checkpoint()
    near, far = memory_stream_pair()
    serving.start_soon(Server([node]).serve_stream, far)
    return near


def _called(node: _Node, capabilities: frozenset[Capability] = frozenset()) -> object:
    """Measure a volume of a registered driver, and publish it."""
    answers: list[object] = []
    failure: Exception | None = None

    async def main() -> None:
        nonlocal failure
        async with trio.open_nursery() as serving:
            async with open_channel(partial(_dial, node, serving)) as channel:
                driver = Driver(DRIVER, "/csi.sock", "n", capabilities=capabilities)
                client = DriverClient(driver, channel, Meter())
                usage = DriverUsage(AsyncValue({DRIVER: driver}), lambda _: client)
                request = PublishRequest(CsiVolume(DRIVER, "v"), "/target", Access())
                try:
                    answers.append(await usage.volume_stats(DRIVER, "v", "/target"))
                    await client.publish(request)
                except (DriverStatsError, CsiCallError) as exc:  # else it would be in a group
                    failure = exc
            serving.cancel_scope.cancel()

    in_trio(main)
    if failure is not None:
        raise failure
    return answers


@dataclass(frozen=True)
class _Told:
    """Tools that end so."""

    done: ToolResult

    def run(self, _tool: str, *_arguments: str, limit: float = LIMIT) -> ToolResult:
        return self.done


def _done(data: bytes) -> ToolResult:
    """Make a program's end of bytes: the first is its exit status, or the signal."""
    code = data[0] if data else 0
    return ToolResult(code - 256 if code > 250 else code % 8, data[1:].decode("utf-8", "replace"))


def _blkid(data: bytes) -> object:
    return disk_format(_Told(_done(data)), Path("/dev/null"))


def _failed_tool(data: bytes) -> object:
    done = _done(data)
    return done.excerpt, done.failure, done.ending


def _iscsiadm(data: bytes) -> object:
    shown = data.decode("utf-8", "replace")
    return _transport(shown), _iface_parameters(shown)


def _flex(data: bytes) -> object:
    answer = _answer(FlexDriver("example.com/disk", Path("/driver")), "mount", _done(data))
    return answer and (answer, answer.can("attach"))


def _named(data: bytes) -> object:
    """Read what the names of directories say of disks, without a file in them."""
    name = data[:255].decode("utf-8", "replace").replace("/", "_").replace("\0", "_")
    with tempfile.TemporaryDirectory() as directory:
        return named_disk(name), read_disk(Path(directory, "iface-default", name or "x"))


def _published(root: Path) -> object:
    return published_of(root / "pods/u"), volumes_on_disk(root)


def _staged(root: Path) -> object:
    return staged_volumes(root), volumes_on_disk(root)


def _block(root: Path) -> object:
    found = volumes_on_disk(root)
    base = root / "plugins/kubernetes.io/csi/volumeDevices/pv/data"
    return found, read_record(base)


_INFO_ANSWER = bytes(
    v1.NodeGetInfoResponse(
        node_id="n-1",
        max_volumes_per_node=10,
        accessible_topology=v1.Topology(segments={"zone": "a", "rack": "b"}),
    )
)
_KINDS = v1.NodeServiceCapabilityRpcType
_CAPABILITIES_ANSWER = bytes(
    v1.NodeGetCapabilitiesResponse(
        capabilities=[
            v1.NodeServiceCapability(rpc=v1.NodeServiceCapabilityRpc(type=kind))
            for kind in (_KINDS.STAGE_UNSTAGE_VOLUME, _KINDS.GET_VOLUME_STATS)
        ]
    )
)
_STATS_ANSWER = bytes(
    v1.NodeGetVolumeStatsResponse(
        usage=[
            v1.VolumeUsage(available=5, total=9, used=4, unit=v1.VolumeUsageUnit.BYTES),
            v1.VolumeUsage(available=1, total=3, used=2, unit=v1.VolumeUsageUnit.INODES),
        ],
        volume_condition=v1.VolumeCondition(abnormal=True, message="a disk is worn"),
    )
)
_RECORD = {
    "attachmentID": "csi-0",
    "driverName": DRIVER,
    "nodeName": "n",
    "specVolID": "pv",
    "volumeHandle": "v",
    "volumeLifecycleMode": "Persistent",
    "seLinuxMountContext": "system_u:object_r:container_file_t:s0:c1,c2",
}
_HASH = "a" * 64
_ISCSI = {
    "VolName": "v",
    "Portals": ["10.0.0.1:3260", "[::1]:3260"],
    "Iqn": "iqn.2024-01.com.example:disk",
    "Lun": "1",
    "InitIface": "default",
    "Iface": "10.0.0.1:3260:v",
    "InitiatorName": "iqn.2024-01.com.example:node",
}
_FLEX_ANSWERS = [
    {"status": "Success", "device": "/dev/sdb", "capabilities": {"attach": False}},
    {"Status": "Not supported"},
]
_IFACE = (
    b"# BEGIN RECORD 2.1\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n"
    b"iface.transport_name = tcp\niface.mtu = 0\n# END RECORD\n"
)


def _json(
    name: str, run: Callable[[bytes], object], example: object, *errors: type[Exception]
) -> Target:
    written = [json.dumps(example).encode()]
    return Target(name, run, written, documents(written), errors)


def _error(data: bytes) -> object:
    status = list(Status)[1 + data[0] % (len(Status) - 1)] if data else Status.UNKNOWN
    error = GRPCError(status, data[1:].decode("utf-8", "replace"))
    return _called(_Node({}, error))


TARGETS = [
    Target(
        "a CSI driver's answer to NodeGetInfo",
        lambda data: _registered(_Node({_INFO: data, _CAPABILITIES: _CAPABILITIES_ANSWER})),
        [_INFO_ANSWER],
        messages([_INFO_ANSWER]),
        (CsiCallError,),
    ),
    Target(
        "a CSI driver's capabilities",
        lambda data: _registered(_Node({_INFO: _INFO_ANSWER, _CAPABILITIES: data})),
        [_CAPABILITIES_ANSWER],
        messages([_CAPABILITIES_ANSWER]),
        (CsiCallError,),
    ),
    Target(
        "a CSI driver's stats of a volume",
        lambda data: _called(
            _Node({_STATS: data, _PUBLISH: b""}), frozenset({Capability.VOLUME_CONDITION})
        ),
        [_STATS_ANSWER],
        messages([_STATS_ANSWER]),
        (CsiCallError, DriverStatsError),
    ),
    Target(
        "a CSI driver's error",
        _error,
        [],
        texts([b"\x0dvolume is busy", "\x05läuft noch".encode()], b"%", b"\n", b"\x00"),
        (CsiCallError, DriverStatsError),
    ),
    _json(
        "record of a published CSI volume",
        in_directory(_published, "pods/u/volumes/kubernetes.io~csi/pv/vol_data.json"),
        _RECORD,
    ),
    _json(
        "record of a staged CSI volume",
        in_directory(_staged, f"plugins/kubernetes.io/csi/{DRIVER}/{_HASH}/vol_data.json"),
        _RECORD,
    ),
    _json(
        "record of a CSI block volume",
        in_directory(_block, "plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json"),
        _RECORD,
        ValueError,
    ),
    _json(
        "record of an iSCSI disk",
        in_directory(
            lambda root: read_disk(root / "iface-default/x"), "iface-default/x/iscsi.json"
        ),
        _ISCSI,
        OSError,
    ),
    Target(
        "names of disks' directories",
        _named,
        [b"10.0.0.1:3260-iqn.2024-01.com.example:disk-lun-1"],
        texts([b"10.0.0.1:3260-iqn.2024-01.com.example:disk-lun-1", b"50060e801049cfd1-lun-0"]),
        (OSError,),
    ),
    Target(
        "output of blkid",
        _blkid,
        [b"\x00DEVNAME=/dev/sdb\nTYPE=ext4\n", b"\x00PTTYPE=dos\n", b"\x02"],
        texts([b"\x00DEVNAME=/dev/sdb\nTYPE=ext4\n", b"\x08ambivalent result"], b"=", b"TYPE="),
        (OSError,),
    ),
    Target(
        "output of iscsiadm",
        _iscsiadm,
        [_IFACE],
        texts([_IFACE], b"iface.", b" = ", b"<empty>"),
        (OSError,),
    ),
    Target(
        "output of a tool that failed",
        _failed_tool,
        [b"\x01multipath: map in use\n"],
        texts([b"\x01multipath: map in use\n", b"\xff"]),
    ),
    Target(
        "answer of a FlexVolume driver",
        _flex,
        [b"\x00" + json.dumps(answer).encode() for answer in _FLEX_ANSWERS],
        edited(
            documents([json.dumps(answer).encode() for answer in _FLEX_ANSWERS]).map(
                lambda data: b"\x00" + data
            )
        ),
        (OSError,),
    ),
]
