"""The volumes that the attach controller has attached to this node.

`volumesAttached` of the node's status names them, and their VolumeAttachments have what the
driver's controller returned for the node. Source: GenerateVerifyControllerAttachedVolumeFunc in
pkg/volume/util/operationexecutor, and WaitForAttach in pkg/volume/csi/csi_attacher.go.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from kubelet_trio.model import get_logger, sha256
from kubelet_trio.objects.errors import ObjectError

log = get_logger()

_RESOURCE_EXHAUSTED = 8  # gRPC's code


def unique_volume(driver: str, handle: str) -> str:
    """Return a CSI volume's name in `volumesInUse` and `volumesAttached`."""
    return f"kubernetes.io/csi/{driver}^{handle}"


def attachment_name(driver: str, handle: str, node: str) -> str:
    """Return the name of a volume's VolumeAttachment (getAttachmentName in pkg/volume/csi)."""
    return f"csi-{sha256(f'{handle}{driver}{node}'.encode()).hexdigest()}"


class ClusterAttachments:
    """Which volumes the attach controller has attached to this node."""

    def __init__(
        self, api: KubeApi, name: str, node: AsyncValue[Node | None], *, by_controller: bool = True
    ) -> None:
        """Args:
        api: the API server.
        name: the node's name.
        node: its object; None while it is not known.
        by_controller: `enableControllerAttachDetach`.
        """
        self._api = api
        self._name = name
        self._node = node
        self._by_controller = by_controller
        self._contexts: dict[str, Mapping[str, str]] = {}  # as last read, by unique name

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
        volume = unique_volume(driver, handle)
        for gone in self._contexts.keys() - _attached(self._node.value).keys():
            del self._contexts[gone]
        await self._node.wait_value(lambda now: volume in _attached(now))
        name = attachment_name(driver, handle, self._name)
        try:
            found = await self._api.get(VolumeAttachment, name)
        except KubeUnavailableError as exc:
            # The context does not change while the volume stays attached.
            if volume not in self._contexts:
                raise _unread(handle, name, exc) from exc
            log.info("attachment.unread", volume=volume, error=str(exc))
        except API_ERRORS as exc:
            raise _unread(handle, name, exc) from exc
        else:
            self._contexts[volume] = _context(found, handle)
        return self._contexts[volume]

    async def wait_device(self, volume: str) -> None:
        """Wait until the node's `volumesAttached` lists a volume, by its unique name.

        Has no deadline. Raises `ObjectError`: the node cannot be read, or says otherwise by now.
        """
        await self._node.wait_value(lambda now: volume in _attached(now))
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
        return _attached(self._node.value).get(volume)

    def is_attached(self, driver: str, handle: str) -> bool:
        """Whether the node's `volumesAttached` lists a volume."""
        return unique_volume(driver, handle) in _attached(self._node.value)

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
