"""Which pods a critical pod preempts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.containers import pod_requests
from kubelet_trio.model import CONFIG_SOURCE, NANO, is_critical
from kubelet_trio.pods.admission.preemption import (
    NoVictimsError,
    choose_victims,
    may_preempt,
)


def pod(name: str = "p", cpu: int = 0, memory: int = 0, limit: bool = False, **spec: Any) -> Pod:
    """Return a pod of the API; `limit` makes one with CPU and memory Guaranteed."""
    amounts = {n: str(a) for n, a in (("cpu", cpu), ("memory", memory)) if a}
    resources = ResourceRequirements(requests=amounts, limits=amounts if limit else None)
    container = Container(name="main", resources=resources if amounts else None)
    return Pod(
        metadata=ObjectMeta(name=name, uid=name, annotations={CONFIG_SOURCE: "api"}),
        spec=PodSpec(containers=[container], **spec),
    )


def static(name: str = "s", **spec: Any) -> Pod:
    made = pod(name, **spec)
    assert made.metadata is not None
    made.metadata.annotations = {CONFIG_SOURCE: "file"}
    return made


CRITICAL = pod("critical", priority=2_000_000_000)


def victims(others: list[Pod], **missing: int) -> list[str]:
    wanted = {name: amount * NANO for name, amount in missing.items()}
    return [p.metadata.name or "" for p in choose_victims(CRITICAL, others, wanted) if p.metadata]


@pytest.mark.parametrize(
    ("pod_", "other", "expected"),
    [
        (static(), pod(), True),
        (CRITICAL, pod(), True),
        (pod(), pod(), False),
        (static(), static(), False),
        (static(priority=2), static(priority=1), True),
        (pod(priority=2), pod(priority=2), False),
        (pod(priority=1), CRITICAL, False),
    ],
)
def test_who_may_preempt_whom(pod_: Pod, other: Pod, expected: bool) -> None:
    assert may_preempt(pod_, other) is expected


def test_static_pods_are_critical_and_others_by_their_priority() -> None:
    assert is_critical(static())
    assert is_critical(CRITICAL)
    assert not is_critical(pod(priority=1_999_999_999))


def test_the_nearest_of_a_class_goes_and_no_more_than_must() -> None:
    others = [pod("a", cpu=1), pod("b", cpu=4), pod("c", cpu=2)]
    assert victims(others, cpu=1) == ["a"]
    assert victims(others, cpu=2) == ["c"]
    assert victims(others, cpu=3) == ["b"]
    assert victims(others, cpu=5) == ["b", "a"]


def test_of_equals_the_smaller_goes() -> None:
    others = [pod("big", cpu=2, memory=9), pod("small", cpu=2, memory=3)]
    assert victims(others, cpu=2) == ["small"]


def test_guaranteed_pods_are_spared_where_others_do() -> None:
    others = [
        pod("guaranteed", cpu=2, memory=2, limit=True),
        pod("burstable", cpu=2),
        pod("best-effort"),
    ]
    assert victims(others, cpu=2) == ["burstable"]
    assert victims(others, cpu=3) == ["burstable", "guaranteed"]
    assert victims(others, pods=1) == ["best-effort"]
    assert victims(others, pods=2) == ["best-effort", "burstable"]


def test_nobody_goes_where_it_would_not_be_enough() -> None:
    with pytest.raises(NoVictimsError) as caught:
        victims([pod("a", cpu=1), static(cpu=9)], cpu=2, memory=3)
    assert caught.value.missing == {"cpu": NANO, "memory": 3 * NANO}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=6),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_what_is_chosen_is_enough_and_all_of_it_was_needed(
    sizes: list[tuple[int, int, bool]], cpu: int, memory: int
) -> None:
    others = [pod(f"p{i}", c, m, g) for i, (c, m, g) in enumerate(sizes)]
    missing = {n: a * NANO for n, a in (("cpu", cpu), ("memory", memory)) if a}

    def covers(pods: list[Pod]) -> bool:
        return all(
            sum(pod_requests(p).get(name, 0) for p in pods) >= amount
            for name, amount in missing.items()
        )

    if not covers(others):
        with pytest.raises(NoVictimsError):
            choose_victims(CRITICAL, others, missing)
        return
    chosen = choose_victims(CRITICAL, others, missing)
    assert covers(chosen)
    assert len({id(p) for p in chosen}) == len(chosen)
    if not missing:
        assert chosen == []
