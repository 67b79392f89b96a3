"""Devices as a manager of the node, with the checkpoint of an earlier agent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.devices.checkpoint import (
    CHECKPOINT,
    MOST_CHECKPOINT,
    Checkpoint,
    DeviceCheckpointError,
    decode_checkpoint,
    encode_checkpoint,
)
from kubelet_trio.managers.devices.inventory import Inventory
from kubelet_trio.managers.devices.types import HEALTHY, DeviceState
from kubelet_trio.managers.shares import ContainerShare, DeviceHealth
from kubelet_trio.managers.types import Refusal
from kubelet_trio.model import Meter, PodUid, get_logger, read_regular

log = get_logger()

DIRECTORY = "device-plugins"  # below the root directory


@dataclass(frozen=True, slots=True)
class LoadedDevices:
    """What an earlier agent has left.

    Attributes:
        checkpoint: what containers have, and the resources that were registered.
        exists: whether there is such a file. Without one the node is new, and the extended
            resources in its object are set to 0 (ShouldResetExtendedResourceCapacity).
    """

    checkpoint: Checkpoint
    exists: bool

    @property
    def file(self) -> str:
        """The file, below the root directory."""
        return f"{DIRECTORY}/{CHECKPOINT}"

    def encode(self) -> bytes:
        """Return the checkpoint."""
        return encode_checkpoint(self.checkpoint.state, self.checkpoint.registered)


def load_devices(root_dir: Path) -> LoadedDevices:
    """Read the checkpoint of devices. Blocks.

    One that cannot be read is logged, and devices start without it, as in the Go kubelet:
    containers that run keep theirs, but nobody knows which these are.
    """
    path = root_dir / DIRECTORY / CHECKPOINT
    try:
        checkpoint = decode_checkpoint(read_regular(path, MOST_CHECKPOINT))
    except FileNotFoundError:
        return LoadedDevices(Checkpoint(), exists=False)
    except (OSError, DeviceCheckpointError) as exc:
        log.error(
            "device.checkpoint_unreadable",
            path=str(path),
            error=str(exc),
            effect="devices that running containers have may be given to others as well",
        )
        return LoadedDevices(Checkpoint(), exists=True)
    return LoadedDevices(replace(checkpoint, state=_readable(checkpoint.state)), exists=True)


def _readable(state: DeviceState) -> DeviceState:
    """Return the state without the shares whose answers of plugins are damaged."""
    if not state.pods:
        return state  # most nodes: what reads the answers is not loaded
    from kubelet_trio.managers.devices.options import is_readable

    for uid, container, resource, share in list(state.each()):
        if share.response is not None and not is_readable(share.response):
            log.error(
                "device.share_unreadable", podUID=uid, containerName=container, resource=resource
            )
            state = state.without_share(uid, container, resource)
    return state


class DeviceProvider:
    """Devices as one of the node's managers: see `managers.node.Provider`."""

    file = f"{DIRECTORY}/{CHECKPOINT}"

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory

    @property
    def rules(self) -> Inventory:
        """The decisions, by what the plugins list at the time."""
        return self.inventory

    def encode(self, state: DeviceState) -> bytes:
        """Return the checkpoint. Called in a thread: the inventory's values do not change."""
        return encode_checkpoint(state, self.inventory.registered)

    def pods(self, state: DeviceState) -> Collection[PodUid]:
        """Return the pods that have devices."""
        return state.pods.keys()

    def share(
        self, state: DeviceState, uid: PodUid, container: str, share: ContainerShare
    ) -> ContainerShare:
        """Return `share` with what a container's devices put into its config."""
        shares = state.shares(uid, container)
        if not shares:
            return share
        from kubelet_trio.managers.devices.options import device_options

        return replace(share, devices=device_options(shares, container))

    def started(self, state: DeviceState, pod: Pod, container: Container) -> DeviceState:
        """Return the state once a container runs: devices are lent in the order of containers."""
        return state

    def count(
        self,
        state: DeviceState,
        pod: Pod,
        container: Container,
        result: DeviceState | Refusal,
        meter: Meter,
    ) -> None:
        """Do nothing: upstream counts what plugins do, and not reservations."""

    def measure(self, state: DeviceState, meter: Meter) -> None:
        """Do nothing: upstream has no gauges of devices."""

    def begin(self, meter: Meter) -> None:
        """Do nothing: the counters have the names of resources."""

    def health(self, state: DeviceState, uid: PodUid, container: str) -> tuple[DeviceHealth, ...]:
        """Return the health of a container's devices, as listed last.

        Devices that no plugin lists count as healthy, as upstream (UpdateAllocatedResourcesStatus).
        """
        listed, found = self.inventory.rules.listed, []
        for resource, share in sorted(state.shares(uid, container).items()):
            if not share.ids:
                continue
            devices = listed[resource].devices if resource in listed else {}
            healthy = {
                name: name not in devices or devices[name].health == HEALTHY
                for name in sorted(share.ids)
            }
            found.append(DeviceHealth(resource, healthy))
        return tuple(found)
