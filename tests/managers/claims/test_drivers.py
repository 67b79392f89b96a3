"""DRA drivers on a node, in virtual time: registration, instances, calls, faults, metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.grpc import Handler, RawMessage, Server, Status, unary_unary
from kubelet_trio.managers.claims import ClaimDevice, ClaimError, DraDrivers
from kubelet_trio.testing.dra import DraFaultKind, FakeClaimDevice, FakeDraDriver, calls
from tests.managers.claims.driver_node import CLAIM, OTHER, open_node

NAME = "dra.example.com"
NONE_SUPPORTED = (
    "none of services supported by the plugin ({}) are supported by the kubelet "
    '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
)


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ([], "empty list of supported gRPC services (aka supported versions)"),
        (["1.0.0"], NONE_SUPPORTED.format('["1.0.0"]')),
        (
            ["v1alpha4.Node", "v2.DRAPlugin"],
            NONE_SUPPORTED.format('["v1alpha4.Node" "v2.DRAPlugin"]'),
        ),
        (["v1.DRAResourceHealth"], NONE_SUPPORTED.format('["v1.DRAResourceHealth"]')),
    ],
)
def test_services_that_are_not_spoken_are_refused(versions: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match="invalid supported gRPC") as caught:
        DraDrivers().validate(NAME, "/dra.sock", versions)
    head = f"invalid supported gRPC versions of DRA driver plugin {NAME} at endpoint /dra.sock: "
    assert str(caught.value) == head + problem


@pytest.mark.parametrize(
    ("services", "used"),
    [
        ((calls.V1,), calls.V1),
        ((calls.V1BETA1,), calls.V1BETA1),
        ((calls.V1BETA1, calls.V1), calls.V1),
        ((calls.HEALTH_V1, calls.V1BETA1), calls.V1BETA1),
    ],
)
async def test_the_newest_service_is_called(
    autojump_clock: MockClock, services: Sequence[str], used: str
) -> None:
    driver = FakeDraDriver(NAME, services=services)
    driver.allocate(CLAIM.uid, FakeClaimDevice("gpu-1", "p", ("r", "s/t"), share_id="half"))
    async with open_node() as node:
        await node.register(driver)
        prepared = await node.drivers.find(NAME).prepare([CLAIM, OTHER])
        assert prepared == {
            CLAIM.uid: (
                ClaimDevice(
                    pool="p",
                    device="gpu-1",
                    requests=("r", "s/t"),
                    cdi_ids=(f"{NAME}/claim=uid-1-gpu-1",),
                    share_id="half" if used == calls.V1 else "",
                ),
            ),
            OTHER.uid: (ClaimDevice("node", "dev-0", (), (f"{NAME}/claim=uid-2-dev-0",)),),
        }
        assert driver.rules.prepared.keys() == {CLAIM.uid, OTHER.uid}
        assert await node.drivers.find(NAME).unprepare([CLAIM]) == {CLAIM.uid: ""}
        assert driver.rules.prepared.keys() == {OTHER.uid}
        driver.rules.check()
        asked = [call for call in driver.rules.log if call.method != calls.WATCH]
        assert {call.service for call in asked} == {used}
        assert [(c.namespace, c.name, c.uid) for c in asked[0].claims] == [
            (c.namespace, c.name, c.uid) for c in (CLAIM, OTHER)
        ]
        package = "k8s.io.kubelet.pkg.apis.dra." + used.removesuffix(".DRAPlugin")
        measured = dict(node.meter.histograms("dra_grpc_operations_duration_seconds"))
        assert {labels: h.count for labels, h in measured.items()} == {
            (NAME, f"/{package}.DRAPlugin/NodePrepareResources", "OK"): 1,
            (NAME, f"/{package}.DRAPlugin/NodeUnprepareResources", "OK"): 1,
        }


async def test_a_driver_that_is_not_registered(autojump_clock: MockClock) -> None:
    async with open_node() as node:
        with pytest.raises(ClaimError, match=r"^DRA driver x is not registered$"):
            node.drivers.find("x")
        with pytest.raises(ClaimError, match=r"^DRA driver name is empty$"):
            node.drivers.find("")
        registered = await node.register(FakeDraDriver(NAME))
        assert node.drivers.registered == {NAME: True}
        registered.cancel()
        await wait_all_tasks_blocked()
        assert node.drivers.registered == {}
        with pytest.raises(ClaimError, match=f"^DRA driver {NAME} is not registered$"):
            node.drivers.find(NAME)
        assert node.changes[-1] == (NAME, False)


async def test_an_endpoint_belongs_to_one_instance(autojump_clock: MockClock) -> None:
    async with open_node() as node:
        driver = FakeDraDriver(NAME)
        await node.register(driver)
        with pytest.raises(ValueError, match="already registered") as caught:
            await node.drivers.run_plugin(NAME, "/dra.sock", driver.services)
        text = f"endpoint /dra.sock already registered for DRA driver plugin {NAME}"
        assert str(caught.value) == text
        assert node.drivers.registered == {NAME: True}


async def test_a_rolling_update(autojump_clock: MockClock) -> None:
    old = FakeDraDriver(NAME, instance="old")
    new = FakeDraDriver(NAME, rules=old.rules, instance="new", devices=["new-0"])
    async with open_node() as node:
        first = await node.register(old, "/old.sock")
        await node.register(new, "/new.sock")
        answer = await node.drivers.find(NAME).prepare([CLAIM])
        assert [d.device for d in answer[CLAIM.uid] if isinstance(d, ClaimDevice)] == ["new-0"]
        # The newer one is away for a moment: the older one is still connected.
        node.stop("/new.sock")
        await wait_all_tasks_blocked()
        answer = await node.drivers.find(NAME).prepare([CLAIM])
        assert [d.device for d in answer[CLAIM.uid] if isinstance(d, ClaimDevice)] == ["dev-0"]
        first.cancel()
        await wait_all_tasks_blocked()
        assert node.drivers.registered == {NAME: False}
        await node.start(new, "/new.sock")
        await trio.sleep(5)
        assert node.drivers.registered == {NAME: True}
        assert await node.drivers.find(NAME).unprepare([CLAIM]) == {CLAIM.uid: ""}
        assert (NAME, False) in node.changes
        assert node.changes[-1] == (NAME, True)


async def test_without_a_connected_instance_the_last_one_is_asked(
    autojump_clock: MockClock,
) -> None:
    driver = FakeDraDriver(NAME)
    async with open_node() as node:
        await node.register(driver)
        node.stop()
        await wait_all_tasks_blocked()
        with pytest.raises(ClaimError, match="code = Unavailable desc = "):
            await node.drivers.find(NAME).prepare([CLAIM])
        assert node.calls(calls.PREPARE) == {"Unavailable": 1}


async def test_a_driver_that_hangs_fails_the_call_after_its_deadline(
    autojump_clock: MockClock,
) -> None:
    driver = FakeDraDriver(NAME)
    async with open_node() as node:
        await node.register(driver)
        driver.faults.add(DraFaultKind.HANG, calls.PREPARE)
        began = trio.current_time()
        with pytest.raises(ClaimError) as caught:
            await node.drivers.find(NAME).prepare([CLAIM])
        assert trio.current_time() - began == pytest.approx(45, abs=0.1)
        text = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        assert str(caught.value) == text
        assert node.calls(calls.PREPARE) == {"DeadlineExceeded": 1}
        # Other calls on the connection are not held up.
        driver.faults.add(DraFaultKind.SLOW, calls.PREPARE, delay=44)
        assert CLAIM.uid in await node.drivers.find(NAME).prepare([CLAIM])
        driver.rules.check()


async def test_errors_are_those_of_grpc_go(autojump_clock: MockClock) -> None:
    driver = FakeDraDriver(NAME)
    async with open_node() as node:
        await node.register(driver)
        driver.faults.add(
            DraFaultKind.REFUSE,
            calls.UNPREPARE,
            status=Status.INVALID_ARGUMENT,
            message="no " * 999,
        )
        with pytest.raises(ClaimError) as caught:
            await node.drivers.find(NAME).unprepare([CLAIM])
        text = "rpc error: code = InvalidArgument desc = " + ("no " * 999)[:1024]
        assert str(caught.value) == text


@pytest.mark.parametrize("method", [calls.PREPARE, calls.UNPREPARE])
async def test_answers_for_some_claims(autojump_clock: MockClock, method: str) -> None:
    driver = FakeDraDriver(NAME)
    async with open_node() as node:
        await node.register(driver)
        found = node.drivers.find(NAME)
        call = found.prepare if method == calls.PREPARE else found.unprepare
        driver.faults.add(DraFaultKind.CLAIM_ERROR, method, OTHER.uid, message="broken")
        answer = await call([CLAIM, OTHER])
        assert answer.keys() == {CLAIM.uid, OTHER.uid}
        assert answer[OTHER.uid] == "broken"
        driver.faults.add(DraFaultKind.LEAVE_OUT, method, OTHER.uid)
        assert (await call([CLAIM, OTHER])).keys() == {CLAIM.uid}
        # Who has asked finds out that this is another claim.
        driver.faults.add(DraFaultKind.OTHER_UID, method)
        assert (await call([CLAIM])).keys() == {CLAIM.uid, "nobody-asked-for-me"}
        driver.faults.add(DraFaultKind.HUGE, method)
        with pytest.raises(ClaimError, match="code = ResourceExhausted"):
            await call([CLAIM])
        assert (await call([CLAIM])).keys() == {CLAIM.uid}


async def test_a_claim_with_too_many_devices_is_an_error(autojump_clock: MockClock) -> None:
    driver = FakeDraDriver(NAME)
    driver.allocate(CLAIM.uid, *(f"dev-{n}" for n in range(10_000)))
    async with open_node() as node:
        await node.register(driver)
        answer = await node.drivers.find(NAME).prepare([CLAIM, OTHER])
        problem = answer[CLAIM.uid]
        assert isinstance(problem, str)
        assert problem.endswith("bytes, expected 262144 at most")
        assert not isinstance(answer[OTHER.uid], str)


@pytest.mark.parametrize("kind", [DraFaultKind.DIE_BEFORE, DraFaultKind.DIE_AFTER])
async def test_a_driver_that_dies_in_a_call_is_asked_again(
    autojump_clock: MockClock, kind: DraFaultKind
) -> None:
    driver = FakeDraDriver(NAME)
    async with open_node() as node:
        await node.register(driver)
        driver.faults.add(kind, calls.PREPARE)
        with pytest.raises(ClaimError, match="code = Unavailable"):
            await node.drivers.find(NAME).prepare([CLAIM])
        assert (CLAIM.uid in driver.rules.prepared) == (kind is DraFaultKind.DIE_AFTER)
        await wait_all_tasks_blocked()  # until the old process is gone
        await node.start(driver)
        await trio.sleep(5)
        assert CLAIM.uid in await node.drivers.find(NAME).prepare([CLAIM])
        driver.rules.check()


async def test_an_instance_may_register_before_it_listens(autojump_clock: MockClock) -> None:
    driver = FakeDraDriver(NAME)
    async with open_node() as node, trio.open_nursery() as nursery:
        await nursery.start(node.drivers.run_plugin, NAME, "/late.sock", driver.services)
        await trio.sleep(20)
        assert node.drivers.registered == {NAME: False}
        await node.start(driver, "/late.sock")
        await trio.sleep(5)
        assert node.drivers.registered == {NAME: True}
        assert node.changes == [(NAME, False), (NAME, True)]
        nursery.cancel_scope.cancel()


async def test_an_entry_without_a_value_is_one_without_devices(autojump_clock: MockClock) -> None:
    entry = b"\n\x07\n\x05uid-1"  # claims: {"uid-1": nil}, as some encoders write it
    async with trio.open_nursery() as nursery:
        served = Server([_Raw(entry)])

        async def dial(_path: str) -> trio.abc.Stream:
            near, far = memory_stream_pair()
            nursery.start_soon(served.serve_stream, far)
            return near

        drivers = DraDrivers(dial=dial)
        await nursery.start(drivers.run_plugin, NAME, "/dra.sock", [calls.V1])
        assert await drivers.find(NAME).prepare([CLAIM]) == {CLAIM.uid: ()}
        assert await drivers.find(NAME).unprepare([CLAIM]) == {CLAIM.uid: ""}
        nursery.cancel_scope.cancel()


class _Raw:
    """Answers both calls with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def _call(self, _request: RawMessage) -> RawMessage:
        return RawMessage(self._answer)

    def __mapping__(self) -> Mapping[str, Handler]:
        path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
        return {
            path + method: unary_unary(self._call, RawMessage, RawMessage)
            for method in (calls.PREPARE, calls.UNPREPARE)
        }
