"""Claims are prepared before pods start and given back after they end, whatever comes between."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.managers.claims import ClaimError, load_claims
from kubelet_trio.managers.claims.health import HealthBook
from kubelet_trio.managers.claims.types import ClaimKey
from kubelet_trio.model import PodUid
from tests.managers.claims.node import Node
from tests.managers.claims.objects import GPUS, NICS, claim_object, pod_using, using
from tests.simulation.hard_world import Disk

P1, P2 = PodUid("p1"), PodUid("p2")
BOTH = ("p1", "p2")


@pytest.fixture
async def node(tmp_path: Path, nursery: trio.Nursery) -> Node:
    made = Node(tmp_path)
    await nursery.start(made.run)
    return made


def users(node: Node, claim: str) -> set[str]:
    found = node.claims.table.get(ClaimKey("ns", claim))
    return set(found.pods) if found is not None else set()


async def error_of(node: Node, *claims: str, uid: str = "p1") -> str:
    with pytest.raises(ClaimError) as caught:
        await node.claims.prepare(pod_using(*claims, uid=uid))
    return str(caught.value)


async def test_a_pod_gets_the_devices_of_its_claims(node: Node, autojump_clock: MockClock) -> None:
    node.add(claim_object("one", GPUS, NICS), claim_object("two", GPUS))
    pod = pod_using("a=one", "b=two", containers=[using("other", "b")])
    began = trio.current_time()
    await node.claims.prepare(pod)
    # Both claims in one call of each driver, both drivers side by side.
    assert trio.current_time() - began == pytest.approx(1.1)
    assert node.gpus.calls == [("prepare", ("one", "two"))]
    assert node.nics.calls == [("prepare", ("one",))]
    assert pod.spec is not None
    main, other = pod.spec.containers
    every = (f"{GPUS}/x=one", f"{NICS}/x=one", f"{GPUS}/x=two")
    assert node.claims.cdi_ids(pod, main) == every
    assert node.claims.cdi_ids(pod, other) == (f"{GPUS}/x=two",)
    assert node.claims.in_use() == {"<any>": 2, GPUS: 2, NICS: 1}
    assert load_claims(node.root) is not None
    await node.claims.prepare(pod)
    assert len(node.gpus.calls) == 1  # once is enough

    await node.claims.unprepare(P1)
    assert node.gpus.calls[1:] == [("unprepare", ("one", "two"))]
    assert (node.gpus.prepared, node.nics.prepared) == (set(), set())
    await node.claims.unprepare(P1)
    assert len(node.gpus.calls) == 2
    assert node.claims.in_use() == {"<any>": 0}


async def test_the_pod_is_on_disk_before_a_driver_is_asked(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS))
    found = []

    async def watch() -> None:
        await trio.sleep(0.5)  # in the middle of the driver's call
        found.append(load_claims(node.root))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await node.claims.prepare(pod_using("a=one"))
    assert node.gpus.calls
    assert found[0] is not None
    assert found[0][ClaimKey("ns", "one")].pods == {P1}


async def test_the_claims_of_a_container_are_in_the_order_of_its_pod(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS), claim_object("two", GPUS))
    pod = pod_using("a=two", "b=one")
    await node.claims.prepare(pod)
    assert pod.spec is not None
    found = node.claims.claims_of(pod, pod.spec.containers[0])
    assert [claim.ref.name for claim in found] == ["two", "one"]


async def test_a_shared_claim_is_prepared_once_and_given_back_by_the_last(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS, users=BOTH))
    async with trio.open_nursery() as nursery:
        for uid in BOTH:
            nursery.start_soon(node.claims.prepare, pod_using("a=one", uid=uid))
    assert node.gpus.calls == [("prepare", ("one",))]
    await node.claims.unprepare(P1)
    assert users(node, "one") == {"p2"}
    assert node.gpus.prepared
    await node.claims.unprepare(P2)
    assert not node.gpus.prepared
    await trio.sleep(1)  # nobody waits for the disk
    assert load_claims(node.root) == {}


async def test_pods_that_share_some_claims_wait_for_those_only(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS, users=BOTH), claim_object("two", NICS, users=BOTH))
    node.gpus.takes = 30
    ends = {}

    async def prepare(uid: str, *claims: str) -> None:
        await node.claims.prepare(pod_using(*claims, uid=uid))
        ends[uid] = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prepare, "p1", "a=one", "b=two")
        nursery.start_soon(prepare, "p2", "b=two")
        await trio.sleep(0.2)
        node.add(claim_object("three", NICS, users=("p3",)))
        nursery.start_soon(prepare, "p3", "c=three")
    assert ends["p3"] < 5
    assert ends["p1"] > 30


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        (("a=none",), "prepare dynamic resources: fetch ResourceClaim none: not found"),
        (("a=taken",), "prepare dynamic resources: pod p1 (p1) is not allowed to use"),
        (("a=odd",), "prepare dynamic resources: DRA driver odd.example.com is not registered"),
        # The first by the spec's order, not the first to fail.
        (("a=one", "b=odd", "c=none"), "fetch ResourceClaim none"),
    ],
)
async def test_a_claim_that_does_not_pass_leaves_nothing_behind(
    node: Node, autojump_clock: MockClock, claims: tuple[str, ...], text: str
) -> None:
    node.add(
        claim_object("one", GPUS),
        claim_object("taken", GPUS, users=("p9",)),
        claim_object("odd", "odd.example.com"),
    )
    assert text in await error_of(node, *claims)
    assert node.claims.table == {}
    assert node.gpus.calls == []
    await node.claims.unprepare(P1)  # nothing holds the pod up


async def test_the_errors_of_drivers(node: Node, autojump_clock: MockClock) -> None:
    node.add(claim_object("one", GPUS, NICS))
    node.gpus.broken = "connection error"
    prefix = "prepare dynamic resources: NodePrepareResources"
    assert await error_of(node, "a=one") == f"{prefix}: connection error"
    node.gpus.broken, node.gpus.refused = "", {"one": "no such device"}
    expected = f"{prefix} failed for ResourceClaim one: no such device"
    assert await error_of(node, "a=one") == expected
    node.gpus.refused, node.gpus.skips = {}, {"one"}
    assert await error_of(node, "a=one") == f"{prefix} skipped 1 ResourceClaims"
    node.gpus.skips, node.gpus.extra = set(), "zzz"
    expected = f"{prefix} returned result for unknown claim UID zzz"
    assert await error_of(node, "a=one") == expected
    node.gpus.extra = ""
    await node.claims.prepare(pod_using("a=one"))
    assert node.claims.in_use()["<any>"] == 1

    prefix = "unprepare dynamic resources: NodeUnprepareResources"
    for broken, refused, skips, text in (
        ("gone", {}, set(), f"{prefix}: gone"),
        ("", {"one": "busy"}, set(), f"{prefix} failed for ResourceClaim one: busy"),
        ("", {}, {"one"}, f"{prefix} skipped 1 ResourceClaims"),
    ):
        node.gpus.broken, node.gpus.refused, node.gpus.skips = broken, refused, skips
        with pytest.raises(ClaimError) as caught:
            await node.claims.unprepare(P1)
        assert str(caught.value) == text
        assert users(node, "one") == {"p1"}
    node.gpus.skips = set()
    await node.claims.unprepare(P1)
    assert node.claims.table == {}
    samples = dict(node.meter.histograms("dra_operations_duration_seconds"))
    counts = {labels: histogram.count for labels, histogram in samples.items()}
    assert counts == {
        ("PrepareResources", "true"): 4,
        ("PrepareResources", "false"): 1,
        ("UnprepareResources", "true"): 3,
        ("UnprepareResources", "false"): 1,
    }


async def test_a_driver_that_is_gone_holds_up_its_own_pods_only(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS), claim_object("two", NICS, users=("p2",)))
    await node.claims.prepare(pod_using("a=one"))
    await node.claims.prepare(pod_using("a=two", uid="p2"))
    del node.registered[GPUS]
    with pytest.raises(ClaimError, match=f"DRA driver {GPUS} is not registered"):
        await node.claims.unprepare(P1)
    await node.claims.unprepare(P2)
    node.registered[GPUS] = node.gpus
    await node.claims.unprepare(P1)
    assert not node.gpus.prepared | node.nics.prepared


async def test_the_other_claims_of_a_pod_are_given_back_although_one_fails(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS), claim_object("two", NICS))
    await node.claims.prepare(pod_using("a=one", "b=two"))
    node.gpus.broken = "gone"
    with pytest.raises(ClaimError, match="gone"):
        await node.claims.unprepare(P1)
    assert not node.nics.prepared
    assert {key.name for key in node.claims.table} == {"one"}


async def test_a_claim_of_the_same_name_waits_for_the_old_ones_end(
    node: Node, autojump_clock: MockClock
) -> None:
    node.known = set()
    node.add(claim_object("one", GPUS))
    await node.claims.prepare(pod_using("a=one"))
    node.add(claim_object("one", GPUS, uid="new", users=("p2",)))
    text = await error_of(node, "a=one", uid="p2")
    assert "old ResourceClaim with same name one and different UID uid-one still exists" in text
    # The old pod is not known any more: that is looked after at once.
    await trio.sleep(2)
    await node.claims.prepare(pod_using("a=one", uid="p2"))
    assert node.gpus.prepared == {"new"}


async def test_a_pod_has_nothing_of_the_claim_that_its_own_waits_for(
    node: Node, autojump_clock: MockClock
) -> None:
    node.known = {P1, P2}
    node.add(claim_object("one", GPUS))
    await node.claims.prepare(pod_using("a=one"))
    node.add(claim_object("one", GPUS, uid="new", users=("p2",)))
    await error_of(node, "a=one", uid="p2")
    pod = pod_using("a=one", uid="p2")
    assert pod.spec is not None
    (main,) = pod.spec.containers
    assert node.claims.claims_of(pod, main) == ()
    assert node.claims.devices_of(pod, main) == ()
    assert node.claims.health(pod, main, HealthBook()) == ()
    with pytest.raises(ClaimError, match="unable to get claim info for ResourceClaim one in"):
        node.claims.cdi_ids(pod, main)


async def test_a_cancelled_caller_leaves_a_call_that_goes_on(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS, users=BOTH))
    node.gpus.takes = 30
    with trio.move_on_after(1) as scope:
        await node.claims.prepare(pod_using("a=one"))
    assert scope.cancelled_caught
    assert trio.current_time() < 2
    # It ends first, then another pod has it prepared: no call meets another one.
    await node.claims.prepare(pod_using("a=one", uid="p2"))
    assert node.gpus.calls == [("prepare", ("one",))]
    await node.claims.unprepare(P1)
    await node.claims.unprepare(P2)
    assert not node.gpus.prepared


async def test_a_caller_cancelled_at_once_leaves_nothing_unseen(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS))
    for wait in (0.05, 0.1, 0.15, 0.3, 1.1, 1.2):
        with trio.move_on_after(wait):
            await node.claims.prepare(pod_using("a=one"))
        await node.claims.unprepare(P1)
        assert not node.gpus.prepared, wait
        assert node.claims.table == {}


async def test_a_full_disk_keeps_drivers_from_being_asked(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = Disk()
    node = Node(tmp_path, disk.offload)
    await nursery.start(node.run)
    node.add(claim_object("one", GPUS))
    disk.error = errno.ENOSPC
    text = await error_of(node, "a=one")
    assert text.startswith("prepare dynamic resources: checkpoint ResourceClaim cache: ")
    assert "No space left" in text
    assert (node.gpus.calls, node.claims.table) == ([], {})
    await node.claims.unprepare(P1)
    disk.error = 0
    await node.claims.prepare(pod_using("a=one"))
    # A disk that does not take the return does not hold up the pod: its room may be what is needed.
    disk.error = errno.ENOSPC
    await node.claims.unprepare(P1)
    assert not node.gpus.prepared


async def test_a_disk_that_fails_after_the_driver_is_waited_for(
    tmp_path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    disk = Disk()
    node = Node(tmp_path, disk.offload)
    await nursery.start(node.run)
    node.add(claim_object("one", GPUS))

    async def break_disk() -> None:
        await trio.sleep(0.5)
        disk.error = errno.ENOSPC

    nursery.start_soon(break_disk)
    assert "checkpoint ResourceClaim state: " in await error_of(node, "a=one")
    assert "checkpoint ResourceClaim " in await error_of(node, "a=one")
    disk.error = 0
    await node.claims.prepare(pod_using("a=one"))
    assert node.gpus.calls == [("prepare", ("one",))]
    kept = load_claims(tmp_path)
    assert kept is not None
    assert kept[ClaimKey("ns", "one")].drivers[GPUS]


async def test_after_a_restart_containers_keep_their_devices(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS))
    pod = pod_using("a=one")
    await node.claims.prepare(pod)
    node.reboot()
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        assert pod.spec is not None
        assert node.claims.cdi_ids(pod, pod.spec.containers[0]) == (f"{GPUS}/x=one",)
        assert node.claims.in_use() == {"<any>": 0}
        assert len(node.gpus.calls) == 1
        # A new sandbox has them prepared anew; devices are not there twice.
        await node.claims.prepare(pod)
        assert len(node.gpus.calls) == 2
        assert len(node.claims.table[ClaimKey("ns", "one")].drivers[GPUS]) == 1
        nursery.cancel_scope.cancel()


async def test_claims_of_pods_that_are_gone_are_given_back(
    node: Node, autojump_clock: MockClock
) -> None:
    node.add(claim_object("one", GPUS, users=BOTH), claim_object("two", NICS, users=BOTH))
    await node.claims.prepare(pod_using("a=one", "b=two"))
    await node.claims.prepare(pod_using("a=one", uid="p2"))
    node.known = None  # not all sources have delivered
    await trio.sleep(300)
    assert users(node, "one") == {"p1", "p2"}
    node.known = {P1}
    await trio.sleep(61)
    assert users(node, "one") == {"p1"}
    del node.registered[GPUS]
    node.known = set()
    with capture_logs() as logs:
        await trio.sleep(300)
    assert not node.nics.prepared
    assert [entry["event"] for entry in logs] == ["claims.left_behind"]
    node.registered[GPUS] = node.gpus
    await trio.sleep(61)
    assert node.claims.table == {}


async def test_the_end_of_the_agent_waits_for_a_call_a_moment(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    node.add(claim_object("one", GPUS), claim_object("two", NICS))
    node.gpus.takes, node.nics.takes = 3, 40
    errors = []

    async def prepare(claim: str) -> None:
        errors.append(await error_of(node, f"a={claim}"))

    async with trio.open_nursery() as callers:
        async with trio.open_nursery() as agent:
            await agent.start(node.run)
            agent.start_soon(node.claims.prepare, pod_using("a=one"))
            callers.start_soon(prepare, "two")
            await trio.sleep(1)
            agent.cancel_scope.cancel()
        assert trio.current_time() == pytest.approx(6)
        assert node.gpus.prepared
        callers.start_soon(prepare, "one")
    ending = "prepare dynamic resources: "
    assert errors == [f"{ending}given up: the agent is ending", f"{ending}the agent is ending"]
    kept = load_claims(tmp_path)
    assert kept is not None
    assert kept[ClaimKey("ns", "two")].pods == {P1}


async def test_pods_with_a_device(node: Node, autojump_clock: MockClock) -> None:
    node.add(claim_object("one", GPUS, users=BOTH))
    await node.claims.prepare(pod_using("a=one"))
    await node.claims.prepare(pod_using("a=one", uid="p2"))
    assert node.claims.pods_with(GPUS, {("pool", "d0")}) == {"p1", "p2"}
    assert node.claims.pods_with(GPUS, {("pool", "d1")}) == frozenset()
    assert node.claims.pods_with(NICS, {("pool", "d0")}) == frozenset()
