"""Requests that change resources: a changed container has what a new one would have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.cgroups import CgroupLimits
from kubelet_trio.containers import (
    NodeSettings,
    container_record,
    overhead_resources,
    update_resources,
    update_sandbox_resources,
)
from kubelet_trio.containers.resources.container import container_resources
from kubelet_trio.cri import merged_resources, v1
from kubelet_trio.model import ConfiguredResources, SandboxId
from tests.containers.make import NODE, container, main, pod, sized

GIB = 1 << 30
PLAIN = replace(NODE, memory_capacity=4 * GIB)
NODES = {
    "version 2": PLAIN,
    "no quota": replace(PLAIN, cpu_cfs_quota=False),
    "swap on 2": replace(PLAIN, swap_controller=True),
    "limited swap": replace(PLAIN, swap_controller=True, limited_swap=True, swap_capacity=2 * GIB),
    "version 1": replace(PLAIN, cgroup_version=1),
    "swap on 1": replace(PLAIN, cgroup_version=1, swap_controller=True),
    "memory QoS": replace(
        PLAIN, memory_qos=True, memory_reservation=True, allocatable={"memory": 3 * GIB * 10**9}
    ),
    "huge pages": replace(PLAIN, hugepage_sizes=("2MB",)),
}

quantities = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["1m", "100m", "1", "2500m"]),
        "memory": st.sampled_from(["4Mi", "64Mi", "1Gi", "2Gi"]),
    },
)
containers = st.builds(sized, requests=quantities, limits=quantities)
pod_limits = st.none() | st.builds(ResourceRequirements, limits=quantities)


def had_of(resources: v1.LinuxContainerResources) -> ConfiguredResources:
    status = v1.ContainerStatus(
        metadata=v1.ContainerMetadata(), resources=v1.ContainerResources(linux=resources)
    )
    found = container_record(status, SandboxId("s")).resources
    assert found is not None
    return found


def effective(resources: v1.LinuxContainerResources) -> dict[str, object]:
    """Return what the kernel is told to apply: no limit and -1 are the same."""
    limited = max(resources.memory_limit_in_bytes, 0)
    return {
        "shares": resources.cpu_shares,
        "quota": (max(resources.cpu_quota, 0), resources.cpu_period),
        "memory": limited,
        "swap": max(resources.memory_swap_limit_in_bytes, 0),
        "pages": {limit.page_size: limit.limit for limit in resources.hugepage_limits},
        "unified": {n: v for n, v in resources.unified.items() if (n, v) != ("memory.high", "max")},
    }


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
@given(before=containers, after=containers, of_pod_before=pod_limits, of_pod=pod_limits)
def test_a_changed_container_has_what_a_new_one_would_have(
    node: NodeSettings,
    before: Container,
    after: Container,
    of_pod_before: ResourceRequirements | None,
    of_pod: ResourceRequirements | None,
) -> None:
    first = created(pod(before, resources=of_pod_before), before, node)
    new_pod = pod(after, resources=of_pod)
    request = update_resources(new_pod, main(after), node, had_of(first))
    now = merged_resources(first, request)
    assert effective(now) == effective(created(new_pod, after, node))
    assert now.oom_score_adj == first.oom_score_adj


def created(of_pod: Pod, spec: Container, node: NodeSettings) -> v1.LinuxContainerResources:
    asked = container_resources(of_pod, main(spec), node)
    return merged_resources(v1.LinuxContainerResources(oom_score_adj=asked.oom_score_adj), asked)


LIMITED = ConfiguredResources(512, 50_000, 100_000, GIB)
FREE = ConfiguredResources(cpu_shares=512, cpu_period=100_000)


@pytest.mark.parametrize(
    ("spec", "had", "quota", "memory"),
    [
        (sized(limits={"cpu": "1", "memory": "2Gi"}), LIMITED, 100_000, 2 * GIB),
        (sized(limits={"cpu": "1", "memory": "2Gi"}), FREE, 100_000, 2 * GIB),
        (sized(requests={"cpu": "1"}), LIMITED, -1, -1),
        (sized(requests={"cpu": "1"}), None, -1, -1),
        (sized(requests={"cpu": "1"}), FREE, 0, 0),
        (sized(requests={"cpu": "1"}), replace(FREE, cpu_quota=-1, memory_limit=-1), 0, 0),
        (sized(limits={"cpu": "1"}), LIMITED, 100_000, -1),
        (sized(limits={"cpu": "0", "memory": "0"}), LIMITED, -1, -1),
    ],
)
def test_only_a_limit_that_is_there_is_removed(
    spec: Container, had: ConfiguredResources | None, quota: int, memory: int
) -> None:
    request = update_resources(pod(spec), main(spec), PLAIN, had)
    assert (request.cpu_quota, request.memory_limit_in_bytes) == (quota, memory)


def test_without_quotas_none_is_touched() -> None:
    request = update_resources(pod(), main(container()), NODES["no quota"], LIMITED)
    assert (request.cpu_quota, request.cpu_period) == (0, 0)


@pytest.mark.parametrize(("limit", "both"), [("2Gi", 2 * GIB), ("0", -1)])
def test_version_1_gets_memory_and_swap_at_once(limit: str, both: int) -> None:
    spec = sized(limits={"memory": limit})
    request = update_resources(pod(spec), main(spec), NODES["swap on 1"], LIMITED)
    assert (request.memory_limit_in_bytes, request.memory_swap_limit_in_bytes) == (both, both)


def test_a_container_that_is_no_longer_throttled_has_no_memory_high() -> None:
    spec = sized(requests={"memory": "1Gi"}, limits={"memory": "1Gi"})
    request = update_resources(pod(spec), main(spec), NODES["memory QoS"], LIMITED)
    assert request.unified["memory.high"] == "max"
    request = update_resources(pod(spec), main(spec), PLAIN, LIMITED)
    assert "memory.high" not in request.unified


def test_huge_pages_are_left_out() -> None:
    spec = sized(limits={"hugepages-2Mi": "4Mi"})
    assert not update_resources(pod(spec), main(spec), NODES["huge pages"], LIMITED).hugepage_limits


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (CgroupLimits(), v1.LinuxContainerResources()),
        (
            CgroupLimits(
                cpu_shares=614,
                cpu_quota=60_000,
                cpu_period=100_000,
                memory=GIB,
                pids=7,
                hugepages={"2MB": 1},
                unified={"memory.min": "0"},
            ),
            v1.LinuxContainerResources(
                cpu_shares=512,
                cpu_quota=50_000,
                cpu_period=100_000,
                memory_limit_in_bytes=GIB - (64 << 20),
                unified={"memory.min": "0"},
            ),
        ),
        (
            CgroupLimits(cpu_shares=2, cpu_quota=-1, cpu_period=100_000, memory=-1),
            v1.LinuxContainerResources(
                cpu_shares=2, cpu_quota=-1, cpu_period=100_000, memory_limit_in_bytes=-1
            ),
        ),
    ],
)
def test_a_sandbox_is_told_the_pods_resources_without_its_overhead(
    limits: CgroupLimits, expected: v1.LinuxContainerResources
) -> None:
    of_pod = pod(overhead={"cpu": "100m", "memory": "64Mi"})
    assert update_sandbox_resources(of_pod, limits, NODE) == expected
    overhead = overhead_resources(of_pod, NODE)
    assert (overhead.cpu_shares, overhead.cpu_quota) == (102, 10_000)


def test_a_pod_without_overhead_is_told_as_it_is() -> None:
    limits = CgroupLimits(cpu_shares=512, memory=GIB)
    expected = v1.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=GIB)
    assert update_sandbox_resources(pod(), limits, NODE) == expected
    assert overhead_resources(pod(), NODE) == v1.LinuxContainerResources()
