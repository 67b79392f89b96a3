"""What a persistent volume demands of its node, and which groups it adds to its pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    Container,
    EphemeralContainer,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PodSecurityContext,
    PodSpec,
    Volume,
)

from kubelet_trio.model import ContainerKind, PodContainer, inline_offload, pod_containers
from kubelet_trio.objects import LocalObjects, claim_key, volume_key
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import NodeFacts, VolumeError, VolumeManager
from kubelet_trio.volumes.persistent import (
    check_node,
    check_options,
    mount_options,
    volume_groups,
)
from tests.volumes.make import empty_dir, pod

GID = "pv.beta.kubernetes.io/gid"
OPTIONS = "volume.beta.kubernetes.io/mount-options"


def persistent(*, annotations: dict[str, str] | None = None, **spec: Any) -> PersistentVolume:
    document = {"metadata": {"name": "pv", "annotations": annotations}, "spec": spec}
    return msgspec.convert(document, PersistentVolume)


def in_zones(*zones: str) -> dict[str, Any]:
    """The affinity of a volume that is in one of some zones, a term for each."""
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        for zone in zones
    ]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}


BY_NAME = {
    "nodeAffinity": {
        "required": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
            ]
        }
    }
}


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({}, {}),
        ({"nodeAffinity": {}}, {}),
        (in_zones("a"), {"zone": "a"}),
        (in_zones("a", "b"), {"zone": "b"}),
        (in_zones("a"), None),
    ],
)
def test_a_volume_of_this_node_may_be_mounted(
    spec: dict[str, Any], labels: dict[str, str] | None
) -> None:
    check_node(persistent(**spec), labels)


@pytest.mark.parametrize(
    ("spec", "labels"),
    [(in_zones("a"), {}), (in_zones("a", "b"), {"zone": "c"}), (in_zones(), {}), (BY_NAME, {})],
)
@pytest.mark.parametrize("is_block", [False, True])
def test_a_volume_of_another_node_is_refused(
    spec: dict[str, Any], labels: dict[str, str], is_block: bool
) -> None:
    with pytest.raises(VolumeError) as caught:
        check_node(persistent(**spec), labels, is_block=is_block)
    where = "MapVolume" if is_block else "MountVolume"
    assert str(caught.value) == (
        f'{where}.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms'
    )


@pytest.mark.parametrize(
    ("annotations", "spec", "expected"),
    [
        ({}, {}, ()),
        ({}, {"mountOptions": ["hard", "ro", "hard"]}, ("hard", "ro")),
        ({OPTIONS: "soft,,vers=4.1"}, {"mountOptions": ["hard"]}, ("soft", "vers=4.1")),
        ({OPTIONS: ""}, {"mountOptions": ["hard"]}, ()),
    ],
)
def test_the_annotation_of_mount_options_comes_first(
    annotations: dict[str, str], spec: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert mount_options(persistent(annotations=annotations, **spec)) == expected


def test_a_kind_that_is_not_mounted_has_no_options() -> None:
    volume = persistent(mountOptions=["ro"])
    check_options(volume, "nfs")
    check_options(persistent(), "hostPath")
    with pytest.raises(VolumeError) as caught:
        check_options(volume, "hostPath")
    assert str(caught.value) == (
        'MountVolume.MountOptionSupport check failed for volume "pv" : '
        "mount options are not supported for this volume type"
    )


def with_groups(*groups: int) -> Pod:
    context = PodSecurityContext(supplementalGroups=list(groups))
    return Pod(spec=PodSpec(containers=[Container(name="main")], securityContext=context))


@pytest.mark.parametrize(
    ("notes", "own", "expected"),
    [
        ([None], [], ()),
        (["1234"], [], (1234,)),
        (["30", "4", "+30"], [], (4, 30)),
        (["30", "4"], [4, 5], (30,)),
        (["", "team", "0x10", " 7", "7.0", "9223372036854775808", "\u0661"], [], ()),
    ],
)
def test_the_groups_that_volumes_add(
    notes: list[str | None], own: list[int], expected: tuple[int, ...]
) -> None:
    volumes = [persistent(annotations={GID: note} if note is not None else {}) for note in notes]
    assert volume_groups(with_groups(*own), volumes) == expected


@given(st.text())
def test_any_annotation_is_a_group_of_64_bits_or_none(note: str) -> None:
    for group in volume_groups(with_groups(), [persistent(annotations={GID: note})]):
        assert -(1 << 63) <= group < 1 << 63


class Node:
    """A node whose pods have the claim of one hostPath volume."""

    def __init__(self, root: Path, volume: PersistentVolume) -> None:
        self.labels: dict[str, str] | None = {"zone": "a"}
        claim = msgspec.convert(
            {"metadata": {"name": "claim", "namespace": "default"}, "spec": {"volumeName": "pv"}},
            PersistentVolumeClaim,
        )
        objects = LocalObjects()
        objects.apply({claim_key("default", "claim"): claim, volume_key("pv"): volume})
        self.volumes = VolumeManager(
            root,
            FakeMounter(),
            inline_offload,
            objects=objects,
            node=NodeFacts(labels=lambda: self.labels),
        )


def claimed() -> Pod:
    source = PersistentVolumeClaimVolumeSource(claimName="claim")
    return pod(Volume(name="data", persistentVolumeClaim=source))


HOST = {"hostPath": {"path": "/opt"}}


async def test_a_pod_on_the_wrong_node_does_not_get_its_volume(tmp_path: Path) -> None:
    node = Node(tmp_path, persistent(**HOST, **in_zones("b")))
    with pytest.raises(VolumeError, match=r"^MountVolume\.NodeAffinity check failed"):
        await node.volumes.mount(claimed())
    node.labels = {"zone": "b"}
    await node.volumes.mount(claimed())


def debugged() -> tuple[Pod, PodContainer]:
    """A pod with the claim, which an ephemeral container alone mounts."""
    made = claimed()
    assert made.spec is not None
    mounts, made.spec.containers[0].volumeMounts = made.spec.containers[0].volumeMounts, None
    made.spec.ephemeralContainers = [
        EphemeralContainer(name="debug", image="busybox", volumeMounts=mounts)
    ]
    return made, list(pod_containers(made))[-1]


async def test_an_ephemeral_container_on_the_wrong_node_does_not_get_the_volume(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, persistent(**HOST, **in_zones("b")))
    made, container = debugged()
    assert container.kind is ContainerKind.EPHEMERAL
    with pytest.raises(VolumeError, match=r"^MountVolume\.NodeAffinity check failed"):
        await node.volumes.container_mounts(made, container)
    node.labels = {"zone": "b"}
    (mounted,) = await node.volumes.container_mounts(made, container)
    assert mounted.host_path == "/opt"


async def test_a_volume_that_is_in_use_is_not_checked_again(tmp_path: Path) -> None:
    node = Node(tmp_path, persistent(**HOST, **in_zones("a")))
    made, container = debugged()
    assert made.spec is not None
    made.spec.containers[0].volumeMounts = container.spec.volumeMounts
    await node.volumes.mount(made)
    node.labels = {"zone": "b"}  # as upstream, it matters at the first mount alone
    for each in pod_containers(made):
        (mounted,) = await node.volumes.container_mounts(made, each)
        assert mounted.host_path == "/opt"


async def test_a_volumes_group_is_the_pods(tmp_path: Path) -> None:
    node = Node(tmp_path, persistent(annotations={GID: "4321"}, **HOST))
    assert await node.volumes.groups(claimed()) == (4321,)
    assert await node.volumes.groups(pod(empty_dir())) == ()
