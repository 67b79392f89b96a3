"""What a node does with a running pod that asks for other resources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lightkube.models.core_v1 import ContainerResizePolicy, Pod, ResourceRequirements
from msgspec.structs import replace as change

from kubelet_trio.model import CONFIG_SOURCE, NANO
from kubelet_trio.pods import AdmissionNode
from kubelet_trio.pods.admission.decision import Preempting
from kubelet_trio.pods.admission.resize import decide_resize, resize_order
from kubelet_trio.pods.types import PendingResize
from tests.pods.make import container, pod, static_pod

GI = 2**30
NODE = AdmissionNode(
    "node", allocatable={"pods": 3 * NANO, "cpu": 4 * NANO, "memory": 8 * GI * NANO}
)


def sized(
    cpu: str, memory: str = "1Gi", limit: str | None = None, static: bool = False, **body: Any
) -> Pod:
    limits = {"memory": limit} if limit is not None else None
    resources = ResourceRequirements(requests={"cpu": cpu, "memory": memory}, limits=limits)
    policy = body.pop("policy", None)
    make = static_pod if static else pod
    return make(container("web", resources=resources, resizePolicy=policy), **body)


def other(pod: Pod, name: str) -> Pod:
    meta = change(pod.metadata, name=name, uid=name)  # type: ignore[type-var]
    return change(pod, metadata=meta)


@pytest.mark.parametrize("cpu", ["500m", "1", "3"])
def test_what_fits_is_allocated(cpu: str) -> None:
    assert decide_resize(sized(cpu), sized("1"), [other(sized("1"), "a")], NODE) is None


def test_what_may_fit_later_is_deferred() -> None:
    wanted = sized("3500m", generation=7)
    assert decide_resize(wanted, sized("1"), [other(sized("1"), "a")], NODE) == PendingResize(
        "Deferred",
        "Node didn't have enough resource: cpu, requested: 3500, used: 1000, capacity: 4000",
        7,
        "OutOfcpu",
    )


def test_memory_is_counted_in_bytes() -> None:
    why = decide_resize(sized("1", "6Gi"), sized("1", "1Gi"), [other(sized("1", "3Gi"), "a")], NODE)
    assert isinstance(why, PendingResize)
    assert why.message == (
        f"Node didn't have enough resource: memory, requested: {6 * GI}, used: {3 * GI}, "
        f"capacity: {8 * GI}"
    )


def test_more_than_the_node_has_is_infeasible() -> None:
    assert decide_resize(sized("5", generation=2), sized("1"), [], NODE) == PendingResize(
        "Infeasible",
        "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000",
        2,
        "insufficient_node_allocatable",
    )


def test_a_decrease_is_allocated_on_a_node_that_has_become_too_small() -> None:
    small = replace(NODE, allocatable={"cpu": NANO, "memory": GI * NANO})
    others = [other(sized("2"), "a")]
    assert decide_resize(sized("3"), sized("4"), others, small) is None
    why = decide_resize(sized("3", "2Gi"), sized("4", "1Gi"), others, small)
    assert isinstance(why, PendingResize)
    assert "memory" in why.message


def test_a_node_that_reports_nothing_refuses_nothing() -> None:
    assert decide_resize(sized("99"), sized("1"), [], AdmissionNode("node")) is None


def test_a_static_pod_is_resized_too() -> None:
    assert decide_resize(sized("2", static=True), sized("1", static=True), [], NODE) is None


def test_a_critical_pod_preempts_others() -> None:
    victim = other(sized("2"), "victim")
    critical: dict[str, Any] = {
        "annotations": {CONFIG_SOURCE: "api"},
        "priority": 2_000_001_000,
    }
    wanted, has = sized("3", **critical), sized("1", **critical)
    decision = decide_resize(wanted, has, [victim], NODE)
    assert isinstance(decision, Preempting)
    assert decision.victims == (victim,)
    # The victim still runs: the resize waits for it, and no other pod is chosen.
    why = decide_resize(wanted, has, [], NODE, leaving=[victim])
    assert isinstance(why, PendingResize)
    assert why.reason == "Deferred"


def test_resources_of_a_pod_stay_as_they_are_while_their_gate_is_off() -> None:
    off = replace(NODE, pod_level_resizes=False)
    of = {
        cpu: sized("1", generation=2, resources=ResourceRequirements(requests={"cpu": cpu}))
        for cpu in ("2", "3")
    }
    assert decide_resize(of["3"], of["2"], [], NODE) is None
    assert decide_resize(of["3"], of["2"], [], off) == PendingResize(
        "Infeasible",
        "InPlacePodLevelResourcesVerticalScaling is disabled",
        2,
        "plr_feature_gate_off",
    )
    # Those of its containers are another matter.
    more = sized("2", resources=ResourceRequirements(requests={"cpu": "3"}))
    assert decide_resize(more, of["3"], [], off) is None


SWAPPING = replace(NODE, limited_swap=True)
RESTARTS = [ContainerResizePolicy(resourceName="memory", restartPolicy="RestartContainer")]


@pytest.mark.parametrize(
    ("desired", "allocated", "is_refused"),
    [
        (sized("1", "2Gi"), sized("1", "1Gi"), True),
        (sized("2", "1Gi"), sized("1", "1Gi"), False),  # CPU changes no swap
        (sized("1", "2Gi", policy=RESTARTS), sized("1", "1Gi", policy=RESTARTS), False),
        (sized("1", "2Gi", "2Gi"), sized("1", "1Gi", "1Gi"), False),  # request is limit: no swap
        (sized("1", "2Gi", static=True), sized("1", "1Gi", static=True), False),  # critical
    ],
)
def test_memory_of_a_container_with_swap_is_not_resized(
    desired: Pod, allocated: Pod, is_refused: bool
) -> None:
    why = decide_resize(desired, allocated, [], SWAPPING)
    assert (why is not None) is is_refused
    if isinstance(why, PendingResize):
        assert why.message == "In-place resize of containers with swap is not supported."
        assert (why.reason, why.detail) == ("Infeasible", "swap_limitation")
    assert decide_resize(desired, allocated, [], NODE) is None


def test_the_order_of_pending_resizes() -> None:
    has = sized("1")
    guaranteed = pod(
        container(
            "web",
            resources=ResourceRequirements(
                limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "2", "memory": "1Gi"}
            ),
        )
    )
    keys = [
        resize_order(sized("500m"), has, 9.0),
        resize_order(sized("2", priority=10), has, 8.0),
        resize_order(guaranteed, has, 7.0),
        resize_order(sized("2"), has, 1.0),
        resize_order(sized("3"), has, 2.0),
        resize_order(sized("3", priority=-1), has, 0.0),
    ]
    assert keys == sorted(keys)
