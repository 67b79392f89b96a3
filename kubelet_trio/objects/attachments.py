"""The volumes that the attach controller has attached to this node.

`volumesAttached` of the node's status names them, and their VolumeAttachments have what the
driver's controller returned for the node. Source: GenerateVerifyControllerAttachedVolumeFunc in
pkg/volume/util/operationexecutor, and WaitForAttach in pkg/volume/csi/csi_attacher.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import Node, NodeStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import (
    CSIDriver,
    VolumeAttachment,
    VolumeAttachmentStatus,
    VolumeError,
)
from trio_util import AsyncValue

from kubelet_trio.kube import API_ERRORS, KubeApi, KubeUnavailableError, NotFoundError
from kubelet_trio.model import get_logger
from kubelet_trio.objects.errors import ObjectError
from kubelet_trio.objects.kinds import attachment_key, attachment_name, csi_unique_name
from kubelet_trio.objects.memory import NO_MEMORY, ClusterMemory

log = get_logger()

_RESOURCE_EXHAUSTED = 8  # gRPC's code


@dataclass(frozen=True, slots=True)
class _Attachment:
    """A VolumeAttachment's name and publish context."""

    name: str
    context: Mapping[str, str]


class ClusterAttachments:
    """Which volumes the attach controller has attached to this node."""

    def __init__(
        self,
        api: KubeApi,
        name: str,
        node: AsyncValue[Node | None],
        *,
        by_controller: bool = True,
        memory: ClusterMemory = NO_MEMORY,
    ) -> None:
        """Take the seams; nothing is read yet.

        Args:
            api: the API server.
            name: the node's name.
            node: its object; None while it is not known.
            by_controller: `enableControllerAttachDetach`.
            memory: keeps attachments, for a node that starts without the API server.
        """
        self._api = api
        self._name = name
        self._node = node
        self._by_controller = by_controller
        self._memory = memory
        self._contexts: dict[str, _Attachment] = {}  # as last read, by unique name

    async def wait_attached(self, driver: str, handle: str) -> Mapping[str, str]:
        """Wait until a volume is attached; return its publish context. Has no deadline.

        Raises `ObjectError` with the Go kubelet's text: the VolumeAttachment cannot be read, is
        being deleted, or shows why attaching failed.
        """
        if not self._by_controller:
            raise ObjectError(
                "attaching volumes from the kubelet is not supported: the volume's driver needs "
                "enableControllerAttachDetach"
            )
        volume = csi_unique_name(driver, handle)
        name = attachment_name(driver, handle, self._name)
        for gone in self._contexts.keys() - _attached(self._known()).keys():
            self._memory.drop_object(attachment_key(self._contexts.pop(gone).name))
        await self._wait_listed(volume)
        known = self._contexts.get(volume)
        if self._memory.is_cut_off and known is None:
            known = self._last(name, handle)
        if known is None or not self._memory.is_cut_off:
            known = self._contexts[volume] = await self._read(handle, name, known)
        return known.context

    async def _wait_listed(self, volume: str) -> None:
        if volume not in _attached(self._known()):
            await self._node.wait_value(lambda now: volume in _attached(now))

    def _known(self) -> Node | None:
        """Return the node's object, before the first answer of the API server the last one."""
        if self._node.value is None and self._memory.is_cut_off:
            return self._memory.last_node
        found: Node | None = self._node.value
        return found

    def _last(self, name: str, handle: str) -> _Attachment | None:
        """Return an attachment as it was before this start. Raises `ObjectError` as `_context`."""
        found = self._memory.last_object(attachment_key(name))
        if not isinstance(found, VolumeAttachment):
            return None
        return _Attachment(name, _context(found, handle))

    async def _read(self, handle: str, name: str, known: _Attachment | None) -> _Attachment:
        """Read an attachment; what is `known` serves while the API server does not answer.

        Raises `ObjectError`.
        """
        try:
            found = await self._api.get(VolumeAttachment, name)
        except KubeUnavailableError as exc:
            # The context does not change while the volume stays attached.
            if known is None:
                raise _unread(handle, name, exc) from exc
            log.info("attachment.unread", attachment=name, error=str(exc))
            return known
        except API_ERRORS as exc:
            raise _unread(handle, name, exc) from exc
        self._memory.note_object(attachment_key(name), found)
        return _Attachment(name, _context(found, handle))

    async def wait_device(self, volume: str) -> None:
        """Wait until the node's `volumesAttached` lists a volume, by its unique name.

        Has no deadline. Raises `ObjectError`: the node cannot be read, or says otherwise by now.
        """
        await self._wait_listed(volume)
        if self._memory.is_cut_off:
            return
        try:
            node: Node | None = await self._api.get(Node, self._name)
        except KubeUnavailableError as exc:
            node = self._node.value
            log.info("attachment.unread", volume=volume, error=str(exc))
        except API_ERRORS as exc:
            raise ObjectError(f"failed fetching node from API server: {exc}") from exc
        if volume not in _attached(node):
            raise ObjectError("Volume not attached according to node status")

    def device(self, volume: str) -> str | None:
        """Return the device path of an attached volume, by its unique name; None: not attached."""
        return _attached(self._known()).get(volume)

    def is_attached(self, driver: str, handle: str) -> bool:
        """Whether the node's `volumesAttached` lists a volume."""
        return csi_unique_name(driver, handle) in _attached(self._known())

    async def is_exhausted(self, driver: str, handle: str) -> bool:
        """Whether attaching failed because the node has the most volumes of the driver.

        Only a driver whose limit can change is asked (`nodeAllocatableUpdatePeriodSeconds`;
        VerifyExhaustedResource in pkg/volume/csi/csi_plugin.go). Raises `ObjectError`.
        """
        name = attachment_name(driver, handle, self._name)
        try:
            spec = (await self._api.get(CSIDriver, driver)).spec
            if not spec.nodeAllocatableUpdatePeriodSeconds:
                return False
            found = await self._api.get(VolumeAttachment, name)
        except NotFoundError:
            return False
        except API_ERRORS as exc:
            raise _unread(handle, name, exc) from exc
        error = _status(found).attachError
        return error is not None and error.errorCode == _RESOURCE_EXHAUSTED


def _context(found: VolumeAttachment, handle: str) -> Mapping[str, str]:
    """Return an attachment's publish context. Raises `ObjectError` (verifyAttachmentStatus)."""
    meta, status = found.metadata or ObjectMeta(), _status(found)
    if meta.deletionTimestamp is not None:
        raise ObjectError("volume attachment is being deleted")
    if status.attached:
        return status.attachmentMetadata or {}
    error: VolumeError | None = status.attachError
    if error is not None:
        raise ObjectError(error.message or "")
    raise ObjectError(f"volume {handle} is not attached for volume attachment {meta.name}")


def _status(found: VolumeAttachment) -> VolumeAttachmentStatus:
    return found.status or VolumeAttachmentStatus(attached=False)


def _attached(node: Node | None) -> Mapping[str, str]:
    """Return the device paths of the attached volumes, by name."""
    status = (node.status if node is not None else None) or NodeStatus()
    return {volume.name: volume.devicePath for volume in status.volumesAttached or ()}


def _unread(handle: str, name: str, exc: Exception) -> ObjectError:
    return ObjectError(f"volume {handle} has GET error for volume attachment {name}: {exc}")
