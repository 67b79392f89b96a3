"""Compute the API status of a pod. Pure: nothing in here does I/O."""

from kubelet_trio.pods.status.pod_status import (
    pod_status,
    reported_ends,
)

__all__ = [
    "pod_status",
    "reported_ends",
]
