"""The calls of a CSI node service as plain values, for the rules and for tests that read the log.

One class serves all methods; fields that a method does not have stay empty. Source of the fields:
"Node Service RPC" in the CSI specification v1.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubelet_trio.grpc import Status

STAGE = "NodeStageVolume"
UNSTAGE = "NodeUnstageVolume"
PUBLISH = "NodePublishVolume"
UNPUBLISH = "NodeUnpublishVolume"
STATS = "NodeGetVolumeStats"
EXPAND = "NodeExpandVolume"
GET_INFO = "NodeGetInfo"
GET_CAPABILITIES = "NodeGetCapabilities"

# A volume has at most one of these in progress ("Error Scheme", 10 ABORTED).
EXCLUSIVE = frozenset({STAGE, UNSTAGE, PUBLISH, UNPUBLISH, EXPAND})

# VolumeCapability.AccessMode.Mode, by its number.
ACCESS_MODES = (
    "UNKNOWN",
    "SINGLE_NODE_WRITER",
    "SINGLE_NODE_READER_ONLY",
    "MULTI_NODE_READER_ONLY",
    "MULTI_NODE_SINGLE_WRITER",
    "MULTI_NODE_MULTI_WRITER",
    "SINGLE_NODE_SINGLE_WRITER",
    "SINGLE_NODE_MULTI_WRITER",
)

# Statuses after which the call may have taken effect (isFinalError in upstream's csi_client.go).
UNCERTAIN = frozenset(
    {
        Status.CANCELLED,
        Status.DEADLINE_EXCEEDED,
        Status.UNAVAILABLE,
        Status.RESOURCE_EXHAUSTED,
        Status.ABORTED,
    }
)

# Keys of a volume context that the kubelet adds; the driver's own never begin so.
_OF_THE_KUBELET = "csi.storage.k8s.io/"
EPHEMERAL_KEY = _OF_THE_KUBELET + "ephemeral"


@dataclass(frozen=True, slots=True)
class AskedCapability:
    """A `VolumeCapability`: how a caller wants to use a volume."""

    access_mode: str = "SINGLE_NODE_WRITER"
    is_block: bool = False
    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()
    mount_group: str = ""

    @property
    def kind(self) -> str:
        return "block" if self.is_block else "mount"


@dataclass(frozen=True, slots=True)
class CsiCall:
    """One call that reached a driver."""

    method: str
    volume_id: str = ""
    staging_path: str = ""
    path: str = ""  # target_path, or volume_path of stats and expansion
    capability: AskedCapability | None = None
    is_read_only: bool = False
    publish_context: Mapping[str, str] = field(default_factory=dict)
    volume_context: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    required_bytes: int = 0  # of an expansion

    @property
    def is_ephemeral(self) -> bool:
        """Whether it publishes a volume that exists for its pod only (an inline volume)."""
        return self.volume_context.get(EPHEMERAL_KEY) == "true"

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What must stay equal when the call is repeated: not secrets, nor what the kubelet adds.

        With `requiresRepublish` the kubelet publishes again with new tokens in the context.
        """
        own = {k: v for k, v in self.volume_context.items() if not k.startswith(_OF_THE_KUBELET)}
        context = tuple(sorted(own.items()))
        return (
            self.capability,
            self.is_read_only,
            tuple(sorted(self.publish_context.items())),
            context,
        )

    @property
    def driver_context(self) -> dict[str, str]:
        """Return the volume context without the kubelet's keys."""
        items = self.volume_context.items()
        return {k: v for k, v in items if not k.startswith(_OF_THE_KUBELET)}


def saved_call(call: CsiCall) -> dict[str, Any]:
    """Return a call as JSON values, without its secrets; `loaded_call` reads them."""
    asked = call.capability or AskedCapability()
    return {
        "method": call.method,
        "volume_id": call.volume_id,
        "staging_path": call.staging_path,
        "path": call.path,
        "is_read_only": call.is_read_only,
        "publish_context": dict(call.publish_context),
        "volume_context": dict(call.volume_context),
        "capability": {
            "access_mode": asked.access_mode,
            "is_block": asked.is_block,
            "fs_type": asked.fs_type,
            "mount_flags": list(asked.mount_flags),
            "mount_group": asked.mount_group,
        },
    }


def loaded_call(saved: Mapping[str, Any]) -> CsiCall:
    """Return the call that `saved_call` saved."""
    asked = saved["capability"]
    capability = AskedCapability(**{**asked, "mount_flags": tuple(asked["mount_flags"])})
    return CsiCall(**{**saved, "capability": capability})


def asked_capability(message: Any, is_block: bool) -> AskedCapability:
    """Read a `VolumeCapability` of any protobuf library; the libraries differ in oneofs."""
    number = int(message.access_mode.mode) if message.access_mode is not None else 0
    mode = ACCESS_MODES[number] if number < len(ACCESS_MODES) else str(number)
    mount = None if is_block else message.mount
    if mount is None:
        return AskedCapability(mode, is_block)
    return AskedCapability(
        mode, False, mount.fs_type, tuple(mount.mount_flags), mount.volume_mount_group
    )


def csi_call(method: str, request: Any, capability: AskedCapability | None) -> CsiCall:
    """Read a request of the node service, of any protobuf library."""

    def text(name: str) -> str:
        return str(getattr(request, name, ""))

    def texts(name: str) -> dict[str, str]:
        return dict(getattr(request, name, None) or {})

    wanted = getattr(request, "capacity_range", None)
    return CsiCall(
        method,
        text("volume_id"),
        text("staging_target_path"),
        text("target_path") or text("volume_path"),
        capability,
        bool(getattr(request, "readonly", False)),
        texts("publish_context"),
        texts("volume_context"),
        texts("secrets"),
        wanted.required_bytes if wanted is not None else 0,
    )
