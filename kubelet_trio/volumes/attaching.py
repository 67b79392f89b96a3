"""Volumes of host kinds that a controller attaches: iSCSI, FC and FlexVolumes of a cluster.

As for CSI volumes: a volume is in the node's `volumesInUse` before it is mounted, and until its
device is unmounted; it is mounted once `volumesAttached` lists it. What an earlier agent has left
is found by the directories on disk. Source: GenerateVerifyControllerAttachedVolumeFunc in
pkg/volume/util/operationexecutor, and GetVolumesInUse in pkg/kubelet/volumemanager.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from kubelet_trio.model import Offload
from kubelet_trio.objects import ObjectError
from kubelet_trio.volumes.errors import VolumeError, VolumeStepError
from kubelet_trio.volumes.spec import AsyncVolumePlugin, GrowingPlugin, VolumeSpec


class VolumesInUse(Protocol):
    """The node's `volumesInUse`: the attach controller detaches nothing that is listed there.

    Names are those of `volumesAttached`.
    """

    def note(self, name: str) -> None:
        """List a volume, in the next status of the node. Never blocks; may be repeated."""
        ...

    async def wait_reported(self, name: str) -> None:
        """Wait until the API server has a status of the node that lists the volume."""
        ...

    def drop(self, name: str) -> None:
        """Take a volume off the list, if it is there: no driver call for it can be in progress."""
        ...


class NoVolumesInUse:
    """The `VolumesInUse` of a node without an API server."""

    def note(self, name: str) -> None:
        """Do nothing: nobody attaches volumes."""

    async def wait_reported(self, name: str) -> None:
        """Return at once."""

    def drop(self, name: str) -> None:
        """Do nothing."""


class AttachedDevices(Protocol):
    """The node's `volumesAttached`, by unique names of volumes."""

    async def wait_device(self, name: str) -> None:
        """Wait until a volume is listed. Has no deadline of its own. Raises `ObjectError`."""
        ...

    def device(self, name: str) -> str | None:
        """Return the device path of a volume, "" if it has none; None: it is not listed."""
        ...


@dataclass(frozen=True, slots=True)
class AttachController:
    """The seams to the attach controller of a cluster."""

    in_use: VolumesInUse
    devices: AttachedDevices

    def device(self, name: str) -> str:
        """Return the device path of a volume. Raises OSError if it is not attached."""
        found = self.devices.device(name)
        if found is None:
            raise OSError(f"volume {name} is not attached according to node status")
        return found


class HostPlugin(AsyncVolumePlugin, GrowingPlugin, Protocol):
    """A plugin of a host kind."""

    async def is_attachable(self, spec: VolumeSpec) -> bool:
        """Whether the attach controller attaches a volume. Raises OSError, ValueError."""
        ...


@dataclass(slots=True)
class KindInUse:
    """The volumes of one kind that are in use on the node, whether a pod or the disk shows it."""

    controller: AttachController
    # Returns the names of what is on disk; blocks, and raises OSError.
    on_disk: Callable[[], frozenset[str]]
    offload: Offload
    _noted: set[str] = field(default_factory=set)
    _users: dict[str, set[str]] = field(default_factory=dict)  # names by the pod's UID

    def add(self, uid: str, name: str) -> None:
        """List a volume that a pod is about to get, or has."""
        self._users.setdefault(uid, set()).add(name)
        self._note(name)

    def is_wanted(self, uid: str, name: str) -> bool:
        """Whether a pod has tried to get a volume."""
        return name in self._users.get(uid, ())

    def forget(self, uid: str) -> None:
        """Forget a pod whose volumes are torn down."""
        self._users.pop(uid, None)

    async def restore(self) -> None:
        """List what an earlier agent has left on disk. Raises OSError."""
        for name in await self.offload(self.on_disk):
            self._note(name)

    async def settle(self) -> None:
        """Take off the list what neither a pod nor the disk shows. Raises OSError."""
        kept = await self.offload(self.on_disk)
        # The pods as they are now: one may have been added while the disk was read.
        for name in self._noted - kept.union(*self._users.values()):
            self._noted.discard(name)
            self.controller.in_use.drop(name)

    def _note(self, name: str) -> None:
        self._noted.add(name)
        self.controller.in_use.note(name)


class AttachedVolumes:
    """An `AsyncVolumePlugin` that waits for the attach controller before it sets volumes up."""

    def __init__(
        self, plugin: HostPlugin, kind: KindInUse, unique_name: Callable[[VolumeSpec], str]
    ) -> None:
        """Wrap a plugin.

        Args:
            plugin: sets the volumes up.
            kind: which of them are in use.
            unique_name: names a volume as the controller does; raises ValueError.
        """
        self._plugin = plugin
        self._kind = kind
        self._unique_name = unique_name

    @property
    def managed(self) -> bool:
        return self._plugin.managed

    @property
    def is_read_only(self) -> bool:
        return self._plugin.is_read_only

    def republishes(self, spec: VolumeSpec) -> bool:
        return self._plugin.republishes(spec)

    def path(self, spec: VolumeSpec) -> Path:
        return self._plugin.path(spec)

    async def is_set_up(self, spec: VolumeSpec) -> bool:
        return await self._plugin.is_set_up(spec)

    async def set_up(self, spec: VolumeSpec) -> None:
        """Report the volume as in use, wait until it is attached, and set it up.

        Raises `VolumeStepError`, and what the plugin raises.
        """
        # What is mounted stays attached: by the disk it is in use, since `restore` or earlier.
        if not await self._plugin.is_set_up(spec) and await self._plugin.is_attachable(spec):
            name = self._unique_name(spec)
            self._kind.add(spec.uid, name)
            await self._wait_attached(spec, name)
        await self._plugin.set_up(spec)

    async def grow(self, spec: VolumeSpec, size: int) -> None:
        """Let a volume grow. Raises `GrowthError`."""
        await self._plugin.grow(spec, size)

    async def tear_down(self, pod_dir: Path) -> None:
        """Undo the volumes of a pod; what nobody uses then is not in use any more.

        Raises `VolumeError`; the volumes of the pod then stay in use.
        """
        await self._plugin.tear_down(pod_dir)
        self._kind.forget(pod_dir.name)
        await self._settle()

    async def unused(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return what undoes what no pod needs; it is not in use any more after that."""
        await self._settle()
        found = await self._plugin.unused()
        return {name: partial(self._undo, undo) for name, undo in found.items()}

    async def _undo(self, undo: Callable[[], Awaitable[None]]) -> None:
        await undo()
        await self._settle()

    def is_attached(self, spec: VolumeSpec) -> bool:
        """Whether a volume is attached, or nobody has to attach it."""
        name = self._unique_name(spec)
        is_waiting = self._kind.is_wanted(spec.uid, name)
        return not is_waiting or self._kind.controller.devices.device(name) is not None

    async def is_exhausted(self, spec: VolumeSpec) -> bool:
        """Never: only CSI drivers have limits that change."""
        return False

    async def _wait_attached(self, spec: VolumeSpec, name: str) -> None:
        controller = self._kind.controller
        # Only then may the controller not detach it any more.
        await controller.in_use.wait_reported(name)
        try:
            await controller.devices.wait_device(name)
        except ObjectError as exc:
            step = f"{'MapVolume' if spec.is_block else 'MountVolume'}.WaitForAttach"
            raise VolumeStepError(str(exc), step) from exc

    async def _settle(self) -> None:
        try:
            await self._kind.settle()
        except OSError as exc:
            raise VolumeError("", f"looking for volumes in use failed: {exc}") from exc
