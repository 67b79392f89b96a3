from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod, ResourceRequirements

from kubelet_trio.cgroups import UNBOUNDED_HUGEPAGES, UNLIMITED, CgroupLimits
from kubelet_trio.containers import (
    node_cgroup_limits,
    pod_cgroup_limits,
    protected_memory,
    qos_cgroup_limits,
)
from kubelet_trio.model import NANO
from tests.containers.make import NODE, pod, sized

MI = 1 << 20
GI = 1 << 30
QOS = replace(NODE, cgroup_version=2, memory_qos=True, memory_reservation=True)


def same(**amounts: str) -> dict[str, Any]:
    return {"requests": amounts, "limits": amounts}


def level(**fields: Any) -> ResourceRequirements:
    return ResourceRequirements(**fields)


@pytest.mark.parametrize(
    ("made", "limits"),
    [
        (pod(sized()), CgroupLimits(cpu_shares=2)),
        (
            pod(sized(**same(cpu="500m", memory="64Mi"))),
            CgroupLimits(512, 50_000, 100_000, 64 * MI),
        ),
        # One container without a limit, and the whole has none.
        (
            pod(sized("a", {"cpu": "1"}, {"cpu": "2", "memory": "1Gi"}), sized("b", {"cpu": "1"})),
            CgroupLimits(cpu_shares=2048),
        ),
        (
            pod(
                sized("a", {"cpu": "1"}, {"cpu": "2", "memory": "1Gi"}),
                sized("b", None, {"memory": "1Gi"}),
            ),
            CgroupLimits(cpu_shares=1024, memory=2 * GI),
        ),
        # An init container that needs more than all the rest decides.
        (
            pod(
                sized(**same(cpu="1", memory="64Mi")),
                initContainers=[sized("i", **same(cpu="2", memory="32Mi"))],
            ),
            CgroupLimits(2048, 200_000, 100_000, 64 * MI),
        ),
        (
            pod(
                sized(**same(cpu="1", memory="64Mi")),
                initContainers=[sized("s", restartPolicy="Always", **same(cpu="1", memory="64Mi"))],
            ),
            CgroupLimits(2048, 200_000, 100_000, 128 * MI),
        ),
        (
            pod(
                sized(**same(cpu="1", memory="64Mi")),
                overhead={"cpu": "250m", "memory": "120Mi"},
            ),
            CgroupLimits(1280, 125_000, 100_000, 184 * MI),
        ),
        # What the pod says of itself stands for all its containers.
        (
            pod(sized(), resources=level(requests={"cpu": "1"}, limits={"memory": "1Gi"})),
            CgroupLimits(cpu_shares=1024, memory=GI),
        ),
        (
            pod(sized("a", {"cpu": "10m"}, {"cpu": "1m"})),
            CgroupLimits(10, 1_000, 100_000),
        ),
    ],
)
def test_a_pods_cgroup_holds_its_containers_to_the_pods_sum(
    made: Pod, limits: CgroupLimits
) -> None:
    assert pod_cgroup_limits(made, NODE) == limits


def test_processes_are_limited_by_the_node() -> None:
    assert pod_cgroup_limits(pod(), NODE, 500).pids == 500
    assert pod_cgroup_limits(pod(), NODE, -1).pids is None


def test_quota_is_lifted_where_the_node_enforces_none() -> None:
    made = pod(sized(**same(cpu="1", memory="64Mi")))
    free = pod_cgroup_limits(made, replace(NODE, cpu_cfs_quota=False))
    assert (free.cpu_quota, free.cpu_period, free.cpu_shares) == (UNLIMITED, 100_000, 1024)
    short = pod_cgroup_limits(made, replace(NODE, cpu_cfs_quota_period=0.005))
    assert (short.cpu_quota, short.cpu_period) == (5_000, 5_000)


