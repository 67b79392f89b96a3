"""Which label a volume is mounted with: tables of KEP-1710 and pkg/volume/util/selinux.go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    Container,
    CSIPersistentVolumeSource,
    FCVolumeSource,
    ISCSIVolumeSource,
    PersistentVolume,
    PersistentVolumeSpec,
    PodSecurityContext,
    SecurityContext,
    SELinuxOptions,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import CSIDriver, CSIDriverSpec

from kubelet_trio.objects import NO_OBJECTS, ObjectView, csi_driver_key
from kubelet_trio.volumes.errors import ContextError, ManyLabelsError
from kubelet_trio.volumes.mountinfo import parse_mountinfo
from kubelet_trio.volumes.selinux import (
    SELinuxContext,
    WantedLabel,
    file_default,
    file_label,
    mode_label,
    mount_options,
    mounted_label,
    parse_context,
    takes_label,
    wanted_label,
)
from kubelet_trio.volumes.spec import VolumeSpec
from tests.volumes.host.disk_specs import disk_spec

FEDORA = SELinuxContext("system_u", "object_r", "container_file_t", "s0")
A, B = SELinuxOptions(level="s0:c1,c2"), SELinuxOptions(level="s0:c3,c4")
LABEL_A = "system_u:object_r:container_file_t:s0:c1,c2"
DRIVER = "d.example.org"
CSI = CSIPersistentVolumeSource(driver=DRIVER, volumeHandle="v")


def driver(mounts: bool | None) -> ObjectView:
    made = CSIDriver(metadata=ObjectMeta(name=DRIVER), spec=CSIDriverSpec(seLinuxMount=mounts))
    return ObjectView({csi_driver_key(DRIVER): made})


def wanting(
    *containers: SELinuxOptions | None,
    pod: SELinuxOptions | None = None,
    policy: str | None = None,
    kind: str = "fc",
    source: Any = None,
    **fields: Any,
) -> VolumeSpec:
    """A volume that one container for each of the options mounts."""
    objects = fields.pop("objects", NO_OBJECTS)
    spec = disk_spec(kind, source or FCVolumeSource(wwids=["w"]), **fields)
    assert spec.pod.spec is not None
    spec.pod.spec.securityContext = PodSecurityContext(
        seLinuxOptions=pod, seLinuxChangePolicy=policy
    )
    spec.pod.spec.containers = [
        Container(
            name=f"c{index}",
            securityContext=SecurityContext(seLinuxOptions=options),
            volumeMounts=[VolumeMount(name="data", mountPath="/data")],
        )
        for index, options in enumerate(containers)
    ]
    object.__setattr__(spec, "objects", objects)
    return spec


@pytest.mark.parametrize(
    ("options", "label"),
    [
        (A, LABEL_A),
        (SELinuxOptions(level="s0", user="u_u"), "u_u:object_r:container_file_t:s0"),
        # Role and type of a process are not those of its files.
        (SELinuxOptions(level="s0:c1,c2", role="r", type="spc_t"), LABEL_A),
        # The runtime chooses a random level.
        (SELinuxOptions(type="container_t"), ""),
        (SELinuxOptions(), ""),
    ],
)
def test_the_label_of_files_has_the_level_and_user_of_the_process(
    options: SELinuxOptions, label: str
) -> None:
    assert file_label(options, FEDORA) == label
    assert file_label(options, None) == ""


@given(st.text(min_size=1))
def test_no_option_ends_the_quotes_of_the_mount_option(level: str) -> None:
    try:
        label = file_label(SELinuxOptions(level=level), FEDORA)
    except ContextError:
        return
    (option,) = mount_options((), label)
    assert option == f'context="{label}"'
    assert mounted_label(f"rw,{option},seclabel".split(",")) == label


@pytest.mark.parametrize("level", ['s0",suid,context="x', "s0\\", "s0 c1", "s0\n"])
def test_a_level_that_could_hide_a_mount_option_is_refused(level: str) -> None:
    with pytest.raises(ContextError, match="is no SELinux context"):
        file_label(SELinuxOptions(level=level), FEDORA)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            'process = "system_u:system_r:container_t:s0"\n# x\n; y\n'
            'file = "system_u:object_r:container_file_t:s0"\nro_file="a:b:c:s0"\n',
            FEDORA,
        ),
        ('process="a:b:c"\nfile = "a:b:d"', SELinuxContext("a", "b", "d")),
        ('file = "a:b:c:s0"', None),
        ('process = "a:b:c:s0"', None),
        ("", None),
    ],
)
def test_the_policy_says_what_label_containers_files_have(
    text: str, found: SELinuxContext | None
) -> None:
    assert file_default(text) == found


@pytest.mark.parametrize("text", ["", "a", "a:b", "a::c:s0"])
def test_what_is_no_context_is_refused(text: str) -> None:
    with pytest.raises(ContextError):
        parse_context(text)


@pytest.mark.parametrize(
    ("spec", "wish"),
    [
        (wanting(A), WantedLabel(True, LABEL_A)),
        (wanting(A, A), WantedLabel(True, LABEL_A)),
        (wanting(None, None, pod=A), WantedLabel(True, LABEL_A)),
        (wanting(A, pod=B), WantedLabel(True, LABEL_A)),
        # A container without options says nothing.
        (wanting(A, None), WantedLabel(True, LABEL_A)),
        (wanting(None), WantedLabel(True)),
        (wanting(A, policy="MountOption"), WantedLabel(True, LABEL_A)),
        (wanting(A, policy="Recursive"), WantedLabel(True)),
        (
            wanting(A, kind="iscsi", source=ISCSIVolumeSource("i", 0, "p")),
            WantedLabel(True, LABEL_A),
        ),
        *((wanting(A, kind=kind), WantedLabel(False)) for kind in ("local", "nfs", "flexVolume")),
        (wanting(A, kind="csi", source=CSI, objects=driver(True)), WantedLabel(True, LABEL_A)),
        (wanting(A, kind="csi", source=CSI, objects=driver(False)), WantedLabel(False)),
        (wanting(A, kind="csi", source=CSI, objects=driver(None)), WantedLabel(False)),
        (wanting(A, kind="csi", source=CSI), WantedLabel(False)),
    ],
)
def test_what_containers_driver_and_policy_make_of_the_label(
    spec: VolumeSpec, wish: WantedLabel
) -> None:
    assert wanted_label(spec, FEDORA) == wish


@pytest.mark.parametrize("kind", ["fc", "emptyDir"])
def test_containers_that_differ_have_no_label(kind: str) -> None:
    with pytest.raises(ManyLabelsError, match=r"multiple SELinux labels found: .*c1,c2,.*c3,c4"):
        wanted_label(wanting(A, B, kind=kind), FEDORA)


def test_a_container_that_has_another_volume_says_nothing() -> None:
    spec = wanting(A, B)
    assert spec.pod.spec is not None
    spec.pod.spec.containers[1].volumeMounts = [VolumeMount(name="other", mountPath="/o")]
    assert wanted_label(spec, FEDORA).label == LABEL_A


@pytest.mark.parametrize(
    ("modes", "one_pod", "any_mode", "name"),
    [
        (["ReadWriteOncePod"], True, True, "RWOP"),
        (["ReadWriteOnce"], False, True, "RWO"),
        (["ReadWriteOncePod", "ReadWriteOnce"], False, True, "RWO"),
        (["ReadOnlyMany", "ReadWriteOnce"], False, True, "ROX"),
        (["ReadWriteMany", "ReadOnlyMany"], False, True, "RWX"),
        ([], False, True, ""),
        (None, False, False, "inline"),
    ],
)
def test_access_modes_and_the_gate_decide(
    modes: list[str] | None, one_pod: bool, any_mode: bool, name: str
) -> None:
    volume = None
    if modes is not None:
        volume = PersistentVolume(spec=PersistentVolumeSpec(accessModes=modes))
    assert takes_label(volume, any_mode=False) is one_pod
    assert takes_label(volume, any_mode=True) is any_mode
    assert mode_label(volume) == name


def test_the_mount_table_shows_the_label() -> None:
    line = f'36 35 8:1 / /m rw - ext4 /dev/a rw,context="{LABEL_A}",errors=x'
    (found,) = parse_mountinfo(line)
    assert mounted_label(found.super_options) == LABEL_A
    assert mounted_label(["rw", "context=a:b:c:s0"]) == "a:b:c:s0"
    assert mounted_label(["rw", "seclabel", "rootcontext=a:b:c:s0"]) == ""
    assert mount_options(("ro",), LABEL_A) == ("ro", f'context="{LABEL_A}"')
    assert mount_options(("ro",), "") == mount_options(("ro",), None) == ("ro",)
