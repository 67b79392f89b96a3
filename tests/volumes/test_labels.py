"""Pods that want a volume with different labels, and what metrics say of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightkube.models.core_v1 import PersistentVolume, PersistentVolumeSpec, SELinuxOptions

from kubelet_trio.model import Meter, inline_offload
from kubelet_trio.volumes.errors import VolumeError
from kubelet_trio.volumes.labels import VolumeLabels, read_default
from kubelet_trio.volumes.selinux import SELinuxContext
from kubelet_trio.volumes.spec import VolumeSpec
from tests.volumes.test_selinux import CSI, FEDORA, LABEL_A, A, B, driver, wanting

ONE_POD, MANY = ["ReadWriteOncePod"], ["ReadWriteMany"]


def labels_of(meter: Meter, *, any_mode: bool = False) -> VolumeLabels:
    return VolumeLabels(meter, inline_offload, any_mode, lambda: FEDORA)


def spec(uid: str, *options: SELinuxOptions, modes: list[str] = ONE_POD) -> VolumeSpec:
    volume = PersistentVolume(spec=PersistentVolumeSpec(accessModes=modes))
    return wanting(*options, uid=uid, persistent=volume)


def counted(meter: Meter, name: str) -> dict[tuple[str, ...], float]:
    return dict(meter.gauges(name))


async def label(labels: VolumeLabels, wanted: VolumeSpec) -> str | None:
    (found,) = await labels.label([wanted])
    return found.selinux_label


async def test_a_volume_has_the_label_of_its_pods() -> None:
    meter = Meter()
    labels = labels_of(meter)
    assert await label(labels, spec("a", A)) == LABEL_A
    assert await label(labels, spec("b", A)) == LABEL_A
    name = "volume_manager_selinux_volumes_admitted_total"
    assert counted(meter, name) == {("RWOP", "kubernetes.io/fc"): 1}


async def test_a_pod_with_another_label_waits_for_the_end_of_the_first() -> None:
    meter = Meter()
    labels = labels_of(meter)
    await label(labels, spec("a", A))
    text = f'conflicting SELinux labels of volume pv: "{LABEL_A}" and ".*c3,c4"'
    with pytest.raises(VolumeError, match=rf"failed to process volumes=\[data\]: {text}"):
        await label(labels, spec("b", B))
    with pytest.raises(VolumeError, match='and ""'):
        await label(labels, spec("c"))
    # Its own label stays.
    assert await label(labels, spec("a", A)) == LABEL_A
    name = "volume_manager_selinux_volume_context_mismatch_errors_total"
    assert counted(meter, name) == {("RWOP", "kubernetes.io/fc"): 2}
    labels.forget("a")
    assert await label(labels, spec("b", B)) == LABEL_A.replace("c1,c2", "c3,c4")


async def test_other_access_modes_are_only_counted_without_the_gate() -> None:
    meter = Meter()
    labels = labels_of(meter)
    assert await label(labels, spec("a", A, modes=MANY)) == ""
    assert await label(labels, spec("b", B, modes=MANY)) == ""
    name = "volume_manager_selinux_volume_context_mismatch_warnings_total"
    assert counted(meter, name) == {("RWX", "kubernetes.io/fc"): 1}
    assert counted(meter, "volume_manager_selinux_volumes_admitted_total") == {
        ("RWX", "kubernetes.io/fc"): 1
    }
    labels = labels_of(meter, any_mode=True)
    assert await label(labels, spec("a", A, modes=MANY)) == LABEL_A
    with pytest.raises(VolumeError, match="conflicting SELinux labels"):
        await label(labels, spec("b", B, modes=MANY))


async def test_containers_that_differ_are_an_error_or_a_warning() -> None:
    meter = Meter()
    labels = labels_of(meter)
    with pytest.raises(VolumeError, match="multiple SELinux labels found"):
        await label(labels, spec("a", A, B))
    assert await label(labels, spec("b", A, B, modes=MANY)) is None
    errors = "volume_manager_selinux_pod_context_mismatch_errors_total"
    warnings = "volume_manager_selinux_pod_context_mismatch_warnings_total"
    assert counted(meter, errors) == {("RWOP",): 1}
    assert counted(meter, warnings) == {("RWX",): 1}


async def test_a_label_that_is_none_is_an_error_or_a_warning() -> None:
    meter = Meter()
    labels, bad = labels_of(meter), SELinuxOptions(level='s0"')
    with pytest.raises(VolumeError, match="is no SELinux context"):
        await label(labels, spec("a", bad))
    assert await label(labels, wanting(bad, kind="emptyDir")) is None
    assert counted(meter, "volume_manager_selinux_container_errors_total") == {("RWOP",): 1}
    assert counted(meter, "volume_manager_selinux_container_warnings_total") == {("inline",): 1}


async def test_csi_volumes_count_with_their_driver() -> None:
    meter = Meter()
    volume = PersistentVolume(spec=PersistentVolumeSpec(accessModes=ONE_POD))
    wanted = wanting(A, kind="csi", source=CSI, objects=driver(True), persistent=volume)
    assert await label(labels_of(meter), wanted) == LABEL_A
    assert counted(meter, "volume_manager_selinux_volumes_admitted_total") == {
        ("RWOP", "kubernetes.io/csi/d.example.org"): 1
    }


LXC = 'process = "u:r:container_t:s0"\nfile = "u:r:{}:s0"\n'


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            {
                "etc/selinux/config": "# x\nSELINUX=enforcing\nSELINUXTYPE=mls\n",
                "etc/selinux/mls/contexts/lxc_contexts": LXC.format("mls_t"),
                "etc/selinux/targeted/contexts/lxc_contexts": LXC.format("targeted_t"),
            },
            SELinuxContext("u", "r", "mls_t", "s0"),
        ),
        (
            {
                "usr/share/containers/selinux/contexts": LXC.format("own_t"),
                "etc/selinux/targeted/contexts/lxc_contexts": LXC.format("targeted_t"),
            },
            SELinuxContext("u", "r", "own_t", "s0"),
        ),
        ({"usr/share/containers/selinux/contexts": 'process="x"\nfile="x"'}, None),
        ({}, None),
    ],
)
def test_the_hosts_policy_is_read(
    tmp_path: Path, files: dict[str, str], found: SELinuxContext | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_default(tmp_path) == found
