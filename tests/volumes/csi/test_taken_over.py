"""A node changes kubelets with CSI volumes mounted, from the Go kubelet and back to it.

`tree` is what the Go kubelet 1.36 leaves of two pods with a file system, an inline volume and a
block device each, written down from pkg/volume/csi (saveVolumeData, makeDeviceMountPath, the head
of csi_block.go) and MapBlockVolume in pkg/volume/util.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from lightkube.models.core_v1 import Pod, VolumeDevice
from trio.testing import MockClock

from kubelet_trio.model import PodUid
from kubelet_trio.testing.csi import AskedCapability, CsiCall, calls
from kubelet_trio.testing.csi.storage import DATA
from tests.volumes.csi.world import (
    DRIVER,
    InUse,
    World,
    block,
    claimed,
    driver_object,
    inline,
    persistent,
    pod_of,
)
from tests.volumes.make import main

A, B = PodUid("u-a"), PodUid("u-b")
OWN = {"volumeMountGroup", "attachRequired"}  # this agent's keys, which the Go kubelet skips
PODS = (A, B)
FILES, DISK = "vol-files", "vol-disk"  # handles; the persistent volumes are `files` and `disk`
CSI = "plugins/kubernetes.io/csi"
# sha256 of the handle (makeDeviceMountPath).
STAGED = f"{CSI}/{DRIVER}/{hashlib.sha256(FILES.encode()).hexdigest()}"
BLOCKS = f"{CSI}/volumeDevices"
STAGED_RECORD = f'{{"driverName":"{DRIVER}","volumeHandle":"{FILES}"}}\n'


def inline_handle(uid: str) -> str:
    """makeVolumeHandle in pkg/volume/csi/csi_mounter.go."""
    return "csi-" + hashlib.sha256(f"{uid}scratch".encode()).hexdigest()


def record(name: str, handle: str, lifecycle: str) -> str:
    """As encoding/json writes a map[string]string: sorted keys; an attachment has a name."""
    attachment = hashlib.sha256(f"{handle}{DRIVER}node".encode()).hexdigest()
    mode = f',"volumeLifecycleMode":"{lifecycle}"' if lifecycle else ""
    return (
        f'{{"attachmentID":"csi-{attachment}","driverName":"{DRIVER}","nodeName":"node",'
        f'"specVolID":"{name}","volumeHandle":"{handle}"{mode}}}\n'
    )


def tree(root: Path, pods: tuple[PodUid, ...] = PODS) -> dict[str, str]:
    """What the Go kubelet has on disk: texts of files, links as `-> target`, "" for the rest."""
    found = {
        f"{STAGED}/vol_data.json": STAGED_RECORD,
        f"{STAGED}/globalmount": "",
        f"{BLOCKS}/disk/data/vol_data.json": record("disk", DISK, ""),
        f"{BLOCKS}/staging/disk": "",
    }
    for uid in pods:
        volumes = f"pods/{uid}/volumes/kubernetes.io~csi"
        target = f"{BLOCKS}/publish/disk/{uid}"
        found |= {
            f"{volumes}/files/vol_data.json": record("files", FILES, "Persistent"),
            f"{volumes}/files/mount": "",
            f"{volumes}/scratch/vol_data.json": record("scratch", inline_handle(uid), "Ephemeral"),
            f"{volumes}/scratch/mount": "",
            f"{BLOCKS}/disk/dev/{uid}": "",
            target: "",
            f"pods/{uid}/volumeDevices/kubernetes.io~csi/disk": f"-> {root / target}",
        }
    return found


def of_the_go_kubelet(text: str) -> str:
    """Return a record without this agent's own keys, which the Go kubelet does not look at."""
    data = msgspec.json.decode(text, type=dict[str, str])
    return msgspec.json.encode({k: v for k, v in data.items() if k not in OWN}).decode() + "\n"


def read_tree(root: Path) -> dict[str, str]:
    """Return what is on disk below a root, in the form of `tree`."""
    found: dict[str, str] = {}
    for directory, names, files in os.walk(root):
        path = Path(directory)
        for name in (*files, *(name for name in names if (path / name).is_symlink())):
            entry = path / name
            text = f"-> {os.readlink(entry)}" if entry.is_symlink() else entry.read_text()
            if name == "vol_data.json":
                text = of_the_go_kubelet(text)
            found[str(entry.relative_to(root))] = text
        if not names and not files:
            found[str(path.relative_to(root))] = ""
    # The file by which a fake storage knows its volume; empty, it stands for the mount.
    return {
        path.removesuffix(f"/{DATA}") if not text else path: text for path, text in found.items()
    }


