from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import Pod

from kubelet_trio.containers import pod_limits, pod_requests, resizable_amounts, total_quantities
from kubelet_trio.containers.resources.amounts import declares_limit
from kubelet_trio.model import NANO


def container(name: str, limit: str | None, **more: Any) -> dict[str, Any]:
    resources = {"limits": {"cpu": limit}, "requests": {"cpu": limit}} if limit else {}
    return {"name": name, "image": "i", "resources": resources, **more}


def make(main: list[Any], init: list[Any] | None = None, **spec: Any) -> Pod:
    raw: dict[str, Any] = {
        "metadata": {"name": "p"},
        "spec": {"containers": main, "initContainers": init or []},
    }
    raw["spec"].update(spec)
    return msgspec.convert(raw, Pod)


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("made", "cpus"),
    [
        (make([container("a", "1"), container("b", "2")]), 3),
        (make([container("a", "1")], [container("i", "4")]), 4),
        (make([container("a", "1")], [container("s", "2", **SIDECAR)]), 3),
        # The init container runs beside the sidecar before it, not the one after it.
        (
            make(
                [container("a", "1")],
                [
                    container("s", "2", **SIDECAR),
                    container("i", "3"),
                    container("t", "1", **SIDECAR),
                ],
            ),
            5,
        ),
        (make([container("a", "1")], overhead={"cpu": "1"}), 2),
        (make([container("a", "1")], resources={"requests": {"cpu": "7"}}), 7),
    ],
)
def test_a_pod_requests_what_it_needs_at_its_worst_moment(made: Pod, cpus: int) -> None:
    assert pod_requests(made)["cpu"] == cpus * NANO


def test_overhead_raises_limits_and_sets_none() -> None:
    made = make([container("a", "1")], overhead={"cpu": "1", "memory": "1Gi"})
    assert pod_limits(made) == {"cpu": 2 * NANO}
    assert "memory" in pod_requests(made)


@pytest.mark.parametrize(
    ("made", "declared"),
    [
        (make([container("a", "1")]), True),
        (make([container("a", "1"), container("b", None)]), False),
        (make([container("a", "1")], [container("i", None)]), False),
        # Beside a limited sidecar the pod is limited all the time.
        (make([container("a", "1")], [container("s", "1", **SIDECAR), container("i", None)]), True),
        (make([container("a", None)], resources={"limits": {"cpu": "1"}}), True),
    ],
)
def test_a_limit_counts_if_it_holds_all_the_time(made: Pod, declared: bool) -> None:
    assert declares_limit(made, "cpu") is declared


def of_memory(name: str, memory: str) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": {"requests": {"memory": memory}}}


@pytest.mark.parametrize(
    ("memory", "total"),
    [
        (["64Mi", "64512k"], "128536Ki"),
        (["64512k", "64Mi"], "131620864"),
        (["0", "64Mi"], "64Mi"),
        (["0"], "0"),
    ],
)
def test_a_sum_of_requests_is_spelled_like_its_first(memory: list[str], total: str) -> None:
    made = make([of_memory(str(at), each) for at, each in enumerate(memory)])
    assert total_quantities(made, "requests") == {"memory": total}
    assert total_quantities(made, "limits") == {}


def test_cpu_and_memory_of_containers_and_pod_may_be_resized() -> None:
    hugepages = {"limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}, "requests": {"cpu": "1"}}
    made = make(
        [container("b", "1"), {"name": "a", "image": "i", "resources": hugepages}],
        [container("init", None)],
        resources={"requests": {"cpu": "3"}},
    )
    assert list(resizable_amounts(made)) == [
        ("", "requests", "cpu", "3"),
        ("a", "limits", "memory", "1Gi"),
        ("a", "requests", "cpu", "1"),
        ("b", "limits", "cpu", "1"),
        ("b", "requests", "cpu", "1"),
    ]
