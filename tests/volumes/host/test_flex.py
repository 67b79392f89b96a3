"""FlexVolumes: what drivers are asked, what they answer, and what they leave."""

from __future__ import annotations

import base64
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import FlexVolumeSource, LocalObjectReference, Secret

from kubelet_trio.model import thread_offload
from kubelet_trio.objects import ObjectError
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import KernelMounter, Mounter
from kubelet_trio.volumes.errors import MissingToolError, VolumeError, VolumeStepError
from kubelet_trio.volumes.host.flex import FlexVolumes, flex_unique_name, make_flex
from kubelet_trio.volumes.host.flex_driver import FlexDriver
from kubelet_trio.volumes.host.plugins import PluginContext
from kubelet_trio.volumes.spec import VolumeSpec
from tests.volumes.host.controller import FakeController
from tests.volumes.host.disk_specs import disk_spec, left_below

HEAD = """#!/bin/sh
# One line of JSON for each call would need a parser: arguments are separated by a tab.
printf '%s' "$1" >>{log}; shift_first=$1; shift
for argument in "$@"; do printf '\\t%s' "$argument" >>{log}; done
printf '\\n' >>{log}
set -- "$shift_first" "$@"
ok() {{ echo '{{"status": "Success"}}'; exit 0; }}
fail() {{ echo "{{\\"status\\": \\"Failure\\", \\"message\\": \\"$1\\"}}"; exit 1; }}
case $1 in
"""
TAIL = """
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac
"""
# Writes its options to a file; attaches nothing.
FILES = """
init) echo '{"status": "Success", "capabilities": {"attach": false}}' ;;
mount) echo "$3" >"$2/options"; ok ;;
unmount) rm "$2/options" 2>/dev/null || fail "was not mounted"; ok ;;
"""


@dataclass
class FlexNode:
    root: Path
    mounter: Mounter
    drivers: Path
    log: Path

    @property
    def plugin(self) -> FlexVolumes:
        context = PluginContext(
            self.root, self.mounter, thread_offload, node_name="node1", flex_dir=self.drivers
        )
        return make_flex(context)

    @property
    def pod_dir(self) -> Path:
        return self.root / "pods/u-1"

    def install(self, body: str, name: str = "example~disk") -> None:
        program = self.drivers / name / name.rpartition("~")[2]
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(HEAD.format(log=self.log) + body + TAIL)
        program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [line.split("\t") for line in text.splitlines()]

    def mounted(self) -> list[str]:
        below = [m.path for m in self.mounter.mounts() if m.path.startswith(f"{self.root}/")]
        return [os.path.relpath(path, self.root) for path in below]


@pytest.fixture
def node(tmp_path: Path, mounter: FakeMounter) -> FlexNode:
    return FlexNode(tmp_path / "root", mounter, tmp_path / "exec", tmp_path / "log")


@pytest.fixture
def real(tmp_path: Path, kernel: KernelMounter) -> FlexNode:
    return FlexNode(tmp_path / "root", kernel, tmp_path / "exec", tmp_path / "log")


def flex(
    driver: str = "example/disk", *, fields: dict[str, Any] | None = None, **spec: Any
) -> VolumeSpec:
    return disk_spec("flexVolume", FlexVolumeSource(driver=driver, **(fields or {})), **spec)


VOLUME = "pods/u-1/volumes/example~disk/pv"


async def test_a_driver_that_writes_files(node: FlexNode) -> None:
    node.install(FILES)
    spec = flex()
    assert not await node.plugin.is_set_up(spec)
    for _ in range(2):
        await node.plugin.set_up(spec)
    assert [call[0] for call in node.calls()] == ["init", "mount"]
    assert await node.plugin.is_set_up(spec)
    assert (node.root / VOLUME / "options").exists()
    await node.plugin.tear_down(node.pod_dir)
    assert node.calls()[-1] == ["unmount", str(node.root / VOLUME)]
    assert left_below(node.pod_dir / "volumes") == []
    await node.plugin.tear_down(node.pod_dir)
    assert len(node.calls()) == 3


async def test_options_are_as_the_go_kubelet_gives_them(node: FlexNode) -> None:
    node.install(FILES)
    data = {"key": base64.b64encode(b"value").decode()}
    fields = {
        "fsType": "xfs",
        "options": {"size": "1", "kubernetes.io/readwrite": "own"},
        "secretRef": LocalObjectReference("secret"),
    }
    secret = Secret(data=data, type="example/disk")
    group = os.getgid()
    await node.plugin.set_up(flex(fields=fields, secret=secret, fs_group=group, read_only=True))
    command, target, options = node.calls()[-1]
    assert (command, target) == ("mount", str(node.root / VOLUME))
    assert json.loads(options) == {
        "kubernetes.io/fsType": "xfs",
        "kubernetes.io/mounterArgs.FsGroup": str(group),
        "kubernetes.io/pod.name": "web",
        "kubernetes.io/pod.namespace": "default",
        "kubernetes.io/pod.uid": "u-1",
        "kubernetes.io/pvOrVolumeName": "pv",
        "kubernetes.io/readwrite": "own",
        "kubernetes.io/secret/key": data["key"],
        "kubernetes.io/serviceAccount.name": "robot",
        "size": "1",
    }


