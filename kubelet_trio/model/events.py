"""Kubernetes events: the types, and the seam for emitting them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from kubelet_trio.model.ids import PodUid

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object of an event, as core/v1 ObjectReference."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One occurrence; the receivers aggregate repeated ones."""

    involved: ObjectRef
    type: EventType
    reason: str
    message: str
    time: float  # Unix seconds
    annotations: Mapping[str, str] | None = None


class EventSink(Protocol):
    """Receives events. Never blocks and never fails: the oldest are dropped and counted."""

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None: ...


class AnnotatedEventSink(EventSink, Protocol):
    """An `EventSink` for events with annotations, which programs read."""

    def emit_annotated(
        self,
        involved: ObjectRef,
        type_: EventType,
        reason: str,
        message: str,
        annotations: Mapping[str, str],
    ) -> None: ...


def pod_ref(namespace: str, name: str, uid: PodUid | str, field_path: str = "") -> ObjectRef:
    """Refer to a pod; `field_path` is e.g. `spec.containers{web}`."""
    return ObjectRef("Pod", name, namespace, uid, field_path)


def node_ref(name: str) -> ObjectRef:
    """Refer to the node; as in the Go kubelet, its UID is its name."""
    return ObjectRef("Node", name, uid=name)