class GoNode(World):
    """A node on which a Go kubelet has mounted the volumes of two pods, and ended."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.objects.put(*persistent("files", FILES, modes=["ReadWriteMany"]))
        self.objects.put(*block("disk", DISK, modes=["ReadWriteMany"]))

    async def leave(self, pods: tuple[PodUid, ...] = PODS) -> None:
        """Do what the Go kubelet does for these pods."""
        for name, text in tree(self.root, pods).items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                path.symlink_to(text.removeprefix("-> "))
            elif text:
                path.write_text(text)
        # NodeStageVolume finds the staging path made by the kubelet, and makes no other.
        for name in (f"{STAGED}/globalmount", f"{BLOCKS}/staging/disk"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in (f"{BLOCKS}/publish/disk", f"{BLOCKS}/disk/dev"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        async with self.running():
            await self._stage()
            for uid in pods:
                await self._publish(uid)
        self.restart()

    async def _stage(self) -> None:
        for handle, path, asked in (
            (FILES, f"{STAGED}/globalmount", shared(is_block=False)),
            (DISK, f"{BLOCKS}/staging/disk", shared(is_block=True)),
        ):
            place = str(self.root / path)
            await self.driver.serve(
                CsiCall(calls.STAGE, handle, staging_path=place, capability=asked)
            )

    async def _publish(self, uid: str) -> None:
        volumes = self.root / f"pods/{uid}/volumes/kubernetes.io~csi"
        files, scratch = volumes / "files/mount", volumes / "scratch/mount"
        device = self.root / f"{BLOCKS}/publish/disk/{uid}"
        staged, staged_disk = f"{STAGED}/globalmount", f"{BLOCKS}/staging/disk"
        alone = AskedCapability("SINGLE_NODE_WRITER")
        inside = {calls.EPHEMERAL_KEY: "true"}
        for handle, place, staging, asked, context in (
            (FILES, files, staged, shared(is_block=False), {}),
            (inline_handle(uid), scratch, "", alone, inside),
            (DISK, device, staged_disk, shared(is_block=True), {}),
        ):
            await self.driver.serve(
                CsiCall(
                    calls.PUBLISH,
                    handle,
                    staging_path=str(self.root / staging) if staging else "",
                    path=str(place),
                    capability=asked,
                    volume_context=context,
                )
            )
        entry = self.root / f"{BLOCKS}/disk/dev/{uid}"
        entry.touch()
        self.mounter.bind(str(device), entry)
        self.devices.attach(entry, read_only=True)

    def is_clean(self) -> bool:
        """Whether driver, mount table, loop devices and disk show nothing of the volumes."""
        self.rules.check()
        left = [path for path in read_tree(self.root) if path.endswith(("json", "mount", "disk"))]
        kept = (self.rules.staged(), self.rules.published(), self.devices.loops)
        return not any(kept) and not self.mounter.mounts() and not left


def shared(*, is_block: bool) -> AskedCapability:
    return AskedCapability("MULTI_NODE_MULTI_WRITER", is_block=is_block)


def user(uid: str) -> Pod:
    """The pod whose volumes are in the tree."""
    made = pod_of(uid, claimed("files", "files"), inline("scratch"), claimed("disk", "disk"))
    assert made.spec is not None
    (container,) = made.spec.containers
    assert container.volumeMounts is not None
    container.volumeMounts = [m for m in container.volumeMounts if m.name != "disk"]
    container.volumeDevices = [VolumeDevice(devicePath="/dev/xvda", name="disk")]
    return made


@pytest.fixture
def node(tmp_path: Path) -> GoNode:
    return GoNode(tmp_path)


# From the Go kubelet


async def test_what_the_go_kubelet_has_mounted_is_used_where_it_is(
    node: GoNode, autojump_clock: MockClock
) -> None:
    await node.leave()
    before = sorted(mount.path for mount in node.mounter.mounts())
    async with node.running():
        for uid in PODS:
            made = user(uid)
            await node.volumes.mount(made)
            mounts = await node.volumes.container_mounts(made, main(made))
            (device,) = await node.volumes.container_devices(made, main(made))
            below = node.root / f"pods/{uid}"
            assert {mount.host_path for mount in mounts} == {
                str(below / f"volumes/kubernetes.io~csi/{name}/mount")
                for name in ("files", "scratch")
            }
            assert device.host_path == str(below / "volumeDevices/kubernetes.io~csi/disk")
        assert sorted(mount.path for mount in node.mounter.mounts()) == before
        assert read_tree(node.root) == tree(node.root)
        node.rules.check()
        for uid in PODS:
            await node.volumes.unmount(uid)
    assert node.is_clean()


async def test_what_the_go_kubelet_has_mounted_is_undone_without_the_pods(
    node: GoNode, autojump_clock: MockClock
) -> None:
    await node.leave()
    async with node.running():
        await node.volumes.unmount(A)
        # The other pod still has them.
        assert set(node.rules.staged()) == {FILES, DISK}
        assert read_tree(node.root).keys() >= tree(node.root, (B,)).keys()
        await node.volumes.unmount(B)
    assert node.is_clean()


async def test_a_sweep_spares_what_pods_of_the_go_kubelet_use(
    node: GoNode, autojump_clock: MockClock
) -> None:
    await node.leave()
    async with node.running():
        await node.volumes.unused.clean()
    assert read_tree(node.root) == tree(node.root)
    node.rules.check()


async def test_what_the_go_kubelet_has_staged_for_nobody_is_unstaged(
    node: GoNode, autojump_clock: MockClock
) -> None:
    await node.leave(())
    assert set(node.rules.staged()) == {FILES, DISK}
    async with node.running():
        await node.volumes.unused.clean()
    assert node.is_clean()


async def test_attached_volumes_of_the_go_kubelet_are_in_use_before_any_pod_is_known(
    node: GoNode,
) -> None:
    await node.leave()
    node.objects.put(driver_object(attachRequired=True))
    node.in_use = in_use = InUse()
    node.restart()
    await node.volumes.prepare()
    assert in_use.names == {f"kubernetes.io/csi/{DRIVER}^{handle}" for handle in (FILES, DISK)}


async def test_a_reboot_meanwhile_is_made_good(node: GoNode, autojump_clock: MockClock) -> None:
    """Directories, records and links are there; mounts, devices and the driver's state are not."""
    await node.leave()
    for path in list(node.devices.loops):
        node.devices.detach(Path(path))
    node.reboot()
    async with node.running():
        for uid in PODS:
            await node.volumes.mount(user(uid))
        assert len(node.devices.loops) == len(PODS)
        assert set(node.rules.published()) == {FILES, DISK, *map(inline_handle, PODS)}
        for uid in PODS:
            await node.volumes.unmount(uid)
    assert node.is_clean()