async def test_a_secret_of_another_type_is_refused(node: FlexNode) -> None:
    node.install(FILES)
    spec = flex(
        fields={"secretRef": LocalObjectReference("secret")}, secret=Secret(type="Opaque", data={})
    )
    with pytest.raises(ObjectError, match="cannot get secret of type example/disk"):
        await node.plugin.set_up(spec)
    assert left_below(node.pod_dir) == []


@pytest.mark.parametrize(
    "driver",
    ["../evil", "a/../b", "a/b/c", "", "/x", "example/", "a~b", ".hidden", "kubernetes.io/csi"],
)
async def test_a_name_that_leaves_the_directory_is_refused(node: FlexNode, driver: str) -> None:
    with pytest.raises(ValueError, match=r"FlexVolume driver|cannot be part of a path"):
        await node.plugin.set_up(flex(driver))
    assert not node.root.exists()


async def test_a_driver_can_be_installed_and_replaced_while_running(node: FlexNode) -> None:
    plugin = node.plugin
    with pytest.raises(MissingToolError, match="example~disk/disk is missing"):
        await plugin.set_up(flex())
    node.install(FILES.replace("ok ;;", 'fail "no space" ;;'))
    with pytest.raises(OSError, match="mount command failed, status: Failure, reason: no space"):
        await plugin.set_up(flex())
    node.install(FILES)
    (node.root / VOLUME / "options").unlink()
    await plugin.set_up(flex())
    await plugin.tear_down(node.pod_dir)


async def test_a_driver_without_a_vendor(node: FlexNode) -> None:
    node.install(FILES, "plain")
    await node.plugin.set_up(flex("plain"))
    assert (node.pod_dir / "volumes/plain/pv/options").exists()
    await node.plugin.tear_down(node.pod_dir)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("echo nonsense", "its output is no answer: nonsense"),
        ("echo '[]'", "its output is no answer"),
        ("echo '{}'", "status: None"),
        ("exit 3", "exit status 3, and its output is no answer"),
        ("""echo '{"status": "Success"}'; exit 2""", "exit status 2"),
        ("yes '[' | tr -d '\\n' | head -c 200000", "its output is no answer"),
    ],
)
async def test_a_bad_answer_is_an_error(node: FlexNode, answer: str, message: str) -> None:
    node.install(FILES.replace('echo "$3" >"$2/options"; ok', answer))
    with pytest.raises(OSError, match=message):
        await node.plugin.set_up(flex())
    assert not (node.root / VOLUME).exists()


async def test_names_of_an_answer_may_have_any_case(node: FlexNode) -> None:
    node.install(FILES.replace('"status": "Success", "cap', '"STATUS": "Success", "Cap'))
    await node.plugin.set_up(flex())
    assert [call[0] for call in node.calls()] == ["init", "mount"]


class HastyFlex(FlexVolumes):
    """Gives drivers three seconds."""

    def driver(self, name: str) -> FlexDriver:
        found = super().driver(name)
        return FlexDriver(found.name, found.program, 3)


async def test_what_a_driver_that_hangs_has_begun_is_unmounted(node: FlexNode) -> None:
    node.install(FILES.replace('>"$2/options"; ok', '>"$2/options"; sleep 600'))
    context = PluginContext(node.root, node.mounter, thread_offload, flex_dir=node.drivers)
    with pytest.raises(OSError, match="did not finish within 3 s"):
        await HastyFlex(context).set_up(flex())
    await node.plugin.tear_down(node.pod_dir)
    assert left_below(node.pod_dir / "volumes") == []
    assert node.calls()[-1][0] == "unmount"


async def test_an_unmount_that_fails_keeps_the_volume(node: FlexNode) -> None:
    node.install(FILES)
    await node.plugin.set_up(flex())
    (node.root / VOLUME / "options").unlink()
    with pytest.raises(VolumeError, match=r"UnmountVolume.TearDown failed .* was not mounted"):
        await node.plugin.tear_down(node.pod_dir)
    assert (node.root / VOLUME).exists()


