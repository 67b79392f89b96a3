"""Volumes of host kinds in a cluster: reported, waited for, dropped, and found after a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import FCVolumeSource, FlexVolumeSource, ISCSIVolumeSource
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.model import inline_offload
from kubelet_trio.objects import ObjectError
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes.attaching import AttachedVolumes, KindInUse
from kubelet_trio.volumes.errors import VolumeStepError
from kubelet_trio.volumes.host.fibre_channel import fc_on_disk
from kubelet_trio.volumes.host.flex import flex_on_disk
from kubelet_trio.volumes.host.iscsi import iscsi_on_disk, iscsi_unique_name
from kubelet_trio.volumes.host.plugins import PluginContext, host_kinds, unique_name
from kubelet_trio.volumes.spec import AttachablePlugin, GrowingPlugin
from tests.volumes.host.controller import FakeController
from tests.volumes.host.disk_specs import disk_spec
from tests.volumes.host.initiator import IQN
from tests.volumes.host.test_iscsi import Node, iscsi, make_node

NAME = f"kubernetes.io/iscsi/10.0.0.1:{IQN}:0"


@dataclass
class Cluster:
    """A node with an initiator and an attach controller; `restart` forgets what is in memory."""

    node: Node
    controller: FakeController = field(default_factory=FakeController)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.kind = KindInUse(
            self.controller.seams, lambda: iscsi_on_disk(self.node.base), inline_offload
        )
        self.plugin = AttachedVolumes(self.node.plugin, self.kind, iscsi_unique_name)


async def undo_unused(plugin: AttachedVolumes) -> None:
    for undo in (await plugin.unused()).values():
        await undo()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(make_node(tmp_path))


async def test_a_volume_is_reported_waited_for_and_dropped(cluster: Cluster) -> None:
    plugin, controller, spec = cluster.plugin, cluster.controller, iscsi()
    assert isinstance(plugin, AttachablePlugin)
    assert isinstance(plugin, GrowingPlugin)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plugin.set_up, spec)
        await wait_all_tasks_blocked()
        assert controller.in_use == [NAME]
        assert not plugin.is_attached(spec)
        assert cluster.node.mounted() == {}
        controller.attach(NAME)
    assert plugin.is_attached(spec)
    assert await plugin.is_set_up(spec)
    await plugin.set_up(iscsi(uid="u-2"))
    await plugin.tear_down(cluster.node.pod_dir())
    await undo_unused(plugin)
    assert controller.in_use == [NAME]
    await plugin.tear_down(cluster.node.pod_dir("u-2"))
    assert controller.in_use == []
    controller.detach(NAME)


async def test_without_a_report_nobody_goes_on(cluster: Cluster, autojump_clock: MockClock) -> None:
    cluster.controller.is_reachable = False
    cluster.controller.attach(NAME)
    with trio.move_on_after(123) as waiting:
        await cluster.plugin.set_up(iscsi())
    assert waiting.cancelled_caught
    assert cluster.node.mounted() == {}


async def test_a_pod_that_waits_keeps_the_volume_in_use(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(123):
        await cluster.plugin.set_up(iscsi())
    await undo_unused(cluster.plugin)
    assert cluster.controller.in_use == [NAME]
    await cluster.plugin.tear_down(cluster.node.pod_dir())
    assert cluster.controller.in_use == []


@pytest.mark.parametrize("portal", ["10.0.0.1", "10.0.0.1:3260"])
async def test_what_is_mounted_stays_in_use_over_a_restart(cluster: Cluster, portal: str) -> None:
    spec = iscsi(portal=portal)
    name = iscsi_unique_name(spec)
    cluster.controller.attach(name)
    await cluster.plugin.set_up(spec)
    cluster.controller = FakeController()
    cluster.restart()
    await cluster.kind.restore()
    assert name in cluster.controller.in_use
    await cluster.plugin.set_up(spec)  # needs no answer of anyone
    await undo_unused(cluster.plugin)
    assert name in cluster.controller.in_use
    cluster.restart()
    await cluster.kind.restore()
    await cluster.plugin.tear_down(cluster.node.pod_dir())
    assert cluster.controller.in_use == []


async def test_a_disk_that_cannot_be_unmounted_stays_in_use(cluster: Cluster) -> None:
    cluster.controller.attach(NAME)
    await cluster.plugin.set_up(iscsi())
    place = next(path for path in cluster.node.mounted() if path.startswith("plugins"))
    cluster.node.mounter.busy.add(str(cluster.node.root / place))
    await cluster.plugin.tear_down(cluster.node.pod_dir())  # the pod does not wait for it
    with pytest.raises(Exception, match="UnmountDevice failed"):
        await undo_unused(cluster.plugin)
    assert cluster.controller.in_use == [NAME]
    cluster.node.mounter.busy.clear()
    await cluster.plugin.tear_down(cluster.node.pod_dir())
    await undo_unused(cluster.plugin)
    assert cluster.controller.in_use == []


async def test_a_refusal_names_its_step(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(name: str) -> None:
        await trio.lowlevel.checkpoint()
        raise ObjectError("Volume not attached according to node status")

    monkeypatch.setattr(cluster.controller, "wait_device", refuse)
    for is_block, step in ((False, "MountVolume.WaitForAttach"), (True, "MapVolume.WaitForAttach")):
        with pytest.raises(VolumeStepError, match="not attached") as caught:
            await cluster.plugin.set_up(iscsi(is_block=is_block))
        assert caught.value.step == step


SOURCES: dict[str, Any] = {
    "fc": (FCVolumeSource(targetWWNs=["a", "b"], lun=3), "fc/a-b-lun-3"),
    "fc by WWID": (FCVolumeSource(wwids=["x y"]), "fc/x_y"),
    "raw fc": (FCVolumeSource(wwids=["x"]), "fc/volumeDevices/x"),
    "iscsi": (
        ISCSIVolumeSource(iqn=IQN, lun=1, targetPortal="10.0.0.1"),
        f"iscsi/iface-default/10.0.0.1:3260-{IQN}-lun-1",
    ),
    "raw iscsi": (
        ISCSIVolumeSource(iqn=IQN, lun=1, targetPortal="10.0.0.1:860"),
        f"iscsi/volumeDevices/iface-default/10.0.0.1:860-{IQN}-lun-1",
    ),
    "flexVolume": (FlexVolumeSource(driver="v/d"), "flexvolume/v/d/mounts/pv"),
    "flat flexVolume": (FlexVolumeSource(driver="d"), "flexvolume/d/mounts/pv"),
}
READERS = {"fc": fc_on_disk, "iscsi": iscsi_on_disk, "flexVolume": flex_on_disk}


@pytest.mark.parametrize("case", SOURCES)
async def test_the_place_on_disk_tells_the_name(tmp_path: Path, case: str) -> None:
    source, place = SOURCES[case]
    kind = {"FCVolumeSource": "fc", "ISCSIVolumeSource": "iscsi"}.get(
        type(source).__name__, "flexVolume"
    )
    base = tmp_path / "plugins/kubernetes.io"
    (base / place).mkdir(parents=True)
    name = unique_name(disk_spec(kind, source))
    assert name in READERS[kind](base / place.split("/")[0])
    controller = FakeController()
    context = PluginContext(tmp_path, FakeMounter(), inline_offload, controller=controller.seams)
    for known in host_kinds(context):
        if known.restore is not None:
            await known.restore()
    assert name in controller.in_use
    assert "local" not in {known.kind for known in host_kinds(context) if known.restore}