@pytest.mark.parametrize("last", range(1, 12))
async def test_a_go_kubelet_that_died_in_between_is_cleaned_up_after(
    node: GoNode, autojump_clock: MockClock, last: int
) -> None:
    """Of one pod's tree only the first entries exist, and the driver was not called."""
    for name, text in list(tree(node.root, (A,)).items())[:last]:
        path = node.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        elif text or name.endswith((f"publish/disk/{A}", f"dev/{A}")):
            path.write_text(text)
        else:
            path.mkdir()
    async with node.running():
        await node.volumes.unmount(A)
        await node.volumes.unused.clean()
    assert node.is_clean()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"driverName":"../../x","volumeHandle":"v"}'])
async def test_a_damaged_record_of_the_go_kubelet_holds_up_no_pod(
    node: GoNode, autojump_clock: MockClock, text: str
) -> None:
    """Without its record no driver can be asked: what is mounted is unmounted here."""
    await node.leave()
    volume = node.root / f"pods/{A}/volumes/kubernetes.io~csi/files"
    (volume / "vol_data.json").write_text(text)
    (volume / "mount" / DATA).unlink()  # a real one is in the mount, not below it
    async with node.running():
        await node.volumes.unmount(A)
        assert not volume.exists()
        await node.volumes.unmount(B)
    assert not [m for m in node.mounter.mounts() if str(node.root / "pods") in m.path]


