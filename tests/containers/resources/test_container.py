from __future__ import annotations

from dataclasses import replace

import pytest
from lightkube.models.core_v1 import Container, Pod, ResourceRequirements

from kubelet_trio.cgroups import milli_cpu_to_quota, milli_cpu_to_shares
from kubelet_trio.containers import pod_memory_limit, pod_qos, sandbox_config
from kubelet_trio.containers.resources.container import container_resources, oom_score_adj
from tests.containers.make import NODE, container, init, main, pod, sized

GIB = 1 << 30
SMALL = {"cpu": "100m", "memory": "100Mi"}


@pytest.mark.parametrize(
    ("milli", "shares"),
    [(0, 2), (1, 2), (2, 2), (10, 10), (100, 102), (1000, 1024), (1500, 1536), (256001, 262144)],
)
def test_cpu_shares(milli: int, shares: int) -> None:
    assert milli_cpu_to_shares(milli) == shares


@pytest.mark.parametrize(
    ("milli", "quota"), [(0, 0), (1, 1000), (5, 1000), (20, 2000), (100, 10000), (1500, 150000)]
)
def test_cpu_quota(milli: int, quota: int) -> None:
    assert milli_cpu_to_quota(milli, 100_000) == quota


def own(
    requests: dict[str, str] | None, limits: dict[str, str] | None = None
) -> ResourceRequirements:
    return ResourceRequirements(requests=requests, limits=limits)


@pytest.mark.parametrize(
    ("of_pod", "expected"),
    [
        (pod(), "BestEffort"),
        (pod(sized(requests={"cpu": "0"})), "BestEffort"),
        (pod(sized(requests={"nvidia.com/gpu": "1"})), "BestEffort"),
        (pod(sized(requests=SMALL, limits=SMALL)), "Guaranteed"),
        (pod(sized(requests={"cpu": "0.1", "memory": "102400Ki"}, limits=SMALL)), "Guaranteed"),
        (pod(sized(requests=SMALL)), "Burstable"),
        (pod(sized(requests=SMALL, limits={"cpu": "100m"})), "Burstable"),
        (pod(sized(requests=SMALL, limits={**SMALL, "cpu": "1"})), "Burstable"),
        (pod(sized(requests=SMALL, limits=SMALL), container("b")), "Burstable"),
        (pod(sized(requests=SMALL, limits=SMALL), initContainers=[container("i")]), "Burstable"),
        (
            pod(
                sized("a", SMALL, SMALL),
                sized("b", SMALL, SMALL),
                initContainers=[sized("i", SMALL, SMALL)],
            ),
            "Guaranteed",
        ),
        (pod(container(), resources=own(SMALL, SMALL)), "Guaranteed"),
        (pod(container(), resources=own(SMALL)), "Burstable"),
        (pod(sized(requests=SMALL), resources=own(None)), "BestEffort"),
    ],
)
def test_qos_class(of_pod: Pod, expected: str) -> None:
    assert pod_qos(of_pod) == expected


@pytest.mark.parametrize(
    ("of_pod", "expected"),
    [
        (pod(), 1000),
        (pod(sized(requests=SMALL, limits=SMALL)), -997),
        (pod(priorityClassName="system-node-critical"), -997),
        (pod(priorityClassName="system-cluster-critical"), 1000),
        (pod(sized(requests={"memory": "1Gi"})), 750),
        (pod(sized(requests={"memory": "4Mi"})), 999),  # never BestEffort's 1000
        (pod(sized(requests={"cpu": "1"})), 999),
        (pod(sized(requests={"memory": "4Gi"})), 3),  # never below
        (
            pod(
                sized(requests={"memory": "1Gi"}), container("b"), resources=own({"memory": "3Gi"})
            ),
            500,
        ),
    ],
)
def test_oom_score_adj_on_four_gibibytes(of_pod: Pod, expected: int) -> None:
    assert of_pod.spec is not None
    assert oom_score_adj(of_pod, main(of_pod.spec.containers[0]), 4 * GIB) == expected


def test_a_sidecar_is_not_killed_before_the_smallest_main_container() -> None:
    sidecar = sized("s", {"memory": "10Mi"}, restartPolicy="Always")
    setup = sized("i", {"memory": "10Mi"})
    of_pod = pod(
        sized("a", {"memory": "2Gi"}),
        sized("b", {"memory": "1Gi"}),
        initContainers=[setup, sidecar],
    )
    assert oom_score_adj(of_pod, init(sidecar), 4 * GIB) == 750
    assert oom_score_adj(of_pod, init(setup), 4 * GIB) == 998
    big = sized("s", {"memory": "2Gi"}, restartPolicy="Always")
    assert oom_score_adj(of_pod, init(big), 4 * GIB) == 500


