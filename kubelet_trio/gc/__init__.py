"""Garbage collection of containers, sandboxes, images and logs; log rotation."""

from kubelet_trio.gc.containers import ContainerPolicy
from kubelet_trio.gc.image_sweep import RECLAIM_ERRORS, ImageCollector, ImageGCError
from kubelet_trio.gc.images import ImagePolicy
from kubelet_trio.gc.logs import LogRotation, LogRotationPolicy, RunningLog
from kubelet_trio.gc.node_pods import NodePods
from kubelet_trio.gc.sweep import ContainerCollector

__all__ = [
    "RECLAIM_ERRORS",
    "ContainerCollector",
    "ContainerPolicy",
    "ImageCollector",
    "ImageGCError",
    "ImagePolicy",
    "LogRotation",
    "LogRotationPolicy",
    "NodePods",
    "RunningLog",
]
