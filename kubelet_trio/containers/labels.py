"""The labels and annotations by which a runtime's objects are known as a pod's.

They are the Go kubelet's, key for key and value for value, so that either agent finds
what the other has started. Labels identify (and are what a runtime can filter by);
annotations carry what a container must still be known by once its pod is gone from
the API: hash, restart count, grace periods, hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from lightkube.models.core_v1 import Container, ContainerPort, LifecycleHandler, Pod

from kubelet_trio.containers.hashing import container_hash
from kubelet_trio.model import (
    INSTANCE,
    JSON_ERRORS,
    PodContainer,
    PodUid,
    metadata,
    pod_annotations,
    pod_key,
    pod_uid,
)
from kubelet_trio.model import spec as pod_spec

POD_NAME = "io.kubernetes.pod.name"
POD_NAMESPACE = "io.kubernetes.pod.namespace"
POD_UID = "io.kubernetes.pod.uid"
CONTAINER_NAME = "io.kubernetes.container.name"

CONTAINER_HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
PRE_STOP_HANDLER = "io.kubernetes.container.preStopHandler"
CONTAINER_PORTS = "io.kubernetes.container.ports"
POD_TERMINATION_GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"
POD_DELETION_GRACE_PERIOD = "io.kubernetes.pod.deletionGracePeriod"

_SANDBOX_KEYS = frozenset((POD_NAME, POD_NAMESPACE, POD_UID))


class PodIdentity(NamedTuple):
    """Whose an object of the runtime is."""

    uid: PodUid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """What a container's annotations say, for one whose pod's spec may be gone."""

    hash: str = ""
    restart_count: int = 0
    termination_message_path: str = ""
    termination_message_policy: str = "File"
    termination_grace_period: int | None = None  # seconds
    deletion_grace_period: int | None = None  # seconds
    pre_stop: LifecycleHandler | None = None
    ports: tuple[ContainerPort, ...] = ()


def pod_identity(labels: Mapping[str, str]) -> PodIdentity | None:
    """Return whose object bears these labels, None where it is no pod's."""
    uid = labels.get(POD_UID)
    if not uid:
        return None
    return PodIdentity(PodUid(uid), labels.get(POD_NAMESPACE, ""), labels.get(POD_NAME, ""))


def owned_by(instance: str) -> Callable[[Mapping[str, str]], bool]:
    """Return what tells by an object's annotations whether it is this agent's.

    An embedded agent owns what bears its own instance; the daemon (instance "") owns
    what bears none, the Go kubelet's included.
    """
    return lambda annotations: annotations.get(INSTANCE, "") == instance


def sandbox_labels(pod: Pod) -> dict[str, str]:
    """Return the pod's own labels and the three that name it."""
    return {**(metadata(pod).labels or {}), **_identity_labels(pod)}


def pod_labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return what was in the pod's own metadata of a sandbox's labels."""
    return {key: value for key, value in labels.items() if key not in _SANDBOX_KEYS}


def sandbox_annotations(pod: Pod) -> dict[str, str]:
    """Return the pod's annotations: CNI plugins and runtimes read some of them."""
    return dict(pod_annotations(pod))


def container_labels(pod: Pod, container: Container) -> dict[str, str]:
    """Return exactly the four labels that name a container."""
    return {**_identity_labels(pod), CONTAINER_NAME: container.name}


def container_annotations(pod: Pod, container: PodContainer, restart_count: int) -> dict[str, str]:
    """Return what a container must be known by later, in the Go kubelet's encoding."""
    spec = container.spec
    annotations = {
        CONTAINER_HASH: f"{container_hash(spec):x}",
        RESTART_COUNT: str(restart_count),
        TERMINATION_MESSAGE_PATH: spec.terminationMessagePath or "",
        TERMINATION_MESSAGE_POLICY: spec.terminationMessagePolicy or "",
    }
    instance = pod_annotations(pod).get(INSTANCE)
    if instance is not None:
        annotations[INSTANCE] = instance
    deletion = metadata(pod).deletionGracePeriodSeconds
    if deletion is not None:
        annotations[POD_DELETION_GRACE_PERIOD] = str(deletion)
    grace = pod_spec(pod).terminationGracePeriodSeconds
    if grace is not None:
        annotations[POD_TERMINATION_GRACE_PERIOD] = str(grace)
    if spec.lifecycle is not None and spec.lifecycle.preStop is not None:
        annotations[PRE_STOP_HANDLER] = _json(spec.lifecycle.preStop)
    if spec.ports:
        annotations[CONTAINER_PORTS] = _json(spec.ports)
    return annotations


def container_info(annotations: Mapping[str, str]) -> ContainerInfo:
    """Read a container's annotations back; one that does not parse counts as absent."""
    return ContainerInfo(
        hash=annotations.get(CONTAINER_HASH, ""),
        restart_count=_int(annotations.get(RESTART_COUNT)) or 0,
        termination_message_path=annotations.get(TERMINATION_MESSAGE_PATH, ""),
        termination_message_policy=annotations.get(TERMINATION_MESSAGE_POLICY, ""),
        termination_grace_period=_int(annotations.get(POD_TERMINATION_GRACE_PERIOD)),
        deletion_grace_period=_int(annotations.get(POD_DELETION_GRACE_PERIOD)),
        pre_stop=_pre_stop(annotations.get(PRE_STOP_HANDLER)),
        ports=_ports(annotations.get(CONTAINER_PORTS)),
    )


def _identity_labels(pod: Pod) -> dict[str, str]:
    key = pod_key(pod)
    return {POD_NAME: key.name, POD_NAMESPACE: key.namespace, POD_UID: pod_uid(pod)}


def _json(value: object) -> str:
    """Encode as the API does: unset fields are left out, at every depth."""
    return msgspec.json.encode(_without_unset(msgspec.to_builtins(value))).decode()


def _without_unset(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_unset(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_unset(item) for item in value]
    return value


def _int(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _pre_stop(text: str | None) -> LifecycleHandler | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=LifecycleHandler)
    except JSON_ERRORS:
        return None


def _ports(text: str | None) -> tuple[ContainerPort, ...]:
    try:
        return () if text is None else msgspec.json.decode(text, type=tuple[ContainerPort, ...])
    except JSON_ERRORS:
        return ()
