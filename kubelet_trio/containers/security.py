"""Whom a container runs as and what it may do: the pod's security context, as CRI has it.

A container's own setting goes before the pod's, the pod's before the image's. Where
nobody names a user none is told, and the runtime takes the image's, or root. Nothing here
decides whether a pod may ask for what it asks.
"""

from __future__ import annotations

from lightkube.models.core_v1 import (
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
from kubelet_trio.model import ContainerId, PodContainer, pod_containers
from kubelet_trio.model import spec as pod_spec

_ROOT = 0


def namespace_options(pod: Pod, target: ContainerId | None = None) -> v1.NamespaceOption:
    """Return which namespaces are the node's, the pod's or the container's own.

    `target` is the container whose processes an ephemeral container shall see; it has no
    effect where the pod shares its processes anyway.
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
    )
    if target is not None and pid == modes.CONTAINER:
        options.pid = modes.TARGET
        options.target_id = target
    return options


def sandbox_security(pod: Pod) -> v1.LinuxSandboxSecurityContext:
    """Return the sandbox's own context: always under the runtime's seccomp profile."""
    context = pod_spec(pod).securityContext or PodSecurityContext()
    return v1.LinuxSandboxSecurityContext(
        namespace_options=namespace_options(pod),
        selinux_options=_selinux(context.seLinuxOptions),
        run_as_user=_int64(context.runAsUser),
        run_as_group=_int64(context.runAsGroup),
        supplemental_groups=_groups(context),
        supplemental_groups_policy=_groups_policy(context),
        privileged=any(_is_privileged(c) for c in pod_containers(pod)),
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
) -> v1.LinuxContainerSecurityContext:
    """Return a container's context. Raises `ContainerConfigError` where it must not run.

    Args:
        image_uid: the user the image names by number; None where it names none.
        image_username: the user the image names by name.
        target: the container whose PID namespace this one joins.
    """
    pod_context = pod_spec(pod).securityContext or PodSecurityContext()
    own = container.spec.securityContext or SecurityContext()
    user = own.runAsUser if own.runAsUser is not None else pod_context.runAsUser
    group = own.runAsGroup if own.runAsGroup is not None else pod_context.runAsGroup
    _verify_non_root(pod, container, user, image_uid, image_username)
    unmasked = own.procMount == "Unmasked"
    return v1.LinuxContainerSecurityContext(
        capabilities=_capabilities(own.capabilities),
        privileged=bool(own.privileged),
        namespace_options=namespace_options(pod, target),
        selinux_options=_selinux(own.seLinuxOptions or pod_context.seLinuxOptions),
        run_as_user=_int64(image_uid if user is None else user),
        run_as_group=_int64(group),
        run_as_username=image_username if user is None else "",
        readonly_rootfs=bool(own.readOnlyRootFilesystem),
        supplemental_groups=_groups(pod_context),
        supplemental_groups_policy=_groups_policy(pod_context),
        no_new_privs=own.allowPrivilegeEscalation is False,
        masked_paths=[] if unmasked else list(node.masked_paths),
        readonly_paths=[] if unmasked else list(node.readonly_paths),
        seccomp=_seccomp(own.seccompProfile or pod_context.seccompProfile, node),
    )


def _verify_non_root(
    pod: Pod, container: PodContainer, user: int | None, image_uid: int | None, image_username: str
) -> None:
    pod_context = pod_spec(pod).securityContext or PodSecurityContext()
    own = container.spec.securityContext or SecurityContext()
    wanted = own.runAsNonRoot if own.runAsNonRoot is not None else pod_context.runAsNonRoot
    if not wanted:
        return
    if user is not None:
        if user == _ROOT:
            raise ContainerConfigError("container's runAsUser breaks non-root policy")
    elif image_username:
        raise ContainerConfigError(
            f"container has runAsNonRoot and image has non-numeric user ({image_username}), "
            "cannot verify user is non-root"
        )
    elif not image_uid:  # root, or an image that names no user and so runs as root
        raise ContainerConfigError("container has runAsNonRoot and image will run as root")


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


def _groups(context: PodSecurityContext) -> list[int]:
    groups = [] if context.fsGroup is None else [context.fsGroup]
    return [*groups, *(context.supplementalGroups or ())]


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
