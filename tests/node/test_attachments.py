"""Volumes of the attach controller: what the node reports to it, and what it attaches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    Container,
    CSIPersistentVolumeSource,
    Node,
    NodeStatus,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodSpec,
)
from lightkube.models.core_v1 import Volume as KubeVolume
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import (
    CSIDriver,
    CSIDriverSpec,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.kube import KubeError
from kubelet_trio.model import Bell, PodUid, inline_offload
from kubelet_trio.node import NodeView
from kubelet_trio.node.heartbeat import NodeHeartbeat
from kubelet_trio.node.registration import NodeObject, Registration
from kubelet_trio.node.volumes_in_use import ReportedVolumes
from kubelet_trio.objects import (
    ClusterAttachments,
    ObjectError,
    attachment_name,
    claim_key,
    csi_unique_name,
    volume_key,
)
from kubelet_trio.offline import Folder, Keeper
from kubelet_trio.testing import FakeKube, KubeFaultKind, TrioClock
from tests.node.make import IDENTITY, view
from tests.node.test_heartbeat import Sink

DRIVER, HANDLE = "disk.example.com", "vol-1"
VOLUME = "kubernetes.io/csi/disk.example.com^vol-1"
NAME = attachment_name(DRIVER, HANDLE, "node-1")


class World:
    """A node that reports its status, and the attach controller's side of the API server."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.api = self.kube.node("node-1")
        self.node = NodeObject()
        self.bell = Bell()
        self.in_use = ReportedVolumes(self.bell)
        self.clock = TrioClock()
        self.attachments = ClusterAttachments(self.api, "node-1", self.node.value)
        self.heartbeat = NodeHeartbeat(
            *(self.api, IDENTITY, self.node, self.observe, Sink()),
            wake=self.bell,
            on_volumes=self.in_use.note_reported,
        )

    async def observe(self) -> NodeView:
        await trio.lowlevel.checkpoint()
        return replace(view(), now=self.clock.time(), volumes_in_use=self.in_use.listed())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        registration = Registration(self.api, IDENTITY, self.node, self.observe, Sink())
        async with trio.open_nursery() as nursery:
            await nursery.start(registration.run)
            await nursery.start(self.heartbeat.run)
            await wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()

    def reported(self) -> list[str]:
        """Return `volumesInUse` as the API server has it."""
        node = self.kube.find(Node, "node-1")
        assert node is not None
        assert node.status is not None
        return node.status.volumesInUse or []

    def attach(self, **status: Any) -> None:
        """Create the VolumeAttachment, as attached unless told otherwise."""
        source = VolumeAttachmentSource(persistentVolumeName="pv")
        spec = VolumeAttachmentSpec(attacher=DRIVER, nodeName="node-1", source=source)
        self.kube.add(VolumeAttachment(metadata=ObjectMeta(name=NAME), spec=spec))
        self.kube.change(
            VolumeAttachment, NAME, {"status": {"attached": True, **status}}, subresource="status"
        )

    def list_attached(self, *names: str) -> None:
        """Set `volumesAttached`, as the attach controller does; the node's watch delivers it."""
        attached = [{"name": name, "devicePath": ""} for name in names]
        patch = {"status": {"volumesAttached": attached}}
        self.node.put(self.kube.change(Node, "node-1", patch, subresource="status"))

    async def refusal(self) -> str:
        with pytest.raises(ObjectError) as refused, trio.fail_after(60):
            await self.attachments.wait_attached(DRIVER, HANDLE)
        return str(refused.value)


@pytest.fixture
def world() -> World:
    return World()


def test_names_are_upstream_s() -> None:
    assert csi_unique_name(DRIVER, HANDLE) == VOLUME
    # From getAttachmentName's own recipe: sha256 of handle, driver and node.
    assert attachment_name("csi.vsphere.example.com", "vol-7", "node-a") == (
        "csi-6fbaf594c9ffcb00e983665f2b32a44de17d4ec90903eb11012e315fdeedd1d6"
    )


async def test_a_volume_is_reported_at_once_and_before_anyone_goes_on(
    world: World, autojump_clock: MockClock
) -> None:
    world.in_use.settle()
    async with world.running():
        await trio.sleep(1)
        world.in_use.note(VOLUME)
        with trio.fail_after(0.5):
            await world.in_use.wait_reported(VOLUME)
        assert world.reported() == [VOLUME]
        world.in_use.note("kubernetes.io/csi/a^b")
        world.in_use.note(VOLUME)
        await trio.sleep(0.5)
        assert world.reported() == ["kubernetes.io/csi/a^b", VOLUME]
        world.in_use.drop(VOLUME)
        world.in_use.drop("kubernetes.io/csi/a^b")
        world.in_use.drop("never there")
        await trio.sleep(0.5)
        assert world.reported() == []