def test_a_containers_cgroup_gets_its_request_and_limits() -> None:
    spec = sized(requests={"cpu": "250m", "memory": "64Mi"}, limits={"cpu": "1", "memory": "1G"})
    resources = container_resources(pod(spec), main(spec), replace(NODE, memory_capacity=4 * GIB))
    assert resources.cpu_shares == 256
    assert (resources.cpu_quota, resources.cpu_period) == (100_000, 100_000)
    assert resources.memory_limit_in_bytes == 10**9
    assert resources.oom_score_adj == 985
    assert resources.unified == {"memory.oom.group": "1"}


def test_a_cpu_limit_without_a_request_is_its_own_request() -> None:
    spec = sized(limits={"cpu": "2"})
    assert container_resources(pod(spec), main(spec), NODE).cpu_shares == 2048
    nothing = container()
    resources = container_resources(pod(nothing), main(nothing), NODE)
    assert (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes) == (2, 0, 0)


def test_no_quota_without_cfs_quota() -> None:
    spec = sized(limits={"cpu": "2"})
    resources = container_resources(pod(spec), main(spec), replace(NODE, cpu_cfs_quota=False))
    assert (resources.cpu_quota, resources.cpu_period) == (0, 0)
    fast = container_resources(pod(spec), main(spec), replace(NODE, cpu_cfs_quota_period=0.005))
    assert (fast.cpu_quota, fast.cpu_period) == (10_000, 5_000)


def test_the_pods_limits_stand_in_for_missing_ones() -> None:
    spec = sized(limits={"cpu": "1"})
    of_pod = pod(spec, resources=own(None, {"cpu": "4", "memory": "1Gi"}))
    resources = container_resources(of_pod, main(spec), NODE)
    assert (resources.cpu_quota, resources.memory_limit_in_bytes) == (100_000, GIB)


def test_every_page_size_of_the_node_has_a_limit() -> None:
    spec = sized(limits={"hugepages-2Mi": "100Mi"})
    node = replace(NODE, hugepage_sizes=("2MB", "1GB"))
    limits = container_resources(pod(spec), main(spec), node).hugepage_limits
    assert [(h.page_size, h.limit) for h in limits] == [("2MB", 100 << 20), ("1GB", 0)]


@pytest.mark.parametrize(
    ("own_limits", "expected"),
    [
        ({}, [("2MB", 6 << 20), ("1GB", 0)]),
        ({"hugepages-2Mi": "4Mi"}, [("2MB", 4 << 20), ("1GB", 0)]),
        ({"hugepages-1Gi": "1Gi"}, [("2MB", 6 << 20), ("1GB", GIB)]),
        ({"hugepages-2Mi": "0"}, [("2MB", 0), ("1GB", 0)]),
    ],
)
def test_a_container_without_a_limit_of_huge_pages_has_the_pods(
    own_limits: dict[str, str], expected: list[tuple[str, int]]
) -> None:
    spec = sized(limits=own_limits)
    of_pod = pod(spec, resources=own(None, {"memory": "1Gi", "hugepages-2Mi": "6Mi"}))
    node = replace(NODE, hugepage_sizes=("2MB", "1GB"))
    limits = container_resources(of_pod, main(spec), node).hugepage_limits
    assert [(h.page_size, h.limit) for h in limits] == expected


def test_swap_is_forbidden_where_it_can_be() -> None:
    spec = sized(limits={"memory": "1Gi"})
    two = container_resources(pod(spec), main(spec), replace(NODE, swap_controller=True))
    assert two.unified == {"memory.oom.group": "1", "memory.swap.max": "0"}
    on_one = replace(NODE, swap_controller=True, cgroup_version=1)
    one = container_resources(pod(spec), main(spec), on_one)
    assert (one.unified, one.memory_swap_limit_in_bytes) == ({}, GIB)


def test_single_process_oom_kill_leaves_the_group_alone() -> None:
    spec = container()
    node = replace(NODE, single_process_oom_kill=True)
    assert container_resources(pod(spec), main(spec), node).unified == {}


def test_a_sandbox_is_told_the_pods_worst_moment() -> None:
    sidecar = sized("s", {"cpu": "100m"}, {"cpu": "200m"}, restartPolicy="Always")
    heavy = sized("i", {"cpu": "2"}, {"cpu": "3"})
    of_pod = pod(sized("a", {"cpu": "1"}, {"cpu": "1"}), initContainers=[sidecar, heavy])
    linux = sandbox_config(of_pod, NODE, attempt=0).linux
    assert linux is not None
    assert linux.resources is not None
    assert linux.resources.cpu_shares == 2100 * 1024 // 1000
    assert linux.resources.cpu_quota == 320_000


