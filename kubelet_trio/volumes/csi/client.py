"""Calls of a CSI driver's node service, each with a deadline and in the Go kubelet's words.

An error that is not final means that the driver may still be doing what it was asked for, or has
done it: the volume then counts as mounted until the opposite call has succeeded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kubelet_trio.grpc import CODE_NAMES, Channel, GRPCError, Message, Status, UnaryUnaryMethod
from kubelet_trio.model import STORAGE, Meter
from kubelet_trio.volumes.csi.generated.csi import v1
from kubelet_trio.volumes.csi.generated.csi.v1.client import NodeStub
from kubelet_trio.volumes.csi.types import (
    CSI_TIMEOUT,
    CallNotes,
    Capability,
    CsiVolume,
    Driver,
    NoNotes,
)
from kubelet_trio.volumes.errors import CsiCallError

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)

_DURATION = "csi_operations_seconds"
_MOST_TEXT = 4096  # characters of a driver's error: an event holds 1024
_MOST_SEGMENTS = 1000  # topology keys of a driver
# Characters of a node ID, or of a topology's key or value. The API has 256, 317 and 63, and repeats
# in its refusal what is too long.
_MOST_FACT = 1024
_PATHS = ("target_path", "volume_path", "staging_target_path")  # of requests
_BLOCK = "block"  # fsTypeBlockName in pkg/volume/csi

# isFinalError in pkg/volume/csi/csi_client.go.
_UNCERTAIN = frozenset(
    (
        Status.CANCELLED,
        Status.DEADLINE_EXCEEDED,
        Status.UNAVAILABLE,
        Status.RESOURCE_EXHAUSTED,
        Status.ABORTED,
    )
)

_Mode = v1.VolumeCapabilityAccessModeMode
# asCSIAccessModeV1 in pkg/volume/csi/csi_client.go.
_MODES = {
    "ReadWriteOnce": _Mode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": _Mode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": _Mode.MULTI_NODE_MULTI_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_WRITER,
}
# asSingleNodeMultiWriterCapableCSIAccessModeV1: for drivers that can tell these two apart.
_SINGLE_NODE_MODES = {
    **_MODES,
    "ReadWriteOnce": _Mode.SINGLE_NODE_MULTI_WRITER,
    "ReadWriteOncePod": _Mode.SINGLE_NODE_SINGLE_WRITER,
}


@dataclass(frozen=True, slots=True)
class Access:
    """How a volume is used, for a driver's VolumeCapability."""

    mode: str = "ReadWriteOnce"  # the access mode of the persistent volume
    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()
    group: int | None = None  # VOLUME_MOUNT_GROUP: the fsGroup for drivers that apply it
    is_block: bool = False


