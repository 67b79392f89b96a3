"""Turns security contexts into CRI's: users, capabilities, namespaces, profiles.

A container's own setting overrides the pod's, the pod's overrides the image's. If no user is set
anywhere, the config names none, and the runtime takes the image's, or root. Whether a pod may have
what it asks for is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightkube.models.core_v1 import (
    AppArmorProfile,
    Capabilities,
    Pod,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)

from kubelet_trio.containers.errors import ContainerConfigError
from kubelet_trio.containers.node import NodeSettings
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    ContainerId,
    PodContainer,
    pod_annotations,
    pod_containers,
    pod_key,
    pod_uid,
)
from kubelet_trio.model import spec as pod_spec

APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"

_ROOT = 0
_MAX_UID = 2**31 - 1
_LOCALHOST = "localhost/"  # how AppArmor annotations name a profile of the host
_APPARMOR_NAMES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}


def namespace_options(
    pod: Pod, target: ContainerId | None = None, users: v1.UserNamespace | None = None
) -> v1.NamespaceOption:
    """Return the namespaces: the node's, the pod's or the container's own.

    `target` is the container whose PID namespace an ephemeral container joins; it has no effect if
    the pod shares one PID namespace. `users` is the pod's own user namespace, if it has one.
    """
    spec = pod_spec(pod)
    modes = v1.NamespaceMode
    if spec.hostPID:
        pid = modes.NODE
    elif spec.shareProcessNamespace:
        pid = modes.POD
    else:
        pid = modes.CONTAINER
    options = v1.NamespaceOption(
        network=modes.NODE if spec.hostNetwork else modes.POD,
        pid=pid,
        ipc=modes.NODE if spec.hostIPC else modes.POD,
        # As upstream, a pod without a user namespace of its own asks for the node's.
        userns_options=users or v1.UserNamespace(mode=modes.NODE),
    )
    # With a shared or the host's PID namespace the target's processes are visible anyway.
    if target is not None and pid == modes.CONTAINER:
        options.pid = modes.TARGET
        options.target_id = target
    return options


def sandbox_security(
    pod: Pod, users: v1.UserNamespace | None = None, volume_groups: Sequence[int] = ()
) -> v1.LinuxSandboxSecurityContext:
    """Return the sandbox's security context."""
    context = pod_spec(pod).securityContext or PodSecurityContext()
    return v1.LinuxSandboxSecurityContext(
        namespace_options=namespace_options(pod, users=users),
        selinux_options=_selinux(context.seLinuxOptions),
        run_as_user=_int64(context.runAsUser),
        run_as_group=_int64(context.runAsGroup),
        supplemental_groups=_groups(context, volume_groups),
        supplemental_groups_policy=_groups_policy(context),
        privileged=any(_is_privileged(c) for c in pod_containers(pod)),
        # Whatever the pod asks for, so that containers' profiles need not allow what the sandbox's
        # own process does: kubernetes/kubernetes#84623.
        seccomp=v1.SecurityProfile(profile_type=v1.SecurityProfileProfileType.RuntimeDefault),
    )


def container_security(
    pod: Pod,
    container: PodContainer,
    node: NodeSettings,
    *,
    image_uid: int | None = None,
    image_username: str = "",
    target: ContainerId | None = None,
    users: v1.UserNamespace | None = None,
    volume_groups: Sequence[int] = (),
) -> v1.LinuxContainerSecurityContext:
    """Return a container's security context. Raises `ContainerConfigError` if it must not run.

    Args:
        pod: the pod.
        container: the container.
        node: the node's settings.
        image_uid: the image's user, if it is given by number.
        image_username: the image's user, if it is given by name.
        target: the container whose PID namespace this one joins.
        users: the pod's own user namespace, if it has one.
        volume_groups: the groups that the pod's volumes add.
    """
    pod_context = pod_spec(pod).securityContext or PodSecurityContext()
    own = container.spec.securityContext or SecurityContext()
    user = own.runAsUser if own.runAsUser is not None else pod_context.runAsUser
    group = own.runAsGroup if own.runAsGroup is not None else pod_context.runAsGroup
    _verify_non_root(pod, container, user, image_uid, image_username)
    unmasked = own.procMount == "Unmasked"
    made = v1.LinuxContainerSecurityContext(
        capabilities=_capabilities(own.capabilities),
        privileged=bool(own.privileged),
        namespace_options=namespace_options(pod, target, users),
        selinux_options=_selinux(own.seLinuxOptions or pod_context.seLinuxOptions),
        run_as_user=_int64(image_uid if user is None else user),
        run_as_group=_int64(group),
        run_as_username=image_username if user is None else "",
        readonly_rootfs=bool(own.readOnlyRootFilesystem),
        supplemental_groups=_groups(pod_context, volume_groups),
        supplemental_groups_policy=_groups_policy(pod_context),
        # None means allowed: only an explicit false sets no_new_privs.
        no_new_privs=own.allowPrivilegeEscalation is False,
        masked_paths=[] if unmasked else list(node.masked_paths),
        readonly_paths=[] if unmasked else list(node.readonly_paths),
        seccomp=_seccomp(own.seccompProfile or pod_context.seccompProfile, node),
    )
    _set_apparmor(made, apparmor_profile(pod, container))
    return made


