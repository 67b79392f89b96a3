"""Garbage: what nobody wants any more of pods, containers, images and logs."""

from kubelet_trio.gc.containers import (
    ContainerPolicy,
    containers_to_remove,
    sandboxes_to_remove,
)
from kubelet_trio.gc.image_sweep import RECLAIM_ERRORS, ImageCollector, ImageGCError
from kubelet_trio.gc.images import (
    ImageBook,
    ImagePolicy,
    ImageRecord,
    ImageVerdict,
    bytes_to_free,
    images_to_remove,
)
from kubelet_trio.gc.log_plan import RotationPlan, plan_rotation, rotated_name
from kubelet_trio.gc.logs import LogRotation, LogRotationPolicy, RunningLog
from kubelet_trio.gc.node_pods import NodePods
from kubelet_trio.gc.sweep import ContainerCollector

__all__ = [
    "RECLAIM_ERRORS",
    "ContainerCollector",
    "ContainerPolicy",
    "ImageBook",
    "ImageCollector",
    "ImageGCError",
    "ImagePolicy",
    "ImageRecord",
    "ImageVerdict",
    "LogRotation",
    "LogRotationPolicy",
    "NodePods",
    "RotationPlan",
    "RunningLog",
    "bytes_to_free",
    "containers_to_remove",
    "images_to_remove",
    "plan_rotation",
    "rotated_name",
    "sandboxes_to_remove",
]