async def test_nobody_goes_on_while_the_server_does_not_answer(
    world: World, autojump_clock: MockClock
) -> None:
    world.in_use.settle()
    async with world.running():
        world.kube.go_down()
        world.in_use.note(VOLUME)
        with trio.move_on_after(300) as waiting:
            await world.in_use.wait_reported(VOLUME)
        assert waiting.cancelled_caught
        world.kube.come_back()
        with trio.fail_after(60):
            await world.in_use.wait_reported(VOLUME)
        assert world.reported() == [VOLUME]


async def test_a_volume_that_was_dropped_is_not_reported_when_it_is_noted_again(
    world: World, autojump_clock: MockClock
) -> None:
    world.in_use.settle()
    async with world.running():
        world.in_use.note(VOLUME)
        await world.in_use.wait_reported(VOLUME)
        world.kube.latency = 2.0
        world.in_use.drop(VOLUME)
        await trio.sleep(1)  # the status without it is on its way
        world.in_use.note(VOLUME)
        began = trio.current_time()
        await world.in_use.wait_reported(VOLUME)
        assert trio.current_time() - began > 2
        assert world.reported() == [VOLUME]


async def test_what_an_earlier_agent_reported_stays_until_all_is_found(
    world: World, autojump_clock: MockClock
) -> None:
    earlier = ["kubernetes.io/csi/a^b", VOLUME]
    status = NodeStatus(volumesInUse=earlier)
    world.kube.add(Node(metadata=ObjectMeta(name="node-1"), status=status))
    async with world.running():
        await trio.sleep(400)
        assert world.reported() == earlier
        world.in_use.note(VOLUME)
        await trio.sleep(30)
        assert world.reported() == earlier
        with trio.fail_after(0.1):  # the server has it, whoever reported it
            await world.in_use.wait_reported(VOLUME)
        world.in_use.settle()
        await trio.sleep(0.5)
        assert world.reported() == [VOLUME]


async def test_what_an_earlier_agent_reported_stays_if_not_all_can_be_found(
    world: World, autojump_clock: MockClock
) -> None:
    """A volume that is still mounted must not be detached because the disk cannot be read."""
    other = "kubernetes.io/csi/a^b"
    status = NodeStatus(volumesInUse=[other, "kubernetes.io/csi/c^d"])
    world.kube.add(Node(metadata=ObjectMeta(name="node-1"), status=status))
    world.in_use.settle(is_complete=False)
    async with world.running():
        await trio.sleep(400)
        assert world.reported() == [other, "kubernetes.io/csi/c^d"]
        world.in_use.note(VOLUME)
        with trio.fail_after(1):
            await world.in_use.wait_reported(VOLUME)
        assert world.reported() == [other, "kubernetes.io/csi/c^d", VOLUME]
        world.in_use.drop("kubernetes.io/csi/c^d")  # found and undone after all
        world.in_use.drop(VOLUME)
        await trio.sleep(0.5)
        assert world.reported() == [other]


@given(st.lists(st.tuples(st.sampled_from(["note", "drop", "send", "answer"]), st.booleans())))
def test_a_reported_volume_is_in_the_server_s_list_and_stays_there(
    steps: list[tuple[str, bool]],
) -> None:
    """The rule by which the attach controller detaches nothing that is mounted."""
    volumes = ReportedVolumes(Bell())
    volumes.settle()
    on_the_way: tuple[str, ...] | None = None
    server: tuple[str, ...] = ()
    waiting = {"a", "b"}

    def is_reported(name: str) -> bool:
        return name in volumes._reported.value

    for step, which in steps:
        name = "a" if which else "b"
        if step == "note":
            volumes.note(name)
        elif step == "drop":
            volumes.drop(name)
        elif step == "send" and on_the_way is None:
            on_the_way = volumes.listed()
        elif step == "answer" and on_the_way is not None:
            server, on_the_way = on_the_way, None
            volumes.note_reported(server)
        for one in waiting:
            if is_reported(one):
                assert one in server
                assert one in (volumes.listed() or ())
                assert on_the_way is None or one in on_the_way


