"""What grows on a node and is cut back: the containers' logs."""

from kubelet_trio.gc.log_plan import RotationPlan, plan_rotation, rotated_name
from kubelet_trio.gc.logs import LogRotation, LogRotationPolicy, RunningLog

__all__ = [
    "LogRotation",
    "LogRotationPolicy",
    "RotationPlan",
    "RunningLog",
    "plan_rotation",
    "rotated_name",
]
