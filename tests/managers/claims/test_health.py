"""The health of drivers' devices: what counts, for how long, and what is told."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.grpc import Status
from kubelet_trio.managers.claims.health import (
    MOST_DEVICES,
    DeviceName,
    HealthBook,
    HealthFeed,
    HealthReport,
    bounded_message,
    next_expiry,
)
from kubelet_trio.testing.dra import DraFaultKind, FakeDeviceHealth, FakeDraDriver, calls
from tests.managers.claims.driver_node import CLAIM, DraNode, open_node

NAME = "dra.example.com"
GPU = DeviceName("node", "gpu")
UNKNOWN = ("Unknown", "")
SERVICES = (calls.V1, calls.HEALTH_V1)


def report(status: str = "Healthy", message: str = "", timeout: float = 30.0) -> HealthReport:
    return HealthReport(GPU, status, message, timeout)


def test_changes_are_told_and_repetitions_are_not() -> None:
    book = HealthBook()
    feed = book.open(NAME)
    assert book.health(NAME, *GPU) == UNKNOWN
    assert book.take(feed, [report()], 0) == {GPU: ("Healthy", "")}
    assert book.take(feed, [report(timeout=60)], 10) == {}
    assert book.take(feed, [report("Unhealthy", "hot")], 20) == {GPU: ("Unhealthy", "hot")}
    assert book.take(feed, [report("Unhealthy", "hotter")], 20) == {GPU: ("Unhealthy", "hotter")}
    assert book.health(NAME, *GPU) == ("Unhealthy", "hotter")
    assert book.health("other", *GPU) == UNKNOWN
    assert book.close(feed, 21) == {GPU: UNKNOWN}


def test_a_device_that_is_left_out_stays_until_its_time() -> None:
    book = HealthBook()
    feed = book.open(NAME)
    book.take(feed, [report(timeout=5)], 0)
    assert next_expiry(feed) == 5
    assert book.take(feed, [], 4) == {}
    assert book.health(NAME, *GPU) == ("Healthy", "")
    assert book.expire(feed, 4.9) == {}
    assert book.expire(feed, 5) == {GPU: UNKNOWN}
    assert next_expiry(feed) == float("inf")


def test_the_newest_instance_counts_and_the_end_of_the_old_one_takes_nothing_back() -> None:
    book = HealthBook()
    old, new = book.open(NAME), book.open(NAME)
    book.take(old, [report("Unhealthy")], 0)
    assert book.take(new, [report("Healthy")], 1) == {GPU: ("Healthy", "")}
    assert book.take(old, [report("Unhealthy")], 2) == {}
    assert book.close(old, 3) == {}
    assert book.health(NAME, *GPU) == ("Healthy", "")


def test_what_the_new_instance_does_not_say_the_old_one_says() -> None:
    book = HealthBook()
    old, new = book.open(NAME), book.open(NAME)
    book.take(old, [report("Unhealthy", timeout=100)], 0)
    book.take(new, [report("Healthy", timeout=10)], 0)
    assert book.expire(new, 10) == {GPU: ("Unhealthy", "")}


def test_devices_have_a_limit() -> None:
    book = HealthBook()
    feed = book.open(NAME)
    many = [HealthReport(DeviceName("p", str(n)), "Healthy", "", 1e9) for n in range(MOST_DEVICES)]
    book.take(feed, many, 0)
    with pytest.raises(ValueError, match="more than 10000 devices"):
        book.take(feed, [*many, report()], 0)
    others = [HealthReport(DeviceName("q", r.name.device), "Healthy", "", 1e9) for r in many]
    book.take(feed, others, 0)
    changes = book.take(feed, [report()], 0)  # what it lists no more is forgotten
    assert len(changes) == 2 * MOST_DEVICES + 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "close", "expire"]),
            st.integers(0, 1),
            st.sampled_from(["Healthy", "Unhealthy", "Unknown"]),
            st.integers(0, 20),
        )
    )
)
def test_told_changes_add_up_to_what_is_shown(steps: list[tuple[str, int, str, int]]) -> None:
    book, now, told = HealthBook(), 0.0, UNKNOWN
    feeds: list[HealthFeed] = [book.open(NAME), book.open(NAME)]
    for step, which, status, seconds in steps:
        now += seconds
        if step == "take":
            changes = book.take(feeds[which], [report(status, timeout=10)], now)
        elif step == "close":
            changes = book.close(feeds[which], now)
            feeds[which] = book.open(NAME)
        else:
            changes = book.expire(feeds[which], now)
        assert changes.get(GPU, told) == book.health(NAME, *GPU)
        assert GPU not in changes or changes[GPU] != told
        told = book.health(NAME, *GPU)


def test_a_message_is_cut_as_the_api_says() -> None:
    assert bounded_message("x" * 1024) == "x" * 1024
    assert bounded_message("x" * 1025) == "x" * 1021 + "..."
    # The API counts bytes, and refuses the whole status otherwise.
    assert bounded_message("°" * 512) == "°" * 512
    assert bounded_message("°" * 513) == "°" * 510 + "..."


def healths(node: DraNode) -> list[tuple[str, str]]:
    return [shown for _, _, _, shown in node.unwell]


@pytest.mark.parametrize("service", [calls.HEALTH_V1, calls.HEALTH_V1ALPHA1])
async def test_a_driver_reports_its_devices(autojump_clock: MockClock, service: str) -> None:
    driver = FakeDraDriver(NAME, services=[calls.V1, service])
    driver.set_health(FakeDeviceHealth("gpu", "Unhealthy", "hot"))
    async with open_node() as node:
        await node.register(driver)
        assert node.unwell == [(NAME, "node", "gpu", ("Unhealthy", "hot"))]
        driver.set_health(FakeDeviceHealth("gpu"))
        await trio.sleep(1)
        assert healths(node)[1:] == [("Healthy", "")]
        await trio.sleep(28)
        driver.set_health(FakeDeviceHealth("gpu"))  # the same again: it counts for longer
        await trio.sleep(28)
        assert node.drivers.healths.health(NAME, "node", "gpu") == ("Healthy", "")
        await trio.sleep(3)
        assert healths(node)[2:] == [UNKNOWN]
        assert [call.service for call in driver.rules.log] == [service]


async def test_a_device_has_a_timeout_of_its_own(autojump_clock: MockClock) -> None:
    driver = FakeDraDriver(NAME, services=SERVICES)
    driver.set_health(
        FakeDeviceHealth("gpu", timeout=100),
        FakeDeviceHealth("nic", timeout=-1),
        FakeDeviceHealth("soon", timeout=2),
    )
    async with open_node() as node:
        await node.register(driver)
        began = trio.current_time()
        lost: dict[str, float] = {}
        while len(lost) < 3:
            await trio.sleep(1)
            for name in ("gpu", "nic", "soon"):
                if node.drivers.healths.health(NAME, "node", name) == UNKNOWN:
                    lost.setdefault(name, trio.current_time() - began)
        assert lost == pytest.approx({"soon": 2, "nic": 30, "gpu": 100}, abs=1.1)


async def test_the_end_of_a_stream_makes_devices_unknown_until_the_next(
    autojump_clock: MockClock,
) -> None:
    driver = FakeDraDriver(NAME, services=SERVICES)
    driver.set_health(FakeDeviceHealth("gpu"))
    async with open_node() as node:
        await node.register(driver)
        await trio.sleep(1)
        driver.end_streams()
        await trio.sleep(4.5)
        assert healths(node) == [("Healthy", ""), UNKNOWN]
        await trio.sleep(1)
        assert healths(node)[2:] == [("Healthy", "")]
        assert driver.rules.count(calls.WATCH) == 2


async def test_a_driver_that_dies_is_watched_again_once_it_is_back(
    autojump_clock: MockClock,
) -> None:
    driver = FakeDraDriver(NAME, services=SERVICES)
    driver.set_health(FakeDeviceHealth("gpu"))
    async with open_node() as node:
        registered = await node.register(driver)
        node.stop()
        await trio.sleep(60)
        assert healths(node) == [("Healthy", ""), UNKNOWN]
        await node.start(driver)
        await trio.sleep(10)
        assert healths(node)[2:] == [("Healthy", "")]
        registered.cancel()
        await wait_all_tasks_blocked()
        assert healths(node)[3:] == [UNKNOWN]


async def test_a_driver_without_health_is_asked_once_a_life(autojump_clock: MockClock) -> None:
    driver = FakeDraDriver(NAME)
    async with open_node() as node:
        await node.register(driver)
        # As kubelets up to 1.36 do, it asks a driver that does not announce the service, too.
        hidden = FakeDraDriver("hidden", services=[calls.V1, calls.HEALTH_V1ALPHA1])
        hidden.set_health(FakeDeviceHealth("gpu"))
        await node.register(hidden, "/hidden.sock", [calls.V1])
        assert healths(node) == [("Healthy", "")]
        await trio.sleep(600)
        assert CLAIM.uid in await node.drivers.find(NAME).prepare([CLAIM])
        assert node.drivers.registered == {NAME: True, "hidden": True}


async def test_a_service_that_the_driver_does_not_have_is_not_asked_again(
    autojump_clock: MockClock,
) -> None:
    driver = FakeDraDriver(NAME, services=SERVICES)
    refusal = driver.faults.add(
        DraFaultKind.REFUSE, calls.WATCH, status=Status.UNIMPLEMENTED, times=None
    )
    async with open_node() as node:
        await node.register(driver)
        await trio.sleep(600)
        assert driver.rules.count(calls.WATCH) == 1
        node.stop()
        await trio.sleep(20)
        driver.faults.lift(refusal)
        await node.start(driver)
        await trio.sleep(20)
        assert driver.rules.count(calls.WATCH) == 2


@pytest.mark.parametrize(
    "kind", [DraFaultKind.HANG, DraFaultKind.HUGE, DraFaultKind.REFUSE, DraFaultKind.LEAVE_OUT]
)
async def test_a_stream_that_fails_disturbs_nothing_else(
    autojump_clock: MockClock, kind: DraFaultKind
) -> None:
    driver = FakeDraDriver(NAME, services=SERVICES)
    driver.faults.add(kind, calls.WATCH, times=None)
    async with open_node() as node:
        await node.register(driver)
        for _ in range(3):
            await trio.sleep(10)
            assert CLAIM.uid in await node.drivers.find(NAME).prepare([CLAIM])
        assert node.unwell == []
        assert driver.rules.count(calls.WATCH) <= 8  # every 5 s at most
        if kind is not DraFaultKind.HANG:
            driver.faults.clear()
            driver.set_health(FakeDeviceHealth("gpu"))
            await trio.sleep(10)
            assert healths(node) == [("Healthy", "")]


async def test_a_driver_that_reports_in_a_loop_is_slowed_down(autojump_clock: MockClock) -> None:
    driver = FakeDraDriver(NAME, services=SERVICES)
    async with open_node() as node:
        await node.register(driver)
        for number in range(1000):
            driver.set_health(FakeDeviceHealth("gpu", message=str(number)))
            await trio.sleep(0.001)
        assert 5 <= len(node.unwell) <= 15
        await trio.sleep(110)
        assert healths(node)[-1] == ("Healthy", "999")