async def test_without_its_driver_only_what_is_empty_goes(node: FlexNode) -> None:
    node.install(FILES)
    await node.plugin.set_up(flex())
    shutil.rmtree(node.drivers)
    with pytest.raises(VolumeError, match="not empty"):
        await node.plugin.tear_down(node.pod_dir)
    (node.root / VOLUME / "options").unlink()
    await node.plugin.tear_down(node.pod_dir)
    assert left_below(node.pod_dir / "volumes") == []


async def test_directories_of_other_kinds_are_left_alone(node: FlexNode) -> None:
    other = node.pod_dir / "volumes/kubernetes.io~csi/pv/mount"
    other.mkdir(parents=True)
    await node.plugin.tear_down(node.pod_dir)
    assert other.exists()


async def test_raw_devices_are_refused(node: FlexNode) -> None:
    with pytest.raises(ValueError, match="cannot be used as block devices"):
        await node.plugin.set_up(flex(is_block=True))


TMPFS = """
init) echo '{"status": "Success", "capabilities": {"attach": false, "fsGroup": false}}' ;;
mount) mount -t tmpfs -o size=64k none "$2" && ok || fail "mount" ;;
unmount) umount "$2" && rmdir "$2" && ok || fail "umount" ;;
"""


async def test_a_driver_that_mounts(real: FlexNode) -> None:
    real.install(TMPFS)
    await real.plugin.set_up(flex(fs_group=os.getgid()))
    assert real.mounted() == [VOLUME]
    assert not (real.root / VOLUME).stat().st_mode & 0o2000  # fsGroup is the driver's affair
    real.mounter.unmount(real.root / VOLUME)  # as a reboot does
    assert not await real.plugin.is_set_up(flex())
    await real.plugin.set_up(flex())
    assert real.mounted() == [VOLUME]
    await real.plugin.tear_down(real.pod_dir)
    assert real.mounted() == []
    assert left_below(real.pod_dir / "volumes") == []


PLACE = "plugins/kubernetes.io/flexvolume/example/disk/mounts/pv"


async def test_a_driver_that_attaches_leaves_the_mounts_to_the_agent(
    real: FlexNode, loop: Path
) -> None:
    answer = f"""echo '{{"status": "Success", "device": "{loop}"}}'"""
    real.install(f"""init) ok ;;\nattach) {answer} ;;\nwaitforattach) {answer} ;;\ndetach) ok ;;""")
    await real.plugin.set_up(flex())
    await real.plugin.set_up(flex(uid="u-2"))
    assert real.mounted() == [PLACE, VOLUME, VOLUME.replace("u-1", "u-2")]
    commands = [call[0] for call in real.calls()]
    assert commands[:5] == ["init", "attach", "waitforattach", "mountdevice", "mount"]
    assert real.calls()[1][2] == "node1"
    assert real.calls()[2][1] == str(loop)
    await real.plugin.tear_down(real.pod_dir)
    await real.plugin.clean()
    assert PLACE in real.mounted()
    await real.plugin.tear_down(real.root / "pods/u-2")
    assert real.mounted() == []
    assert [call[0] for call in real.calls()][-2:] == ["unmountdevice", "detach"]
    assert real.calls()[-1] == ["detach", "pv", "node1"]
    assert not (real.root / PLACE).exists()


async def test_a_device_of_a_crashed_set_up_is_cleaned(real: FlexNode) -> None:
    mount = 'mount -t tmpfs none "$2" && ok'
    real.install(
        f'init) ok ;;\nmountdevice) {mount} ;;\nmount) fail "no" ;;\n'
        'unmountdevice) umount "$2" && ok || fail "umount" ;;'
    )
    with pytest.raises(OSError, match="reason: no"):
        await real.plugin.set_up(flex())
    assert real.mounted() == [PLACE]
    await real.plugin.tear_down(real.pod_dir)
    await real.plugin.clean()
    assert real.mounted() == []
    assert not (real.root / PLACE).exists()


async def test_in_a_cluster_the_controller_attaches(node: FlexNode) -> None:
    node.install('init) ok ;;\nmountdevice) fail "$3" ;;')
    controller = FakeController()
    context = PluginContext(
        *(node.root, node.mounter, thread_offload),
        flex_dir=node.drivers,
        controller=controller.seams,
    )
    with pytest.raises(VolumeStepError, match="is not attached according to node status"):
        await make_flex(context).set_up(flex())
    controller.attach("example/disk/pv", "/dev/xyz")
    with pytest.raises(VolumeStepError, match="reason: /dev/xyz") as caught:
        await make_flex(context).set_up(flex())
    assert caught.value.step == "MountVolume.MountDevice"
    assert "attach" not in [call[0] for call in node.calls()]
    await make_flex(context).clean()
    assert "detach" not in [call[0] for call in node.calls()]
    assert flex_unique_name(flex()) == "example/disk/pv"
