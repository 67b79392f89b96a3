"""Resources in a status: allocated, actuated as far as known, and as the runtime has them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import (
    Container,
    ContainerStatus,
    Pod,
    PodStatus,
    ResourceClaim,
    ResourceRequirements,
)

from kubelet_trio.cgroups import milli_cpu_to_quota, milli_cpu_to_shares
from kubelet_trio.containers import amounts
from kubelet_trio.model import ConfiguredResources, ContainerId, ContainerRecord
from kubelet_trio.pods.status.pod_status import pod_status
from kubelet_trio.pods.types import PodResize, PodStage, StatusInput
from tests.pods.make import CREATED, EXITED, UNKNOWN, container, pod, record, runtime, sidecar

MIB = 2**20
Amounts = dict[str, Any]


def sizes(requests: Amounts | None = None, limits: Amounts | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=requests, limits=limits)


def both(cpu: str, memory: str) -> ResourceRequirements:
    return sizes({"cpu": cpu, "memory": memory}, {"cpu": cpu, "memory": memory})


def status(of: Pod, *records: ContainerRecord, **given: Any) -> PodStatus:
    made = StatusInput(now=1000.0, stage=PodStage.SYNC, **given)
    return pod_status(of, runtime(*records), made)


def web(of: Pod, *records: ContainerRecord, **given: Any) -> ContainerStatus:
    (one,) = status(of, *records, **given).containerStatuses or []
    return one


def sized(resources: ResourceRequirements | None, /, **body: Any) -> Pod:
    return pod(container("web", resources=resources), **body)


def has(cpu: int, limit: int, memory: int) -> ConfiguredResources:
    """What the runtime reports: milli-CPU and MiB, 0 if there is no limit."""
    return ConfiguredResources(
        cpu_shares=milli_cpu_to_shares(cpu),
        cpu_quota=milli_cpu_to_quota(limit, 100_000),
        cpu_period=100_000,
        memory_limit=memory * MIB,
    )


OLD, NEW = both("1", "1Gi"), both("3", "3Gi")
ID = ContainerId("web-s0-0")


# Of containers.


def test_a_container_that_was_never_made_has_no_resources() -> None:
    one = web(sized(OLD))
    assert (one.resources, one.allocatedResources) == (None, None)


def test_a_container_without_resources_has_empty_ones() -> None:
    for reported in (None, has(0, 0, 0), ConfiguredResources()):
        one = web(pod(), record("web", resources=reported))
        assert (one.resources, one.allocatedResources) == (ResourceRequirements(), None)


@pytest.mark.parametrize("state", [CREATED, EXITED, UNKNOWN])
def test_an_instance_that_does_not_run_shows_the_allocated_resources(state: Any) -> None:
    was = PodResize(actuated={ID: OLD})
    one = web(sized(NEW), record("web", state, resources=has(1000, 1000, 1024)), resize=was)
    assert (one.resources, one.allocatedResources) == (NEW, NEW.requests)


@pytest.mark.parametrize(
    ("actuated", "reported", "expected"),
    [
        # A runtime that reports nothing: the record of the resize.
        (None, None, NEW),
        (OLD, None, OLD),
        # What the runtime reports is what the container has.
        (OLD, has(1000, 1000, 1024), OLD),
        (OLD, has(3000, 3000, 3072), sizes({"cpu": "3", "memory": "1Gi"}, NEW.limits)),
        (OLD, has(1000, 1000, 3072), sizes(OLD.requests, {"cpu": "1", "memory": "3Gi"})),
        (None, has(3000, 3000, 3072), NEW),
        (
            None,
            has(2500, 2000, 2048),
            sizes({"cpu": "2500m", "memory": "3Gi"}, {"cpu": "2", "memory": "2Gi"}),
        ),
        # It reports some of it.
        (
            OLD,
            ConfiguredResources(cpu_shares=2048),
            sizes({"cpu": "2", "memory": "1Gi"}, OLD.limits),
        ),
        (OLD, ConfiguredResources(cpu_quota=-1, cpu_period=100_000), OLD),
        (
            OLD,
            ConfiguredResources(memory_limit=2**30 + 1),
            sizes(OLD.requests, {"cpu": "1", "memory": "1073741825"}),
        ),
    ],
)
def test_a_running_container_shows_what_it_has(
    actuated: ResourceRequirements | None,
    reported: ConfiguredResources | None,
    expected: ResourceRequirements,
) -> None:
    resize = None if actuated is None else PodResize(actuated={ID: actuated})
    one = web(sized(NEW), record("web", resources=reported), resize=resize)
    assert (one.resources, one.allocatedResources) == (expected, NEW.requests)


def test_only_the_instance_that_is_named_has_other_resources() -> None:
    resize = PodResize(actuated={ID: OLD})
    assert web(sized(NEW), record("web"), resize=resize).resources == OLD
    assert web(sized(NEW), record("web", attempt=1), resize=resize).resources == NEW


def test_an_earlier_status_does_not_count() -> None:
    said = status(sized(OLD), record("web"))
    assert web(sized(NEW), record("web"), previous=said).resources == NEW
    # A container whose record is gone keeps what was reported of its end.
    ended = status(sized(OLD), record("web", EXITED))
    one = web(sized(NEW), previous=ended)
    assert (one.resources, one.allocatedResources) == (OLD, OLD.requests)


@pytest.mark.parametrize(
    ("limit", "reported", "expected"),
    [
        # The kernel's least limit is 10m, its least request 2m.
        ("1m", 10, "1m"),
        ("10m", 10, "10m"),
        ("11m", 11, "11m"),
        ("11m", 10, "10m"),
        ("10m", 11, "11m"),
        ("15m", 20, "20m"),
    ],
)
def test_a_limit_below_the_kernels_least_one_is_shown_as_the_api_has_it(
    limit: str, reported: int, expected: str
) -> None:
    one = web(sized(sizes(limits={"cpu": limit})), record("web", resources=has(0, reported, 0)))
    assert one.resources == sizes(limits={"cpu": expected})


@pytest.mark.parametrize(
    ("request_", "reported", "expected"),
    [("0", 2, "0"), ("1m", 2, "1m"), ("2m", 2, "2m"), ("3m", 2, "2m"), ("2m", 3, "3m")],
)
def test_a_request_below_the_kernels_least_one_is_shown_as_the_api_has_it(
    request_: str, reported: int, expected: str
) -> None:
    one = web(sized(sizes({"cpu": request_})), record("web", resources=has(reported, 0, 0)))
    assert one.resources == sizes({"cpu": expected})


def test_all_but_cpu_and_memory_is_as_allocated() -> None:
    others = {"hugepages-2Mi": "4Mi", "example.com/a": "1", "ephemeral-storage": "1Gi"}
    wanted = ResourceRequirements(
        requests={**others, "cpu": "1"}, limits=others, claims=[ResourceClaim("gpu")]
    )
    had = sizes({"cpu": "2", "example.com/a": "9"}, {"hugepages-2Mi": "8Mi"})
    one = web(sized(wanted), record("web"), resize=PodResize(actuated={ID: had}))
    assert one.resources == ResourceRequirements(
        requests={**others, "cpu": "2"}, limits=others, claims=wanted.claims
    )


def test_a_limit_that_is_being_added_is_not_shown_before_the_container_has_it() -> None:
    wanted = sizes({"cpu": "1"}, {"cpu": "2", "memory": "1Gi"})
    had = sizes({"cpu": "1"}, {"memory": "1Gi"})
    resize = PodResize(actuated={ID: had})
    one = web(sized(wanted), record("web", resources=has(1000, 0, 1024)), resize=resize)
    assert one.resources == had


def test_a_limit_of_the_pod_is_shown_with_the_other_limits_of_a_container() -> None:
    # The runtime limits a container that has no limit of its own to the pod's.
    of = sized(sizes(limits={"memory": "1Gi"}), resources=both("2", "2Gi"))
    one = web(of, record("web", resources=has(2, 2000, 1024)))
    assert one.resources == sizes(limits={"cpu": "2", "memory": "1Gi"})
    # So does the record of a resize, which has the limits that are in force.
    had = PodResize(actuated={ID: sizes(limits={"cpu": "1", "memory": "2Gi"})})
    assert web(of, record("web"), resize=had).resources == sizes(
        limits={"cpu": "1", "memory": "2Gi"}
    )
    of = sized(None, resources=both("2", "2Gi"))
    assert web(of, record("web"), resize=had).resources == ResourceRequirements()
    assert web(of, record("web", resources=has(2, 2000, 2048))).resources == ResourceRequirements()


def test_init_containers_and_sidecars_show_the_same_as_main_ones() -> None:
    of = pod(init=[container("i", resources=NEW), sidecar("s", resources=NEW)], ephemeral=["e"])
    resize = PodResize(actuated={ContainerId("i-s0-0"): OLD, ContainerId("s-s0-0"): OLD})
    made = status(of, record("i"), record("s"), record("e"), resize=resize)
    found = {c.name: c.resources for c in made.initContainerStatuses or ()}
    assert found == {"i": OLD, "s": OLD}
    (ephemeral,) = made.ephemeralContainerStatuses or []
    assert ephemeral.resources == ResourceRequirements()


@given(st.integers(1, 256_000), st.integers(1, 256_000), st.integers(1, 2**20))
def test_a_container_with_the_allocated_resources_shows_them(
    cpu: int, limit: int, memory: int
) -> None:
    wanted = sizes({"cpu": f"{cpu}m"}, {"cpu": f"{limit}m", "memory": f"{memory}Mi"})
    of = sized(wanted)
    shown = web(of, record("web", resources=has(cpu, limit, memory))).resources
    assert shown is not None
    assert (amounts(shown.requests), amounts(shown.limits)) == (
        amounts(wanted.requests),
        amounts(wanted.limits),
    )


# Of pods.


def level(of: Pod, *records: ContainerRecord, **given: Any) -> tuple[Any, Any]:
    made = status(of, *records, **given)
    return made.resources, made.allocatedResources


RUNNING = (record("web"), record("b"))


def two(
    first: ResourceRequirements | None = None,
    second: ResourceRequirements | None = None,
    **body: Any,
) -> Pod:
    mains: list[Container] = [container("web", resources=first), container("b", resources=second)]
    return pod(*mains, **body)


@pytest.mark.parametrize(
    ("of", "waiting", "running"),
    [
        (two(), sizes(), sizes()),
        (two(OLD, OLD), both("2", "2Gi"), both("2", "2Gi")),
        # The pod's cgroup is limited only if all its containers are.
        (two(OLD), both("1", "1Gi"), sizes({"cpu": "1", "memory": "1Gi"})),
        (
            two(sizes({"cpu": "1"}, {"memory": "1Gi"}), sizes(limits=OLD.limits)),
            sizes({"cpu": "1"}, {"cpu": "1", "memory": "2Gi"}),
            sizes({"cpu": "1"}, {"memory": "2Gi"}),
        ),
        # The pod's own replace the sum.
        (two(resources=OLD), OLD, OLD),
        (
            two(OLD, OLD, resources=sizes({"cpu": "5"}, {"memory": "9Gi"})),
            sizes({"cpu": "5", "memory": "2Gi"}, {"cpu": "2", "memory": "9Gi"}),
            sizes({"cpu": "5", "memory": "2Gi"}, {"cpu": "2", "memory": "9Gi"}),
        ),
        # A runtime class' overhead is in the cgroup too.
        (
            two(OLD, OLD, overhead={"cpu": "250m", "memory": "1Mi"}),
            both("2250m", "2049Mi"),
            both("2250m", "2049Mi"),
        ),
        # Only CPU and memory are those of the cgroup.
        (
            two(sizes({"cpu": "1", "ephemeral-storage": "1Gi"}, {"ephemeral-storage": "2Gi"})),
            sizes({"cpu": "1", "ephemeral-storage": "1Gi"}, {"ephemeral-storage": "2Gi"}),
            sizes({"cpu": "1"}),
        ),
        (
            two(resources=sizes({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"})),
            sizes({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"}),
            sizes({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"}),
        ),
        # Too little for the kernel, and too much for its shares.
        (two(sizes({"cpu": "1m"}, {"cpu": "5m"})), sizes({"cpu": "1m"}, {"cpu": "5m"}), sizes()),
        (two(sizes({"cpu": "300"})), sizes({"cpu": "300"}), sizes({"cpu": "256"})),
        # Sums are written like their first part.
        (
            two(sizes({"memory": "1000M"}), sizes({"memory": "24Ki"})),
            sizes({"memory": "1000024576"}),
            sizes({"memory": "1000024576"}),
        ),
        (
            two(sizes({"memory": "24Ki"}), sizes({"memory": "1024M"})),
            sizes({"memory": "1000024Ki"}),
            sizes({"memory": "1000024Ki"}),
        ),
    ],
)
def test_a_pod_shows_its_sums_and_one_that_runs_its_cgroup(
    of: Pod, waiting: ResourceRequirements, running: ResourceRequirements
) -> None:
    allocated = waiting.requests
    assert level(of) == (waiting, allocated)
    assert level(of, *RUNNING) == (running, allocated)


def test_a_pod_that_has_ended_shows_what_was_allocated() -> None:
    of = two(OLD, policy="Never")
    ended = (record("web", EXITED), record("b", EXITED))
    made = pod_status(of, runtime(*ended), StatusInput(1000.0, PodStage.TERMINATED, finished=True))
    assert made.phase == "Succeeded"
    assert (made.resources, made.allocatedResources) == (both("1", "1Gi"), OLD.requests)


def test_a_pod_has_no_resources_of_its_own_while_their_gate_is_off() -> None:
    assert level(two(OLD, OLD), *RUNNING, pod_level_resizes=False) == (None, None)


def test_a_pod_that_was_not_admitted_has_no_resources() -> None:
    assert level(two(OLD), rejected=True) == (None, None)


@pytest.mark.parametrize(
    ("of", "resize", "expected"),
    [
        (two(NEW, NEW), PodResize(actuated={ID: OLD}), both("4", "4Gi")),
        (two(NEW, NEW), PodResize(actuated={ContainerId("gone"): OLD}), both("6", "6Gi")),
        (two(NEW, NEW), PodResize(), both("6", "6Gi")),
        (two(resources=NEW), PodResize(pod_level=OLD), OLD),
        (two(OLD, resources=NEW), PodResize(actuated={ID: NEW}), NEW),
    ],
)
def test_during_a_resize_a_pod_shows_what_is_actuated(
    of: Pod, resize: PodResize, expected: ResourceRequirements
) -> None:
    found, allocated = level(of, *RUNNING, resize=resize)
    assert found == expected
    assert allocated == level(of)[1]


def test_a_pod_in_its_initialization_shows_the_largest_moment() -> None:
    of = pod(
        container("web", resources=OLD),
        init=[container("i", resources=NEW), sidecar("s", resources=OLD)],
    )
    assert level(of, record("i")) == (both("3", "3Gi"), NEW.requests)
