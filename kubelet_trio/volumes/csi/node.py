"""What every CSI volume of the node shares: drivers, seams, locks, and who uses which volume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kubelet_trio.model import Meter, Offload
from kubelet_trio.objects import NoTokens, ObjectError, TokenRequester
from kubelet_trio.volumes.attaching import NoVolumesInUse, VolumesInUse
from kubelet_trio.volumes.csi.client import DriverClient
from kubelet_trio.volumes.csi.inputs import VolumeUse
from kubelet_trio.volumes.csi.types import Attachments, CsiVolume, NoAttachments
from kubelet_trio.volumes.errors import DriverNotFoundError, VolumeStepError
from kubelet_trio.volumes.keyed import KeyedLocks
from kubelet_trio.volumes.measure import VolumeMeter
from kubelet_trio.volumes.mounter import Mounter
from kubelet_trio.volumes.ownership import Walks


class Clients(Protocol):
    """The calls of the registered drivers; `DriverTable` implements it."""

    def client(self, name: str) -> DriverClient:
        """Return the calls of a driver. Raises `DriverNotFoundError`."""
        ...

    async def refresh(self, name: str) -> None:
        """Ask a driver for its facts again. Raises `DriverNotFoundError` or `CsiCallError`."""
        ...


@dataclass(slots=True)
class VolumeUsers:
    """The pods that this process has tried to give a volume to, until they are torn down.

    Beside what is on disk: a volume can be staged, or listed as in use, for a pod that has no
    record of it yet.
    """

    _tried: dict[str, set[CsiVolume]] = field(default_factory=dict)  # by the pod's UID

    def add(self, uid: str, volume: CsiVolume) -> None:
        self._tried.setdefault(uid, set()).add(volume)

    def of_pod(self, uid: str) -> frozenset[CsiVolume]:
        return frozenset(self._tried.get(uid, ()))

    def remove(self, uid: str, volume: CsiVolume) -> None:
        left = self._tried.get(uid, set())
        left.discard(volume)
        if not left:
            self._tried.pop(uid, None)

    def uses(self, volume: CsiVolume) -> bool:
        """Whether any pod has tried to get a volume."""
        return any(volume in volumes for volumes in self._tried.values())


@dataclass(slots=True)
class CsiNode:
    """The node, for file systems and block devices of CSI drivers."""

    root_dir: Path
    node_name: str
    drivers: Clients
    mounter: Mounter
    offload: Offload
    attachments: Attachments = field(default_factory=NoAttachments)
    in_use: VolumesInUse = field(default_factory=NoVolumesInUse)
    tokens: TokenRequester = field(default_factory=NoTokens)
    walks: Walks = field(default_factory=Walks)
    measured: VolumeMeter = field(default_factory=lambda: VolumeMeter(Meter()))
    locks: KeyedLocks = field(default_factory=KeyedLocks)
    users: VolumeUsers = field(default_factory=VolumeUsers)

    @property
    def pods_dir(self) -> Path:
        return self.root_dir / "pods"

    async def wait_attached(self, use: VolumeUse) -> Mapping[str, str]:
        """List a volume as in use, wait until it is attached, and return its publish context.

        Raises `VolumeStepError`.
        """
        volume = use.volume
        if not use.is_attachable:
            # The record of another agent may not have shown that nobody attaches it.
            self.in_use.drop(volume.unique_name)
            return {}
        self.in_use.note(volume.unique_name)
        # Only then may the controller not detach it any more
        # (GenerateVerifyControllerAttachedVolumeFunc).
        await self.in_use.wait_reported(volume.unique_name)
        with failing_step("WaitForAttach", use):
            return await self.attachments.wait_attached(volume.driver, volume.handle)


@contextmanager
def failing_step(name: str, use: VolumeUse, without_driver: str = "") -> Iterator[None]:
    """Name the step in the errors that the block raises.

    Args:
        name: of the step, such as `MountDevice`.
        use: the volume.
        without_driver: the text before that of a missing driver.
    """
    step = f"{'MapVolume' if use.spec.is_block else 'MountVolume'}.{name}"
    try:
        yield
    except DriverNotFoundError as exc:
        raise VolumeStepError(f"{without_driver}{exc}", step) from exc
    except (VolumeStepError, ObjectError, OSError, ValueError) as exc:
        raise VolumeStepError(str(exc), step) from exc
