"""CSI volumes grow on the node: NodeExpandVolume, with a driver that checks the rules."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
import pytest
import trio
import trio.testing
from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeClaim, Secret
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.grpc import Status
from kubelet_trio.kube import apply_strategic
from kubelet_trio.model import PodUid, inline_offload
from kubelet_trio.objects import ApiObject, claim_key
from kubelet_trio.testing.csi import CsiFaultKind, calls
from kubelet_trio.volumes import VolumeError
from tests.volumes.csi.world import World, claimed, persistent, pod_of

P = ParamSpec("P")
T = TypeVar("T")

GIB = 2**30
POD = pod_of("u-1", claimed())


def resized(*values: ApiObject, has: int, allocated: int = 0, resize: str = "") -> list[ApiObject]:
    """Give a persistent volume of 2 Gi and its claim their sizes."""
    volume, claim = values
    assert isinstance(volume, PersistentVolume)
    assert isinstance(claim, PersistentVolumeClaim)
    status: dict[str, Any] = {"phase": "Bound", "capacity": {"storage": f"{has}Gi"}}
    if allocated:
        status["allocatedResources"] = {"storage": f"{allocated}Gi"}
    if resize:
        status["allocatedResourceStatuses"] = {"storage": resize}
    spec = {**msgspec.to_builtins(volume.spec), "capacity": {"storage": "2Gi"}}
    return [
        msgspec.convert({**msgspec.to_builtins(volume), "spec": spec}, PersistentVolume),
        msgspec.convert(
            {
                **msgspec.to_builtins(claim),
                "spec": {
                    "volumeName": "pv",
                    "resources": {"requests": {"storage": f"{allocated or has}Gi"}},
                },
                "status": status,
            },
            PersistentVolumeClaim,
        ),
    ]


class Node(World):
    """A node whose claims are patched in the store that its agent reads."""

    async def patch(
        self, claim: PersistentVolumeClaim, body: Mapping[str, Any]
    ) -> PersistentVolumeClaim:
        await trio.lowlevel.checkpoint()
        known = self.objects.known[claim_key("default", "claim-pv")]
        state = apply_strategic(msgspec.to_builtins(known), body, "PersistentVolumeClaim")
        changed = msgspec.convert(state, PersistentVolumeClaim)
        self.objects.put(changed)
        return changed

    def __post_init__(self) -> None:
        self.claims = self
        super().__post_init__()

    @property
    def capacity(self) -> str:
        claim = self.objects.known[claim_key("default", "claim-pv")]
        assert isinstance(claim, PersistentVolumeClaim)
        assert claim.status is not None
        capacity: Mapping[str, str] = claim.status.capacity or {}
        return capacity["storage"]


def resizes(node: Node) -> list[str]:
    """Return how the growths of mounted volumes ended, as metrics show them."""
    found = node.meter.histograms("storage_operation_duration_seconds")
    return [labels[2] for labels, _ in found if labels[1] == "volume_fs_resize"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, ("STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME"))


async def test_a_running_pods_volume_grows_where_it_is_published(
    node: Node, autojump_clock: MockClock
) -> None:
    secret = {"name": "grow", "namespace": "vault"}
    found = persistent(nodeExpandSecretRef=None)
    node.objects.put(*resized(*found, has=2))
    async with node.running():
        await node.volumes.mount(POD)
        volume, claim = resized(*found, has=1, allocated=2, resize="NodeResizePending")
        state = msgspec.to_builtins(volume)
        state["spec"]["csi"]["nodeExpandSecretRef"] = secret
        state["spec"]["capacity"] = {"storage": "3Gi"}
        claim_state = msgspec.to_builtins(claim)
        claim_state["status"]["capacity"] = {"storage": "2Gi"}
        claim_state["status"]["allocatedResources"] = {"storage": "3Gi"}
        node.objects.put(
            msgspec.convert(state, PersistentVolume),
            msgspec.convert(claim_state, PersistentVolumeClaim),
            Secret(metadata=ObjectMeta(name="grow", namespace="vault"), stringData={"k": "v"}),
        )
        assert node.volumes.growing.has_any
        await node.volumes.growing.grow(POD)
        await node.volumes.growing.grow(POD)
        (call,) = [call for call in node.rules.log if call.method == calls.EXPAND]
        assert call.path.endswith("/pods/u-1/volumes/kubernetes.io~csi/pv/mount")
        assert call.staging_path.endswith("/globalmount")
        assert node.capacity == "3Gi"
        success = 'MountVolume.NodeExpandVolume succeeded for volume "pv" '
        assert node.events.texts.count(f"FileSystemResizeSuccessful: {success}") == 2
        assert resizes(node) == ["success"]
        await node.volumes.unmount(POD.metadata.uid)  # type: ignore[union-attr,arg-type]
    node.rules.check()


async def test_a_pod_waits_until_its_volume_has_grown(
    node: Node, autojump_clock: MockClock
) -> None:
    node.objects.put(*resized(*persistent(), has=1, allocated=2, resize="NodeResizePending"))
    async with node.running():
        node.driver.faults.add(CsiFaultKind.ERROR, calls.EXPAND, times=2, status=Status.INTERNAL)
        await node.volumes.mount(POD)
        assert node.capacity == "2Gi"
        text = (
            'FailedMount: MountVolume.Setup failed while expanding volume for volume "pv" : '
            "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = "
            "injected failure"
        )
        assert node.events.texts.count(text) == 2
    node.rules.check()


async def test_a_volume_that_its_pod_has_lost_meanwhile_does_not_grow(
    node: Node, autojump_clock: MockClock
) -> None:
    """The teardown has the volume's lock: a driver would answer NOT_FOUND, which is for good."""
    found = persistent()
    node.objects.put(*resized(*found, has=2))
    async with node.running():
        await node.volumes.mount(POD)
        await node.volumes.growing.grow(POD)
        volume, claim = resized(*found, has=2, allocated=3, resize="NodeResizePending")
        state = msgspec.to_builtins(volume)
        state["spec"]["capacity"] = {"storage": "3Gi"}
        node.objects.put(msgspec.convert(state, PersistentVolume), claim)
        hung = node.driver.faults.add(CsiFaultKind.HANG, calls.UNPUBLISH)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(node.volumes.unmount, PodUid("u-1"))
            await trio.testing.wait_all_tasks_blocked()
            tasks.start_soon(node.volumes.growing.grow, POD)
            await trio.testing.wait_all_tasks_blocked()
            node.driver.faults.lift(hung)
        assert [call for call in node.rules.log if call.method == calls.EXPAND] == []
        known = node.objects.known[claim_key("default", "claim-pv")]
        assert isinstance(known, PersistentVolumeClaim)
        assert known.status is not None
        assert known.status.allocatedResourceStatuses == {"storage": "NodeResizeInProgress"}
    assert [text for text in node.events.texts if "Resize" in text] == []
    node.rules.check()