@dataclass(frozen=True, slots=True)
class StageRequest:
    """The values of a NodeStageVolume."""

    volume: CsiVolume
    path: str  # staging_target_path
    access: Access
    publish_context: Mapping[str, str] = field(default_factory=dict)
    volume_context: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """The values of a NodePublishVolume."""

    volume: CsiVolume
    target: str
    access: Access
    staging_path: str = ""  # "": the driver does not stage
    read_only: bool = False
    publish_context: Mapping[str, str] = field(default_factory=dict)
    volume_context: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class DriverClient:
    """The node service of one driver. Every call raises `CsiCallError`."""

    def __init__(
        self, driver: Driver, channel: Channel, meter: Meter, notes: CallNotes | None = None
    ) -> None:
        self.driver = driver
        self._notes = notes or NoNotes()
        self._meter = meter
        self._node = NodeStub(channel)

    def can(self, capability: Capability) -> bool:
        return self.driver.can(capability)

    async def info(self) -> v1.NodeGetInfoResponse:
        """Return node id, limit of volumes and topology; all of them are bounded."""
        info = await self._call("NodeGetInfo", self._node.node_get_info, v1.NodeGetInfoRequest())
        topology = info.accessible_topology
        segments = topology.segments if topology is not None else {}
        if len(segments) > _MOST_SEGMENTS:
            text = f"the driver has more than {_MOST_SEGMENTS} topology keys"
            raise CsiCallError("Internal", text, is_final=True)
        if max(map(len, (info.node_id, *segments, *segments.values()))) > _MOST_FACT:
            text = f"the driver's node ID or topology has more than {_MOST_FACT} characters"
            raise CsiCallError("Internal", text, is_final=True)
        return info

    async def capabilities(self) -> frozenset[Capability]:
        """Return what the driver can do, of what is known here."""
        request = v1.NodeGetCapabilitiesRequest()
        answer = await self._call("NodeGetCapabilities", self._node.node_get_capabilities, request)
        numbers = {int(found.rpc.type) for found in answer.capabilities if found.rpc is not None}
        return frozenset(known for known in Capability if known.value in numbers)

    async def stage(self, request: StageRequest, *, is_migrated: bool = False) -> None:
        """Make a volume ready on the node: NodeStageVolume."""
        message = v1.NodeStageVolumeRequest(
            volume_id=request.volume.handle,
            publish_context=dict(request.publish_context),
            staging_target_path=request.path,
            volume_capability=self.capability_of(request.access),
            secrets=dict(request.secrets),
            volume_context=dict(request.volume_context),
        )
        await self._call(
            "NodeStageVolume", self._node.node_stage_volume, message, is_migrated=is_migrated
        )

    async def unstage(self, volume: CsiVolume, path: str) -> None:
        """Undo `stage`: NodeUnstageVolume."""
        message = v1.NodeUnstageVolumeRequest(volume_id=volume.handle, staging_target_path=path)
        await self._call("NodeUnstageVolume", self._node.node_unstage_volume, message)

    async def publish(self, request: PublishRequest, *, is_migrated: bool = False) -> None:
        """Mount a volume for a pod: NodePublishVolume."""
        message = v1.NodePublishVolumeRequest(
            volume_id=request.volume.handle,
            publish_context=dict(request.publish_context),
            staging_target_path=request.staging_path,
            target_path=request.target,
            volume_capability=self.capability_of(request.access),
            readonly=request.read_only,
            secrets=dict(request.secrets),
            volume_context=dict(request.volume_context),
        )
        await self._call(
            "NodePublishVolume", self._node.node_publish_volume, message, is_migrated=is_migrated
        )

    async def unpublish(self, volume: CsiVolume, target: str) -> None:
        """Undo `publish`: NodeUnpublishVolume."""
        message = v1.NodeUnpublishVolumeRequest(volume_id=volume.handle, target_path=target)
        await self._call("NodeUnpublishVolume", self._node.node_unpublish_volume, message)

    async def volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        """Return usage and condition of a volume: NodeGetVolumeStats."""
        return await self._call("NodeGetVolumeStats", self._node.node_get_volume_stats, request)

    async def expand(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        """Let a file system or device grow on the node: NodeExpandVolume."""
        return await self._call("NodeExpandVolume", self._node.node_expand_volume, request)

    def capability_of(self, access: Access) -> v1.VolumeCapability:
        """Return the VolumeCapability for a use of a volume by this driver's capabilities."""
        is_precise = self.can(Capability.SINGLE_NODE_MULTI_WRITER)
        modes = _SINGLE_NODE_MODES if is_precise else _MODES
        mode = v1.VolumeCapabilityAccessMode(mode=modes.get(access.mode, _Mode.UNKNOWN))
        if access.is_block or access.fs_type == _BLOCK:
            block = v1.VolumeCapabilityBlockVolume()
            return v1.VolumeCapability(block=block, access_mode=mode)
        mount = v1.VolumeCapabilityMountVolume(
            fs_type=access.fs_type,
            mount_flags=list(access.mount_flags),
            volume_mount_group="" if access.group is None else str(access.group),
        )
        return v1.VolumeCapability(mount=mount, access_mode=mode)

    async def _call(
        self,
        name: str,
        method: UnaryUnaryMethod[RequestT, ReplyT],
        request: RequestT,
        *,
        is_migrated: bool = False,
    ) -> ReplyT:
        began, code = time.perf_counter(), CODE_NAMES[Status.CANCELLED]
        ended = self._begin(name, request)
        try:
            answer = await method(request, timeout=CSI_TIMEOUT)
            code = CODE_NAMES[Status.OK]
            ended(None)
            return answer
        except GRPCError as exc:
            code = CODE_NAMES[exc.status]
            error = _call_error(exc)
            ended(error)
            raise error from exc
        finally:
            labels = (
                self.driver.name,
                f"/csi.v1.Node/{name}",
                code,
                "true" if is_migrated else "false",
            )
            self._meter.observe(_DURATION, time.perf_counter() - began, labels, STORAGE)

    def _begin(self, name: str, request: Message) -> Callable[[BaseException | None], None]:
        """Note a call that changes a volume; return what is told of its end."""
        if name.startswith("NodeGet"):
            return lambda _error: None
        found = (getattr(request, field, "") for field in ("volume_id", *_PATHS))
        return self._notes.begin(name, [self.driver.name, *(text for text in found if text)])


def _call_error(exc: GRPCError) -> CsiCallError:
    # grpc-go's text for a deadline of its own.
    text = "context deadline exceeded" if exc.status is Status.DEADLINE_EXCEEDED else exc.message
    return CsiCallError(
        CODE_NAMES[exc.status], (text or "")[:_MOST_TEXT], is_final=exc.status not in _UNCERTAIN
    )
