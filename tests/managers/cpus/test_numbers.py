"""The numbers of the metrics follow from the state alone."""

from __future__ import annotations

import pytest

from kubelet_trio.managers.cpus import (
    CpuManager,
    CpuNumbers,
    CpuOptions,
    CpuState,
    aligned_boundaries,
    cpu_numbers,
    parse_mask,
)
from kubelet_trio.model import PodUid
from tests.managers.cpus import machines as m

_UID = PodUid("uid")


def test_the_shared_pool_is_counted_without_the_reserved_cpus() -> None:
    rules = CpuManager(m.TWO_SOCKETS, m.cpus_of("0,6"))
    assert cpu_numbers(rules, rules.initial()) == CpuNumbers(10_000, 0, {0: 0, 1: 0})


def test_cpus_that_are_used_again_are_counted_once() -> None:
    rules = CpuManager(m.TWO_SOCKETS, m.cpus_of("0,6"))
    own = {_UID: {"setup": parse_mask("1-2,7-8"), "main": parse_mask("1,7")}}
    state = CpuState(parse_mask("0,3-6,9-11"), own)
    assert cpu_numbers(rules, state) == CpuNumbers(6_000, 4, {0: 2, 1: 2})


@pytest.mark.parametrize(
    ("own", "full_cores", "expected"),
    [
        ("4-7", False, ("uncore_cache",)),
        ("4-7", True, ("physical_cpu", "uncore_cache")),
        ("4-8", True, ("physical_cpu",)),
        ("4-8", False, ()),
    ],
)
def test_a_containers_cpus_are_aligned_to_cores_and_caches(
    own: str, full_cores: bool, expected: tuple[str, ...]
) -> None:
    rules = CpuManager(m.CACHES, m.cpus_of("0"), CpuOptions(full_cores=full_cores))
    state = CpuState(0, {_UID: {"main": parse_mask(own)}})
    assert aligned_boundaries(rules, state, _UID, "main") == expected
    assert aligned_boundaries(rules, state, _UID, "other") == ()