async def test_an_attached_volume_has_the_metadata_of_its_attachment(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running(), trio.open_nursery() as nursery:
        found: list[Any] = []

        async def wait() -> None:
            found.append(await world.attachments.wait_attached(DRIVER, HANDLE))

        nursery.start_soon(wait)
        await trio.sleep(100)
        assert not world.attachments.is_attached(DRIVER, HANDLE)
        world.attach(attachmentMetadata={"devicePath": "/dev/xvdb"})
        await trio.sleep(100)
        assert found == []
        world.list_attached("kubernetes.io/csi/a^b", VOLUME)
        await wait_all_tasks_blocked()
        assert found == [{"devicePath": "/dev/xvdb"}]
        assert world.attachments.is_attached(DRIVER, HANDLE)
        assert not world.attachments.is_attached(DRIVER, "vol-2")


async def test_why_an_attachment_is_not_one(world: World, autojump_clock: MockClock) -> None:
    async with world.running():
        world.list_attached(VOLUME)
        assert await world.refusal() == (
            f"volume vol-1 has GET error for volume attachment {NAME}: "
            f'volumeattachments.storage.k8s.io "{NAME}" is forbidden: User "system:node:node-1" '
            'cannot get resource "volumeattachments" in API group "storage.k8s.io" at the cluster '
            "scope: no relationship found between node 'node-1' and this object"
        )
        world.attach(attached=False)
        assert await world.refusal() == (
            f"volume vol-1 is not attached for volume attachment {NAME}"
        )
        error = {"message": "rpc error: code = Internal desc = no slot"}
        world.kube.change(
            VolumeAttachment, NAME, {"status": {"attachError": error}}, subresource="status"
        )
        assert await world.refusal() == "rpc error: code = Internal desc = no slot"
        meta = {"finalizers": ["external-attacher/disk"]}
        world.kube.change(VolumeAttachment, NAME, {"metadata": meta})
        world.kube.remove(VolumeAttachment, NAME)
        assert await world.refusal() == "volume attachment is being deleted"


async def test_a_volume_that_stays_attached_needs_no_server(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        world.list_attached(VOLUME)
        world.attach(attachmentMetadata={"a": "1"})
        wait = partial(world.attachments.wait_attached, DRIVER, HANDLE)
        assert await wait() == {"a": "1"}
        world.kube.go_down()
        assert await wait() == {"a": "1"}
        world.kube.come_back()
        # Attached again: what the driver returned counts from now on.
        patch = {"status": {"attachmentMetadata": {"a": "2"}}}
        world.kube.change(VolumeAttachment, NAME, patch, subresource="status")
        assert await wait() == {"a": "2"}


def claimed_pod() -> tuple[Pod, PersistentVolumeClaim, PersistentVolume]:
    """A pod of the node, with a claim of the volume."""
    claim = PersistentVolumeClaimVolumeSource(claimName="c")
    spec = PodSpec(
        containers=[Container(name="c", image="i")],
        nodeName="node-1",
        volumes=[KubeVolume(name="v", persistentVolumeClaim=claim)],
    )
    csi = CSIPersistentVolumeSource(driver=DRIVER, volumeHandle=HANDLE)
    return (
        Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u-1"), spec=spec),
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="c", namespace="default"),
            spec=PersistentVolumeClaimSpec(volumeName="pv"),
        ),
        PersistentVolume(metadata=ObjectMeta(name="pv"), spec=PersistentVolumeSpec(csi=csi)),
    )


@asynccontextmanager
async def keeping(world: World, folder: Path) -> AsyncIterator[Keeper]:
    """Run a keeper, and attachments that it remembers."""
    keeper = Keeper(Folder(folder), inline_offload)
    world.attachments = ClusterAttachments(world.api, "node-1", world.node.value, memory=keeper)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        yield keeper
        keeper.stop()


