"""Model types: what every room may import and what imports nothing of any room."""

from kubelet_trio.model.clock import SystemClock, WallClock, rfc3339, to_datetime
from kubelet_trio.model.disk import DiskSpace, disk_space
from kubelet_trio.model.events import Event, EventSink, EventType, ObjectRef, node_ref, pod_ref
from kubelet_trio.model.ids import ContainerId, PodKey, PodUid, SandboxId
from kubelet_trio.model.latest import Latest
from kubelet_trio.model.offload import Offload, inline_offload, thread_offload
from kubelet_trio.model.pods import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    CONFIG_SEEN,
    CONFIG_SOURCE,
    INSTANCE,
    ContainerKind,
    PodContainer,
    as_container,
    grace_period,
    is_static,
    metadata,
    pod_annotations,
    pod_containers,
    pod_key,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.model.quantity import (
    NANO,
    canonical_quantity,
    parse_quantity,
    to_milli,
    to_units,
)
from kubelet_trio.model.runtime_pod import (
    ContainerRecord,
    ContainerState,
    RuntimePod,
    SandboxRecord,
)

__all__ = [
    "CONFIG_HASH",
    "CONFIG_MIRROR",
    "CONFIG_SEEN",
    "CONFIG_SOURCE",
    "INSTANCE",
    "NANO",
    "ContainerId",
    "ContainerKind",
    "ContainerRecord",
    "ContainerState",
    "DiskSpace",
    "Event",
    "EventSink",
    "EventType",
    "Latest",
    "ObjectRef",
    "Offload",
    "PodContainer",
    "PodKey",
    "PodUid",
    "RuntimePod",
    "SandboxId",
    "SandboxRecord",
    "SystemClock",
    "WallClock",
    "as_container",
    "canonical_quantity",
    "disk_space",
    "grace_period",
    "inline_offload",
    "is_static",
    "metadata",
    "node_ref",
    "parse_quantity",
    "pod_annotations",
    "pod_containers",
    "pod_key",
    "pod_object_ref",
    "pod_ref",
    "pod_uid",
    "rfc3339",
    "spec",
    "thread_offload",
    "to_datetime",
    "to_milli",
    "to_units",
]