def apparmor_profile(pod: Pod, container: PodContainer) -> AppArmorProfile | None:
    """Return the AppArmor profile of a container: its own, that of the annotation, or the pod's.

    The annotation is `runtime/default`, `unconfined` or `localhost/<name>`; as in the Go kubelet,
    another value counts as none.
    """
    own = container.spec.securityContext
    if own is not None and own.appArmorProfile is not None:
        return own.appArmorProfile
    noted = pod_annotations(pod).get(APPARMOR_ANNOTATION + container.spec.name, "")
    if noted.startswith(_LOCALHOST):
        return AppArmorProfile("Localhost", noted.removeprefix(_LOCALHOST))
    for type_, name in _APPARMOR_NAMES.items():
        if noted == name:
            return AppArmorProfile(type_)
    of_pod = pod_spec(pod).securityContext
    return of_pod.appArmorProfile if of_pod is not None else None


def _set_apparmor(made: v1.LinuxContainerSecurityContext, profile: AppArmorProfile | None) -> None:
    if profile is None:
        return
    if profile.type == "Localhost":
        name = profile.localhostProfile
        if not name:
            raise ContainerConfigError("missing localhost apparmor profile name")
        made.apparmor = v1.SecurityProfile(
            profile_type=v1.SecurityProfileProfileType.Localhost, localhost_ref=name
        )
        made.apparmor_profile = _LOCALHOST + name  # deprecated; older runtimes read only this
        return
    made.apparmor = v1.SecurityProfile(
        profile_type=v1.SecurityProfileProfileType.from_string(profile.type)
    )
    made.apparmor_profile = _APPARMOR_NAMES[profile.type]


def _verify_non_root(
    pod: Pod, container: PodContainer, user: int | None, image_uid: int | None, image_username: str
) -> None:
    pod_context = pod_spec(pod).securityContext or PodSecurityContext()
    own = container.spec.securityContext or SecurityContext()
    # Source, with the texts: verifyRunAsNonRoot in kuberuntime's security_context.go.
    wanted = own.runAsNonRoot if own.runAsNonRoot is not None else pod_context.runAsNonRoot
    if not wanted:
        return
    key, name = pod_key(pod), container.spec.name
    where = f'(pod: "{key.name}_{key.namespace}({pod_uid(pod)})", container: {name})'
    if user is not None:
        if user == _ROOT:
            raise ContainerConfigError(f"container's runAsUser breaks non-root policy {where}")
    elif image_uid is None and image_username:
        raise ContainerConfigError(
            f"container has runAsNonRoot and image has non-numeric user ({image_username}), "
            f"cannot verify user is non-root {where}"
        )
    elif not image_uid:  # 0, or None: an image without a user runs as root
        raise ContainerConfigError(f"container has runAsNonRoot and image will run as root {where}")
    elif not 0 <= image_uid <= _MAX_UID:
        raise ContainerConfigError(
            f"container has runAsNonRoot and image has an invalid user id ({image_uid}). "
            f"(Must be 1-({_MAX_UID})): must be between 0 and {_MAX_UID}, inclusive {where}"
        )


def _seccomp(profile: SeccompProfile | None, node: NodeSettings) -> v1.SecurityProfile:
    types = v1.SecurityProfileProfileType
    if profile is None:
        default = types.RuntimeDefault if node.seccomp_default else types.Unconfined
        return v1.SecurityProfile(profile_type=default)
    if profile.type == "RuntimeDefault":
        return v1.SecurityProfile(profile_type=types.RuntimeDefault)
    if profile.type == "Localhost":
        if not profile.localhostProfile:
            raise ContainerConfigError(
                "localhostProfile must be set if seccompProfile type is Localhost."
            )
        path = node.root_dir / "seccomp" / profile.localhostProfile
        return v1.SecurityProfile(profile_type=types.Localhost, localhost_ref=str(path))
    return v1.SecurityProfile(profile_type=types.Unconfined)


def _groups(context: PodSecurityContext, volume_groups: Sequence[int]) -> list[int]:
    # fsGroup is a supplementary group of every container, so that they can use the volumes.
    groups = [] if context.fsGroup is None else [context.fsGroup]
    return [*groups, *(context.supplementalGroups or ()), *volume_groups]


def _groups_policy(context: PodSecurityContext) -> v1.SupplementalGroupsPolicy:
    policies = v1.SupplementalGroupsPolicy
    return policies.Strict if context.supplementalGroupsPolicy == "Strict" else policies.Merge


def _capabilities(capabilities: Capabilities | None) -> v1.Capability | None:
    if capabilities is None:
        return None
    return v1.Capability(
        add_capabilities=list(capabilities.add or ()),
        drop_capabilities=list(capabilities.drop or ()),
    )


def _selinux(options: SELinuxOptions | None) -> v1.SeLinuxOption | None:
    if options is None:
        return None
    return v1.SeLinuxOption(
        user=options.user or "",
        role=options.role or "",
        type=options.type or "",
        level=options.level or "",
    )


def _is_privileged(container: PodContainer) -> bool:
    context = container.spec.securityContext
    return context is not None and bool(context.privileged)


def _int64(value: int | None) -> v1.Int64Value | None:
    return None if value is None else v1.Int64Value(value=value)
