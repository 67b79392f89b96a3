from __future__ import annotations

from dataclasses import replace

import pytest
from lightkube.models.core_v1 import (
    AppArmorProfile,
    Capabilities,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)

from kubelet_trio.containers import (
    ContainerConfigError,
    ContainerInputs,
    container_config,
    sandbox_config,
)
from kubelet_trio.cri import v1
from tests.containers.make import NODE, container, main, pod

Types = v1.SecurityProfileProfileType


def context(
    own: SecurityContext | None = None,
    of_pod: PodSecurityContext | None = None,
    inputs: ContainerInputs | None = None,
    *,
    seccomp_default: bool = False,
) -> v1.LinuxContainerSecurityContext:
    spec = container(securityContext=own)
    node = replace(NODE, seccomp_default=seccomp_default)
    made = container_config(
        pod(spec, securityContext=of_pod), main(spec), node, inputs or ContainerInputs()
    )
    assert made.linux is not None
    assert made.linux.security_context is not None
    return made.linux.security_context


def test_a_containers_user_goes_before_the_pods_and_the_images() -> None:
    image = ContainerInputs(image_username="nobody")
    both = context(
        SecurityContext(runAsUser=5), PodSecurityContext(runAsUser=6, runAsGroup=7), image
    )
    assert (both.run_as_user, both.run_as_username) == (v1.Int64Value(value=5), "")
    assert both.run_as_group == v1.Int64Value(value=7)
    assert context(None, PodSecurityContext(runAsUser=6), image).run_as_user == v1.Int64Value(
        value=6
    )


def test_the_pods_groups_are_every_containers() -> None:
    made = context(
        None,
        PodSecurityContext(fsGroup=1, supplementalGroups=[2, 3], supplementalGroupsPolicy="Strict"),
    )
    assert made.supplemental_groups == [1, 2, 3]
    assert made.supplemental_groups_policy == v1.SupplementalGroupsPolicy.Strict


def test_the_groups_of_volumes_are_every_containers_too() -> None:
    groups, of_pod = (8, 9), PodSecurityContext(fsGroup=1, supplementalGroups=[2])
    made = context(None, of_pod, ContainerInputs(volume_groups=groups))
    assert made.supplemental_groups == [1, 2, 8, 9]
    assert context(None, None, ContainerInputs(volume_groups=groups)).supplemental_groups == [8, 9]
    linux = sandbox_config(pod(), NODE, attempt=0, volume_groups=groups).linux
    assert linux is not None
    assert linux.security_context is not None
    assert linux.security_context.supplemental_groups == [8, 9]


def test_privileges_are_passed_on_as_given() -> None:
    made = context(
        SecurityContext(
            privileged=True,
            readOnlyRootFilesystem=True,
            allowPrivilegeEscalation=False,
            capabilities=Capabilities(add=["NET_ADMIN"], drop=["ALL"]),
            seLinuxOptions=SELinuxOptions(level="s0"),
        )
    )
    assert (made.privileged, made.readonly_rootfs, made.no_new_privs) == (True, True, True)
    assert made.capabilities == v1.Capability(
        add_capabilities=["NET_ADMIN"], drop_capabilities=["ALL"]
    )
    assert made.selinux_options == v1.SeLinuxOption(level="s0")


@pytest.mark.parametrize(("allowed", "expected"), [(None, False), (True, False), (False, True)])
def test_only_an_explicit_no_forbids_new_privileges(allowed: bool | None, expected: bool) -> None:
    assert context(SecurityContext(allowPrivilegeEscalation=allowed)).no_new_privs is expected


@pytest.mark.parametrize(
    ("own", "noted", "of_pod", "expected"),
    [
        (None, "", None, None),
        (None, "", AppArmorProfile("Unconfined"), (Types.Unconfined, "", "unconfined")),
        (
            None,
            "runtime/default",
            AppArmorProfile("Unconfined"),
            (Types.RuntimeDefault, "", "runtime/default"),
        ),
        (None, "nonsense", None, None),
        (
            AppArmorProfile("Localhost", "mine"),
            "unconfined",
            None,
            (Types.Localhost, "mine", "localhost/mine"),
        ),
        (None, "localhost/a/b", None, (Types.Localhost, "a/b", "localhost/a/b")),
    ],
)
def test_the_nearest_apparmor_profile_holds(
    own: AppArmorProfile | None,
    noted: str,
    of_pod: AppArmorProfile | None,
    expected: tuple[Types, str, str] | None,
) -> None:
    spec = container(securityContext=SecurityContext(appArmorProfile=own))
    annotations = {"container.apparmor.security.beta.kubernetes.io/main": noted} if noted else {}
    of = pod(
        spec,
        meta={"annotations": annotations},
        securityContext=PodSecurityContext(appArmorProfile=of_pod),
    )
    made = container_config(of, main(spec), NODE, ContainerInputs()).linux
    assert made is not None
    context = made.security_context
    assert context is not None
    if expected is None:
        assert (context.apparmor, context.apparmor_profile) == (None, "")
    else:
        assert context.apparmor is not None
        found = (context.apparmor.profile_type, context.apparmor.localhost_ref)
        assert (*found, context.apparmor_profile) == expected


