"""Persistent volumes through a claim, NFS inline, huge pages, image volumes."""

from __future__ import annotations

import dataclasses
import datetime
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from lightkube.models.core_v1 import (
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    CSIPersistentVolumeSource,
    EphemeralVolumeSource,
    HostPathVolumeSource,
    ImageVolumeSource,
    LocalVolumeSource,
    NFSVolumeSource,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodSecurityContext,
    ResourceRequirements,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from msgspec.structs import replace
from trio.testing import MockClock

from kubelet_trio.cri import v1
from kubelet_trio.model import ContainerKind, PodContainer, PodUid, inline_offload
from kubelet_trio.objects import LocalObjects, claim_key, config_map_key, volume_key
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import (
    KernelMounter,
    Mounter,
    NodeFacts,
    PluginContext,
    VolumeError,
    VolumeManager,
    host_kinds,
)
from kubelet_trio.volumes.errors import unprocessed_error
from kubelet_trio.volumes.host import disks
from kubelet_trio.volumes.mounter import run_mount_nfs
from tests.volumes.make import empty_dir, main, mount, pod

UID = PodUid("u-1")
CLAIM = claim_key("default", "claim")


def claimed(*, read_only: bool = False) -> Volume:
    source = PersistentVolumeClaimVolumeSource(claimName="claim", readOnly=read_only or None)
    return Volume(name="data", persistentVolumeClaim=source)


def cluster_node(
    root: Path,
    mounter: Mounter,
    *,
    uid: str = "claim-1",
    phase: str = "Bound",
    deleted: bool = False,
    finalizers: list[str] | None = None,
    owner: ObjectReference | None = None,
    **spec: Any,
) -> VolumeManager:
    """A manager with a claim and a volume as an API server has them."""
    objects = LocalObjects()
    going = datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC) if deleted else None
    meta = ObjectMeta(
        name="claim",
        namespace="default",
        uid=uid,
        deletionTimestamp=going,
        finalizers=finalizers,
    )
    claim = PersistentVolumeClaim(
        metadata=meta,
        spec=PersistentVolumeClaimSpec(volumeName="pv"),
        status=PersistentVolumeClaimStatus(phase=phase),
    )
    behind = PersistentVolumeSpec(**{"hostPath": HostPathVolumeSource("/opt"), **spec})
    behind.claimRef = owner
    objects.apply({CLAIM: claim, volume_key("pv"): PersistentVolume(spec=behind)})
    return VolumeManager(root, mounter, inline_offload, objects=objects)


UNPROCESSED = (
    "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], "
    "failed to process volumes=[data]: "
)
OWNER = ObjectReference(namespace="default", name="claim", uid="claim-1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"phase": "Pending"}, "error processing PVC default/claim: PVC is not bound"),
        ({"phase": "Lost"}, "error processing PVC default/claim: PVC is not bound"),
        (
            {"uid": "claim-2"},
            "error processing PVC default/claim: found PV object pv but its pv.Spec.ClaimRef.UID "
            "claim-1 does not point to claim.UID claim-2",
        ),
        (
            {"owner": None},
            "error processing PVC default/claim: found PV object pv but it has a nil "
            "pv.Spec.ClaimRef indicating it is not yet bound to the claim",
        ),
        (
            {"volumeMode": "Block"},
            "volume data has volumeMode Block, but is specified in volumeMounts",
        ),
        ({"deleted": True}, "error processing PVC default/claim: PVC is being deleted"),
        (
            {"deleted": True, "finalizers": ["example.com/backup"]},
            "error processing PVC default/claim: PVC is being deleted",
        ),
    ],
)
async def test_a_claim_that_is_not_the_pods_is_refused(
    tmp_path: Path, mounter: FakeMounter, fields: dict[str, Any], message: str
) -> None:
    good = cluster_node(tmp_path, mounter, owner=OWNER)
    assert await host_paths(good, pod(claimed())) == ["/opt"]
    bad = cluster_node(tmp_path, mounter, **{"owner": OWNER, **fields})
    with pytest.raises(VolumeError) as caught:
        await bad.mount(pod(claimed()))
    assert str(caught.value) == f"{UNPROCESSED}{message}"


