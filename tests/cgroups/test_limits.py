from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.cgroups import (
    UNBOUNDED_HUGEPAGES,
    UNLIMITED,
    CgroupLimits,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    page_size_name,
    quota_to_milli_cpu,
    settings,
    shares_in,
    shares_to_milli_cpu,
)
from kubelet_trio.cgroups.limits import shares_to_weight, weight_to_shares

LIMITS = CgroupLimits(
    cpu_shares=512,
    cpu_quota=50_000,
    cpu_period=100_000,
    memory=64 << 20,
    pids=500,
    hugepages={"2MB": 0, "1GB": 1 << 30},
    unified={"memory.min": "1048576"},
)
FREE = CgroupLimits(
    cpu_quota=UNLIMITED,
    cpu_period=100_000,
    memory=UNLIMITED,
    pids=UNLIMITED,
    hugepages={"2MB": UNBOUNDED_HUGEPAGES},
)


@pytest.mark.parametrize(
    ("limits", "version", "written"),
    [
        (
            LIMITS,
            1,
            [
                ("cpu", "cpu.shares", "512"),
                ("cpu", "cpu.cfs_period_us", "100000"),
                ("cpu", "cpu.cfs_quota_us", "50000"),
                ("memory", "memory.limit_in_bytes", "67108864"),
                ("pids", "pids.max", "500"),
                ("hugetlb", "hugetlb.2MB.limit_in_bytes", "0"),
                ("hugetlb", "hugetlb.2MB.rsvd.limit_in_bytes", "0"),
                ("hugetlb", "hugetlb.1GB.limit_in_bytes", "1073741824"),
                ("hugetlb", "hugetlb.1GB.rsvd.limit_in_bytes", "1073741824"),
            ],
        ),
        (
            LIMITS,
            2,
            [
                ("cpu", "cpu.weight", "20"),
                ("cpu", "cpu.max", "50000 100000"),
                ("memory", "memory.max", "67108864"),
                ("pids", "pids.max", "500"),
                ("hugetlb", "hugetlb.2MB.max", "0"),
                ("hugetlb", "hugetlb.2MB.rsvd.max", "0"),
                ("hugetlb", "hugetlb.1GB.max", "1073741824"),
                ("hugetlb", "hugetlb.1GB.rsvd.max", "1073741824"),
                ("memory", "memory.min", "1048576"),
            ],
        ),
        (
            FREE,
            1,
            [
                ("cpu", "cpu.cfs_period_us", "100000"),
                ("cpu", "cpu.cfs_quota_us", "-1"),
                ("memory", "memory.limit_in_bytes", "-1"),
                ("pids", "pids.max", "max"),
                ("hugetlb", "hugetlb.2MB.limit_in_bytes", "4611686018427387904"),
                ("hugetlb", "hugetlb.2MB.rsvd.limit_in_bytes", "4611686018427387904"),
            ],
        ),
        (
            FREE,
            2,
            [
                ("cpu", "cpu.max", "max 100000"),
                ("memory", "memory.max", "max"),
                ("pids", "pids.max", "max"),
                ("hugetlb", "hugetlb.2MB.max", "4611686018427387904"),
                ("hugetlb", "hugetlb.2MB.rsvd.max", "4611686018427387904"),
            ],
        ),
        (CgroupLimits(), 1, []),
        (CgroupLimits(), 2, []),
    ],
)
def test_limits_are_spelled_as_the_kernel_has_them(
    limits: CgroupLimits, version: int, written: list[tuple[str, str, str]]
) -> None:
    assert [tuple(setting) for setting in settings(limits, version)] == written


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(0, 1), (2, 1), (28, 1), (29, 2), (245, 10), (1024, 39), (262144, 10000), (300000, 10000)],
)
def test_shares_become_weights(shares: int, weight: int) -> None:
    assert shares_to_weight(shares) == weight


@given(st.integers(1, 10_000))
def test_a_weight_that_is_read_back_is_the_same_in_the_unit_of_the_cgroup(weight: int) -> None:
    shares = weight_to_shares(weight)
    assert 2 <= shares <= 262144
    assert shares_to_weight(shares) == shares_in(shares, 2) == weight
    assert shares == 2 or shares_to_weight(shares - 1) == weight - 1


def test_shares_are_compared_as_the_kernel_keeps_them() -> None:
    assert shares_in(1024, 2) == shares_in(1022, 2) == 39
    assert (shares_in(1, 1), shares_in(1024, 1), shares_in(1 << 20, 1)) == (2, 1024, 262144)


@given(st.integers(0, 10**7), st.integers(0, 10**7))
def test_more_cpu_never_weighs_less(left: int, right: int) -> None:
    low, high = sorted((left, right))
    assert milli_cpu_to_shares(low) <= milli_cpu_to_shares(high)
    assert shares_to_weight(milli_cpu_to_shares(low)) <= shares_to_weight(milli_cpu_to_shares(high))
    if low:
        assert 1000 <= milli_cpu_to_quota(low, 100_000) <= milli_cpu_to_quota(high, 100_000)


@given(st.integers(2, 256_000))
def test_a_request_is_found_again_in_its_shares(milli: int) -> None:
    assert shares_to_milli_cpu(milli_cpu_to_shares(milli)) == milli


@pytest.mark.parametrize(
    ("shares", "milli"), [(0, 0), (1, 0), (2, 2), (3, 3), (102, 100), (1024, 1000)]
)
def test_shares_are_read_as_a_request(shares: int, milli: int) -> None:
    assert shares_to_milli_cpu(shares) == milli


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_a_limit_is_found_again_in_its_quota_unless_it_is_raised_to_the_least_one(
    milli: int, period_ms: int
) -> None:
    period = period_ms * 1000
    found = quota_to_milli_cpu(milli_cpu_to_quota(milli, period), period)
    assert found == max(milli, 1000 // period_ms)


@pytest.mark.parametrize(
    ("quota", "period", "milli"),
    [(-1, 100_000, 0), (0, 100_000, 0), (0, 0, 0), (50_000, 0, 0), (150_050, 100_000, 1500)],
)
def test_a_quota_is_read_as_a_limit(quota: int, period: int, milli: int) -> None:
    assert quota_to_milli_cpu(quota, period) == milli


@pytest.mark.parametrize(
    ("size", "name"), [(2 << 20, "2MB"), (1 << 30, "1GB"), (64 << 10, "64KB"), (512 << 20, "512MB")]
)
def test_page_sizes_have_the_kernels_names(size: int, name: str) -> None:
    assert page_size_name(size) == name
