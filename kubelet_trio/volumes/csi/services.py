"""CSI for an agent, loaded only when a driver registers or the first such volume appears."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trio_util import AsyncValue

from kubelet_trio.model import Meter, Offload, Purpose, get_logger, offload_for
from kubelet_trio.objects import TokenRequester
from kubelet_trio.volumes.attaching import NoVolumesInUse, VolumesInUse
from kubelet_trio.volumes.csi.types import CSI_PLUGIN, Attachments, CallNotes, Driver, NoAttachments
from kubelet_trio.volumes.errors import VolumeStepError
from kubelet_trio.volumes.layout import CSI
from kubelet_trio.volumes.measure import VolumeMeter
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.ownership import Walks
from kubelet_trio.volumes.spec import AsyncKind

if TYPE_CHECKING:
    from kubelet_trio.grpc import Channel
    from kubelet_trio.volumes.csi.drivers import DriverTable
    from kubelet_trio.volumes.csi.plugin import CsiPlugin
    from kubelet_trio.volumes.csi.usage import DriverUsage
    from kubelet_trio.volumes.loop import BlockDevices

log = get_logger()

_MOST_PROBLEMS = 5  # with records, in an error


class CsiServices:
    """The drivers of a node, and the plugin for their volumes."""

    def __init__(
        self,
        root_dir: Path,
        node_name: str,
        mounter: Mounter,
        offload: Offload,
        *,
        tokens: TokenRequester,
        attachments: Attachments | None = None,
        in_use: VolumesInUse | None = None,
        meter: Meter | None = None,
        connect: Callable[[str], Channel] | None = None,
        install: Callable[[Driver], Awaitable[None]] | None = None,
        devices: BlockDevices | None = None,
        notes: CallNotes | None = None,
    ) -> None:
        """Take the seams; nothing is loaded yet.

        Args:
            root_dir: the agent's.
            node_name: of the node, as in its VolumeAttachments.
            mounter: the kernel's mounts.
            offload: runs blocking work in threads.
            tokens: issues the service account tokens that drivers want.
            attachments: which volumes are attached; None: there is no attach controller.
            in_use: the node's `volumesInUse`; None: nobody reads it.
            meter: measures the calls of drivers.
            connect: makes the channel to a driver's socket; None: as gRPC does.
            install: tells the API server of a driver that registers; None: there is none.
            devices: the host's block devices; None: the kernel's.
            notes: is told of the calls of drivers; None: nobody is.
        """
        self.drivers: AsyncValue[Mapping[str, Driver]] = AsyncValue({})
        self._root_dir = root_dir
        self._node_name = node_name
        self._mounter = mounter
        self._offload = offload
        self._tokens = tokens
        self._attachments = attachments or NoAttachments()
        self._in_use = in_use or NoVolumesInUse()
        self._meter = meter or Meter()
        self._connect = connect
        self._install = install
        self._devices = devices
        self._notes = notes

    @cached_property
    def table(self) -> DriverTable:
        """The registered drivers, also the handler of plugins of type `CSIPlugin`."""
        from kubelet_trio.grpc import Channel
        from kubelet_trio.volumes.csi.drivers import DriverTable

        connect = self._connect or Channel
        return DriverTable(self._meter, self.drivers, connect, self._install, self._notes)

    async def refresh(self, name: str) -> None:
        """Ask a driver for its facts again, such as its limit of volumes; log a failure."""
        try:
            await self.table.refresh(name)
        except VolumeStepError as exc:
            log.warning("csi.driver_not_refreshed", driver=name, error=str(exc))

    async def restore(self) -> None:
        """List the volumes that an earlier agent has left on disk as in use.

        Raises OSError if that cannot be all of them.
        """
        if await self._offload(self._has_any):
            from kubelet_trio.volumes.csi.data import damaged_records, volumes_on_disk

            for volume in await self._offload(volumes_on_disk, self._root_dir):
                self._in_use.note(volume.unique_name)
            problems = await self._offload(damaged_records, self._root_dir)
            if problems:
                raise OSError("; ".join(problems[:_MOST_PROBLEMS]))

    def _has_any(self) -> bool:
        return self._has_staged() or any(self._root_dir.glob(f"pods/*/volumes/{CSI}"))

    def _has_staged(self) -> bool:
        return (self._root_dir / "plugins" / CSI_PLUGIN).is_dir()

    def usage(self) -> DriverUsage:
        """Return what measures the volumes of the drivers."""
        from kubelet_trio.volumes.csi.usage import DriverUsage

        return DriverUsage(self.drivers, lambda name: self.table.client(name))

    def kind(self, walks: Walks, measured: VolumeMeter) -> AsyncKind:
        """Return the kind of volume for a `VolumeManager`."""
        return AsyncKind(
            "csi",
            CSI.__eq__,
            self._has_staged,
            lambda: self._plugin(walks, measured),
            self.restore,
            lambda name: self.drivers.wait_value(lambda drivers: name in drivers),
        )

    def _plugin(self, walks: Walks, measured: VolumeMeter) -> CsiPlugin:
        from kubelet_trio.volumes.block import DeviceMaps
        from kubelet_trio.volumes.csi.block import CsiBlocks
        from kubelet_trio.volumes.csi.node import CsiNode
        from kubelet_trio.volumes.csi.plugin import CsiPlugin
        from kubelet_trio.volumes.keyed import KeyedLocks, LeavingOffload

        locks = KeyedLocks()
        # A driver's file system may hang as a disk does: its server may be dead. Its calls are then
        # left, and keep the lock of the volume.
        offload = LeavingOffload(locks.calls, offload_for(self._offload, Purpose.DEVICES))
        node = CsiNode(
            self._root_dir,
            self._node_name,
            self.table,
            self._mounter,
            offload,
            self._attachments,
            self._in_use,
            self._tokens,
            walks,
            measured,
            locks,
        )
        return CsiPlugin(node, CsiBlocks(node, DeviceMaps(self._mounter, self._devices)))
