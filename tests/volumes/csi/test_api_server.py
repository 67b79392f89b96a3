"""Drivers and volumes as the API server is told of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kubelet_trio.model import PodUid
from kubelet_trio.volumes.csi import Driver
from tests.volumes.csi.world import (
    DRIVER,
    InUse,
    World,
    claimed,
    driver_object,
    inline,
    persistent,
    pod_of,
)

A, B = PodUid("u-a"), PodUid("u-b")
NAME = f"kubernetes.io/csi/{DRIVER}^vol-1"


async def test_a_driver_is_registered_once_the_api_server_knows_it(tmp_path: Path) -> None:
    told: list[Driver] = []

    async def install(driver: Driver) -> None:
        assert world.csi.drivers.value == {}
        told.append(driver)

    world = World(tmp_path, install=install)
    world.driver.facts = replace(world.driver.facts, node_id="n-7", max_volumes=4)
    async with world.running():
        assert [(d.name, d.node_id, d.max_volumes) for d in told] == [(DRIVER, "n-7", 4)]
        assert list(world.csi.drivers.value.values()) == told


async def test_a_driver_that_the_api_server_refuses_is_not_registered(tmp_path: Path) -> None:
    async def install(_driver: Driver) -> None:
        raise ValueError("topology value collision")

    world = World(tmp_path, install=install)
    refused = pytest.RaisesExc(ValueError, match="topology value collision")
    with pytest.RaisesGroup(refused, flatten_subgroups=True):
        async with world.running():
            pytest.fail("it was registered")
    assert world.csi.drivers.value == {}


async def test_a_driver_is_asked_for_its_limit_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        world.driver.facts = replace(world.driver.facts, max_volumes=9)
        await world.csi.refresh(DRIVER)
        assert world.csi.drivers.value[DRIVER].max_volumes == 9
        await world.csi.refresh("nobody.example.org")  # logged
        assert list(world.csi.drivers.value) == [DRIVER]


async def test_a_restarted_agent_lists_what_is_mounted_until_it_is_not(tmp_path: Path) -> None:
    in_use = InUse()
    world = World(tmp_path, in_use=in_use)
    world.objects.put(*persistent(), driver_object(attachRequired=True))
    async with world.running():
        await world.volumes.mount(pod_of(A, claimed()))
        await world.volumes.mount(pod_of(B, inline()))
        assert in_use.names == {NAME}
    in_use.names.clear()
    world.restart()
    await world.csi.restore()
    assert in_use.names == {NAME}
    async with world.running():
        await world.volumes.unmount(B)
        assert in_use.names == {NAME}
        await world.volumes.unmount(A)
        assert in_use.names == set()