def test_huge_pages_are_limited_to_what_is_asked_for() -> None:
    node = replace(NODE, hugepage_sizes=("2MB", "1GB"))
    asked = pod(sized(**same(**{"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "64Mi"})))
    assert pod_cgroup_limits(asked, node).hugepages == {"2MB": 64 * MI, "1GB": 0}
    assert pod_cgroup_limits(pod(), node).hugepages == {"2MB": 0, "1GB": 0}
    for limits in (qos_cgroup_limits([asked], node)[q] for q in ("Burstable", "BestEffort")):
        assert limits.hugepages == dict.fromkeys(("2MB", "1GB"), UNBOUNDED_HUGEPAGES)


GUARANTEED = pod(sized(**same(cpu="2", memory="1Gi")))
BURSTABLE = pod(sized("a", {"cpu": "500m", "memory": "256Mi"}))
BEST_EFFORT = pod(sized())


def test_classes_weigh_what_their_pods_request() -> None:
    limits = qos_cgroup_limits([GUARANTEED, BURSTABLE, BURSTABLE, BEST_EFFORT], NODE)
    assert limits == {
        "Guaranteed": CgroupLimits(),
        "Burstable": CgroupLimits(cpu_shares=1024),
        "BestEffort": CgroupLimits(cpu_shares=2),
    }
    assert qos_cgroup_limits([], NODE)["Burstable"].cpu_shares == 2


@pytest.mark.parametrize(
    ("percent", "burstable", "best_effort"),
    [(100, 3 * GI, 3 * GI - 256 * MI), (50, 3 * GI + GI // 2, 3 * GI + GI // 2 - 128 * MI)],
)
def test_memory_of_better_classes_is_kept_from_the_worse(
    percent: int, burstable: int, best_effort: int
) -> None:
    limits = qos_cgroup_limits(
        [GUARANTEED, BURSTABLE], NODE, allocatable_memory=4 * GI, reserve_percent=percent
    )
    assert limits["Guaranteed"].memory is None
    assert (limits["Burstable"].memory, limits["BestEffort"].memory) == (burstable, best_effort)


def test_memory_that_is_reserved_is_not_reclaimed() -> None:
    def kept(made: Pod) -> dict[str, str]:
        return dict(pod_cgroup_limits(made, QOS).unified)

    assert kept(GUARANTEED) == {"memory.min": str(GI), "memory.low": "0"}
    assert kept(BURSTABLE) == {"memory.min": "0", "memory.low": str(256 * MI)}
    assert kept(BEST_EFFORT) == {"memory.min": "0", "memory.low": "0"}
    classes = qos_cgroup_limits([GUARANTEED, BURSTABLE], QOS)
    assert classes["Guaranteed"].unified["memory.min"] == str(GI + 256 * MI)
    assert classes["Burstable"].unified["memory.low"] == str(256 * MI)
    for off in (replace(QOS, memory_qos=False), replace(QOS, cgroup_version=1)):
        assert pod_cgroup_limits(GUARANTEED, off).unified == {}
    unreserving = replace(QOS, memory_reservation=False)
    none = pod_cgroup_limits(GUARANTEED, unreserving)
    assert none.unified == {"memory.min": "0", "memory.low": "0"}
    # The cgroup of all pods must protect what those below it do; figures are by class.
    assert protected_memory(classes) == (GI, 256 * MI)
    assert protected_memory(qos_cgroup_limits([GUARANTEED, BURSTABLE], unreserving)) == (0, 0)
    for off in (replace(QOS, memory_qos=False), replace(QOS, cgroup_version=1)):
        assert protected_memory(qos_cgroup_limits([GUARANTEED], off)) is None


def test_the_nodes_cgroup_is_held_to_its_budget() -> None:
    budget = {
        "cpu": 3900 * NANO // 1000,
        "memory": 2 * GI * NANO,
        "pid": 4000 * NANO,
        "hugepages-2Mi": 0,
        "ephemeral-storage": GI * NANO,
    }
    assert node_cgroup_limits(budget, ["2MB"]) == CgroupLimits(
        cpu_shares=3993, memory=2 * GI, pids=4000, hugepages={"2MB": 0}
    )
    assert node_cgroup_limits(budget, compressible_only=True) == CgroupLimits(cpu_shares=3993)
    assert node_cgroup_limits({"pid": NANO}) == CgroupLimits(pids=1)
    assert node_cgroup_limits({"pid": NANO}, protected=True) == CgroupLimits(pids=1)
    assert node_cgroup_limits({"memory": GI * NANO}, protected=True) == CgroupLimits(
        memory=GI, unified={"memory.min": str(GI)}
    )


quantity = st.one_of(st.none(), st.integers(1, 64))


@given(st.lists(st.tuples(quantity, quantity), min_size=1, max_size=4))
def test_a_container_never_has_more_than_its_pod(
    sizes: list[tuple[int | None, int | None]],
) -> None:
    def wanted(cpu: int | None, memory: int | None) -> dict[str, Any]:
        named = {"cpu": f"{cpu}00m" if cpu else None, "memory": f"{memory}Mi" if memory else None}
        return same(**{n: text for n, text in named.items() if text})

    made = pod(*(sized(f"c{i}", **wanted(*size)) for i, size in enumerate(sizes)))
    limits = pod_cgroup_limits(made, NODE)
    assert limits.cpu_shares is not None
    assert limits.cpu_shares >= 2
    for memory in (memory for _, memory in sizes):
        if limits.memory is not None:
            assert memory is not None
            assert limits.memory >= memory * MI