async def test_a_claim_in_deletion_is_usable_while_its_protection_holds_it(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    protected = ["kubernetes.io/pvc-protection"]
    manager = cluster_node(tmp_path, mounter, owner=OWNER, deleted=True, finalizers=protected)
    assert await host_paths(manager, pod(claimed())) == ["/opt"]


@pytest.mark.parametrize("owner", ["u-1", "u-2", ""])
async def test_a_claim_of_the_pods_own_must_have_been_made_for_it(
    tmp_path: Path, mounter: FakeMounter, owner: str
) -> None:
    owners = [OwnerReference("v1", "Pod", "web", owner, controller=True)] if owner else None
    meta = ObjectMeta(name="web-data", namespace="default", uid="own-1", ownerReferences=owners)
    claim = PersistentVolumeClaim(
        metadata=meta,
        spec=PersistentVolumeClaimSpec(volumeName="pv"),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )
    behind = PersistentVolumeSpec(
        hostPath=HostPathVolumeSource("/opt"), claimRef=ObjectReference(uid="own-1")
    )
    objects = LocalObjects()
    objects.apply(
        {
            claim_key("default", "web-data"): claim,
            volume_key("pv"): PersistentVolume(spec=behind),
        }
    )
    manager = VolumeManager(tmp_path, mounter, inline_offload, objects=objects)
    of_pod = pod(Volume(name="data", ephemeral=EphemeralVolumeSource()))
    if owner == "u-1":
        assert await host_paths(manager, of_pod) == ["/opt"]
        return
    message = r"PVC default/web-data was not created for pod default/web \(pod is not owner\)"
    with pytest.raises(VolumeError, match=message):
        await manager.mount(of_pod)


async def test_a_container_of_a_running_pod_starts_again_while_its_claim_is_deleted(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    manager = cluster_node(tmp_path, mounter, owner=OWNER, deleted=True)
    of_pod = pod(claimed())
    (made,) = await manager.container_mounts(of_pod, main(of_pod))
    assert made.host_path == "/opt"


@pytest.mark.parametrize(
    ("modes", "refused"),
    [(["ReadWriteOncePod"], True), (["ReadWriteOnce"], False), (["ReadWriteMany"], False)],
)
async def test_a_volume_for_one_pod_is_refused_to_a_second(
    tmp_path: Path, mounter: FakeMounter, modes: list[str], refused: bool
) -> None:
    def manager() -> VolumeManager:
        return cluster_node(tmp_path, mounter, owner=OWNER, accessModes=modes)

    first = pod(claimed())
    assert first.metadata is not None
    second = replace(first, metadata=replace(first.metadata, uid="u-2"))
    await manager().mount(first)
    await manager().mount(first)
    if refused:  # by an agent that has just started, too
        with pytest.raises(VolumeError, match="ReadWriteOncePod access mode and is already in use"):
            await manager().mount(second)
        await manager().unmount(UID)
    await manager().mount(second)


def node(root: Path, mounter: Mounter, *, owner: str = "", **spec: Any) -> VolumeManager:
    """A manager with a claim and the volume behind it."""
    objects = LocalObjects()
    ref = ObjectReference(namespace="default", name=owner) if owner else None
    objects.apply(
        {
            CLAIM: PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(volumeName="pv")),
            volume_key("pv"): PersistentVolume(spec=PersistentVolumeSpec(claimRef=ref, **spec)),
        }
    )
    return on_host(root, mounter, objects)


def on_host(root: Path, mounter: Mounter, objects: LocalObjects) -> VolumeManager:
    """A manager that also has the kinds of servers and devices."""
    context = PluginContext(root, mounter, inline_offload)
    return VolumeManager(
        root,
        mounter,
        inline_offload,
        objects=objects,
        async_kinds=lambda walks, _: host_kinds(dataclasses.replace(context, walks=walks)),
    )


async def host_paths(manager: VolumeManager, of_pod: Pod) -> list[str]:
    await manager.mount(of_pod)
    return [m.host_path for m in await manager.container_mounts(of_pod, main(of_pod))]


async def test_a_claim_leads_to_a_path_of_the_host(tmp_path: Path, mounter: FakeMounter) -> None:
    manager = node(tmp_path, mounter, hostPath=HostPathVolumeSource("/opt"), owner="claim")
    assert await host_paths(manager, pod(claimed())) == ["/opt"]
    of_pod = pod(claimed(read_only=True))
    assert [m.readonly for m in await manager.container_mounts(of_pod, main(of_pod))] == [True]


async def test_a_local_volume_is_bound_and_its_data_stays(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/file").write_text("data")
    manager = node(tmp_path, mounter, local=LocalVolumeSource(str(tmp_path / "disk")))
    of_pod = pod(claimed())
    target = tmp_path / "pods/u-1/volumes/kubernetes.io~local-volume/pv"
    assert await host_paths(manager, of_pod) == [str(target)]
    await manager.mount(of_pod)
    assert [m.path for m in mounter.mounts()] == [str(target)]
    await manager.unmount(UID)
    assert mounter.mounts() == []
    assert not (tmp_path / "pods/u-1/volumes").exists()
    assert (tmp_path / "disk/file").read_text() == "data"


async def test_somebody_elses_data_is_never_removed(tmp_path: Path, mounter: FakeMounter) -> None:
    """What lies in a mount point after the mount has gone was not put there by us."""
    target = tmp_path / "pods/u-1/volumes/kubernetes.io~nfs/pv"
    target.mkdir(parents=True)
    (target / "file").touch()
    manager = on_host(tmp_path, mounter, LocalObjects())
    with pytest.raises(VolumeError, match="remove failed"):
        await manager.unmount(UID)
    assert (target / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and change groups")
async def test_a_local_volume_gets_the_group_of_its_first_pod(
    tmp_path: Path, kernel: KernelMounter
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/file").write_text("data")
    manager = node(tmp_path, kernel, local=LocalVolumeSource(str(tmp_path / "disk")))
    of_pod = pod(claimed())
    assert of_pod.spec is not None
    first = replace(
        of_pod, spec=replace(of_pod.spec, securityContext=PodSecurityContext(fsGroup=4711))
    )
    assert first.metadata is not None
    assert first.spec is not None
    second = replace(
        first,
        metadata=replace(first.metadata, uid="u-2"),
        spec=replace(first.spec, securityContext=PodSecurityContext(fsGroup=4712)),
    )
    (path,) = await host_paths(manager, first)
    await manager.mount(second)
    assert (Path(path) / "file").read_text() == "data"
    assert (tmp_path / "disk/file").stat().st_gid == 4711
    assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) & 0o2070 == 0o2070
    for uid in ("u-1", "u-2"):
        await manager.unmount(PodUid(uid))
    assert not any(str(tmp_path) in m.path for m in kernel.mounts())
    assert (tmp_path / "disk/file").read_text() == "data"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"local": LocalVolumeSource("/none/such")},
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], "
            "failed to process volumes=[]: context deadline exceeded",
        ),
        (
            {"local": LocalVolumeSource("/tmp"), "owner": "other"},
            f"{UNPROCESSED}error processing PVC default/claim: PV pv is bound to default/other",
        ),
        (
            {"rbd": "image"},
            f"{UNPROCESSED}error processing PVC default/claim: "
            "volumes of the type of pv are not supported",
        ),
        (
            # A kind that the API server may hold, but for which the manager has no plugin.
            {"csi": CSIPersistentVolumeSource("driver.example", "handle")},
            'MountVolume.SetUp failed for volume "data" : volumes of type csi are not supported',
        ),
    ],
)
async def test_a_claim_that_leads_nowhere_is_told(
    tmp_path: Path,
    mounter: FakeMounter,
    spec: dict[str, Any],
    message: str,
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(VolumeError) as caught:
        await node(tmp_path, mounter, **spec).mount(pod(claimed()))
    assert str(caught.value) == message


async def test_a_missing_claim_and_a_missing_volume_are_told(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    objects = LocalObjects()
    manager = VolumeManager(tmp_path, mounter, inline_offload, objects=objects)
    with pytest.raises(VolumeError, match='persistentvolumeclaim "claim" not found'):
        await manager.mount(pod(claimed()))
    objects.apply({CLAIM: PersistentVolumeClaim(spec=PersistentVolumeClaimSpec())})
    with pytest.raises(VolumeError, match="PVC is not bound"):
        await manager.mount(pod(claimed()))
    objects.apply({CLAIM: PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(volumeName="pv"))})
    with pytest.raises(VolumeError, match='persistentvolume "pv" not found'):
        await manager.mount(pod(claimed()))
    assert volume_key("pv") in objects.held  # so its arrival wakes the pod


async def test_nfs_is_mounted_with_its_options(tmp_path: Path, mounter: FakeMounter) -> None:
    manager = node(
        tmp_path, mounter, nfs=NFSVolumeSource("/export", "fd00::1"), mountOptions=["nfsvers=4.2"]
    )
    inline = Volume(name="inline", nfs=NFSVolumeSource("/a", "nas", readOnly=True))
    of_pod = pod(claimed(read_only=True), inline)
    base = tmp_path / "pods/u-1/volumes/kubernetes.io~nfs"
    assert await host_paths(manager, of_pod) == [str(base / "pv"), str(base / "inline")]
    await manager.mount(of_pod)
    assert {(m.source, m.super_options) for m in mounter.mounts()} == {
        ("[fd00::1]:/export", ("nfsvers=4.2", "ro")),
        ("nas:/a", ("ro",)),
    }
    assert len(mounter.mounts()) == 2
    await manager.unmount(UID)
    assert mounter.mounts() == []
    assert not base.exists()


def test_a_missing_mount_helper_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"mount\.nfs is missing: install nfs-common"):
        run_mount_nfs("nas:/a", tmp_path, [], [tmp_path / "mount.nfs"])


