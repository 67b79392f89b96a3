"""What the API says of containers is what the managers have given them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubelet_trio.managers import CheckpointKeeper, ResourceManagers, load_managers
from kubelet_trio.managers.devices.inventory import Inventory
from kubelet_trio.managers.devices.provider import DeviceProvider
from kubelet_trio.managers.devices.types import Device, DeviceShare, DeviceState
from kubelet_trio.managers.podresources import (
    NOTHING,
    DeviceUse,
    MemoryUse,
    for_containers,
    held_by,
)
from kubelet_trio.model import Meter, PodUid, inline_offload
from tests.managers.node.machines import GI, static, two_nodes
from tests.managers.pods import container, pod

UID = PodUid("a")


@pytest.fixture
def managers(tmp_path: Path) -> ResourceManagers:
    machine = two_nodes()
    settings = static(memory=True, topology="single-numa-node")
    loaded = load_managers(settings, tmp_path, lambda: machine)
    assert loaded is not None
    return ResourceManagers(loaded, CheckpointKeeper(tmp_path, inline_offload), Meter())


def test_a_container_has_its_cpus_and_its_memory(managers: ResourceManagers) -> None:
    web, side = container("web", "2", memory="1Gi"), container("side", "500m", memory="2Gi")
    assert managers.admit(pod(web, side, uid=UID)) is None
    found = held_by(managers, UID, "web")
    shown = managers.share(UID, "web")
    assert ",".join(map(str, found.cpus)) == shown.cpuset_cpus.replace("-", ",")
    assert len(found.cpus) == 2
    assert found.memory == (MemoryUse("memory", GI, found.memory[0].nodes),)
    assert ",".join(map(str, found.memory[0].nodes)) == shown.cpuset_mems
    # One of the shared pool has no CPUs of its own.
    assert held_by(managers, UID, "side").cpus == ()
    assert held_by(managers, UID, "side").memory[0].size == 2 * GI
    assert held_by(managers, PodUid("other"), "web") == NOTHING
    managers.retain(())
    assert held_by(managers, UID, "web") == NOTHING


def test_the_node_has_what_is_not_reserved(managers: ResourceManagers) -> None:
    before = for_containers(managers)
    assert before.cpus == tuple(range(1, 16))  # CPU 0 is reserved
    assert before.memory == (MemoryUse("memory", 7 * GI, (0,)), MemoryUse("memory", 8 * GI, (1,)))
    assert before.devices == ()
    assert managers.admit(pod(container("web", "2", memory="1Gi"), uid=UID)) is None
    # It is what there is, not what is left.
    assert for_containers(managers) == before


class Devices:
    """A node with device plugins alone."""

    def __init__(self) -> None:
        self.inventory = Inventory(0b11)
        self.devices = DeviceState()

    def state(self, name: str) -> object:
        return self.devices if name == "devices" else None

    def provider(self, name: str) -> DeviceProvider | None:
        return DeviceProvider(self.inventory) if name == "devices" else None


def test_devices_are_ascending_with_their_nodes() -> None:
    node = Devices()
    for resource, by_node in (
        ("b.example/net", {1: ("n7", "n2"), 0: ("n7",)}),
        ("a.example/disk", {-1: ("d1", "d0")}),
    ):
        share = DeviceShare(by_node)
        node.devices = node.devices.with_share(UID, "web", resource, share)
    assert held_by(node, UID, "web").devices == (
        DeviceUse("a.example/disk", "d0"),
        DeviceUse("a.example/disk", "d1"),
        DeviceUse("b.example/net", "n2", (1,)),
        DeviceUse("b.example/net", "n7", (0, 1)),
    )
    assert held_by(node, UID, "other") == NOTHING


def test_only_healthy_devices_of_a_connected_plugin_are_allocatable() -> None:
    node = Devices()
    listed = {
        "d0": Device("d0"),
        "d1": Device("d1", "Unhealthy"),
        "d2": Device("d2", nodes=(1, 0)),
    }
    for resource in ("a.example/disk", "b.example/gone"):
        node.inventory.register(resource)
        node.inventory.take(resource, listed)
    node.inventory.stop("b.example/gone", 0.0)
    assert for_containers(node).devices == (
        DeviceUse("a.example/disk", "d0"),
        DeviceUse("a.example/disk", "d2", (0, 1)),
    )
