"""Decide whether the node can allocate the resources that a running pod asks for (KEP-1287).

A resize that fits is allocated. One that may fit later is deferred: it is decided on again
whenever something may have changed. One that can never fit here is infeasible, and is decided on
again only if the pod asks for something else. Upstream: podResizesAdmitHandler of
pkg/kubelet/allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.containers import (
    RESIZABLE,
    container_amounts,
    increases_requests,
    may_swap,
    pod_level,
    pod_qos,
    pod_requests,
)
from kubelet_trio.model import (
    ContainerKind,
    is_critical,
    metadata,
    pod_containers,
    spec,
    to_milli,
    to_units,
)
from kubelet_trio.pods.admission.decision import (
    AdmissionNode,
    Preempting,
    Rejected,
    Shortage,
    preempt,
    shortages,
)
from kubelet_trio.pods.admission.held import NOTHING, Held, Sums
from kubelet_trio.pods.types import PendingResize

INFEASIBLE: Final = "Infeasible"
DEFERRED: Final = "Deferred"
_POD_LEVEL_OFF = "InPlacePodLevelResourcesVerticalScaling is disabled"
_SWAP = "In-place resize of containers with swap is not supported."


def decide_resize(
    desired: Pod,
    allocated: Pod,
    others: Sequence[Pod],
    node: AdmissionNode,
    leaving: Sequence[Pod] = (),
) -> PendingResize | Preempting | None:
    """Return why a resize beside `others` is not allocated; see `decide_resize_beside`."""
    return decide_resize_beside(desired, allocated, Held.by(others), node, Held.by(leaving))


def decide_resize_beside(
    desired: Pod,
    allocated: Pod,
    others: Held,
    node: AdmissionNode,
    leaving: Held = NOTHING,
) -> PendingResize | Preempting | None:
    """Return why a resize is not allocated; None if it is.

    A resize of a critical pod preempts others, as the admission of a new one does.

    Args:
        desired: the pod with the resources that it asks for.
        allocated: the pod with those that it has.
        others: the other pods on the node, with what they hold.
        node: the node.
        leaving: pods on the node that are being preempted.

    Raises ValueError for a quantity that does not parse.
    """
    generation = metadata(desired).generation
    if node.limited_swap and _changes_swap(desired, allocated):
        return PendingResize(INFEASIBLE, _SWAP, generation, "swap_limitation")
    if not node.pod_level_resizes and _changes_own(desired, allocated):
        return PendingResize(INFEASIBLE, _POD_LEVEL_OFF, generation, "plr_feature_gate_off")
    if pinned := _pinned(desired, allocated, node):
        return PendingResize(INFEASIBLE, *pinned)
    if problem := _never_fits(desired, allocated, node):
        detail = "insufficient_node_allocatable"
        return PendingResize(INFEASIBLE, problem, generation, detail)
    short = _short(desired, allocated, (others.sums,), node)
    if short and is_critical(desired):
        decision = preempt(desired, others.pods, short)
        if isinstance(decision, Preempting):
            return decision
        return deferred(desired, decision)
    short = short or _short(desired, allocated, (others.sums, leaving.sums), node)
    return deferred(desired, short[0].rejection()) if short else None


def deferred(desired: Pod, why: Rejected) -> PendingResize:
    """Return that a resize waits for what a new pod of that size would be rejected for."""
    return PendingResize(DEFERRED, why.message, metadata(desired).generation, why.reason)


def _short(
    desired: Pod, allocated: Pod, others: Sequence[Sums], node: AdmissionNode
) -> list[Shortage]:
    # What the pod does not ask for anew it has already: a request that does not grow is granted
    # even on a node that has become too small for its pods.
    return [
        shortage
        for shortage in shortages(desired, others, node)
        if shortage.resource in RESIZABLE and _grows(shortage.resource, desired, allocated)
    ]


def resize_order(desired: Pod, allocated: Pod, since: float) -> tuple[bool, int, bool, float]:
    """Return the sort key of a pending resize; `since` is when it became pending.

    First the resizes that ask for nothing more, then by priority, Guaranteed pods before others,
    and the longest pending (sortPendingResizes of pkg/kubelet/allocation).
    """
    return (
        increases_requests(allocated, desired),
        -(spec(desired).priority or 0),
        pod_qos(desired) != "Guaranteed",
        since,
    )


def _never_fits(desired: Pod, allocated: Pod, node: AdmissionNode) -> str:
    """Return which resource the whole node has too little of; "" if none."""
    # The API server of 1.36 refuses such a resize (its admission plugin PodResizeValidator), so
    # the Go kubelet of 1.36 does not check it. Static pods and older servers need it here.
    wanted = pod_requests(desired)
    for name, in_units in (("memory", to_units), ("cpu", to_milli)):
        here = node.allocatable.get(name)
        if here is not None and wanted.get(name, 0) > here and _grows(name, desired, allocated):
            return (
                f"Node didn't have enough capacity: {name}, "
                f"requested: {in_units(wanted[name])}, capacity: {in_units(here)}"
            )
    return ""


def _grows(resource: str, desired: Pod, allocated: Pod) -> bool:
    return pod_requests(desired).get(resource, 0) > pod_requests(allocated).get(resource, 0)


def _pinned(
    desired: Pod, allocated: Pod, node: AdmissionNode
) -> tuple[str, int | None, str] | None:
    """Return message, generation and detail if the pod's CPUs or memory nodes are its own.

    Source: podResizesAdmitHandler, without the alpha gates InPlacePodVerticalScalingExclusive*.
    """
    if pod_qos(desired) != "Guaranteed":
        return None
    for is_static, resource, who, policy in (
        (node.static_cpus, "cpu", "CPU", "static"),
        (node.static_memory, "memory", "Memory", "Static"),
    ):
        if is_static and _changes(resource, desired, allocated):
            text = (
                f"Resize is infeasible for Guaranteed Pods alongside {who} Manager "
                f'policy "{policy}"'
            )
            detail = f"guaranteed_pod_{who.lower()}_manager_static_policy"
            return text, metadata(desired).generation, detail
    return None


def _changes(resource: str, desired: Pod, allocated: Pod) -> bool:
    """Whether a container's request changes; a Guaranteed pod's limits are its requests."""
    before = {c.spec.name: container_amounts(c.spec, "requests") for c in pod_containers(allocated)}
    return any(
        container_amounts(c.spec, "requests").get(resource, 0)
        != before.get(c.spec.name, {}).get(resource, 0)
        for c in pod_containers(desired)
        if c.kind is not ContainerKind.EPHEMERAL
    )


def _changes_own(desired: Pod, allocated: Pod) -> bool:
    """Whether what all containers together may have changes."""
    return any(pod_level(desired, w) != pod_level(allocated, w) for w in ("requests", "limits"))


def _changes_swap(desired: Pod, allocated: Pod) -> bool:
    """Whether a running container would need another limit of swap."""
    before = {c.spec.name: c for c in pod_containers(allocated)}
    for container in pod_containers(desired):
        had = before.get(container.spec.name)
        if had is None or container.kind is ContainerKind.EPHEMERAL:
            continue
        if _memory(container.spec) == _memory(had.spec) or _restarts(had.spec):
            continue
        if may_swap(desired, container) or may_swap(allocated, had):
            return True
    return False


def _memory(container: Container) -> int:
    return container_amounts(container, "requests").get("memory", 0)


def _restarts(container: Container) -> bool:
    """Whether a change of the container's memory restarts it."""
    policies = container.resizePolicy or ()
    return any(
        p.resourceName == "memory" and p.restartPolicy == "RestartContainer" for p in policies
    )