def test_what_the_mount_helper_says_is_told(tmp_path: Path) -> None:
    helper = tmp_path / "mount.nfs"
    helper.write_text(
        f'#!{sys.executable}\nimport sys\nprint("args", *sys.argv[1:])\nsys.exit(32)\n'
    )
    helper.chmod(0o755)
    with pytest.raises(OSError, match="mounting nas:/a failed: args nas:/a /x -o ro,soft"):
        run_mount_nfs("nas:/a", Path("/x"), ["ro", "soft"], [helper])


def with_pages(of_pod: Pod, *sizes: str) -> Pod:
    assert of_pod.spec is not None
    (only,) = of_pod.spec.containers
    limits = {f"hugepages-{size}": "4Mi" for size in sizes}
    containers: list[Container] = [replace(only, resources=ResourceRequirements(limits=limits))]
    return replace(of_pod, spec=replace(of_pod.spec, containers=containers))


@pytest.mark.parametrize("medium", ["HugePages", "HugePages-2Mi"])
async def test_huge_pages_are_a_hugetlbfs(
    tmp_path: Path, volumes: VolumeManager, mounter: FakeMounter, medium: str
) -> None:
    of_pod = with_pages(pod(empty_dir(medium=medium)), "2Mi")
    await volumes.mount(of_pod)
    await volumes.mount(of_pod)
    (mounted,) = mounter.mounts()
    assert (mounted.fstype, mounted.super_options[-1]) == ("hugetlbfs", "pagesize=2097152")
    await volumes.unmount(UID)
    assert mounter.mounts() == []


