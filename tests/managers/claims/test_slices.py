"""Slices of drivers that are gone are removed, those of drivers that are back are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel
from lightkube.models.resource_v1 import ResourceSlice
from trio.testing import MockClock

from kubelet_trio.managers.claims import ApiSlices, SliceCleaner, SliceRemovalError
from kubelet_trio.testing import FakeKube
from kubelet_trio.testing.dra import FakeDraDriver, resource_slice
from tests.managers.claims.driver_node import open_node

ALL = ""


class FakeSlices:
    """Notes when slices are removed; refuses a number of times, or hangs."""

    def __init__(self) -> None:
        self.removed: list[tuple[str, float]] = []
        self.asked: list[float] = []
        self.refusals = 0
        self.hangs = False

    async def remove(self, driver: str) -> None:
        self.asked.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.refusals:
            self.refusals -= 1
            raise SliceRemovalError("the API server is down")
        self.removed.append((driver, trio.current_time()))


@asynccontextmanager
async def cleaning(
    slices: FakeSlices, cleaner: SliceCleaner | None = None
) -> AsyncIterator[SliceCleaner]:
    cleaner = cleaner or SliceCleaner(slices)
    async with trio.open_nursery() as nursery:
        await nursery.start(cleaner.run)
        yield cleaner
        nursery.cancel_scope.cancel()


async def test_all_slices_go_at_the_start(autojump_clock: MockClock) -> None:
    slices = FakeSlices()
    async with cleaning(slices):
        await trio.sleep(100)
    assert slices.removed == [(ALL, 0)]


async def test_those_of_a_driver_go_30_seconds_after_it(autojump_clock: MockClock) -> None:
    slices = FakeSlices()
    async with cleaning(slices) as cleaner:
        cleaner.note("a", is_usable=True)
        await trio.sleep(10)
        cleaner.note("a", is_usable=False)
        await trio.sleep(20)
        cleaner.note("a", is_usable=False)  # the first time counts
        cleaner.note("b", is_usable=False)
        await trio.sleep(100)
        assert slices.removed == [(ALL, 0), ("a", 40), ("b", 60)]
        cleaner.note("a", is_usable=True)
        cleaner.note("a", is_usable=False)
        await trio.sleep(31)
        assert slices.removed[3:] == [("a", 160)]


async def test_those_of_a_driver_that_is_back_stay(autojump_clock: MockClock) -> None:
    slices = FakeSlices()
    async with cleaning(slices) as cleaner:
        for _ in range(3):
            cleaner.note("a", is_usable=False)
            await trio.sleep(29)
            cleaner.note("a", is_usable=True)
            await trio.lowlevel.checkpoint()
        cleaner.note("a", is_usable=False)
        await trio.sleep(29)
        assert slices.removed == [(ALL, 0)]
        await trio.sleep(2)
        assert slices.removed[1:] == [("a", 117)]


async def test_a_removal_that_fails_is_tried_again(autojump_clock: MockClock) -> None:
    slices = FakeSlices()
    slices.refusals = 12
    async with cleaning(slices):
        await trio.sleep(3600)
    assert len(slices.removed) == 1
    waits = [after - before for before, after in zip(slices.asked, slices.asked[1:], strict=False)]
    wanted = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert all(want <= wait <= want * 1.2 for want, wait in zip(wanted, waits, strict=True))


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_removal_under_way_ends_when_the_driver_is_back(
    autojump_clock: MockClock, hangs: bool
) -> None:
    slices = FakeSlices()
    async with cleaning(slices) as cleaner:
        await trio.sleep(1)
        slices.hangs, slices.refusals = hangs, 100
        cleaner.note("a", is_usable=False)
        await trio.sleep(40)
        cleaner.note("a", is_usable=True)
        slices.hangs, slices.refusals = False, 0
        await trio.sleep(1000)
    assert slices.removed == [(ALL, 0)]


async def test_after_a_crash_it_continues(autojump_clock: MockClock) -> None:
    slices = FakeSlices()
    cleaner = SliceCleaner(slices)
    async with cleaning(slices, cleaner):
        await trio.sleep(1)
        cleaner.note("a", is_usable=False)
        await trio.sleep(20)
    async with cleaning(slices, cleaner):
        await trio.sleep(5)
        assert slices.removed == [(ALL, 0)]
        await trio.sleep(6)
        assert slices.removed[1:] == [("a", 31)]


async def test_with_the_drivers_of_a_node(autojump_clock: MockClock) -> None:
    slices = FakeSlices()
    async with open_node() as node, cleaning(slices) as cleaner:
        node.notes.append(cleaner.note)
        driver = FakeDraDriver("a")
        await node.register(driver)
        await trio.sleep(100)
        node.stop()
        await trio.sleep(20)
        await node.start(driver)
        await trio.sleep(100)
        assert slices.removed == [(ALL, 0)]
        node.stop()
        await trio.sleep(40)
        assert [name for name, _ in slices.removed] == [ALL, "a"]


async def test_at_an_api_server_only_those_of_the_node_and_the_driver_go() -> None:
    kube = FakeKube()
    for node, driver in (("n", "a"), ("n", "b"), ("m", "a")):
        kube.add(resource_slice(FakeDraDriver(driver), node))
    slices = ApiSlices(kube, "n")
    await slices.remove("a")
    assert [s.metadata.name for s in kube.all(ResourceSlice) if s.metadata] == ["m-a", "n-b"]
    await slices.remove("")
    await slices.remove("")
    assert [s.metadata.name for s in kube.all(ResourceSlice) if s.metadata] == ["m-a"]


async def test_an_api_server_without_slices_is_not_asked_to_remove_any() -> None:
    kube = FakeKube()
    kube.lacks = frozenset({"resource.k8s.io/v1"})
    await ApiSlices(kube.node("n"), "n").remove("")
    assert [request.verb for request in kube.requests] == ["get"]


async def test_an_api_server_that_fails_is_asked_again(autojump_clock: MockClock) -> None:
    kube = FakeKube()
    kube.add(resource_slice(FakeDraDriver("a"), "n"))
    kube.go_down()
    async with trio.open_nursery() as nursery:
        await nursery.start(SliceCleaner(ApiSlices(kube, "n")).run)
        await trio.sleep(100)
        assert len(kube.all(ResourceSlice)) == 1
        kube.come_back()
        await trio.sleep(100)
        assert kube.all(ResourceSlice) == []
        nursery.cancel_scope.cancel()
