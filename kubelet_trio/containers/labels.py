"""Labels and annotations that tie a runtime's sandboxes and containers to their pod.

Keys and values are the Go kubelet's, so that each agent finds what the other has started. Labels
identify an object, and runtimes filter by them. Annotations hold what the agent needs of a
container after its pod is gone from the API: hash, restart count, grace periods, hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import msgspec
from lightkube.models.core_v1 import Container, ContainerPort, LifecycleHandler, Pod

from kubelet_trio.model import (
    INSTANCE,
    JSON_ERRORS,
    PodContainer,
    PodUid,
    fnv1a_32,
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

# What Go's JSON encoder escapes and others do not.
_GO_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}

_SANDBOX_KEYS = frozenset((POD_NAME, POD_NAMESPACE, POD_UID))


class PodIdentity(NamedTuple):
    """The pod that an object of the runtime belongs to."""

    uid: PodUid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """The parsed annotations of a container, whose pod may be gone."""

    hash: str = ""
    restart_count: int = 0
    termination_message_path: str = ""
    termination_message_policy: str = "File"
    termination_grace_period: int | None = None  # seconds
    deletion_grace_period: int | None = None  # seconds
    pre_stop: LifecycleHandler | None = None
    ports: tuple[ContainerPort, ...] = ()


def pod_identity(labels: Mapping[str, str]) -> PodIdentity | None:
    """Return the pod of an object with these labels; None if they name none."""
    uid = labels.get(POD_UID)
    if not uid:
        return None
    return PodIdentity(PodUid(uid), labels.get(POD_NAMESPACE, ""), labels.get(POD_NAME, ""))


def owned_by(instance: str) -> Callable[[Mapping[str, str]], bool]:
    """Return a predicate on an object's annotations: whether this agent owns it.

    An embedded agent owns objects with its instance name. The daemon (instance "") owns objects
    without one, including those of a Go kubelet.
    """
    return lambda annotations: annotations.get(INSTANCE, "") == instance


def sandbox_labels(pod: Pod) -> dict[str, str]:
    """Return the pod's own labels, and the three that identify it."""
    return {**(metadata(pod).labels or {}), **_identity_labels(pod)}


def pod_labels_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return those labels of a sandbox that are the pod's own."""
    return {key: value for key, value in labels.items() if key not in _SANDBOX_KEYS}


def sandbox_annotations(pod: Pod) -> dict[str, str]:
    """Return the pod's annotations: CNI plugins and runtimes read some of them."""
    return dict(pod_annotations(pod))


def container_labels(pod: Pod, container: Container) -> dict[str, str]:
    """Return the four labels that identify a container, without the pod's own."""
    return {**_identity_labels(pod), CONTAINER_NAME: container.name}


def container_annotations(pod: Pod, container: PodContainer, restart_count: int) -> dict[str, str]:
    """Return the annotations of a container, in the Go kubelet's encoding."""
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
    """Parse a container's annotations; one that does not parse counts as absent."""
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
    """Encode as the API does: without unset fields, at every depth."""
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


def container_hash(container: Container) -> int:
    """Return the 32-bit hash of a container's definition; a changed hash restarts the container.

    Only name and image count, so that defaults added by a newer agent and in-place resize restart
    nothing. The number must equal the Go kubelet's: on a node taken over from it, every container
    has the Go kubelet's hash in its annotations.
    """
    return _hash(container.image or "", container.name)


@lru_cache(maxsize=2048)  # every sync of every pod asks, and FNV is slow in Python
def _hash(image: str, name: str) -> int:
    # Source: HashContainer since 1.31. It hashes with FNV-1a what Go's deep printer makes of the
    # JSON's bytes, `([]uint8)[123 34 ...]`, with the fields in alphabetical order.
    text = msgspec.json.encode({"image": image, "name": name}).decode()
    for plain, escaped in _GO_ESCAPES.items():
        text = text.replace(plain, escaped)
    printed = "([]uint8)[" + " ".join(str(byte) for byte in text.encode()) + "]"
    return fnv1a_32(printed.encode())