def test_users_of_its_own_are_in_every_part_of_the_request() -> None:
    mapping = [v1.IdMapping(host_id=131072, container_id=0, length=65536)]
    users = v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=mapping, gids=mapping)
    of_pod = pod(hostUsers=False)
    inputs = ContainerInputs(
        users=users, mounts=(v1.Mount(container_path="/a"),), termination_log_host_path="/log"
    )
    spec = container(terminationMessagePath="/dev/termination-log")
    made = container_config(pod(spec, hostUsers=False), main(spec), NODE, inputs)
    sandbox = sandbox_config(of_pod, NODE, attempt=0, users=users)
    for linux in (made.linux, sandbox.linux):
        assert linux is not None
        assert linux.security_context is not None
        assert linux.security_context.namespace_options is not None
        assert linux.security_context.namespace_options.userns_options == users
    assert [m.container_path for m in made.mounts] == ["/a", "/dev/termination-log"]
    assert all(m.uid_mappings == mapping == m.gid_mappings for m in made.mounts)


def test_without_them_the_users_are_the_nodes() -> None:
    options = context().namespace_options
    assert options is not None
    assert options.userns_options == v1.UserNamespace(mode=v1.NamespaceMode.NODE)


def test_an_unmasked_proc_has_no_masks() -> None:
    made = context(SecurityContext(procMount="Unmasked"))
    assert (made.masked_paths, made.readonly_paths) == ([], [])


@pytest.mark.parametrize(
    ("own", "of_pod", "node_default", "expected"),
    [
        (None, None, False, (Types.Unconfined, "")),
        (None, None, True, (Types.RuntimeDefault, "")),
        (SeccompProfile("Unconfined"), None, True, (Types.Unconfined, "")),
        (None, SeccompProfile("RuntimeDefault"), False, (Types.RuntimeDefault, "")),
        (
            SeccompProfile("Localhost", localhostProfile="a/b.json"),
            SeccompProfile("RuntimeDefault"),
            False,
            (Types.Localhost, "/var/lib/kubelet/seccomp/a/b.json"),
        ),
    ],
)
def test_the_nearest_seccomp_profile_holds(
    own: SeccompProfile | None,
    of_pod: SeccompProfile | None,
    node_default: bool,
    expected: tuple[Types, str],
) -> None:
    made = context(
        SecurityContext(seccompProfile=own),
        PodSecurityContext(seccompProfile=of_pod),
        seccomp_default=node_default,
    )
    assert made.seccomp is not None
    assert (made.seccomp.profile_type, made.seccomp.localhost_ref) == expected


def test_a_local_profile_must_be_named() -> None:
    with pytest.raises(ContainerConfigError, match="localhostProfile must be set"):
        context(SecurityContext(seccompProfile=SeccompProfile("Localhost")))


@pytest.mark.parametrize(
    ("user", "inputs", "message"),
    [
        (
            0,
            ContainerInputs(),
            r"container's runAsUser breaks non-root policy "
            r'\(pod: "web_default\(u-1\)", container: main\)',
        ),
        (
            None,
            ContainerInputs(image_uid=0),
            "container has runAsNonRoot and image will run as root",
        ),
        (
            None,
            ContainerInputs(image_uid=2**31),
            "container has runAsNonRoot and image has an invalid user id",
        ),
        (
            None,
            ContainerInputs(image_username="www"),
            "image has non-numeric user .www., cannot verify user is non-root",
        ),
    ],
)
def test_who_must_not_be_root_is_not(
    user: int | None, inputs: ContainerInputs, message: str
) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        context(SecurityContext(runAsNonRoot=True, runAsUser=user), None, inputs)
    with pytest.raises(ContainerConfigError, match=message):
        context(SecurityContext(runAsUser=user), PodSecurityContext(runAsNonRoot=True), inputs)


def test_a_container_may_lift_the_pods_ban_on_root() -> None:
    own = SecurityContext(runAsNonRoot=False)
    assert context(own, PodSecurityContext(runAsNonRoot=True)).run_as_user is None
    context(SecurityContext(runAsNonRoot=True), None, ContainerInputs(image_uid=1000))
