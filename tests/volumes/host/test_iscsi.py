"""iSCSI volumes: log-ins, paths, secrets, shared targets, and a crash at every step."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import ISCSIVolumeSource, LocalObjectReference, Secret, Volume
from trio.testing import MockClock

from kubelet_trio.model import inline_offload, pod_uid
from kubelet_trio.testing.devices import FakeBlockDevices
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import VolumeManager
from kubelet_trio.volumes.errors import VolumeError, VolumeStepError
from kubelet_trio.volumes.host.disks import DiskVolumes
from kubelet_trio.volumes.host.iscsi import (
    IscsiDisk,
    IscsiDisks,
    disk_of,
    iscsi_unique_name,
    read_disk,
)
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.spec import AsyncKind, VolumeSpec
from tests.volumes.host.disk_specs import disk_spec, left_below
from tests.volumes.host.initiator import IQN, Initiator
from tests.volumes.host.programs import FakeFormats, FakeTools
from tests.volumes.make import pod

PORTAL = "10.0.0.1:3260"


@dataclass
class Node:
    """A node with an initiator; `plugin` is a fresh one, as after a restart."""

    root: Path
    mounter: FakeMounter
    tools: FakeTools
    formats: FakeFormats
    initiator: Initiator

    @property
    def plugin(self) -> DiskVolumes:
        context = PluginContext(
            self.root, self.mounter, inline_offload, self.tools, self.initiator.block
        )
        return DiskVolumes(context, IscsiDisks(context, self.initiator.scsi))

    @property
    def base(self) -> Path:
        return self.root / "plugins/kubernetes.io/iscsi"

    def pod_dir(self, uid: str = "u-1") -> Path:
        return self.root / "pods" / uid

    def mounted(self) -> dict[str, str]:
        return {os.path.relpath(m.path, self.root): m.source for m in self.mounter.mounts()}

    def assert_nothing_left(self) -> None:
        assert self.mounter.mounts() == []
        assert self.initiator.is_clean
        assert left_below(self.base / "iface-default", self.base / "volumeDevices") == []
        assert left_below(*(p for p in self.root.glob("pods/*/volume*"))) == []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


def make_node(path: Path, mounter: FakeMounter | None = None, **initiator: Any) -> Node:
    mounter, tools, formats = mounter or FakeMounter(), FakeTools(), FakeFormats()
    block = FakeBlockDevices(mounter)
    made = Initiator(path / "host", mounter, block, **initiator)
    made.add_to(tools)
    formats.add_to(tools)
    return Node(path / "root", mounter, tools, formats, made)


def iscsi(
    lun: int = 0, *, portal: str = "10.0.0.1", fields: dict[str, Any] | None = None, **spec: Any
) -> VolumeSpec:
    source = ISCSIVolumeSource(iqn=IQN, lun=lun, targetPortal=portal, **(fields or {}))
    return disk_spec("iscsi", source, **spec)


PLACE = f"plugins/kubernetes.io/iscsi/iface-default/{PORTAL}-{IQN}-lun-0"


async def test_a_pods_own_disk_is_mounted_and_undone(node: Node) -> None:
    source = ISCSIVolumeSource(iqn=IQN, lun=0, targetPortal="10.0.0.1")
    user = pod(Volume(name="data", iscsi=source))
    uid = pod_uid(user)
    kind = AsyncKind(
        "iscsi", lambda name: name == "kubernetes.io~iscsi", lambda: False, lambda: node.plugin
    )
    volumes = VolumeManager(
        node.root, node.mounter, inline_offload, async_kinds=lambda walks, measured: [kind]
    )
    await volumes.mount(user)
    assert list(node.mounted()) == [PLACE, f"pods/{uid}/volumes/kubernetes.io~iscsi/data"]
    await volumes.unmount(uid)
    node.assert_nothing_left()


async def test_a_disk_is_attached_mounted_once_and_bound(node: Node) -> None:
    spec = iscsi(mount_options=("noatime",))
    await node.plugin.set_up(spec)
    disk = str(node.initiator.dev / "disk/by-path" / f"ip-{PORTAL}-iscsi-{IQN}-lun-0")
    volume = "pods/u-1/volumes/kubernetes.io~iscsi/pv"
    assert node.mounted() == {PLACE: disk, volume: disk}
    assert node.mounter.mounts()[0].super_options == ("noatime", "defaults")
    assert node.plugin.path(spec) == node.root / volume
    assert await node.plugin.is_set_up(spec)
    assert node.initiator.nodes[PORTAL, IQN]["node.startup"] == "manual"
    assert node.initiator.nodes[PORTAL, IQN]["node.session.scan"] == "manual"

    await node.plugin.set_up(iscsi(uid="u-2"))
    await node.plugin.tear_down(node.pod_dir())
    await node.plugin.clean()
    assert list(node.mounted()) == [PLACE, "pods/u-2/volumes/kubernetes.io~iscsi/pv"]
    await node.plugin.tear_down(node.pod_dir("u-2"))
    node.assert_nothing_left()


async def test_the_file_is_as_the_go_kubelet_writes_it(
    node: Node, autojump_clock: MockClock
) -> None:
    """Written by `persistISCSI`, read by `loadISCSI`."""
    await node.plugin.set_up(iscsi(fields={"portals": ["10.0.0.1:3260", "10.0.0.2"]}))
    found = json.loads((node.root / PLACE / "iscsi.json").read_text())
    assert found == {
        "VolName": "pv",
        "Portals": [PORTAL, "10.0.0.2:3260"],
        "Iqn": IQN,
        "Lun": "0",
        "InitIface": "default",
        "Iface": "default",
        "InitiatorName": "",
    }


async def test_what_the_go_kubelet_has_mounted_is_torn_down(node: Node) -> None:
    await node.plugin.set_up(iscsi())
    file = node.root / PLACE / "iscsi.json"
    file.write_text(
        f'{{"VolName":"data","Portals":["{PORTAL}"],"Iqn":"{IQN}","Lun":"0",'
        '"InitIface":"default","Iface":"default","InitiatorName":"","MetricsProvider":null}\n'
    )
    (node.pod_dir() / "plugins/kubernetes.io~iscsi/pv/ready").unlink()
    await node.plugin.tear_down(node.pod_dir())
    node.assert_nothing_left()


@pytest.mark.parametrize("content", [None, "", "[]", '{"Portals": 7}', '{"Portals": ["x"]}'])
async def test_without_a_usable_file_the_place_names_the_disk(
    node: Node, content: str | None
) -> None:
    await node.plugin.set_up(iscsi())
    file = node.root / PLACE / "iscsi.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    await node.plugin.tear_down(node.pod_dir())
    node.assert_nothing_left()


@pytest.mark.parametrize(
    ("name", "portal", "lun"),
    [
        (f"10.0.0.1:3260-{IQN}-lun-12", "10.0.0.1:3260", 12),
        (f"[fd00::1]:3260-{IQN}-lun-0", "[fd00::1]:3260", 0),
        ("nas-1.example:3260-eui.0123456789abcdef-lun-3", "nas-1.example:3260", 3),
    ],
)
def test_a_places_name_is_read(tmp_path: Path, name: str, portal: str, lun: int) -> None:
    disk = read_disk(tmp_path / "iface-default" / name)
    assert (disk.portals, disk.lun, disk.iface) == ((portal,), lun, "default")
    assert disk.name.name == name


async def test_two_volumes_of_a_target_share_its_session(node: Node) -> None:
    await node.plugin.set_up(iscsi(0))
    await node.plugin.set_up(iscsi(1, uid="u-2", name="pv2"))
    assert len(node.initiator.sessions) == 1
    await node.plugin.tear_down(node.pod_dir())
    assert len(node.initiator.sessions) == 1
    assert node.initiator.devices() == ["sdb"]
    await node.plugin.tear_down(node.pod_dir("u-2"))
    node.assert_nothing_left()


async def test_several_portals_use_the_multipath_device(tmp_path: Path) -> None:
    portals = {PORTAL, "10.0.0.2:3260"}
    node = make_node(tmp_path, portals=portals, has_multipath=True)
    await node.plugin.set_up(iscsi(fields={"portals": ["10.0.0.2"]}))
    assert set(node.mounted().values()) == {str(node.initiator.dev / "dm-0")}
    assert node.initiator.devices() == ["dm-0", "sda", "sdb"]
    await node.plugin.tear_down(node.pod_dir())
    node.assert_nothing_left()


async def test_a_portal_that_does_not_answer_is_tried_again_and_left_out(
    node: Node, autojump_clock: MockClock
) -> None:
    await node.plugin.set_up(iscsi(fields={"portals": ["10.0.0.9"]}))
    tried = [c for c in node.tools.calls if "10.0.0.9:3260" in c and "--discover" in c]
    assert len(tried) == 5
    await node.plugin.tear_down(node.pod_dir())
    node.assert_nothing_left()


async def test_no_path_at_all_is_an_error(node: Node) -> None:
    node.initiator.portals.clear()
    with pytest.raises(VolumeStepError, match="failed to get any path") as caught:
        await node.plugin.set_up(iscsi())
    assert caught.value.step == "MountVolume.WaitForAttach"
    assert "Connection refused" in str(caught.value)
    await node.plugin.tear_down(node.pod_dir())
    await node.plugin.clean()
    node.assert_nothing_left()


async def test_a_lun_that_does_not_appear_is_an_error_after_30_s(
    node: Node, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    with pytest.raises(VolumeStepError, match=r"Timed out waiting for device .* after 30s"):
        await node.plugin.set_up(iscsi(7))
    assert 29 <= trio.current_time() - began < 35
    await node.plugin.clean()
    node.assert_nothing_left()


async def test_without_iscsiadm_the_packages_are_named(node: Node) -> None:
    del node.tools.programs["iscsiadm"]
    with pytest.raises(VolumeStepError, match="iscsiadm is missing"):
        await node.plugin.set_up(iscsi())


CHAP = {
    "discovery.sendtargets.auth.username": "u1",
    "discovery.sendtargets.auth.password": "p1",
    "node.session.auth.username": "u2",
    "node.session.auth.password": "p2",
    "node.session.auth.username_in": "u3",
}


def chap_secret(values: dict[str, str]) -> Secret:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return Secret(data=data, type="kubernetes.io/iscsi-chap")


CHAP_FIELDS = {
    "chapAuthDiscovery": True,
    "chapAuthSession": True,
    "secretRef": LocalObjectReference("secret"),
}


async def test_chap_secrets_are_used_for_discovery_and_session(tmp_path: Path) -> None:
    methods = ("discovery.sendtargets", "node.session")
    wanted = {**CHAP, **{f"{prefix}.auth.authmethod": "CHAP" for prefix in methods}}
    node = make_node(tmp_path, chap=wanted)
    await node.plugin.set_up(iscsi(fields=CHAP_FIELDS, secret=chap_secret(CHAP)))
    assert "p2" not in (node.root / PLACE / "iscsi.json").read_text()
    await node.plugin.tear_down(node.pod_dir())
    node.assert_nothing_left()


async def test_a_wrong_secret_is_refused_and_not_shown(tmp_path: Path) -> None:
    node = make_node(tmp_path, chap=CHAP)
    wrong = chap_secret({**CHAP, "node.session.auth.password": "hunter2"})
    with pytest.raises(VolumeStepError, match="authorization failure") as caught:
        await node.plugin.set_up(iscsi(fields=CHAP_FIELDS, secret=wrong))
    assert "hunter2" not in str(caught.value)
    await node.plugin.clean()
    node.assert_nothing_left()


async def test_an_initiator_name_gets_an_interface_of_its_own(node: Node) -> None:
    name = "iqn.2001-04.com.example:node1"
    spec = iscsi(fields={"initiatorName": name})
    await node.plugin.set_up(spec)
    own = f"{PORTAL}:pv"
    assert node.initiator.ifaces[own] == {
        "iface.iscsi_ifacename": own,
        "iface.transport_name": "tcp",
        "iface.initiatorname": name,
    }
    assert (node.base / f"iface-{own}").is_dir()
    await node.plugin.tear_down(node.pod_dir())
    node.assert_nothing_left()


async def test_an_adapter_has_its_pci_address_in_the_link(tmp_path: Path) -> None:
    node = make_node(tmp_path, transport="be2iscsi")
    await node.plugin.set_up(iscsi())
    assert all("/pci-0000:00:01.0-ip-" in source for source in node.mounted().values())


async def test_an_ipv6_portal_has_no_brackets_in_the_link(tmp_path: Path) -> None:
    node = make_node(tmp_path, portals={"[fd00::1]:3260"})
    await node.plugin.set_up(iscsi(portal="[fd00::1]:3260"))
    assert all(f"/ip-fd00::1:3260-iscsi-{IQN}" in s for s in node.mounted().values())
    await node.plugin.tear_down(node.pod_dir())
    node.assert_nothing_left()


@pytest.mark.parametrize("iqn", ["iqn.2001-04.com.example:../../../../etc", "iqn.2001-04.a:b/c"])
async def test_a_name_that_leaves_the_place_is_refused(node: Node, iqn: str) -> None:
    source = ISCSIVolumeSource(iqn=iqn, lun=0, targetPortal="10.0.0.1")
    with pytest.raises(ValueError, match="cannot be part of a path"):
        await node.plugin.set_up(disk_spec("iscsi", source))
    assert node.tools.calls == []


async def test_read_only_volumes_are_never_formatted(node: Node) -> None:
    with pytest.raises(VolumeStepError, match="read-only mode") as caught:
        await node.plugin.set_up(iscsi(read_only=True))
    assert caught.value.step == "MountVolume.MountDevice"
    assert node.formats.formats == {}


async def test_a_raw_device_is_mapped_for_each_pod(node: Node) -> None:
    spec, other = iscsi(is_block=True), iscsi(is_block=True, uid="u-2")
    await node.plugin.set_up(spec)
    await node.plugin.set_up(other)
    place = node.base / "volumeDevices/iface-default" / f"{PORTAL}-{IQN}-lun-0"
    device = node.initiator.dev / "sda"
    assert sorted(p.name for p in place.iterdir()) == ["iscsi.json", "u-1", "u-2"]
    link = node.pod_dir() / "volumeDevices/kubernetes.io~iscsi/pv"
    assert node.plugin.path(spec) == link
    assert link.readlink() == device
    assert await node.plugin.is_set_up(spec)
    await node.plugin.tear_down(node.pod_dir())
    assert list(node.initiator.sessions) == [(PORTAL, IQN)]
    await node.plugin.tear_down(node.pod_dir("u-2"))
    node.assert_nothing_left()


@pytest.mark.parametrize("is_block", [False, True])
async def test_a_write_that_was_cut_short_leaves_nothing_behind(node: Node, is_block: bool) -> None:
    """The unfinished file is no pod's entry, and does not keep the place."""
    tree = node.base / "volumeDevices" if is_block else node.base
    place = tree / "iface-default" / f"{PORTAL}-{IQN}-lun-0"
    place.mkdir(parents=True)
    (place / ".iscsi.json.new").write_text("{")
    await node.plugin.clean()
    node.assert_nothing_left()


