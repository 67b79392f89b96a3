"""Model types: what every room may import and what imports nothing of any room."""

from kubelet_trio.model.atomic import sync_directory, write_aside
from kubelet_trio.model.backoff import Backoff, backoff_delay
from kubelet_trio.model.bell import Bell
from kubelet_trio.model.clock import SystemClock, WallClock, rfc3339, to_datetime
from kubelet_trio.model.digest import blake2b, sha256
from kubelet_trio.model.disk import DiskSpace, disk_space
from kubelet_trio.model.events import (
    AnnotatedEventSink,
    Event,
    EventSink,
    EventType,
    ObjectRef,
    node_ref,
    pod_ref,
)
from kubelet_trio.model.foreign import (
    last_data,
    make_directory,
    next_data,
    open_directory,
    open_regular,
    read_limited,
    read_regular,
    reopen_regular,
    stat_own,
)
from kubelet_trio.model.housekeeping import housekeeping_round
from kubelet_trio.model.ids import ContainerId, PodKey, PodUid, SandboxId
from kubelet_trio.model.json_errors import JSON_ERRORS
from kubelet_trio.model.latest import Latest
from kubelet_trio.model.logger import get_logger
from kubelet_trio.model.meter import (
    CALLS,
    COUNTS,
    PULLS,
    REQUESTS,
    SECONDS,
    STARTS,
    STATUSES,
    STORAGE,
    Histogram,
    Meter,
)
from kubelet_trio.model.offload import (
    Offload,
    OffloadByPurpose,
    Purpose,
    inline_offload,
    offload_for,
)
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
    is_critical,
    is_mirror,
    is_static,
    metadata,
    pod_annotations,
    pod_containers,
    pod_key,
    pod_object_ref,
    pod_uid,
    spec,
)
from kubelet_trio.model.protobuf import parse_message
from kubelet_trio.model.quantity import (
    NANO,
    canonical_quantity,
    parse_quantity,
    to_milli,
    to_units,
)
from kubelet_trio.model.removal import remove_empty, remove_entry, remove_tree
from kubelet_trio.model.runtime_pod import (
    ContainerRecord,
    ContainerState,
    RuntimePod,
    SandboxRecord,
)
from kubelet_trio.model.threads import busy_threads, end_threads, thread_offload
from kubelet_trio.model.tls import system_tls
from kubelet_trio.model.tree import TreeCount, count_tree
from kubelet_trio.model.unquoted import yaml_problem
from kubelet_trio.model.urls import without_secrets, without_user
from kubelet_trio.model.verbosity import BoundLogger, set_verbosity, set_vmodule
from kubelet_trio.model.yaml_depth import check_yaml_depth

__all__ = [
    "CALLS",
    "CONFIG_HASH",
    "CONFIG_MIRROR",
    "CONFIG_SEEN",
    "CONFIG_SOURCE",
    "COUNTS",
    "INSTANCE",
    "JSON_ERRORS",
    "NANO",
    "PULLS",
    "REQUESTS",
    "SECONDS",
    "STARTS",
    "STATUSES",
    "STORAGE",
    "AnnotatedEventSink",
    "Backoff",
    "Bell",
    "BoundLogger",
    "ContainerId",
    "ContainerKind",
    "ContainerRecord",
    "ContainerState",
    "DiskSpace",
    "Event",
    "EventSink",
    "EventType",
    "Histogram",
    "Latest",
    "Meter",
    "ObjectRef",
    "Offload",
    "OffloadByPurpose",
    "PodContainer",
    "PodKey",
    "PodUid",
    "Purpose",
    "RuntimePod",
    "SandboxId",
    "SandboxRecord",
    "SystemClock",
    "TreeCount",
    "WallClock",
    "as_container",
    "backoff_delay",
    "blake2b",
    "busy_threads",
    "canonical_quantity",
    "check_yaml_depth",
    "count_tree",
    "disk_space",
    "end_threads",
    "get_logger",
    "grace_period",
    "housekeeping_round",
    "inline_offload",
    "is_critical",
    "is_mirror",
    "is_static",
    "last_data",
    "make_directory",
    "metadata",
    "next_data",
    "node_ref",
    "offload_for",
    "open_directory",
    "open_regular",
    "parse_message",
    "parse_quantity",
    "pod_annotations",
    "pod_containers",
    "pod_key",
    "pod_object_ref",
    "pod_ref",
    "pod_uid",
    "read_limited",
    "read_regular",
    "remove_empty",
    "remove_entry",
    "remove_tree",
    "reopen_regular",
    "rfc3339",
    "set_verbosity",
    "set_vmodule",
    "sha256",
    "spec",
    "stat_own",
    "sync_directory",
    "system_tls",
    "thread_offload",
    "to_datetime",
    "to_milli",
    "to_units",
    "without_secrets",
    "without_user",
    "write_aside",
    "yaml_problem",
]
