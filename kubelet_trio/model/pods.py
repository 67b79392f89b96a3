"""Accessors for the typed Pod, shared by all rooms.

A `Pod` here is defaulted and validated (see `sources`): it has metadata, spec, name, namespace
and UID. Treat it as frozen: `msgspec.structs.replace` returns a changed copy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from lightkube.models.core_v1 import Container, EphemeralContainer, Pod, PodSpec, PodStatus
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.model.events import ObjectRef
from kubelet_trio.model.ids import PodKey, PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_SOURCE = "kubernetes.io/config.source"
CONFIG_HASH = "kubernetes.io/config.hash"
CONFIG_SEEN = "kubernetes.io/config.seen"
CONFIG_MIRROR = "kubernetes.io/config.mirror"
# Annotation of pods, sandboxes and containers: the embedded agent that owns them.
INSTANCE = "kubelet-trio/instance"
# The action of a container's restart rule that restarts all containers of its pod (KEP-5532).
RESTART_ALL_CONTAINERS = "RestartAllContainers"
_DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"  # ResourceDeviceClassPrefix


class ContainerKind(enum.Enum):
    """The list of the pod's spec that a container is in."""

    INIT = "initContainers"
    MAIN = "containers"
    EPHEMERAL = "ephemeralContainers"


class PodContainer(NamedTuple):
    """A container of the spec with its kind; a sidecar is INIT with restartPolicy Always."""

    kind: ContainerKind
    spec: Container

    @property
    def is_sidecar(self) -> bool:
        return self.kind is ContainerKind.INIT and self.spec.restartPolicy == "Always"

    @property
    def field_path(self) -> str:
        """The container's field path in events: `spec.containers{name}`."""
        return f"spec.{self.kind.value}{{{self.spec.name}}}"


def metadata(pod: Pod) -> ObjectMeta:
    """Return the metadata of a defaulted pod."""
    assert pod.metadata is not None
    return pod.metadata


SYSTEM_CRITICAL_PRIORITY = 2_000_000_000  # scheduling.SystemCriticalPriority
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})  # no pod leaves them (PodPhase)


def spec(pod: Pod) -> PodSpec:
    """Return the spec of a defaulted pod."""
    assert pod.spec is not None
    return pod.spec


def pod_uid(pod: Pod) -> PodUid:
    return PodUid(metadata(pod).uid or "")


def pod_key(pod: Pod) -> PodKey:
    meta = metadata(pod)
    return PodKey(meta.namespace or "default", meta.name or "")


def about_pod(pod: Pod) -> dict[str, str]:
    """Return what names a pod in a log line, under the Go kubelet's keys (klog.KObj)."""
    return pod_fields(*pod_key(pod), pod_uid(pod))


def pod_fields(namespace: str, name: str, uid: str) -> dict[str, str]:
    """Return what names a pod in a log line, like `about_pod`."""
    return {"pod": f"{namespace}/{name}", "podUID": uid}


def pod_annotations(pod: Pod) -> Mapping[str, str]:
    return metadata(pod).annotations or {}


def pod_object_ref(pod: Pod, field_path: str = "") -> ObjectRef:
    """Refer to the pod in an event; `field_path` e.g. `spec.containers{web}`."""
    key = pod_key(pod)
    return ObjectRef("Pod", key.name, key.namespace, pod_uid(pod), field_path)


def is_static(pod: Pod) -> bool:
    """Return whether the pod comes from a file, a URL or a program, not from the API server."""
    # Without the annotation it is not static (IsStaticPod in pkg/kubelet/types/pod_update.go).
    return pod_annotations(pod).get(CONFIG_SOURCE, "api") != "api"


# What `static_label` returns.
STATIC_LABELS = ("true", "")


def static_label(pod: Pod) -> str:
    """Return the value of a metric's label `static`: "" for a pod of the API server."""
    return STATIC_LABELS[0] if is_static(pod) else STATIC_LABELS[1]


def is_mirror(pod: Pod) -> bool:
    """Return whether an API object is the mirror of a static pod."""
    return CONFIG_MIRROR in pod_annotations(pod)


def is_critical(pod: Pod) -> bool:
    """Whether a pod is never evicted, may displace others and gets no swap.

    Static and mirror pods, and those of a system-critical priority (IsCriticalPod of
    pkg/kubelet/types/pod_update.go).
    """
    if is_static(pod) or is_mirror(pod):
        return True
    priority = spec(pod).priority
    return priority is not None and priority >= SYSTEM_CRITICAL_PRIORITY


def is_terminal(status: PodStatus | None) -> bool:
    """Whether a pod of this status has ended for good."""
    return status is not None and status.phase in TERMINAL_PHASES


def pod_containers(pod: Pod) -> Iterator[PodContainer]:
    """Yield init, main and ephemeral containers, in spec order."""
    body = spec(pod)
    for init in body.initContainers or ():
        yield PodContainer(ContainerKind.INIT, init)
    for main in body.containers or ():
        yield PodContainer(ContainerKind.MAIN, main)
    for ephemeral in body.ephemeralContainers or ():
        yield PodContainer(ContainerKind.EPHEMERAL, as_container(ephemeral))


def could_restart_all(pod: PodSpec) -> bool:
    """Return whether any container has a rule that restarts all containers of the pod."""
    containers = (*(pod.initContainers or ()), *(pod.containers or ()))
    rules = (rule for c in containers for rule in c.restartPolicyRules or ())
    return any(rule.action == RESTART_ALL_CONTAINERS for rule in rules)


def as_container(ephemeral: EphemeralContainer) -> Container:
    """Return an ephemeral container as the Container it shares every other field with."""
    return Container(**{name: getattr(ephemeral, name) for name in _SHARED_FIELDS})


_SHARED_FIELDS = tuple(
    name for name in Container.__struct_fields__ if name in EphemeralContainer.__struct_fields__
)


def grace_period(pod: Pod) -> int:
    """Return `terminationGracePeriodSeconds`, 30 if it is not set."""
    grace = spec(pod).terminationGracePeriodSeconds
    return 30 if grace is None else grace


def is_extended(resource: str) -> bool:
    """Return whether a resource is an extended one, as `example.com/dongle` is.

    Source: IsExtendedResourceName of pkg/apis/core/v1/helper, for valid names.
    """
    is_native = "/" not in resource or "kubernetes.io/" in resource
    return not is_native and not resource.startswith("requests.")


def is_claimable(resource: str) -> bool:
    """Return whether claims may give a resource (IsDRAExtendedResourceName)."""
    return resource.startswith(_DEVICE_CLASS) or is_extended(resource)


def is_claimed(pod: Pod, container: str, resource: str) -> bool:
    """Return whether a claim gives a container what it asks for of a resource (KEP-5004)."""
    claimed = pod.status.extendedResourceClaimStatus if pod.status is not None else None
    return (
        claimed is not None
        and is_claimable(resource)
        and any(
            mapping.containerName == container and mapping.resourceName == resource
            for mapping in claimed.requestMappings or ()
        )
    )
