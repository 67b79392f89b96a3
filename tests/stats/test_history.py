"""The ring of the last hour: what it keeps, for how long, and in how many bytes."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.stats import HISTORY_PERIOD, History, api
from kubelet_trio.stats.history import BUDGET, LENGTH, _decode, _encode

TIME = "2026-01-01T00:00:00Z"


def pod_stats(
    number: int, containers: int = 1, cpu: int | None = 5_000_000, received: int | None = 0
) -> api.PodStats:
    network = None if received is None else api.NetworkStats(time=TIME, rx_bytes=received)
    return api.PodStats(
        pod_ref=api.PodReference(name=f"web-{number}-node", namespace="shop", uid=f"uid-{number}"),
        start_time=TIME,
        containers=[
            api.ContainerStats(
                name=f"main-{i}",
                start_time=TIME,
                cpu=api.CpuStats(time=TIME, usage_nano_cores=cpu),
                memory=api.MemoryStats(time=TIME, working_set_bytes=1 << 20),
            )
            for i in range(containers)
        ],
        network=network,
        ephemeral_storage=api.FsStats(time=TIME, used_bytes=4096),
    )


def summary(*pods: api.PodStats, cpu: int = 10**9) -> api.Summary:
    node = api.NodeStats(
        node_name="node",
        start_time=TIME,
        cpu=api.CpuStats(time=TIME, usage_nano_cores=cpu),
        memory=api.MemoryStats(time=TIME, usage_bytes=1 << 30),
    )
    return api.Summary(node=node, pods=list(pods))


def filled(history: History, rounds: int, *pods: api.PodStats, start: int = 0) -> None:
    for number in range(start, start + rounds):
        history.add(1e9 + number * HISTORY_PERIOD, summary(*pods))


def size_of(thing: Any) -> int:
    """Return the bytes of a thing and of everything that only it refers to."""
    seen: set[int] = set()
    total, rest = 0, [thing]
    while rest:
        one = rest.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        rest += gc.get_referents(one)
    return total


@given(st.integers(0, 2**62))
def test_a_value_is_kept_to_a_twentieth_of_a_percent(value: int) -> None:
    found = _decode(_encode(value))
    assert found is not None
    assert abs(found - value) <= max(1, value * 0.0005)


@given(st.floats(max_value=-1, allow_infinity=False) | st.floats(2.0**63, 1e300))
def test_what_cannot_be_kept_is_the_nearest_that_can(value: float) -> None:
    found = _decode(_encode(value))
    assert found is not None
    assert 0 <= found <= 2**62 * 1.001


def test_no_value_stays_no_value() -> None:
    assert _decode(_encode(None)) is None
    assert _decode(_encode(0)) == 0


@pytest.mark.parametrize(("pods", "containers"), [(110, 1), (110, 2), (250, 4), (600, 1)])
def test_it_stays_below_its_bytes_with_every_pod(pods: int, containers: int) -> None:
    history = History()
    # The whole ring is there from the first sample on.
    filled(history, 3, *(pod_stats(n, containers) for n in range(pods)))
    assert size_of(history) < BUDGET
    kept = history.shown().page()["pods"]
    assert len(kept) >= min(pods, 250)


def test_a_full_node_has_its_containers_and_a_crowded_one_has_its_pods() -> None:
    full, crowded = History(), History()
    filled(full, 3, *(pod_stats(n, 2) for n in range(110)))
    filled(crowded, 3, *(pod_stats(n, 2) for n in range(250)))
    pages = [full.shown(f"uid-{n}").page()["pods"][0] for n in range(110)]
    assert all(set(page["containers"]) == {"main-0", "main-1"} for page in pages)
    assert len(crowded.shown().page()["pods"]) == 250
    assert "disk" in crowded.shown("uid-149").page()["pods"][0]
    assert "disk" not in crowded.shown("uid-150").page()["pods"][0]


def test_the_newest_hour_is_shown_oldest_first() -> None:
    history = History()
    for number in range(LENGTH + 5):
        history.add(1e9 + number * 10, summary(cpu=number * 1000))
    page = history.shown().page()
    assert page["period"] == 10
    assert page["times"] == [1e9 + number * 10 for number in range(5, LENGTH + 5)]
    cpu = page["node"]["cpu"]
    assert len(cpu) == LENGTH
    assert cpu[0] == pytest.approx(5000, rel=0.001)
    assert cpu[-1] == pytest.approx((LENGTH + 4) * 1000, rel=0.001)


def test_a_pod_that_is_gone_leaves_after_the_window() -> None:
    history = History()
    filled(history, 1, pod_stats(1), pod_stats(2))
    filled(history, LENGTH - 1, pod_stats(2), start=1)
    pods = {pod["uid"]: pod for pod in history.shown().page()["pods"]}
    assert pods["uid-1"]["cpu"][0] is not None
    assert set(pods["uid-1"]["cpu"][1:]) == {None}
    filled(history, 1, pod_stats(2), start=LENGTH)
    assert [pod["uid"] for pod in history.shown().page()["pods"]] == ["uid-2"]


def test_a_container_that_is_gone_leaves_too() -> None:
    history = History()
    filled(history, 1, pod_stats(1, containers=2))
    filled(history, LENGTH, pod_stats(1, containers=1), start=1)
    (pod,) = history.shown("uid-1").page()["pods"]
    assert set(pod["containers"]) == {"main-0"}


def test_pods_that_are_gone_make_room() -> None:
    history = History()
    for number in range(1000):
        history.add(1e9 + number * 10, summary(pod_stats(number, containers=3)))
    assert size_of(history) < BUDGET
    names = [pod["uid"] for pod in history.shown().page()["pods"]]
    assert names[-1] == "uid-999"
    assert len(names) > 100


def test_rates_are_of_counters_and_none_where_they_went_back() -> None:
    history = History()
    for number, received in enumerate([1000, 2000, 5000, 10, None, 20, 1020]):
        history.add(1e9 + number * 10, summary(pod_stats(1, received=received)))
    (pod,) = history.shown("uid-1").page()["pods"]
    assert pod["in"] == [None, 100, 300, None, None, None, 100]
    assert pod["out"] == [None, 0, 0, None, None, None, 0]


def test_a_pod_without_counters_uses_what_its_containers_use() -> None:
    history = History()
    history.add(1e9, summary(pod_stats(1, containers=3), pod_stats(2, cpu=None)))
    pods = history.shown().page()["pods"]
    assert pods[0]["cpu"][0] == pytest.approx(15_000_000, rel=0.001)
    assert pods[1]["cpu"] == [None]


def test_a_copy_does_not_change_with_the_ring() -> None:
    history = History()
    filled(history, 1, pod_stats(1))
    shown = history.shown("uid-1")
    filled(history, LENGTH, pod_stats(2), start=1)
    assert shown.page()["times"] == [1e9]
    assert shown.page()["pods"][0]["memory"] == [pytest.approx(1 << 20, rel=0.001)]
