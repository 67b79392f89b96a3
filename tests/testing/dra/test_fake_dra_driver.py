"""The fake DRA driver without a transport: devices, health, faults, slices."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.testing.dra import (
    AskedClaim,
    DraCall,
    DraFaultKind,
    FakeClaimDevice,
    FakeDeviceHealth,
    FakeDraDriver,
    calls,
    resource_slice,
)

A, B = AskedClaim("ns", "a", "uid-a"), AskedClaim("ns", "b", "uid-b")
PREPARE = DraCall(calls.PREPARE, calls.V1, (A, B))
UNPREPARE = DraCall(calls.UNPREPARE, calls.V1, (A, B))


async def test_preparing_again_gives_the_same(autojump_clock: MockClock, tmp_path: Path) -> None:
    driver = FakeDraDriver("d", ["x", "y"], cdi_dir=tmp_path)
    driver.allocate("uid-a", "x", FakeClaimDevice("y", "p", ("r",), ("d/claim=own",)))
    first = await driver.prepare(PREPARE)
    assert await driver.prepare(PREPARE) == first
    assert first == {
        "uid-a": (
            FakeClaimDevice("x", "node", (), ("d/claim=uid-a-x",)),
            FakeClaimDevice("y", "p", ("r",), ("d/claim=own",)),
        ),
        "uid-b": (FakeClaimDevice("x", "node", (), ("d/claim=uid-b-x",)),),
    }
    assert {path.name for path in tmp_path.iterdir()} == {"d-uid-a.json", "d-uid-b.json"}
    assert await driver.unprepare(UNPREPARE) == {"uid-a": "", "uid-b": ""}
    assert await driver.unprepare(UNPREPARE) == {"uid-a": "", "uid-b": ""}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [DraFaultKind.CLAIM_ERROR, DraFaultKind.LEAVE_OUT])
async def test_a_fault_of_one_claim_spares_the_others(
    autojump_clock: MockClock, kind: DraFaultKind
) -> None:
    driver = FakeDraDriver()
    driver.faults.add(kind, calls.PREPARE, "uid-a", message="no")
    found = await driver.prepare(PREPARE)
    assert found.get("uid-a") == ("no" if kind is DraFaultKind.CLAIM_ERROR else None)
    assert driver.rules.prepared == {"uid-b": B}
    assert (await driver.prepare(PREPARE)).keys() == {"uid-a", "uid-b"}


async def test_a_call_that_hangs_has_no_effect_until_it_is_lifted(
    autojump_clock: MockClock,
) -> None:
    driver = FakeDraDriver()
    fault = driver.faults.add(DraFaultKind.HANG, times=None)
    with trio.move_on_after(100):
        await driver.prepare(PREPARE)
    assert driver.rules.prepared == {}
    # The caller has given up, so that the claim is no longer busy.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.unprepare, UNPREPARE)
        await trio.sleep(1)
        driver.faults.lift(fault)
    driver.rules.check()


@pytest.mark.parametrize("kind", [DraFaultKind.DIE_BEFORE, DraFaultKind.DIE_AFTER])
async def test_it_dies_and_lives_again(autojump_clock: MockClock, kind: DraFaultKind) -> None:
    driver = FakeDraDriver()
    driver.faults.add(kind, calls.PREPARE)
    async with trio.open_nursery() as life:
        await life.start(driver.run)
        life.start_soon(driver.prepare, PREPARE)  # never answered
        await driver.wait_until(lambda rules: rules.count(calls.PREPARE))
        await trio.sleep(1)
        with pytest.raises(GRPCError) as caught:
            await driver.unprepare(UNPREPARE)
        assert caught.value.status is Status.UNAVAILABLE
        life.cancel_scope.cancel()
    assert bool(driver.rules.prepared) == (kind is DraFaultKind.DIE_AFTER)
    async with trio.open_nursery() as life:
        await life.start(driver.run)
        await driver.unprepare(UNPREPARE)
        life.cancel_scope.cancel()
    assert driver.rules.prepared == {}


async def test_streams_of_health(autojump_clock: MockClock) -> None:
    driver = FakeDraDriver()
    driver.set_health(FakeDeviceHealth("x"))
    seen = await driver.begin_watch(calls.HEALTH_V1)
    listed = await driver.next_health(seen)
    assert listed is not None
    assert listed[1] == (FakeDeviceHealth("x", pool="node"),)
    with trio.move_on_after(10) as waiting:
        await driver.next_health(listed[0])
    assert waiting.cancelled_caught
    driver.end_streams()
    assert await driver.next_health(listed[0]) is None
    assert await driver.next_health(await driver.begin_watch(calls.HEALTH_V1)) is not None
    driver.faults.add(DraFaultKind.LEAVE_OUT, calls.WATCH)
    assert await driver.next_health(await driver.begin_watch(calls.HEALTH_V1)) is None


def test_its_slice_offers_its_devices() -> None:
    offered = resource_slice(FakeDraDriver("d", ["x", "y"], pool="p"), "n")
    assert offered.metadata is not None
    assert offered.metadata.name == "n-d"
    spec = offered.spec
    assert (spec.driver, spec.nodeName, spec.pool.name) == ("d", "n", "p")
    assert [device.name for device in spec.devices or ()] == ["x", "y"]