@pytest.mark.parametrize("medium", ["HugePages", "HugePages-2Mi"])
async def test_the_pod_may_request_the_huge_pages_itself(
    volumes: VolumeManager, mounter: FakeMounter, medium: str
) -> None:
    of_pod = pod(empty_dir(medium=medium))
    assert of_pod.spec is not None
    of_all = ResourceRequirements(limits={"hugepages-2Mi": "4Mi"})
    await volumes.mount(replace(of_pod, spec=replace(of_pod.spec, resources=of_all)))
    (mounted,) = mounter.mounts()
    assert mounted.super_options[-1] == "pagesize=2097152"
    await volumes.unmount(UID)


NO_PAGES = "hugePages storage requested, but there is no resource request for huge pages"


@pytest.mark.parametrize(
    ("medium", "sizes", "message"),
    [
        ("HugePages", (), f"medium HugePages: {NO_PAGES}"),
        (
            "HugePages",
            ("2Mi", "1Gi"),
            "medium: HugePages can't be used if container requests multiple huge page sizes",
        ),
        ("HugePages-1Gi", ("2Mi",), f"medium HugePages-1Gi: {NO_PAGES}"),
    ],
)
async def test_huge_pages_need_a_request_of_their_size(
    volumes: VolumeManager, medium: str, sizes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(VolumeError, match=message):
        await volumes.mount(with_pages(pod(empty_dir(medium=medium)), *sizes))


async def test_an_image_is_mounted_by_the_runtime(tmp_path: Path, mounter: FakeMounter) -> None:
    image = Volume(name="app", image=ImageVolumeSource("Always", "registry/app:1"))
    of_pod = pod(image, mounts=[mount("app", "/app", subPath="bin")])
    able = VolumeManager(tmp_path, mounter, inline_offload)
    await able.mount(of_pod)
    ensured = v1.ImageSpec(image="sha256:1", user_specified_image="registry/app:1")
    images = {"app": ensured}
    (made,) = await able.container_mounts(of_pod, main(of_pod), images=images)
    assert made == v1.Mount(
        container_path="/app", readonly=True, image=ensured, image_sub_path="bin"
    )
    # The runtime could not mount images when they were to be pulled, and can by now.
    with pytest.raises(VolumeError, match='the image of volume "app" was not pulled'):
        await able.container_mounts(of_pod, main(of_pod))
    unable = VolumeManager(
        tmp_path, mounter, inline_offload, node=NodeFacts(no_image_volumes=lambda: "too old")
    )
    with pytest.raises(VolumeError, match='volume "app": too old'):
        await unable.container_mounts(of_pod, main(of_pod), images=images)


async def test_an_image_may_be_read_only_recursively(tmp_path: Path, mounter: FakeMounter) -> None:
    image = Volume(name="app", image=ImageVolumeSource("Always", "registry/app:1"))
    wanted = mount("app", "/app", readOnly=True, recursiveReadOnly="Enabled")
    of_pod, images = pod(image, mounts=[wanted]), {"app": v1.ImageSpec(image="sha256:1")}
    facts = NodeFacts(recursive_read_only=lambda _handler: True)
    able = VolumeManager(tmp_path, mounter, inline_offload, node=facts)
    (made,) = await able.container_mounts(of_pod, main(of_pod), images=images)
    assert made.recursive_read_only
    unable = VolumeManager(tmp_path, mounter, inline_offload)
    with pytest.raises(VolumeError, match="it is not supported by the runtime"):
        await unable.container_mounts(of_pod, main(of_pod), images=images)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change groups")
async def test_a_group_that_could_not_be_set_is_set_at_the_next_attempt(
    tmp_path: Path,
    mounter: FakeMounter,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    (tmp_path / "disk").mkdir()
    manager = node(tmp_path, mounter, local=LocalVolumeSource(str(tmp_path / "disk")))
    of_pod = pod(claimed())
    assert of_pod.spec is not None
    of_pod.spec.securityContext = PodSecurityContext(fsGroup=4711)
    owned: list[Path] = []
    failures = [OSError(5, "Input/output error")]

    def own(path: Path, *_: object, **__: object) -> None:
        if failures:
            raise failures.pop()
        owned.append(path)

    monkeypatch.setattr(disks, "own_volume", own)
    for _ in range(2):
        await manager.mount(of_pod)
    assert len(owned) == 1
    assert len(mounter.mounts()) == 1


@pytest.mark.parametrize("kind", ["nfs", "memory", "config", "disk"])
async def test_a_container_that_is_the_first_to_use_a_volume_of_a_running_pod_finds_it(
    tmp_path: Path, mounter: FakeMounter, kind: str
) -> None:
    objects = LocalObjects()
    objects.apply({config_map_key("default", "c"): ConfigMap(data={"key": "1"})})
    manager = on_host(tmp_path, mounter, objects)
    volume = {
        "nfs": Volume(name="data", nfs=NFSVolumeSource("/", "host")),
        "memory": empty_dir(medium="Memory"),
        "config": Volume(name="data", configMap=ConfigMapVolumeSource(name="c")),
        "disk": empty_dir(),
    }[kind]
    of_pod = pod(volume, mounts=[])
    await manager.mount(of_pod)  # with its sandbox, and nobody mounts the volume
    late = Container(name="debug", image="busybox", volumeMounts=[mount()])
    (made,) = await manager.container_mounts(of_pod, PodContainer(ContainerKind.EPHEMERAL, late))
    assert Path(made.host_path).is_dir()
    assert len(mounter.mounts()) == (1 if kind in ("nfs", "memory") else 0)
    assert (Path(made.host_path) / "key").exists() == (kind == "config")


async def test_a_container_that_starts_again_needs_no_object_that_is_gone(
    tmp_path: Path, mounter: FakeMounter
) -> None:
    objects = LocalObjects()
    objects.apply({config_map_key("default", "c"): ConfigMap(data={"key": "1"})})
    manager = VolumeManager(tmp_path, mounter, inline_offload, objects=objects)
    of_pod = pod(Volume(name="data", configMap=ConfigMapVolumeSource(name="c")))
    await manager.mount(of_pod)
    objects.apply({})
    (made,) = await manager.container_mounts(of_pod, main(of_pod))
    assert (Path(made.host_path) / "key").read_text() == "1"


def test_what_cannot_be_processed_is_named_in_order() -> None:
    """As by the Go kubelet, whatever the order in the pod: TestWaitForAttachAndMountError."""
    text = str(unprocessed_error({"vol3": "no such claim", "vol03": "PVC is not bound"}))
    assert text == (
        "Unable to attach or mount volumes: unmounted volumes=[vol03 vol3], unattached volumes=[], "
        "failed to process volumes=[vol03 vol3]: no such claim; PVC is not bound"
    )
