"""Decide what a pod's worker does next. Pure: nothing in here does I/O.

`plan_pod` makes a `PodPlan` of the pod and of what the runtime reports. The other names are the
decisions that status, steps and worker share with it.
"""

from kubelet_trio.pods.plan.backoff import BackOffPolicy, BackOffTable
from kubelet_trio.pods.plan.init_containers import has_initialized
from kubelet_trio.pods.plan.planner import plan_pod
from kubelet_trio.pods.plan.pod_plan import PlanInput, PodPlan, StartContainer, StopContainer
from kubelet_trio.pods.plan.resize import (
    Change,
    LimitPod,
    ResizeContainer,
    ResizePod,
    Resource,
    UpdateContainer,
    amount_of,
    begin_resize,
    changed_resources,
    exceeds,
    order_changes,
)
from kubelet_trio.pods.plan.restarts import (
    CRASH_LOOP,
    KILLED_EXIT_CODE,
    REMOVED_MESSAGE,
    REMOVED_REASON,
    RESTARTING_ALL,
    is_restarting_all,
    left_to_remove,
    restarts_after,
    restarts_all,
    restarts_when_killed,
    should_start,
    was_removed,
)
from kubelet_trio.pods.plan.sandbox import current_sandbox
from kubelet_trio.pods.plan.termination import (
    asked_by_api,
    deadline_at,
    deadline_failure,
    effective_grace,
    ending_note,
    merge_requests,
    remaining_grace,
    stop_order,
    stop_timeout,
)

__all__ = [
    "CRASH_LOOP",
    "KILLED_EXIT_CODE",
    "REMOVED_MESSAGE",
    "REMOVED_REASON",
    "RESTARTING_ALL",
    "BackOffPolicy",
    "BackOffTable",
    "Change",
    "LimitPod",
    "PlanInput",
    "PodPlan",
    "ResizeContainer",
    "ResizePod",
    "Resource",
    "StartContainer",
    "StopContainer",
    "UpdateContainer",
    "amount_of",
    "asked_by_api",
    "begin_resize",
    "changed_resources",
    "current_sandbox",
    "deadline_at",
    "deadline_failure",
    "effective_grace",
    "ending_note",
    "exceeds",
    "has_initialized",
    "is_restarting_all",
    "left_to_remove",
    "merge_requests",
    "order_changes",
    "plan_pod",
    "remaining_grace",
    "restarts_after",
    "restarts_all",
    "restarts_when_killed",
    "should_start",
    "stop_order",
    "stop_timeout",
    "was_removed",
]
