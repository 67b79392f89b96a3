"""Compute the API status of a pod, and what events say of it. Pure: nothing in here does I/O."""

from kubelet_trio.pods.status.pod_status import (
    pod_status,
    reported_ends,
)
from kubelet_trio.pods.status.resize import (
    ResizeEvent,
    ResizeOperation,
    resize_completed,
    resize_failed,
    resize_operations,
    resize_refused,
    resize_started,
)

__all__ = [
    "ResizeEvent",
    "ResizeOperation",
    "pod_status",
    "reported_ends",
    "resize_completed",
    "resize_failed",
    "resize_operations",
    "resize_refused",
    "resize_started",
]
