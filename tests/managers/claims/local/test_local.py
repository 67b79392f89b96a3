"""Claims of static pods: allocated once, kept over restarts, given back, and waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.resource_v1 import ResourceClaim
from trio.testing import MockClock

from kubelet_trio.managers.claims import (
    ClaimError,
    ClaimKey,
    OfferedSlices,
    load_local_claims,
)
from kubelet_trio.managers.claims.local.state import CLAIMS_FILE, in_use
from kubelet_trio.model import inline_offload
from tests.managers.claims.allocation.worlds import claim, exactly, resource_slice
from tests.managers.claims.local.node import Node, pod, template

GPU = ClaimKey("default", "gpu")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def devices(node: Node) -> dict[str, str]:
    """Return the holders of devices, as the file has them."""
    return {id_.device: holder for id_, holder in in_use(load_local_claims(node.root)).items()}


def names(found: ResourceClaim) -> list[str]:
    assert found.status is not None
    return [user.name for user in found.status.reservedFor or ()]


async def test_a_claim_is_allocated_and_prepared(
    node: Node, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await nursery.start(node.run)
    node.apply(pod("web", claim="gpu"), documents=[claim(exactly())])
    await node.prepare("web")
    found = node.local.table[GPU]
    assert found.metadata is not None
    assert found.metadata.uid == "claim-1"
    assert names(found) == ["web"]
    assert node.driver.prepared == {"claim-1"}
    assert devices(node) == {"gpu-0": "default/gpu"}
    nursery.cancel_scope.cancel()


async def test_two_pods_compete_for_one_device(
    node: Node, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await nursery.start(node.run)
    node.apply(
        pod("a", claim="gpu"),
        pod("b", claim="other"),
        documents=[claim(exactly()), claim(exactly(), name="other")],
    )
    await node.prepare("a")
    with pytest.raises(ClaimError) as waits:
        await node.prepare("b")
    assert str(waits.value) == (
        "prepare dynamic resources: ResourceClaim other: no device: request r: 1 of class "
        "gpu.example.com wanted, 0 free (gpu.example.com/n1/gpu-0 is in use by default/gpu)"
    )
    node.woken.clear()
    await node.end("a")
    assert node.woken == []  # the device is not free before the next look
    await trio.sleep(3)
    assert node.woken == ["uid-b"]
    await node.prepare("b")
    assert devices(node) == {"gpu-0": "default/other"}
    nursery.cancel_scope.cancel()


async def test_pods_share_a_claim_until_the_last_has_ended(
    node: Node, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await nursery.start(node.run)
    node.apply(pod("a", claim="gpu"), pod("b", claim="gpu"), documents=[claim(exactly())])
    await node.prepare("a")
    await node.prepare("b")
    assert names(node.local.table[GPU]) == ["a", "b"]
    await node.end("a")
    await trio.sleep(3)
    assert names(node.local.table[GPU]) == ["b"]
    assert node.driver.prepared == {"claim-1"}
    await node.end("b")
    await trio.sleep(3)
    assert devices(node) == {}
    assert node.driver.prepared == set()
    # It is another claim for whoever uses it next.
    node.apply(pod("c", claim="gpu"))
    await node.prepare("c")
    assert node.driver.prepared == {"claim-2"}
    nursery.cancel_scope.cancel()


async def test_each_pod_has_its_own_claim_of_a_template(
    node: Node, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await nursery.start(node.run)
    node.files = OfferedSlices((resource_slice("gpu-0", "gpu-1"),))
    node.apply(
        pod("a", template="gpu"),
        pod("b", template="gpu"),
        documents=[template(claim(exactly()))],
    )
    await node.prepare("a")
    await node.prepare("b")
    holders = devices(node)
    assert sorted(holders) == ["gpu-0", "gpu-1"]
    assert holders["gpu-0"].startswith("default/a-gpu-")
    made = node.local.table[ClaimKey("default", holders["gpu-0"].partition("/")[2])]
    assert made.metadata is not None
    assert made.metadata.labels == {"of": "template"}
    assert made.metadata.annotations == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    status = node.pods["uid-a"].status  # type: ignore[index]  # a PodUid is a str
    assert status is not None
    assert [(s.name, s.resourceClaimName) for s in status.resourceClaimStatuses or ()] == [
        ("gpu", made.metadata.name)
    ]
    await node.end("a")
    await trio.sleep(3)
    assert sorted(devices(node)) == ["gpu-1"]
    nursery.cancel_scope.cancel()


async def test_an_allocation_survives_a_restart(node: Node, autojump_clock: MockClock) -> None:
    node.apply(pod("a", claim="gpu"), pod("b", claim="other"), documents=[
        claim(exactly()), claim(exactly(), name="other")
    ])  # fmt: skip
    async with trio.open_nursery() as life:
        await life.start(node.run)
        await node.prepare("a")
        life.cancel_scope.cancel()
    node.known = None  # no source has delivered
    node.boot()
    async with trio.open_nursery() as life:
        await life.start(node.run)
        await trio.sleep(10)
        # The document may be gone: the claim is what it was.
        node.documents.pop(1)
        node.known = {pod_uid_of("a"), pod_uid_of("b")}
        node.apply()
        with pytest.raises(ClaimError, match="in use by default/gpu"):
            await node.prepare("b")
        await node.prepare("a")
        assert node.driver.prepared == {"claim-1"}
        life.cancel_scope.cancel()


def pod_uid_of(name: str) -> Any:
    return f"uid-{name}"


async def test_what_an_agent_that_died_had_allocated_is_given_back(
    node: Node, autojump_clock: MockClock
) -> None:
    node.apply(pod("a", claim="gpu"), documents=[claim(exactly())])
    await node.local.get(GPU)  # and then it dies: no driver was asked
    node.remove("a")
    node.known = set()
    node.boot()
    async with trio.open_nursery() as life:
        await life.start(node.run)
        node.apply(pod("b", claim="other"), documents=[claim(exactly(), name="other")])
        await node.prepare("b")
        assert devices(node) == {"gpu-0": "default/other"}
        life.cancel_scope.cancel()


class DiesError(Exception):
    """The agent, at some write."""


def dying(after: int) -> Callable[..., Any]:
    """Return an offload of an agent that dies before its `after`-th call, or during it."""
    left = [after]

    async def offload(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise DiesError
        result = await inline_offload(function, *args, **kwargs)
        if left[0] == 0 and after % 2:
            raise DiesError  # done, but nobody was told
        return result

    return offload


@pytest.mark.parametrize("steps", range(14))
async def test_a_crash_between_any_two_steps_gives_no_device_twice(
    tmp_path: Path, autojump_clock: MockClock, steps: int
) -> None:
    node = Node(tmp_path, offload=dying(steps))
    two = [claim(exactly()), claim(exactly(), name="other")]
    node.apply(pod("a", claim="gpu"), pod("b", claim="other"), documents=two)
    used: dict[str, str] = {}  # device and claim, as told to the manager

    async def use(name: str, key: ClaimKey) -> None:
        try:
            found = await node.local.get(key)
        except ClaimError:
            return
        for id_ in in_use({key: found}):
            assert used.get(id_.device, name) == name, "given twice"
            used[id_.device] = name

    async def give_back(name: str) -> None:
        node.remove(name)
        assert node.known is not None
        node.known.discard(pod_uid_of(name))
        for device in [d for d, holder in used.items() if holder == name]:
            del used[device]

    try:
        await use("a", GPU)
        await use("b", ClaimKey("default", "other"))
        await give_back("a")
        await use("b", ClaimKey("default", "other"))
        node.apply(pod("a", claim="gpu"))
        await use("a", GPU)
    except DiesError:
        pass
    node.offload = inline_offload
    node.boot()
    for name, key in (("b", ClaimKey("default", "other")), ("a", GPU)):
        if pod_uid_of(name) in node.pods:
            await use(name, key)
    assert len(devices(node)) <= 1


async def test_a_disk_that_is_full_gives_no_device(
    tmp_path: Path, node: Node, autojump_clock: MockClock
) -> None:
    node.apply(pod("a", claim="gpu"), documents=[claim(exactly())])
    (tmp_path / CLAIMS_FILE).mkdir()
    with pytest.raises(ClaimError, match="expected a file, found a directory"):
        await node.local.get(GPU)
    (tmp_path / CLAIMS_FILE).rmdir()
    await node.local.get(GPU)
    (tmp_path / CLAIMS_FILE).write_text("{")
    node.boot()
    with pytest.raises(ClaimError, match=r"resource_claims.json does not parse"):
        await node.local.get(GPU)


async def test_prepared_devices_are_not_given_away_when_the_file_is_lost(
    node: Node, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await nursery.start(node.run)
    node.apply(pod("a", claim="gpu"), documents=[claim(exactly())])
    node.files = OfferedSlices((resource_slice("d0", pool="pool"),))  # as the driver prepares it
    await node.prepare("a")
    (node.root / CLAIMS_FILE).unlink()
    node.boot()
    node.apply(pod("b", claim="other"), documents=[claim(exactly(), name="other")])
    with pytest.raises(ClaimError, match="pool/d0 is in use by default/gpu"):
        await node.local.get(ClaimKey("default", "other"))
    nursery.cancel_scope.cancel()


async def test_a_pod_that_waits_is_woken_by_documents_and_slices(
    node: Node, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    await nursery.start(node.run)
    node.files = OfferedSlices(problems=("/plugins/x/s.yaml: bad",))
    node.apply(pod("a", claim="gpu"))
    with pytest.raises(ClaimError, match="ResourceClaim gpu: no document of this name in names"):
        await node.prepare("a")
    node.apply(documents=[claim(exactly())])
    assert node.woken == ["uid-a"]
    with pytest.raises(ClaimError, match=r"0 free \(no ResourceSlice .*; /plugins/x/s.yaml: bad"):
        await node.prepare("a")
    node.woken.clear()
    await trio.sleep(10)
    assert node.woken == []
    node.files = OfferedSlices((resource_slice("gpu-0"),))
    await trio.sleep(3)
    assert node.woken == ["uid-a"]
    await node.prepare("a")
    # Slices beside the manifests count as well.
    node.apply(
        pod("b", claim="more"),
        documents=[claim(exactly(), name="more"), resource_slice("gpu-9", pool="p")],
    )
    await node.prepare("b")
    assert devices(node) == {"gpu-0": "default/gpu", "gpu-9": "default/more"}
    nursery.cancel_scope.cancel()


async def test_all_claims_of_a_pod_or_none(node: Node, autojump_clock: MockClock) -> None:
    both = pod("a", claim="gpu")
    assert both.spec is not None
    assert both.spec.resourceClaims is not None
    both.spec.resourceClaims.append(pod("x", claim="other").spec.resourceClaims[0])  # type: ignore[union-attr,index]  # it has one
    node.apply(both, documents=[claim(exactly()), claim(exactly(), name="other")])
    with pytest.raises(ClaimError, match="not all of them together"):
        await node.local.get(GPU)
    assert node.local.table == {}
