"""Thresholds: how they are read, when they are met, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.model import DEFAULT_EVICTION_HARD
from kubelet_trio.pressure import Amount, Observation, Threshold, parse_thresholds
from kubelet_trio.pressure.thresholds import (
    CONDITIONS,
    RESOURCES,
    PressureState,
    met,
    rejects,
    with_container_fs,
)

MI = 1 << 20


def test_the_defaults_are_upstreams() -> None:
    assert parse_thresholds(DEFAULT_EVICTION_HARD) == (
        Threshold("memory.available", Amount(100 * MI)),
        Threshold("nodefs.available", Amount(percent=10)),
        Threshold("nodefs.inodesFree", Amount(percent=5)),
        Threshold("imagefs.available", Amount(percent=15)),
        Threshold("imagefs.inodesFree", Amount(percent=5)),
    )


def test_a_disabled_soft_threshold_needs_no_grace_period() -> None:
    """As with `0%` of evictionHard, nothing of it is left."""
    assert parse_thresholds({}, {"memory.available": "0%", "nodefs.available": "100%"}) == ()


def test_every_grace_period_is_checked_whether_used_or_not() -> None:
    with pytest.raises(ValueError, match="invalid eviction grace period specified: -1s, must be"):
        parse_thresholds({}, soft_grace={"memory.available": -1.0})


def test_all_settings_come_together() -> None:
    found = parse_thresholds(
        {"memory.available": "150Mi", "nodefs.available": "0%", "imagefs.available": "100%"},
        {"memory.available": "300Mi"},
        {"memory.available": 30.0},
        {"memory.available": "5%", "nodefs.available": "1Gi"},
        enforces_pods=True,
    )
    reclaim = Amount(percent=5)
    assert found == (
        Threshold("memory.available", Amount(150 * MI), None, reclaim),
        Threshold("memory.available", Amount(300 * MI), 30.0, reclaim),
        Threshold("allocatableMemory.available", Amount(150 * MI), None, reclaim),
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"hard": {"disk.available": "1"}}, "unsupported eviction signal disk.available"),
        ({"hard": {"memory.available": "-1"}}, "must be positive"),
        ({"hard": {"memory.available": "0"}}, "must be positive"),
        ({"hard": {"memory.available": "x"}}, "'x' is not a quantity"),
        ({"hard": {"memory.available": "-5%"}}, "must be >= 0%"),
        ({"hard": {"memory.available": "101%"}}, "must be <= 100%"),
        ({"soft": {"memory.available": "1Gi"}}, "grace period must be specified"),
        ({"min_reclaim": {"memory.available": "-1"}}, "negative eviction minimum reclaim"),
        ({"min_reclaim": {"memory.available": "0%"}}, "must be positive"),
        ({"soft_grace": {"x": 1.0}}, "unsupported eviction signal x"),
    ],
)
def test_what_is_wrong_is_named(settings: Mapping[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_thresholds(**{"hard": {}, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dedicated", "split", "like"),
    [(False, False, "nodefs"), (True, True, "nodefs"), (True, False, "imagefs")],
)
def test_the_containers_file_system_has_the_thresholds_of_the_one_it_is(
    dedicated: bool, split: bool, like: str
) -> None:
    own = parse_thresholds(DEFAULT_EVICTION_HARD)
    every = with_container_fs(own, dedicated=dedicated, split=split)
    values = {t.signal: t.value for t in every}
    for suffix in ("available", "inodesFree"):
        assert values[f"containerfs.{suffix}"] == values[f"{like}.{suffix}"]


def test_a_percentage_is_the_go_kubelets_to_the_byte() -> None:
    """The share is kept in 32 bits (GetThresholdQuantity)."""
    assert Amount(percent=10).of(129_886_128 << 10) == 13_300_339_705
    assert Amount(percent=1.5).of(1000) == 14
    with pytest.raises(ValueError, match="is not a percentage"):
        parse_thresholds({}, min_reclaim={"memory.available": "1e40%"})


MEMORY = Threshold("memory.available", Amount(100), min_reclaim=Amount(50))
SOFT = Threshold("memory.available", Amount(200), grace=30.0)
DISK = Threshold("nodefs.available", Amount(percent=10))
PIDS = Threshold("pid.available", Amount(5))


def seen(memory: int = 1000, disk: int = 1000, pids: int = 1000) -> dict[str, Observation]:
    return {
        "memory.available": Observation(memory, 1000),
        "nodefs.available": Observation(disk, 1000),
        "pid.available": Observation(pids, 1000),
    }


def test_a_threshold_is_met_below_it_and_resolved_with_its_reclaim() -> None:
    assert met([MEMORY], seen(100)) == []
    assert met([MEMORY], seen(99)) == [MEMORY]
    assert met([MEMORY], seen(149), with_reclaim=True) == [MEMORY]
    assert met([MEMORY], seen(150), with_reclaim=True) == []
    assert met([DISK], seen(disk=99)) == [DISK]
    assert met([Threshold("imagefs.available", Amount(1))], seen()) == []  # nobody can tell


def look(state: PressureState, now: float, *thresholds: Threshold, **given: int) -> PressureState:
    return state.next(thresholds, seen(**given), now, 300.0)


def test_what_was_acted_on_stays_until_the_least_to_reclaim_is_there() -> None:
    state = look(PressureState(), 0.0, MEMORY, memory=90)
    assert state.acted_on == (MEMORY,)
    state = look(state, 10.0, MEMORY, memory=140)
    assert state.acted_on == (MEMORY,)
    state = look(state, 20.0, MEMORY, memory=150)
    assert state.acted_on == ()
    assert look(state, 30.0, MEMORY, memory=140).acted_on == ()


def test_a_soft_threshold_waits_for_its_grace_and_starts_anew_after_a_recovery() -> None:
    state = look(PressureState(), 0.0, SOFT, memory=150)
    assert (state.acted_on, state.conditions) == ((), ("MemoryPressure",))
    state = look(state, 29.0, SOFT, memory=150)
    assert state.acted_on == ()
    assert look(state, 30.0, SOFT, memory=150).acted_on == (SOFT,)
    state = look(state, 30.0, SOFT, memory=250)
    state = look(state, 31.0, SOFT, memory=150)
    assert look(state, 60.0, SOFT, memory=150).acted_on == ()


def test_a_condition_outlives_its_cause_by_the_transition_period() -> None:
    state = look(PressureState(), 0.0, DISK, PIDS, disk=0, pids=0)
    assert state.conditions == ("DiskPressure", "PIDPressure")
    state = look(state, 200.0, DISK, PIDS, disk=0)
    state = look(state, 299.0, DISK, PIDS)
    assert state.conditions == ("DiskPressure", "PIDPressure")
    state = look(state, 300.0, DISK, PIDS)
    assert state.conditions == ("DiskPressure",)
    assert look(state, 500.0, DISK, PIDS).conditions == ()


def test_memory_comes_first() -> None:
    state = look(PressureState(), 0.0, DISK, MEMORY, memory=0, disk=0)
    assert state.acted_on == (MEMORY, DISK)


@pytest.mark.parametrize(
    ("conditions", "critical", "best_effort", "tolerates", "rejected"),
    [
        ((), False, True, False, False),
        (("MemoryPressure",), False, True, False, True),
        (("MemoryPressure",), False, True, True, False),
        (("MemoryPressure",), False, False, False, False),
        (("MemoryPressure",), True, True, False, False),
        (("DiskPressure",), False, False, True, True),
        (("DiskPressure", "MemoryPressure"), False, False, True, True),
        (("PIDPressure",), True, True, False, False),
    ],
)
def test_who_may_come_under_pressure(
    conditions: tuple[str, ...], critical: bool, best_effort: bool, tolerates: bool, rejected: bool
) -> None:
    found = rejects(
        conditions,
        is_critical=lambda: critical,
        is_best_effort=lambda: best_effort,
        tolerates_memory=lambda: tolerates,
    )
    assert found is rejected


def test_every_signal_has_a_condition() -> None:
    assert RESOURCES.keys() == CONDITIONS.keys()
    assert set(CONDITIONS.values()) == {"MemoryPressure", "DiskPressure", "PIDPressure"}


amounts = st.integers(0, 400)


@given(st.lists(st.tuples(amounts, amounts, st.floats(0.1, 400)), max_size=20))
def test_what_is_acted_on_is_met_or_was_and_is_always_told(
    looks: list[tuple[int, int, float]],
) -> None:
    state, now = PressureState(), 0.0
    for memory, disk, pause in looks:
        now += pause
        state = look(state, now, MEMORY, SOFT, DISK, memory=memory, disk=disk)
        assert {CONDITIONS[t.signal] for t in state.acted_on} <= set(state.conditions)
        assert set(state.acted_on) <= state.first_met.keys()
        if memory < 100:
            assert MEMORY in state.acted_on
        if memory >= 200 and disk >= 100:
            assert not state.acted_on
