"""Which dead containers and old sandboxes go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.gc import ContainerPolicy
from kubelet_trio.gc.containers import containers_to_remove, sandboxes_to_remove
from kubelet_trio.model import ContainerRecord, PodUid, RuntimePod
from tests.gc.make import DEAD, RUNS, container, pod, sandbox

NOW = 100_000.0


def removed(
    pods: list[RuntimePod],
    policy: ContainerPolicy,
    ended: tuple[str, ...] = (),
    *,
    all_unused: bool = False,
) -> list[str]:
    found = containers_to_remove(pods, policy, NOW, lambda uid: uid in ended, all_unused=all_unused)
    return [record.id for record in found]


CRASHED = pod("a", container("web", 3, RUNS), *(container("web", n) for n in range(3)))
TWO = pod("b", *(container(name, n) for name in ("x", "y") for n in range(4)))


@pytest.mark.parametrize(
    ("pods", "policy", "expected"),
    [
        ([CRASHED], ContainerPolicy(), ["web-0", "web-1"]),
        ([CRASHED], ContainerPolicy(max_per_container=2), ["web-0"]),
        ([CRASHED], ContainerPolicy(max_per_container=-1), []),
        ([CRASHED], ContainerPolicy(max_per_container=0), ["web-0", "web-1", "web-2"]),
        ([CRASHED], ContainerPolicy(min_age=NOW - 1), ["web-0"]),
        ([TWO], ContainerPolicy(max_per_container=-1, max_total=8), []),
        # Beyond the total, every container first comes down to its share.
        (
            [TWO],
            ContainerPolicy(max_per_container=-1, max_total=4),
            ["x-0", "y-0", "x-1", "y-1"],
        ),
        # Where even one of each is too much, the oldest go.
        (
            [TWO, pod("c", container("z", 9))],
            ContainerPolicy(max_per_container=1, max_total=1),
            ["x-0", "y-0", "x-1", "y-1", "x-2", "y-2", "x-3", "y-3"],
        ),
        (
            [TWO],
            ContainerPolicy(max_per_container=-1, max_total=0),
            [f"{n}-{i}" for i in range(4) for n in "xy"],
        ),
    ],
)
def test_the_limits(pods: list[RuntimePod], policy: ContainerPolicy, expected: list[str]) -> None:
    assert removed(pods, policy) == expected


def test_how_a_wanted_container_ended_last_stays_for_a_while() -> None:
    fresh = pod("a", container("web", 1, ended=NOW - 5), container("web", 0, ended=NOW - 9))
    policy = ContainerPolicy(max_per_container=0)
    assert removed([fresh], policy) == ["web-0"]
    assert removed([fresh], policy, ended=("a",)) == ["web-0", "web-1"]


def test_under_pressure_all_of_a_pod_that_is_over_goes() -> None:
    pods = [pod("a", container("web", 0)), pod("b", container("db", 0))]
    assert removed(pods, ContainerPolicy(), ("a",), all_unused=True) == ["web-0"]
    assert removed(pods, ContainerPolicy(), ("a",)) == []


def test_a_sandbox_goes_once_it_neither_runs_nor_holds_anything() -> None:
    one = pod(
        "a",
        container("web", 0, sandbox="held"),
        sandboxes=(
            sandbox("new", 5.0),
            sandbox("running", 4.0, ready=True),
            sandbox("held", 3.0),
            sandbox("old", 2.0),
            sandbox("older", 1.0),
        ),
    )
    assert [s.id for s in sandboxes_to_remove([one])] == ["old", "older"]


def test_the_newest_sandbox_goes_only_under_pressure_and_when_its_pod_is_over() -> None:
    one = pod("a", sandboxes=(sandbox("only", 1.0),))

    def ended(uid: PodUid) -> bool:
        return uid == "a"

    assert sandboxes_to_remove([one], ended) == []
    assert sandboxes_to_remove([one], all_unused=True) == []
    assert [s.id for s in sandboxes_to_remove([one], ended, all_unused=True)] == ["only"]


records = st.builds(
    container,
    st.sampled_from("xyz"),
    st.integers(0, 30),
    st.sampled_from((DEAD, DEAD, RUNS)),
    created=st.floats(0, NOW),
    ended=st.floats(0, NOW),
)


def unique(found: list[ContainerRecord]) -> list[ContainerRecord]:
    return list({record.id: record for record in found}.values())


@given(
    st.lists(st.lists(records, max_size=12).map(unique), max_size=4),
    st.builds(
        ContainerPolicy,
        min_age=st.floats(0, NOW),
        max_per_container=st.integers(-1, 4),
        max_total=st.integers(-1, 10),
    ),
    st.booleans(),
)
def test_nothing_that_runs_goes_and_the_limits_hold(
    found: list[list[ContainerRecord]], policy: ContainerPolicy, all_unused: bool
) -> None:
    pods = [pod(f"p{number}", *containers) for number, containers in enumerate(found)]
    gone = containers_to_remove(pods, policy, NOW, lambda uid: uid == "p0", all_unused=all_unused)
    assert all(record.state is DEAD for record in gone)
    assert all(NOW - record.created_at >= policy.min_age for record in gone)
    assert len({(id(r)) for r in gone}) == len(gone)
    left = [
        record
        for one in pods
        for record in one.containers
        if not any(record is other for other in gone)
    ]
    if policy.min_age == 0 and policy.max_total >= 0:
        settling = [r for r in left if r.state is DEAD and NOW - r.finished_at < 60]
        assert sum(r.state is DEAD for r in left) <= policy.max_total + len(settling)