async def test_entries_of_pods_that_are_gone_are_cleaned(node: Node) -> None:
    await node.plugin.set_up(iscsi(is_block=True))
    link = node.pod_dir() / "volumeDevices/kubernetes.io~iscsi/pv"
    link.unlink()
    for directory in (link.parent, link.parent.parent, node.pod_dir()):
        directory.rmdir()
    await node.plugin.clean()
    node.assert_nothing_left()


async def test_a_disk_that_somebody_else_mounts_is_not_removed(node: Node) -> None:
    await node.plugin.set_up(iscsi())
    admin = node.root / "admin"
    admin.mkdir()
    node.mounter.mount_device(str(node.initiator.dev / "sda"), admin, "ext4")
    await node.plugin.tear_down(node.pod_dir())
    await node.plugin.clean()
    assert str(admin) in [m.path for m in node.mounter.mounts()]
    assert node.initiator.sessions
    node.mounter.unmount(admin)
    await node.plugin.clean()
    node.assert_nothing_left()


async def test_a_logout_that_fails_is_told_and_repeated(node: Node) -> None:
    await node.plugin.set_up(iscsi())
    good, node.tools.programs["iscsiadm"] = node.tools.programs["iscsiadm"], failing
    await node.plugin.tear_down(node.pod_dir())  # the pod does not wait for it
    with pytest.raises(VolumeError, match=r"UnmountDevice failed .* log out of .*: out of order"):
        await node.plugin.clean()
    node.tools.programs["iscsiadm"] = good
    await node.plugin.clean()
    node.assert_nothing_left()