@dataclass
class FailingDisk:
    """An offload; the disk fails once when somebody looks whether a volume is published."""

    is_well: bool = False

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(fn, "__name__", "") == "_is_published" and not self.is_well:
            self.is_well = True
            raise OSError(errno.EIO, "Input/output error")
        return await inline_offload(fn, *args, **kwargs)


async def test_a_disk_that_fails_meanwhile_lets_the_growth_be_tried_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    disk = FailingDisk(is_well=True)
    node = Node(tmp_path, ("STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME"), offload=disk)
    found = persistent()
    node.objects.put(*resized(*found, has=2))
    async with node.running():
        await node.volumes.mount(POD)
        volume, claim = resized(*found, has=2, allocated=3, resize="NodeResizePending")
        state = msgspec.to_builtins(volume)
        state["spec"]["capacity"] = {"storage": "3Gi"}
        node.objects.put(msgspec.convert(state, PersistentVolume), claim)
        disk.is_well = False
        await node.volumes.growing.grow(POD)
        assert disk.is_well
        await trio.sleep(600)
        await node.volumes.growing.grow(POD)
        assert node.capacity == "3Gi"
    node.rules.check()


async def test_a_secret_that_is_missing_is_told_to_pod_and_claim(
    node: Node, autojump_clock: MockClock
) -> None:
    found = persistent(nodeExpandSecretRef={"name": "grow", "namespace": "vault"})
    node.objects.put(*resized(*found, has=2))
    async with node.running():
        await node.volumes.mount(POD)
        volume, claim = resized(*found, has=2, allocated=3, resize="NodeResizePending")
        state = msgspec.to_builtins(volume)
        state["spec"]["capacity"] = {"storage": "3Gi"}
        node.objects.put(msgspec.convert(state, PersistentVolume), claim)
        await node.volumes.growing.grow(POD)
        known = node.objects.known[claim_key("default", "claim-pv")]
    text = (
        "expander.NodeExpand failed to get NodeExpandSecretRef vault/grow: kubernetes.io/csi: "
        'failed to find the secret grow in the namespace vault with error: secret "grow" not found'
    )
    failed = 'VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume "pv" : '
    assert failed + text in node.events.texts
    assert resizes(node) == ["fail-unknown"]
    assert isinstance(known, PersistentVolumeClaim)
    assert known.status is not None
    (condition,) = known.status.conditions or []
    assert (condition.type, condition.message) == (
        "NodeResizeError",
        f"failed to expand pvc with {text}",
    )
    node.rules.check()


async def test_a_driver_without_the_capability_is_not_asked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    node.objects.put(*resized(*persistent(), has=1))
    async with node.running():
        await node.volumes.mount(POD)
        await node.volumes.growing.grow(POD)
    assert [call for call in node.rules.log if call.method == calls.EXPAND] == []
    node.rules.check()


@pytest.mark.parametrize(
    ("status", "resize", "starts"),
    [
        (Status.FAILED_PRECONDITION, "NodeResizeInProgress", True),
        (Status.OUT_OF_RANGE, "NodeResizeInfeasible", True),
        (Status.UNAVAILABLE, "NodeResizeInProgress", False),
    ],
)
async def test_what_a_driver_answers_decides_what_the_claim_says(
    node: Node, status: Status, resize: str, starts: bool, autojump_clock: MockClock
) -> None:
    node.objects.put(*resized(*persistent(), has=1, allocated=2, resize="NodeResizePending"))
    async with node.running():
        node.driver.faults.add(CsiFaultKind.ERROR, calls.EXPAND, times=None, status=status)
        if starts:
            await node.volumes.mount(POD)
        else:
            with pytest.raises(VolumeError, match="unmounted volumes"):
                await node.volumes.mount(POD)
        claim = node.objects.known[claim_key("default", "claim-pv")]
        assert isinstance(claim, PersistentVolumeClaim)
        assert claim.status is not None
        assert claim.status.allocatedResourceStatuses == {"storage": resize}
    node.rules.check()
