"""The table of registered drivers: what plugins are refused, described, replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from kubelet_trio.grpc import Status
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes.csi import Capability, Driver
from kubelet_trio.volumes.csi.drivers import DriverTable
from kubelet_trio.volumes.errors import CsiCallError, DriverNotFoundError
from tests.volumes.csi.world import DRIVER, World


@pytest.mark.parametrize(
    ("name", "versions", "text"),
    [
        (DRIVER, [], "plugin returned an empty list for supported versions"),
        (DRIVER, ["0.3.0"], "none of the versions specified [0.3.0] are supported"),
        (DRIVER, ["2.0.0", "x"], "none of the versions specified [2.0.0, x] are supported"),
        ("../etc", ["1.0.0"], "is no name of a CSI driver"),
        ("", ["1.0.0"], "is no name of a CSI driver"),
        ("a" * 64, ["1.0.0"], "is no name of a CSI driver"),
        ("volumeDevices", ["1.0.0"], "is no name of a CSI driver"),  # block volumes are there
    ],
)
def test_a_plugin_that_cannot_be_one_is_refused(name: str, versions: list[str], text: str) -> None:
    with pytest.raises(ValueError, match="validation failed for CSI Driver") as caught:
        DriverTable().validate(name, "/sock", versions)
    assert text in str(caught.value)


@pytest.mark.parametrize("versions", [["1.0.0"], ["v1.2"], ["0.3.0", "1.11.0", "2.0.0"]])
def test_version_1_is_spoken(versions: list[str]) -> None:
    DriverTable().validate(DRIVER, "/sock", versions)


async def test_a_driver_is_registered_while_its_task_runs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path, ("STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME"))
    world.driver.facts.max_volumes = 16
    world.driver.facts.topology = {"zone": "a"}
    async with world.running() as scope:
        assert world.csi.drivers.value == {
            DRIVER: Driver(
                DRIVER,
                "/csi.sock",
                "node-1",
                16,
                {"zone": "a"},
                frozenset({Capability.STAGE_UNSTAGE_VOLUME, Capability.EXPAND_VOLUME}),
            )
        }
        world.driver.facts.max_volumes = 8
        await world.csi.refresh(DRIVER)
        assert world.csi.drivers.value[DRIVER].max_volumes == 8
        scope.cancel()
        await trio.lowlevel.checkpoint()
        await world.csi.drivers.wait_value({})
        with pytest.raises(DriverNotFoundError, match="list of registered CSI drivers"):
            world.csi.table.client(DRIVER)


async def test_a_driver_that_is_starting_is_asked_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(tmp_path)
    world.driver.faults.add(CsiFaultKind.REFUSE, calls.GET_INFO, times=3)
    async with world.running():
        assert DRIVER in world.csi.drivers.value


@pytest.mark.parametrize(
    ("kind", "status", "code", "seconds"),
    [
        (CsiFaultKind.HANG, Status.OK, "DeadlineExceeded", 120),
        (CsiFaultKind.REFUSE, Status.INTERNAL, "Internal", 0),
    ],
)
async def test_a_driver_that_does_not_describe_itself_is_not_registered(
    tmp_path: Path,
    autojump_clock: MockClock,
    kind: CsiFaultKind,
    status: Status,
    code: str,
    seconds: float,
) -> None:
    world = World(tmp_path)
    world.driver.faults.add(kind, calls.GET_INFO, times=None, status=status)
    with pytest.RaisesGroup(CsiCallError, flatten_subgroups=True) as caught:
        async with world.running():
            pytest.fail("it is registered")
    (failure,) = _leaves(caught.value)
    assert failure.code == code
    assert trio.current_time() == pytest.approx(seconds, abs=1)
    assert world.csi.drivers.value == {}


def _leaves(group: BaseExceptionGroup[CsiCallError]) -> list[CsiCallError]:
    found: list[CsiCallError] = []
    for inner in group.exceptions:
        if isinstance(inner, BaseExceptionGroup):
            found.extend(_leaves(inner))
        else:
            found.append(inner)
    return found


@pytest.mark.parametrize(
    ("node_id", "topology"),
    [
        ("n" * 2000, {}),
        ("n", {"k" * 2000: "v"}),
        ("n", {"k": "v" * 2000}),
        ("n", {str(i): "v" for i in range(1001)}),
    ],
)
async def test_a_driver_that_says_too_much_is_refused(
    tmp_path: Path, autojump_clock: MockClock, node_id: str, topology: dict[str, str]
) -> None:
    """An API server would repeat all of it in its refusal, which is logged."""
    world = World(tmp_path)
    world.driver.facts.node_id = node_id
    world.driver.facts.topology = topology
    with pytest.RaisesGroup(CsiCallError, flatten_subgroups=True) as caught:
        async with world.running():
            pytest.fail("it is registered")
    (failure,) = _leaves(caught.value)
    assert failure.is_final
    assert len(str(failure)) < 200


async def test_a_newer_socket_takes_a_name_over(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The older one ends afterwards, and takes nothing with it."""
    world = World(tmp_path)
    async with world.running() as older, trio.open_nursery() as nursery:
        run = world.csi.table.run_plugin
        await nursery.start(run, DRIVER, "/newer.sock", ["1.0.0"])
        older.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert world.csi.table.client(DRIVER).driver.endpoint == "/newer.sock"
        nursery.cancel_scope.cancel()


async def test_an_older_socket_that_registers_later_takes_no_name_away(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It was slow to describe itself, finds the name taken by the newer one, and is cancelled."""
    world = World(tmp_path)
    async with world.running():
        async with trio.open_nursery() as nursery:
            await nursery.start(world.csi.table.run_plugin, DRIVER, "/older.sock", ["1.0.0"])
            nursery.cancel_scope.cancel()
        assert world.csi.table.client(DRIVER).driver.endpoint == "/csi.sock"
        assert world.csi.drivers.value[DRIVER].endpoint == "/csi.sock"