def test_a_runtime_classes_overhead_is_request_and_limit() -> None:
    linux = sandbox_config(pod(overhead={"cpu": "250m", "memory": "120Mi"}), NODE, attempt=0).linux
    assert linux is not None
    assert linux.overhead is not None
    assert (linux.overhead.cpu_shares, linux.overhead.cpu_quota) == (256, 25_000)
    assert linux.overhead.memory_limit_in_bytes == 120 << 20


@pytest.mark.parametrize(
    ("containers", "limit"),
    [
        ([sized("a", None, {"memory": "1Gi"})], GIB),
        ([sized("a", None, {"memory": "1Gi"}), sized("b", None, {"memory": "1Gi"})], 2 * GIB),
        ([sized("a", None, {"memory": "1Gi"}), container("b")], 0),
    ],
)
def test_a_pods_memory_is_limited_if_all_its_containers_are(
    containers: list[Container], limit: int
) -> None:
    assert pod_memory_limit(pod(*containers)) == limit
    assert pod_memory_limit(pod(*containers, resources=own(None, {"memory": "3Gi"}))) == 3 * GIB


SWAPPY = replace(
    NODE, cgroup_version=2, swap_controller=True, limited_swap=True,
    memory_capacity=8 * GIB, swap_capacity=2 * GIB,
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "swap"),
    [
        (sized(requests={"memory": "1Gi"}, limits={"memory": "2Gi"}), str(GIB // 4)),
        (sized(requests={"memory": "1Gi"}), str(GIB // 4)),
        (sized(requests={"cpu": "1"}), "0"),  # no memory to reckon with
        (sized(requests={"memory": "1Gi"}, limits={"memory": "1Gi"}), "0"),
        (sized(requests={"memory": "9Gi"}, limits={"memory": "10Gi"}), "0"),
        (sized(), "0"),
    ],
)
def test_swap_is_limited_to_the_memory_requests_share(spec: Container, swap: str) -> None:
    resources = container_resources(pod(spec), main(spec), SWAPPY)
    assert resources.unified["memory.swap.max"] == swap
    none = container_resources(pod(spec), main(spec), replace(SWAPPY, limited_swap=False))
    assert none.unified["memory.swap.max"] == "0"


def test_critical_pods_do_not_swap() -> None:
    spec = sized(requests={"memory": "1Gi"}, limits={"memory": "2Gi"})
    for critical in (
        pod(spec, priority=2_000_000_000),
        pod(spec, meta={"annotations": {"kubernetes.io/config.source": "file"}}),
    ):
        assert container_resources(critical, main(spec), SWAPPY).unified["memory.swap.max"] == "0"


THROTTLED = replace(
    NODE, cgroup_version=2, memory_qos=True, allocatable={"memory": 10 * GIB * 10**9}
)


@pytest.mark.parametrize(
    ("spec", "high"),
    [
        (sized(requests={"memory": "1Gi"}, limits={"memory": "2Gi"}), int(1.9 * GIB)),
        (sized(requests={"memory": "1Gi"}), int(9.1 * GIB)),  # of what the node has for pods
        (sized(limits={"memory": "1Gi"}), int(0.9 * GIB)),
        (sized(), None),  # nothing is requested, and nothing limited: the two are equal
        (sized(requests={"memory": "1Gi"}, limits={"memory": "1Gi"}), None),
    ],
)
def test_memory_is_throttled_between_request_and_limit(spec: Container, high: int | None) -> None:
    unified = container_resources(pod(spec), main(spec), THROTTLED).unified
    wanted = None if high is None else str(high // 4096 * 4096)
    assert unified.get("memory.high") == wanted
    assert (unified["memory.min"], unified["memory.low"]) == ("0", "0")
    off = container_resources(pod(spec), main(spec), replace(THROTTLED, memory_qos=False))
    assert not {"memory.high", "memory.min", "memory.low"} & off.unified.keys()


def test_containers_memory_is_reserved_by_class() -> None:
    node = replace(THROTTLED, memory_reservation=True)
    both = {"cpu": "1", "memory": "1Gi"}
    certain = sized(requests=both, limits=both)
    unified = container_resources(pod(certain), main(certain), node).unified
    assert (unified["memory.min"], unified["memory.low"]) == (str(GIB), "0")
    burstable = sized(requests={"memory": "1Gi"})
    unified = container_resources(pod(burstable), main(burstable), node).unified
    assert (unified["memory.min"], unified["memory.low"]) == ("0", str(GIB))
