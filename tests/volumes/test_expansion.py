"""Volumes grow on the node when claim and persistent volume say so, and the claim is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod
from trio.testing import MockClock

from kubelet_trio.kube import apply_strategic
from kubelet_trio.model import EventType, ObjectRef, parse_quantity
from kubelet_trio.objects import ObjectError
from kubelet_trio.volumes.expansion import (
    Growth,
    GrowthError,
    GrowthProblem,
    KnownSize,
    NoClaimStatus,
    SizeReached,
    VolumeGrowth,
    failed_patch,
    finished_patch,
    plan_growth,
    progress_patch,
)
from kubelet_trio.volumes.spec import VolumeSpec

GIB = 2**30
UID = "p-1"
NOT_REQUIRED = {"volume.kubernetes.io/node-expansion-not-required": "true"}


def size(gib: int) -> int:
    return parse_quantity(f"{gib}Gi")


def claim(
    has: int = 1,
    *,
    resize: str = "",
    allocated: int = 0,
    wants: int = 2,
    modes: tuple[str, ...] = ("ReadWriteOnce",),
    annotations: Mapping[str, str] | None = None,
    conditions: tuple[str, ...] = (),
) -> PersistentVolumeClaim:
    status: dict[str, Any] = {"phase": "Bound", "capacity": {"storage": f"{has}Gi"}}
    if resize:
        status["allocatedResourceStatuses"] = {"storage": resize}
    if allocated:
        status["allocatedResources"] = {"storage": f"{allocated}Gi"}
    status["conditions"] = [{"type": kind, "status": "True"} for kind in conditions]
    meta = {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
    raw = {
        "metadata": {**meta, "annotations": dict(annotations or {})},
        "spec": {
            "accessModes": list(modes),
            "volumeName": "pv",
            "resources": {"requests": {"storage": f"{wants}Gi"}},
        },
        "status": status,
    }
    return msgspec.convert(raw, PersistentVolumeClaim)


def document(gib: int) -> tuple[PersistentVolumeClaim, PersistentVolume]:
    raw = {"metadata": {"name": "c", "namespace": "ns"}, "spec": {"volumeName": "pv"}}
    return msgspec.convert(raw, PersistentVolumeClaim), volume(gib)


def volume(gib: int) -> PersistentVolume:
    capacity = {"storage": f"{gib}Gi"} if gib else {}
    raw = {"metadata": {"name": "pv"}, "spec": {"capacity": capacity}}
    return msgspec.convert(raw, PersistentVolume)


RWX = ("ReadWriteMany",)


@pytest.mark.parametrize(
    ("found", "has_now", "expected"),
    [
        # The claim has what the volume has.
        (claim(2), 2, None),
        (claim(2), 3, None),
        # A resizer that knows of no recovery leaves only the sizes.
        (claim(1), 1, Growth("2Gi")),
        # The controller is still at work, or has given up.
        (claim(1, resize="ControllerResizeInProgress", allocated=2), 1, None),
        (claim(1, resize="ControllerResizeInfeasible", allocated=2), 1, None),
        (claim(1, resize="NodeResizeInfeasible", allocated=2), 1, None),
        # It is the node's turn: to the size that is allocated.
        (claim(1, resize="NodeResizePending", allocated=2), 1, Growth("2Gi", recovers=True)),
        (claim(1, resize="NodeResizeInProgress", allocated=2), 1, Growth("2Gi", recovers=True)),
        # Another node has reported the size.
        (claim(2, allocated=2), 1, SizeReached(size(2))),
        (claim(2, allocated=2, modes=RWX), 1, Growth("2Gi", recovers=True, is_claimed=True)),
        (claim(2, allocated=2, modes=RWX, annotations=NOT_REQUIRED), 1, SizeReached(size(2))),
        (claim(1, allocated=2), 1, None),
    ],
)
def test_a_mounted_volume_grows_when_it_is_the_nodes_turn(
    found: PersistentVolumeClaim, has_now: int, expected: object
) -> None:
    known = KnownSize(size(has_now))
    assert plan_growth(found, volume(2), known, is_mounting=False) == expected


def test_what_failed_for_good_gives_way_to_another_request() -> None:
    known = KnownSize(size(1), has_failed=True)
    for wants, gives_way in ((2, False), (3, True)):
        found = claim(1, resize="NodeResizePending", allocated=2, wants=wants)
        plan = plan_growth(found, volume(2), known, is_mounting=False)
        assert plan == Growth("2Gi", recovers=True, is_infeasible_on_failure=gives_way)


@pytest.mark.parametrize(
    ("known", "gib"),
    [(KnownSize(), 2), (KnownSize(size(1)), 0), (KnownSize(size(1), is_in_use=True), 2)],
)
def test_a_mounted_volume_of_unknown_size_or_that_cannot_grow_is_left(
    known: KnownSize, gib: int
) -> None:
    assert plan_growth(claim(1), volume(gib), known, is_mounting=False) is None


def test_before_its_first_use_only_the_claim_counts() -> None:
    for known in (KnownSize(), KnownSize(size(5)), KnownSize(size(1), is_in_use=True)):
        assert plan_growth(claim(1), volume(2), known, is_mounting=True) == Growth("2Gi")
        assert plan_growth(claim(2), volume(2), known, is_mounting=True) is None


sizes = st.integers(0, 3)


@given(
    sizes,
    sizes,
    sizes,
    sizes,
    st.sampled_from(["", "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"]),
    st.booleans(),
)
def test_a_volume_never_shrinks_and_reaches_no_size_that_nobody_gave(
    has: int, gib: int, allocated: int, now: int, resize: str, mounting: bool
) -> None:
    found = claim(has, resize=resize, allocated=allocated)
    plan = plan_growth(found, volume(gib), KnownSize(size(now)), is_mounting=mounting)
    if isinstance(plan, Growth):
        assert resize != "NodeResizeInfeasible"
        assert plan.amount in (size(gib), size(allocated))
        assert size(gib) > (size(has) if mounting else size(now))


# What the claim is told


def patched(found: PersistentVolumeClaim, body: Mapping[str, Any]) -> Any:
    state = msgspec.to_builtins(found)
    return apply_strategic(state, body, "PersistentVolumeClaim")


def test_the_finished_claim_has_its_size_and_no_conditions_of_a_resize() -> None:
    found = claim(
        1,
        resize="NodeResizeInProgress",
        allocated=2,
        conditions=("FileSystemResizePending", "Resizing", "NodeResizeError", "Other"),
    )
    state = patched(found, finished_patch(found, "2Gi"))["status"]
    assert state["capacity"] == {"storage": "2Gi"}
    assert not state["allocatedResourceStatuses"]
    assert state["allocatedResources"] == {"storage": "2Gi"}
    assert [c["type"] for c in state["conditions"]] == ["Other"]


def test_progress_and_end_fail_if_the_claim_has_changed_meanwhile() -> None:
    for body in (progress_patch(claim()), finished_patch(claim(), "2Gi")):
        assert body["metadata"] == {"resourceVersion": "7"}
    state = patched(claim(), progress_patch(claim()))["status"]
    assert state["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}


def test_a_failure_is_a_condition_with_the_reason() -> None:
    body = failed_patch(claim(), "no room", "2026-01-01T00:00:00Z", is_infeasible=True)
    state = patched(claim(), body)["status"]
    assert state["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
    assert state["conditions"] == [
        {
            "type": "NodeResizeError",
            "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "failed to expand pvc with no room",
        }
    ]
    known = claim(conditions=("NodeResizeError",))
    assert failed_patch(known, "again", "now", is_infeasible=False) == {}


# In time


class Grower:
    """Lets volumes grow, or fails as told."""

    def __init__(self) -> None:
        self.grown: list[int] = []
        self.failure: GrowthError | None = None
        self.on_grow: Callable[[], None] = lambda: None

    async def grow(self, spec: VolumeSpec, size: int) -> None:
        await trio.lowlevel.checkpoint()
        self.on_grow()
        self.grown.append(size)
        if self.failure is not None:
            raise GrowthError(str(self.failure), self.failure.problem)


class Claims:
    """An API server with one claim."""

    def __init__(self, found: PersistentVolumeClaim) -> None:
        self.claim = found
        self.is_down = False

    async def patch(
        self, claim: PersistentVolumeClaim, body: Mapping[str, Any]
    ) -> PersistentVolumeClaim:
        await trio.lowlevel.checkpoint()
        if self.is_down:
            raise ObjectError("no answer")
        assert self.claim.metadata is not None
        version = body.get("metadata", {}).get("resourceVersion")
        if version not in (None, self.claim.metadata.resourceVersion):
            raise ObjectError("the object has been modified")
        state = patched(self.claim, body)
        state["metadata"]["resourceVersion"] = str(int(state["metadata"]["resourceVersion"]) + 1)
        self.claim = msgspec.convert(state, PersistentVolumeClaim)
        return self.claim

    @property
    def resize(self) -> str:
        assert self.claim.status is not None
        statuses: Mapping[str, str] = self.claim.status.allocatedResourceStatuses or {}
        return statuses.get("storage", "")


class Node:
    def __init__(self, found: PersistentVolumeClaim, gib: int = 2) -> None:
        self.grower, self.claims = Grower(), Claims(found)
        self.gib = gib
        self.told: list[tuple[str, EventType, str, str]] = []
        self.growth = VolumeGrowth(self, lambda: 0.0, self.claims)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.told.append((involved.kind, type_, reason, message))

    async def before_use(self, *, read_only: bool = False, is_new: bool = True) -> None:
        await self.growth.before_use(self.spec(read_only=read_only), self.grower, is_new=is_new)

    async def mounted(self, *, read_only: bool = False) -> None:
        await self.growth.while_mounted(self.spec(read_only=read_only), self.grower)

    def spec(self, *, read_only: bool = False) -> VolumeSpec:
        pod = msgspec.convert(
            {
                "metadata": {"name": "p", "namespace": "ns", "uid": UID},
                "spec": {"nodeName": "n1", "containers": []},
            },
            Pod,
        )
        return VolumeSpec(
            pod,
            "data",
            "csi",
            None,
            "pv",
            read_only=read_only,
            claim=self.claims.claim,
            persistent=volume(self.gib),
        )


SUCCESS = 'MountVolume.NodeExpandVolume succeeded for volume "pv" n1'


async def test_a_mounted_volume_grows_and_claim_and_pod_are_told() -> None:
    node = Node(claim(1), gib=1)
    await node.mounted()
    assert node.grower.grown == []
    node.gib = 2
    # The controller resizes the volume; the filesystem follows.
    node.claims.claim = claim(
        1, resize="NodeResizePending", allocated=2, conditions=("FileSystemResizePending",)
    )
    await node.mounted()
    assert node.grower.grown == [2 * GIB]
    assert node.claims.resize == ""
    status = node.claims.claim.status
    assert status is not None
    assert (status.capacity, status.conditions or []) == ({"storage": "2Gi"}, [])
    assert node.told == [
        ("Pod", "Normal", "FileSystemResizeSuccessful", SUCCESS),
        ("PersistentVolumeClaim", "Normal", "FileSystemResizeSuccessful", SUCCESS),
    ]
    await node.mounted()
    assert len(node.grower.grown) == 1


async def test_a_failure_is_told_and_tried_again_with_a_back_off(
    autojump_clock: MockClock,
) -> None:
    node = Node(claim(1, resize="NodeResizePending", allocated=2))
    node.grower.failure = GrowthError("rpc error", GrowthProblem.FAILED)
    for _ in range(600):
        await node.mounted()
        await trio.sleep(1)
    # 0.5, 1, 2, 4, ... 122 s: not each second, and not never.
    assert 8 <= len(node.grower.grown) <= 14
    assert set(node.told) == {
        (
            "Pod",
            "Warning",
            "VolumeResizeFailed",
            'NodeExpandVolume.NodeExpandVolume failed for volume "pv" : rpc error',
        )
    }
    status = node.claims.claim.status
    assert status is not None
    assert status.conditions is not None
    assert [c.type for c in status.conditions] == ["NodeResizeError"]
    assert node.claims.resize == "NodeResizeInProgress"
    node.grower.failure = None
    await trio.sleep(130)
    await node.mounted()
    assert node.claims.resize == ""


@pytest.mark.parametrize(
    ("problem", "wants", "resize"),
    [
        (GrowthProblem.INFEASIBLE, 2, "NodeResizeInfeasible"),
        (GrowthProblem.FAILED, 2, "NodeResizeInProgress"),
        (GrowthProblem.UNCERTAIN, 2, "NodeResizeInProgress"),
    ],
)
async def test_the_claim_learns_what_can_never_be(
    problem: GrowthProblem, wants: int, resize: str, autojump_clock: MockClock
) -> None:
    node = Node(claim(1, resize="NodeResizePending", allocated=2, wants=wants))
    node.grower.failure = GrowthError("no", problem)
    await node.mounted()
    assert node.claims.resize == resize
    status = node.claims.claim.status
    assert status is not None
    # After a timeout the driver may still succeed: no verdict.
    assert bool(status.conditions) == (problem is not GrowthProblem.UNCERTAIN)


async def test_after_a_final_failure_another_request_makes_it_infeasible(
    autojump_clock: MockClock,
) -> None:
    node = Node(claim(1, resize="NodeResizePending", allocated=2))
    node.grower.failure = GrowthError("no", GrowthProblem.FAILED)
    await node.mounted()
    assert node.claims.resize == "NodeResizeInProgress"
    node.claims.claim = claim(1, resize="NodeResizeInProgress", allocated=2, wants=3)
    await trio.sleep(1)
    await node.mounted()
    assert node.claims.resize == "NodeResizeInfeasible"


async def test_a_volume_that_cannot_grow_in_use_is_not_tried_again(
    autojump_clock: MockClock,
) -> None:
    node = Node(claim(1, resize="NodeResizePending", allocated=2))
    node.grower.failure = GrowthError("in use", GrowthProblem.IN_USE)
    for _ in range(3):
        await node.mounted()
        await trio.sleep(200)
    assert len(node.grower.grown) == 1
    assert node.told == []
    # Nor does it keep the next pod from starting.
    await node.before_use()
    # Once no pod has it any more, it is tried again.
    node.growth.forget(UID)
    node.grower.failure = None
    await node.before_use()
    assert node.claims.resize == ""


async def test_a_driver_that_grows_nothing_on_nodes_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    for found in (claim(1), claim(2, allocated=2, modes=RWX)):
        node = Node(found)
        node.grower.failure = GrowthError("not supported", GrowthProblem.UNSUPPORTED)
        await node.before_use()
        await node.mounted()
        assert node.told == []


async def test_before_its_first_use_a_volume_grows_or_the_pod_waits() -> None:
    node = Node(claim(1, resize="NodeResizePending", allocated=2))
    node.grower.failure = GrowthError("rpc error", GrowthProblem.FAILED)
    with pytest.raises(GrowthError, match="rpc error"):
        await node.before_use()
    node.grower.failure = None
    # It is set up already, but the pod still waits for its size.
    await node.before_use(is_new=False)
    assert node.claims.resize == ""
    await node.before_use(is_new=False)
    assert len(node.grower.grown) == 2
    assert [told[2] for told in node.told] == ["FileSystemResizeSuccessful"] * 2


async def test_a_read_only_use_never_grows_a_volume() -> None:
    node = Node(claim(1, resize="NodeResizePending", allocated=2))
    await node.before_use(read_only=True)
    await node.mounted(read_only=True)
    assert node.grower.grown == []
    text = 'MountVolume.NodeExpandVolume failed for volume "pv" requested read-only file system'
    assert node.told == [
        ("Pod", "Warning", "FileSystemResizeFailed", text),
        ("PersistentVolumeClaim", "Warning", "FileSystemResizeFailed", text),
    ]


async def test_a_claim_that_cannot_be_told_is_tried_again(autojump_clock: MockClock) -> None:
    node = Node(claim(1, resize="NodeResizePending", allocated=2))
    await node.mounted()
    node = Node(claim(1, resize="NodeResizePending", allocated=2))
    node.claims.is_down = True
    await node.mounted()
    # Nothing may change before the claim says so.
    assert node.grower.grown == []
    node.claims.is_down = False
    await trio.sleep(1)
    await node.mounted()
    assert node.claims.resize == ""


async def test_the_end_of_a_growth_that_could_not_be_told_is_told_later(
    autojump_clock: MockClock,
) -> None:
    """Else the claim would stay in NodeResizeInProgress as long as the pod runs."""
    node = Node(claim(1), gib=1)
    await node.mounted()
    node.gib = 2
    node.claims.claim = claim(1, resize="NodeResizePending", allocated=2)
    node.grower.on_grow = lambda: setattr(node.claims, "is_down", True)
    await node.mounted()
    assert node.claims.resize == "NodeResizeInProgress"
    assert [told[2] for told in node.told].count("VolumeResizeFailed") == 1
    node.grower.on_grow = lambda: None
    node.claims.is_down = False
    await trio.sleep(1)
    await node.mounted()
    assert node.claims.resize == ""
    await node.mounted()
    assert len(node.grower.grown) == 2


async def test_a_volume_that_is_gone_by_then_says_nothing_about_its_claim() -> None:
    node = Node(claim(1), gib=1)
    await node.mounted()
    node.gib = 2
    node.claims.claim = claim(1, resize="NodeResizePending", allocated=2)
    node.grower.failure = GrowthError("nothing is mounted", GrowthProblem.GONE)
    await node.mounted()
    assert node.claims.resize == "NodeResizeInProgress"
    assert node.told == []


async def test_a_document_grows_when_its_capacity_is_raised_without_a_word_to_anyone() -> None:
    found, _ = document(1)
    node = Node(found, 1)
    node.growth = VolumeGrowth(node, lambda: 0.0, NoClaimStatus())
    await node.before_use()
    assert node.grower.grown == [GIB]
    await node.mounted()
    node.gib = 3
    await node.mounted()
    await node.mounted()
    assert node.grower.grown == [GIB, 3 * GIB]
    assert node.told == []