def failing(*_: str) -> Any:
    from tests.volumes.host.programs import done

    return done("out of order", 9)


class Crash(BaseException):
    """The end of the agent at some step."""


class CrashingMounter(FakeMounter):
    """A mounter whose every change counts as a step."""

    def __init__(self) -> None:
        super().__init__()
        self.step: Callable[[], None] = lambda: None

    def mount_device(self, *args: Any, **kwargs: Any) -> None:
        self.step()
        super().mount_device(*args, **kwargs)
        self.step()

    def bind(self, *args: Any, **kwargs: Any) -> None:
        self.step()
        super().bind(*args, **kwargs)
        self.step()

    def unmount(self, *args: Any, **kwargs: Any) -> None:
        self.step()
        super().unmount(*args, **kwargs)
        self.step()


def crash_after(node: Node, steps: int) -> None:
    """Let the agent die at its n-th step, before or after the program or the mount."""
    left = [steps]

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash

    assert isinstance(node.mounter, CrashingMounter)
    node.mounter.step = step
    run = FakeTools.run

    def counted(tool: str, *arguments: str, limit: float = 0) -> Any:
        step()
        result = run(node.tools, tool, *arguments)
        step()
        return result

    node.tools.run = counted  # type: ignore[method-assign]


def restart(node: Node) -> None:
    assert isinstance(node.mounter, CrashingMounter)
    node.mounter.step = lambda: None
    del node.tools.run


