"""What CSI volumes need from other rooms, and the facts about drivers and volumes.

Nothing in `volumes.csi` talks to the API server. In a cluster, `ClusterAttachments` implements
`Attachments`; a node without an API server has `NoAttachments`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kubelet_trio.objects import attachment_name, csi_unique_name

CSI_PLUGIN = "kubernetes.io/csi"  # CSIPluginName in pkg/volume/csi
CSI_TIMEOUT = 120.0  # seconds for a call of a driver: csiTimeout in pkg/volume/csi


@dataclass(frozen=True, slots=True, order=True)
class CsiVolume:
    """A volume as its driver knows it."""

    driver: str
    handle: str  # CSI's volume_id

    @property
    def unique_name(self) -> str:
        """Its name in a node's `volumesInUse` and `volumesAttached`."""
        return csi_unique_name(self.driver, self.handle)

    def attachment_name(self, node: str) -> str:
        """Return the name of its VolumeAttachment."""
        return attachment_name(self.driver, self.handle, node)


class Capability(enum.IntEnum):
    """What a driver can do on a node: `NodeServiceCapability.RPC.Type`, with its numbers."""

    STAGE_UNSTAGE_VOLUME = 1
    GET_VOLUME_STATS = 2
    EXPAND_VOLUME = 3
    VOLUME_CONDITION = 4
    SINGLE_NODE_MULTI_WRITER = 5
    VOLUME_MOUNT_GROUP = 6


@dataclass(frozen=True, slots=True)
class Driver:
    """A registered driver, as its NodeGetInfo and NodeGetCapabilities describe it."""

    name: str
    endpoint: str  # the path of its socket
    node_id: str
    max_volumes: int = 0  # the most volumes of a node; 0: no limit
    topology: Mapping[str, str] = field(default_factory=dict)  # segments by key
    capabilities: frozenset[Capability] = frozenset()

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities


class Attachments(Protocol):
    """Which volumes the attach controller has attached to this node."""

    async def wait_attached(self, driver: str, handle: str) -> Mapping[str, str]:
        """Wait until a volume is attached; return the publish context of its VolumeAttachment.

        Called for each set-up, so it returns at once for a volume that is known as attached. It
        has no deadline of its own: the caller limits it.

        Raises `ObjectError` with the Go kubelet's text: the attachment cannot be read, is being
        deleted, or carries an attach error.
        """
        ...

    def is_attached(self, driver: str, handle: str) -> bool:
        """Whether the node's `volumesAttached` lists a volume."""
        ...

    async def is_exhausted(self, driver: str, handle: str) -> bool:
        """Whether attaching failed because the driver's limit of volumes is reached.

        Raises `ObjectError`.
        """
        ...


class CallNotes(Protocol):
    """Is told of the calls that change volumes, such as the flight recorder. Never blocks."""

    def begin(
        self, operation: str, args: Sequence[object]
    ) -> Callable[[BaseException | None], None]:
        """Note a call without its secrets; return what is told of its end, with its error."""
        ...


class NoNotes:
    """Notes nothing."""

    def begin(
        self, operation: str, args: Sequence[object]
    ) -> Callable[[BaseException | None], None]:
        return lambda _error: None


class NoAttachments:
    """The `Attachments` of a node without an API server: every volume counts as attached."""

    async def wait_attached(self, driver: str, handle: str) -> Mapping[str, str]:
        return {}

    def is_attached(self, driver: str, handle: str) -> bool:
        return True

    async def is_exhausted(self, driver: str, handle: str) -> bool:
        return False