async def test_a_node_that_starts_cut_off_knows_its_attached_volumes(
    world: World, tmp_path: Path, autojump_clock: MockClock
) -> None:
    folder = tmp_path / "offline"
    pod, claim, volume = claimed_pod()
    async with keeping(world, folder) as keeper, world.running():
        world.list_attached(VOLUME)
        world.attach(attachmentMetadata={"slot": "7"})
        keeper.note_pods({PodUid("u-1"): pod})
        keeper.note_object(claim_key("default", "c"), claim)
        keeper.note_object(volume_key("pv"), volume)
        assert world.node.value.value is not None
        keeper.note_node(world.node.value.value)
        assert await world.attachments.wait_attached(DRIVER, HANDLE) == {"slot": "7"}
        await trio.sleep(30)
    kept = next(folder.glob("volumeattachment-*.json"))
    assert b'"slot":"7"' in kept.read_bytes()
    assert (kept.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)

    again = World()
    again.kube.go_down()
    async with keeping(again, folder) as keeper:
        assert not again.attachments.is_attached(DRIVER, HANDLE)
        assert keeper.fall_back() is not None
        assert again.attachments.is_attached(DRIVER, HANDLE)
        assert again.attachments.device(VOLUME) == ""
        await again.attachments.wait_device(VOLUME)
        assert await again.attachments.wait_attached(DRIVER, HANDLE) == {"slot": "7"}
        with trio.move_on_after(60) as waiting:
            await again.attachments.wait_attached(DRIVER, "other")
        assert waiting.cancelled_caught
        # The server is back: the volume was detached meanwhile, and no pod needs it any more.
        keeper.note_pods({})
        assert not again.attachments.is_attached(DRIVER, HANDLE)
        await trio.sleep(30)
    assert list(folder.glob("volumeattachment-*.json")) == []


async def test_a_volume_that_was_detached_has_no_context(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running():
        world.list_attached(VOLUME)
        world.attach()
        assert await world.attachments.wait_attached(DRIVER, HANDLE) == {}
        world.list_attached("kubernetes.io/csi/a^b")
        with trio.move_on_after(60) as waiting:
            await world.attachments.wait_attached(DRIVER, HANDLE)
        assert waiting.cancelled_caught
        world.kube.go_down()
        world.list_attached(VOLUME)
        assert "has GET error" in await world.refusal()


async def test_a_device_is_attached_once_the_node_lists_it(
    world: World, autojump_clock: MockClock
) -> None:
    name = "kubernetes.io/fc/[a]:0"
    async with world.running():
        assert world.attachments.device(name) is None
        with trio.move_on_after(60) as waiting:
            await world.attachments.wait_device(name)
        assert waiting.cancelled_caught
        patch = {"status": {"volumesAttached": [{"name": name, "devicePath": "/dev/sdx"}]}}
        world.node.put(world.kube.change(Node, "node-1", patch, subresource="status"))
        await world.attachments.wait_device(name)
        assert world.attachments.device(name) == "/dev/sdx"
        world.kube.go_down()
        await world.attachments.wait_device(name)
        world.kube.come_back()
        # Detached, while the watch has not delivered it.
        patch = {"status": {"volumesAttached": []}}
        world.kube.change(Node, "node-1", patch, subresource="status")
        with pytest.raises(ObjectError, match="Volume not attached according to node status"):
            await world.attachments.wait_device(name)


async def test_without_the_controller_nothing_is_attached(
    world: World, autojump_clock: MockClock
) -> None:
    world.attachments = ClusterAttachments(
        world.api, "node-1", world.node.value, by_controller=False
    )
    told = await world.refusal()
    assert told.startswith("attaching volumes from the kubelet is not supported")
    assert "enableControllerAttachDetach" in told


@pytest.mark.parametrize(
    ("period", "error", "is_exhausted"),
    [
        (10, {"errorCode": 8, "message": "too many"}, True),
        (10, {"errorCode": 13, "message": "no"}, False),
        (10, {"message": "too many"}, False),
        (10, None, False),
        (None, {"errorCode": 8, "message": "too many"}, False),
    ],
)
async def test_when_the_node_has_all_volumes_that_it_can_have(
    world: World,
    autojump_clock: MockClock,
    period: int | None,
    error: dict[str, Any] | None,
    is_exhausted: bool,
) -> None:
    async with world.running():
        assert not await world.attachments.is_exhausted(DRIVER, HANDLE)
        spec = CSIDriverSpec(nodeAllocatableUpdatePeriodSeconds=period)
        world.kube.add(CSIDriver(metadata=ObjectMeta(name=DRIVER), spec=spec))
        world.attach(attached=False, attachError=error)
        assert await world.attachments.is_exhausted(DRIVER, HANDLE) is is_exhausted
        no = KubeError(500, "InternalError", "etcd is away")
        world.kube.faults.add(KubeFaultKind.ERROR, "get", "csidrivers", error=no)
        with pytest.raises(ObjectError, match="etcd is away"):
            await world.attachments.is_exhausted(DRIVER, HANDLE)
