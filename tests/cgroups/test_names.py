from __future__ import annotations

import pytest

from kubelet_trio.cgroups import (
    CgroupDriver,
    CgroupName,
    QosClass,
    cgroup_path,
    parse_cgroup,
    parse_existing,
    pod_cgroup,
    pod_cgroup_parent,
    qos_cgroup,
    uid_of_pod_cgroup,
)
from kubelet_trio.model import PodUid

UID = PodUid("5ba8fe55-1c2d")


@pytest.mark.parametrize(
    ("name", "cgroupfs", "systemd"),
    [
        ((), "/", "/"),
        (("kubepods",), "/kubepods", "/kubepods.slice"),
        (
            ("kubepods", "burstable"),
            "/kubepods/burstable",
            "/kubepods.slice/kubepods-burstable.slice",
        ),
        (
            ("kubelet", "kubepods", "besteffort", "pod1-2"),
            "/kubelet/kubepods/besteffort/pod1-2",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
            "/kubelet-kubepods-besteffort-pod1_2.slice",
        ),
    ],
)
def test_a_name_under_each_driver(name: CgroupName, cgroupfs: str, systemd: str) -> None:
    assert cgroup_path(name, "cgroupfs") == cgroupfs
    assert cgroup_path(name, "systemd") == systemd


@pytest.mark.parametrize(
    ("qos", "parent"),
    [
        ("Guaranteed", ("kubepods",)),
        ("Burstable", ("kubepods", "burstable")),
        ("BestEffort", ("kubepods", "besteffort")),
    ],
)
def test_a_pods_cgroup_is_below_its_classs(qos: QosClass, parent: CgroupName) -> None:
    assert qos_cgroup(qos) == parent
    assert pod_cgroup(UID, qos, ("edge",)) == ("edge", *parent, "pod5ba8fe55-1c2d")


def test_what_a_sandbox_is_told() -> None:
    assert pod_cgroup_parent(UID, "BestEffort", driver="cgroupfs", root="/edge/") == (
        "/edge/kubepods/besteffort/pod5ba8fe55-1c2d"
    )
    assert pod_cgroup_parent(UID, "Guaranteed", driver="systemd") == (
        "/kubepods.slice/kubepods-pod5ba8fe55_1c2d.slice"
    )
    assert pod_cgroup_parent(UID, "Guaranteed", driver="systemd", per_qos=False) == ""


def test_a_root_is_parsed() -> None:
    assert parse_cgroup("/") == ()
    assert parse_cgroup("") == ()
    assert parse_cgroup("/a//b/") == ("a", "b")


@pytest.mark.parametrize(
    ("directory", "driver", "uid"),
    [
        ("pod5ba8fe55-1c2d", "cgroupfs", UID),
        ("kubepods-burstable-pod5ba8fe55_1c2d.slice", "systemd", UID),
        ("burstable", "cgroupfs", None),
        ("kubepods-burstable.slice", "systemd", None),
        ("pod", "cgroupfs", None),
        ("cri-containerd-abc.scope", "systemd", None),
    ],
)
def test_a_directory_tells_its_pod(
    directory: str, driver: CgroupDriver, uid: PodUid | None
) -> None:
    assert uid_of_pod_cgroup(directory, driver) == uid


@pytest.mark.parametrize(
    ("path", "driver", "name"),
    [
        ("/system", "cgroupfs", ("system",)),
        ("/system.slice", "systemd", ("system",)),
        ("/kube.slice/kube-daemons_all.slice", "systemd", ("kube", "daemons-all")),
    ],
)
def test_cgroups_of_others_are_named_as_they_are(
    path: str, driver: CgroupDriver, name: tuple[str, ...]
) -> None:
    assert parse_existing(path, driver) == name
    assert cgroup_path(name, driver) == path
