"""What is listed of a node's volumes: the Go kubelet's layout, read without touching a volume."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.testing import FakeMounter
from kubelet_trio.volumes import VolumeFill, VolumeRow, list_volumes, read_listing
from tests.harness.pod_files import load_pods

DRIVER, HANDLE = "hostpath.csi.k8s.io", "vol/1"
GONE = PodUid("11111111-2222-3333-4444-555555555555")


class Disk:
    """A root directory in the Go kubelet's layout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounter = FakeMounter()

    def published(self, uid: str, name: str, *, mounted: bool = True, **data: str) -> Path:
        directory = self.root / f"pods/{uid}/volumes/kubernetes.io~csi/{name}"
        (directory / "mount").mkdir(parents=True)
        _write(directory, specVolID=name, **data)
        if mounted:
            self.mounter.mount_tmpfs(directory / "mount")
        return directory / "mount"

    def staged(self, handle: str = HANDLE) -> Path:
        directory = self.root / "plugins/kubernetes.io/csi" / DRIVER / _hash(handle)
        (directory / "globalmount").mkdir(parents=True)
        _write(directory, driverName=DRIVER, volumeHandle=handle)
        self.mounter.mount_tmpfs(directory / "globalmount")
        return directory / "globalmount"

    def block(self, uid: str, name: str) -> Path:
        base = self.root / "plugins/kubernetes.io/csi/volumeDevices"
        (base / name / "data").mkdir(parents=True)
        (base / "staging" / name).mkdir(parents=True)
        _write(base / name / "data", driverName=DRIVER, volumeHandle="raw-1")
        link = self.root / f"pods/{uid}/volumeDevices/kubernetes.io~csi/{name}"
        link.parent.mkdir(parents=True)
        link.symlink_to(base / "publish" / name / uid)
        return link

    def other(self, uid: str, plugin: str, name: str, *, mounted: bool) -> Path:
        path = self.root / f"pods/{uid}/volumes/kubernetes.io~{plugin}/{name}"
        path.mkdir(parents=True)
        if mounted:
            self.mounter.bind(str(self.root), path)
        return path

    def rows(self, **given: Any) -> list[VolumeRow]:
        listing = read_listing(self.root, self.mounter)
        return list_volumes(
            listing, given.get("pods", {}), given.get("names", {}), given.get("fills", {})
        )


def _hash(handle: str) -> str:
    return sha256(handle.encode()).hexdigest()


def _write(directory: Path, **data: str) -> None:
    (directory / "vol_data.json").write_text(json.dumps(data) + "\n")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


(POD,) = load_pods(
    b"""
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  containers: [{name: web, image: web}]
  volumes:
  - {name: store, persistentVolumeClaim: {claimName: web-data, readOnly: true}}
  - {name: tmp, emptyDir: {}}
""",
    "/manifests/pod.yaml",
    node_name="node",
)
UID = pod_uid(POD)


def test_a_claims_csi_volume_is_listed_with_pod_claim_and_use(disk: Disk) -> None:
    path = disk.published(
        UID, "pv-7", driverName=DRIVER, volumeHandle=HANDLE, volumeLifecycleMode="Persistent"
    )
    fill = VolumeFill(100, 40, 60, 10, 2)
    (row,) = disk.rows(
        pods={UID: POD}, names={UID: {"pv-7": "store"}}, fills={UID: {"store": fill}}
    )
    assert row == VolumeRow(
        state="Mounted",
        kind="csi",
        path=str(path),
        namespace="shop",
        pod="web-node",
        uid=UID,
        volume="store",
        claim="web-data",
        persistent_volume="pv-7",
        driver=DRIVER,
        handle=HANDLE,
        lifecycle="Persistent",
        fs_type="tmpfs",
        read_only=True,
        use=fill,
    )


def test_a_staged_volume_names_the_pods_that_use_it(disk: Disk) -> None:
    path = disk.staged()
    disk.staged("unused")
    for uid in (UID, GONE):
        disk.published(uid, "pv-7", driverName=DRIVER, volumeHandle=HANDLE)
    rows = disk.rows(pods={UID: POD}, names={UID: {"pv-7": "store"}})
    staged = [row for row in rows if row.state == "Staged"]
    assert [(row.handle, row.users, row.persistent_volume) for row in staged] == [
        ("unused", (), ""),
        (HANDLE, (GONE, "shop/web-node"), "pv-7"),
    ]
    assert staged[1].path == str(path)


def test_a_volume_of_a_pod_that_is_gone_is_listed_by_its_uid(disk: Disk) -> None:
    disk.published(GONE, "pv-7", mounted=False, driverName=DRIVER, volumeHandle=HANDLE)
    (row,) = disk.rows()
    assert (row.state, row.uid, row.pod, row.persistent_volume) == ("NotMounted", GONE, "", "pv-7")


def test_an_inline_volume_has_no_persistent_volume(disk: Disk) -> None:
    disk.published(
        UID, "tmp", driverName=DRIVER, volumeHandle="csi-1", volumeLifecycleMode="Ephemeral"
    )
    (row,) = disk.rows(pods={UID: POD}, names={UID: {"tmp": "tmp"}})
    assert (row.volume, row.persistent_volume, row.claim) == ("tmp", "", "")


def test_block_volumes_are_listed_as_mapped_and_staged(disk: Disk) -> None:
    link = disk.block(UID, "pv-8")
    mapped, staged = disk.rows()
    assert (mapped.state, mapped.mode, mapped.path) == ("Mapped", "Block", str(link))
    assert (mapped.driver, mapped.handle) == (DRIVER, "raw-1")
    assert (staged.state, staged.mode, staged.users) == ("Staged", "Block", (UID,))


def test_volumes_of_other_kinds_are_listed(disk: Disk) -> None:
    disk.other(UID, "empty-dir", "tmp", mounted=False)
    disk.other(UID, "local-volume", "pv-1", mounted=True)
    disk.other(UID, "nfs", "share", mounted=False)
    disk.other(UID, "unheard-of", "x", mounted=True)
    shared = disk.root / "plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn-lun-0"
    shared.mkdir(parents=True)
    disk.mounter.bind(str(disk.root), shared)
    rows = disk.rows()
    assert sorted((row.kind, row.state) for row in rows) == [
        ("emptyDir", "Present"),
        ("iscsi", "Staged"),
        ("kubernetes.io~unheard-of", "Mounted"),
        ("local", "Mounted"),
        ("nfs", "NotMounted"),
    ]
    assert [row.kind for row in rows if row.is_own] == ["emptyDir"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"driverName": 1}', b"\xff" * 10, b"x" * 100_000]
)
def test_a_damaged_record_leaves_the_volume_listed(disk: Disk, content: bytes) -> None:
    target = disk.published(UID, "pv-7", driverName=DRIVER, volumeHandle=HANDLE)
    (target.parent / "vol_data.json").write_bytes(content)
    (row,) = disk.rows()
    assert (row.persistent_volume, row.driver, row.state) == ("pv-7", "", "Mounted")


def test_a_record_that_is_a_link_is_not_followed(disk: Disk, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"driverName": "stolen"}')
    target = disk.published(UID, "pv-7")
    (target.parent / "vol_data.json").unlink()
    (target.parent / "vol_data.json").symlink_to(secret)
    (row,) = disk.rows()
    assert row.driver == ""


def test_a_node_without_volumes_has_an_empty_list(disk: Disk) -> None:
    assert disk.rows() == []
