"""Events about a resize have the Go kubelet's texts to the byte; metrics count each change."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod, ResourceClaim, ResourceRequirements

from kubelet_trio.pods.status import (
    ResizeEvent,
    resize_completed,
    resize_failed,
    resize_operations,
    resize_refused,
    resize_started,
)
from kubelet_trio.pods.types import PendingResize
from tests.pods.make import container, pod, sidecar

CPU = ResourceRequirements(requests={"cpu": "100m"}, limits={"cpu": "200m"})
MEMORY = ResourceRequirements(requests={"memory": "100"}, limits={"memory": "200"})
POD = pod(container("c1", resources=MEMORY), init=[container("c0", resources=CPU)])
BOTH = (
    '"initContainers":[{"name":"c0","resources":{"limits":{"cpu":"200m"},'
    '"requests":{"cpu":"100m"}}}],"containers":[{"name":"c1","resources":'
    '{"limits":{"memory":"200"},"requests":{"memory":"100"}}}]'
)
SHORT = "Node didn't have enough resource: cpu, requested: 9000, used: 1, capacity: 2"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            resize_started(POD, 2),
            ("Normal", "ResizeStarted", f'Pod resize started: {{{BOTH},"generation":2}}'),
        ),
        (
            resize_completed(POD, 2),
            ("Normal", "ResizeCompleted", f'Pod resize completed: {{{BOTH},"generation":2}}'),
        ),
        (
            resize_failed(POD, 1, "some error occurred"),
            (
                "Warning",
                "ResizeError",
                f'Pod resize error: {{{BOTH},"generation":1,"error":"some error occurred"}}',
            ),
        ),
        (
            resize_refused(POD, PendingResize("Deferred", SHORT, 3, "OutOfcpu")),
            (
                "Warning",
                "ResizeDeferred",
                f'Pod resize OutOfcpu: {{{BOTH},"generation":3,"error":"{SHORT}"}}',
            ),
        ),
        (
            resize_refused(POD, PendingResize("Deferred", SHORT, 3)),
            (
                "Warning",
                "ResizeDeferred",
                f'Pod resize Deferred: {{{BOTH},"generation":3,"error":"{SHORT}"}}',
            ),
        ),
        (
            resize_refused(POD, PendingResize("Infeasible", "no", 3, "swap_limitation")),
            (
                "Warning",
                "ResizeInfeasible",
                f'Pod resize Infeasible: {{{BOTH},"generation":3,"error":"no"}}',
            ),
        ),
    ],
)
def test_events_have_upstreams_texts(event: ResizeEvent, expected: tuple[str, str, str]) -> None:
    assert event == expected


@pytest.mark.parametrize(
    ("of", "summary"),
    [
        (pod(), '{"containers":[{"name":"web","resources":{}}],"generation":0}'),
        # Names in order, quantities in the API's spelling.
        (
            pod(
                container(
                    "web",
                    resources=ResourceRequirements(
                        claims=[ResourceClaim("gpu"), ResourceClaim("nic", request="one")],
                        requests={"memory": "1024Ki", "cpu": "0.5", "example.com/a": 1},
                    ),
                )
            ),
            '{"containers":[{"name":"web","resources":{"requests":'
            '{"cpu":"500m","example.com/a":"1","memory":"1Mi"},'
            '"claims":[{"name":"gpu"},{"name":"nic","request":"one"}]}}],"generation":0}',
        ),
    ],
)
def test_a_summary_leaves_out_what_is_empty(of: Pod, summary: str) -> None:
    assert resize_started(of, None).message == f"Pod resize started: {summary}"


def test_an_error_is_escaped_as_go_does() -> None:
    message = resize_failed(pod(), 1, 'a "<b>" & \u2028 ü\n\x01').message
    assert message.endswith(r'"error":"a \"\u003cb\u003e\" \u0026 \u2028 ü\n\u0001"}')


@given(st.text())
def test_programs_can_read_any_error(error: str) -> None:
    text = resize_failed(pod(), 1, error).message.removeprefix("Pod resize error: ")
    assert json.loads(text).get("error", "") == error


# Metrics.


def sized(
    requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, name: str = "web"
) -> Container:
    return container(name, resources=ResourceRequirements(requests=requests, limits=limits))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (sized(), sized(), []),
        (sized({"cpu": "1"}), sized({"cpu": "1000m"}), []),
        (sized({"cpu": "1"}), sized({"cpu": "2"}), [("cpu", "requests", "increase")]),
        (sized({"cpu": "1"}), sized({"cpu": "1m"}), [("cpu", "requests", "decrease")]),
        (sized({"cpu": "0"}), sized({"cpu": "1"}), [("cpu", "requests", "add")]),
        (container("web"), sized({"memory": "1"}), [("memory", "requests", "add")]),
        (sized(limits={"cpu": "1"}), sized(limits={"cpu": "0"}), [("cpu", "limits", "remove")]),
        (sized(limits={"memory": "1Gi"}), sized(), [("memory", "limits", "remove")]),
        (sized({"example.com/a": "1"}), sized({"example.com/a": "2"}), []),
        (
            sized({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}),
            sized({"cpu": "2", "memory": "1Mi"}, {"cpu": "3", "memory": "2Gi"}),
            [
                ("memory", "requests", "decrease"),
                ("memory", "limits", "increase"),
                ("cpu", "requests", "increase"),
                ("cpu", "limits", "increase"),
            ],
        ),
    ],
)
def test_each_change_of_a_container_is_an_operation(
    before: Container, after: Container, expected: list[tuple[str, str, str]]
) -> None:
    assert resize_operations(pod(before), pod(after)) == expected


def test_operations_are_those_of_all_containers_that_can_be_resized() -> None:
    one, two = {"cpu": "1"}, {"cpu": "2"}
    sizes = [ResourceRequirements(requests=r) for r in (one, two)]
    before, after = (
        pod(
            container("web", resources=size),
            init=[container("i", resources=size), sidecar("s", resources=size)],
            ephemeral=["debug"],
        )
        for size in sizes
    )
    assert resize_operations(before, after) == [("cpu", "requests", "increase")] * 3
    assert resize_operations(pod("other"), after) == []