@pytest.mark.parametrize("is_block", [False, True])
@pytest.mark.parametrize("is_torn_down", [False, True])
async def test_a_crash_at_any_step_is_undone(
    tmp_path: Path, is_block: bool, is_torn_down: bool
) -> None:
    fields = {"initiatorName": "iqn.2001-04.com.example:node1", "portals": ["10.0.0.2"]}
    for steps in range(1, 1000):
        portals = {PORTAL, "10.0.0.2:3260"}
        path = tmp_path / str(steps)
        node = make_node(path, CrashingMounter(), portals=portals, has_multipath=True)
        spec, has_crashed = iscsi(fields=fields, is_block=is_block), False
        try:
            if is_torn_down:
                await node.plugin.set_up(spec)
            crash_after(node, steps)
            if is_torn_down:
                await node.plugin.tear_down(node.pod_dir())
            else:
                await node.plugin.set_up(spec)
        except* Crash:
            has_crashed = True
        if not has_crashed:
            assert steps > (10 if is_torn_down else 30)
            return
        restart(node)
        await node.plugin.tear_down(node.pod_dir())
        await node.plugin.clean()
        node.assert_nothing_left()
        assert left_below(node.base) == []
    raise AssertionError("it never came to its end")


def test_names() -> None:
    spec = iscsi()
    assert iscsi_unique_name(spec) == f"kubernetes.io/iscsi/10.0.0.1:{IQN}:0"
    assert disk_of(spec) == IscsiDisk("pv", (PORTAL,), IQN, 0, "default", "default")