# Back to the Go kubelet


@dataclass(frozen=True)
class Rebuilt:
    """What the Go kubelet knows of a volume once it has read the disk."""

    pod: str
    name: str
    mode: str
    driver: str
    handle: str  # "" for an inline volume: constructVolSourceSpec takes none
    unmounted_from: str


def load_volume_data(directory: Path) -> dict[str, str]:
    """Return what loadVolumeData reads of a map of strings: keys of others are skipped."""
    data = msgspec.json.decode((directory / "vol_data.json").read_bytes(), type=dict[str, str])
    return {key: value for key, value in data.items() if key not in OWN}


def reconstruct(root: Path) -> set[Rebuilt]:
    """getVolumesFromPodDir, then ConstructVolumeSpec or ConstructBlockVolumeSpec for each."""
    found = set()
    for pod in (root / "pods").iterdir():
        for path in (pod / "volumes/kubernetes.io~csi").iterdir():
            data = load_volume_data(path)
            is_inline = data["volumeLifecycleMode"] == "Ephemeral"
            handle = "" if is_inline else data["volumeHandle"]
            # NewUnmounter takes driver and volume from the same file, by the name in the spec.
            target = str(path.with_name(data["specVolID"]) / "mount")
            found.add(
                Rebuilt(pod.name, path.name, "Filesystem", data["driverName"], handle, target)
            )
        for path in (pod / "volumeDevices/kubernetes.io~csi").iterdir():
            data = load_volume_data(root / BLOCKS / path.name / "data")
            target = str(root / BLOCKS / "publish" / data["specVolID"] / pod.name)
            found.add(
                Rebuilt(
                    *(pod.name, path.name, "Block", data["driverName"], data["volumeHandle"]),
                    target,
                )
            )
    return found


async def test_what_this_agent_has_on_disk_is_what_the_go_kubelet_would_have(
    node: GoNode, autojump_clock: MockClock
) -> None:
    async with node.running():
        for uid in PODS:
            await node.volumes.mount(user(uid))
    assert read_tree(node.root) == tree(node.root)
    loops = {str(node.root / f"{BLOCKS}/disk/dev/{uid}") for uid in PODS}
    assert set(node.devices.loops) == loops


async def test_the_go_kubelet_reads_what_this_agent_has_mounted(
    node: GoNode, autojump_clock: MockClock
) -> None:
    async with node.running():
        for uid in PODS:
            await node.volumes.mount(user(uid))
    rebuilt = reconstruct(node.root)
    expected: dict[str, tuple[str, str]] = {
        "files": ("Filesystem", FILES),
        "scratch": ("Filesystem", ""),
        "disk": ("Block", DISK),
    }
    assert {(r.pod, r.name): (r.mode, r.handle) for r in rebuilt} == {
        (uid, name): found for uid in PODS for name, found in expected.items()
    }
    assert {r.driver for r in rebuilt} == {DRIVER}
    published = {path for paths in node.rules.published().values() for path in paths}
    assert {r.unmounted_from for r in rebuilt} == published
    # UnmountDevice reads the record beside the staging path that makeDeviceMountPath gives it.
    (staging,) = node.rules.staged()[FILES]
    assert staging == str(node.root / STAGED / "globalmount")
    assert load_volume_data(Path(staging).parent) == {"driverName": DRIVER, "volumeHandle": FILES}


# volDataKey in pkg/volume/csi/csi_mounter.go, without seLinuxMountContext.
OF_DEVICES = {"specVolID", "volumeHandle", "driverName", "nodeName", "attachmentID"}
OF_FILES = {*OF_DEVICES, "volumeLifecycleMode"}


async def test_records_have_the_keys_of_the_go_kubelet(
    node: GoNode, autojump_clock: MockClock
) -> None:
    async with node.running():
        await node.volumes.mount(user(A))
    volumes = node.root / f"pods/{A}/volumes/kubernetes.io~csi"
    assert load_volume_data(volumes / "files").keys() == OF_FILES
    assert load_volume_data(volumes / "scratch").keys() == OF_FILES
    assert load_volume_data(node.root / BLOCKS / "disk/data").keys() == OF_DEVICES
