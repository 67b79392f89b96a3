from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.gc.log_files import RotationPlan, plan_rotation, rotated_name

LOG = "0.log"
A, B, C, D = (f"0.log.20240501-10000{n}" for n in range(4))


@pytest.mark.parametrize(
    ("names", "max_files", "plan"),
    [
        pytest.param([LOG], 5, RotationPlan(), id="nothing rotated yet"),
        pytest.param([LOG, A], 5, RotationPlan((), (A,)), id="the one before is compressed"),
        pytest.param([f"{A}.gz", B], 5, RotationPlan((), (B,)), id="what is compressed stays"),
        pytest.param(
            [f"{A}.gz", f"{B}.gz", f"{C}.gz", D, LOG],
            5,
            RotationPlan((f"{A}.gz",), (D,)),
            id="the oldest makes room for two more",
        ),
        pytest.param([A, B, LOG], 2, RotationPlan((A, B)), id="two files: live and last"),
        pytest.param([f"{A}.tmp", A], 5, RotationPlan((f"{A}.tmp",), (A,)), id="crash in gzip"),
        pytest.param([A, f"{A}.gz"], 5, RotationPlan((A,), ()), id="crash before the removal"),
        pytest.param(
            [A, f"{A}.gz", f"{B}.tmp", B, LOG],
            3,
            RotationPlan((A, f"{B}.tmp", f"{A}.gz"), (B,)),
            id="both, and one too many",
        ),
        pytest.param(["10.log.20240501-100000", "0.logs"], 5, RotationPlan(), id="others' files"),
    ],
)
def test_what_is_done_to_rotated_files(
    names: list[str], max_files: int, plan: RotationPlan
) -> None:
    assert plan_rotation(LOG, names, max_files) == plan


stamps = st.integers(0, 59).map(lambda n: f"0.log.20240501-1000{n:02}")
files = st.lists(stamps.flatmap(lambda s: st.sampled_from([s, s + ".gz", s + ".tmp"])))


@given(files, st.integers(2, 8))
def test_what_is_left_with_the_new_files_is_the_number_wanted(
    names: list[str], max_files: int
) -> None:
    plan = plan_rotation(LOG, names, max_files)
    left = set(names).difference(plan.remove)
    assert len(left) + 2 <= max(max_files, 2)
    assert set(plan.compress) <= left
    assert not any(name.endswith(".tmp") for name in left)
    # Nothing that is kept is older than something removed for its age.
    whole = {n for n in set(names) if not n.endswith(".tmp")}
    removed = {n.removesuffix(".gz") for n in whole.intersection(plan.remove)}
    kept = {n.removesuffix(".gz") for n in left}
    assert not (removed - kept) or not kept or max(removed - kept) < min(kept)


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ([LOG], "0.log.20240501-101112"),
        (["0.log.20240501-101111", "0.log.20240501-101110.gz"], "0.log.20240501-101112"),
        (["0.log.20240501-101112"], "0.log.20240501-101113"),
        (["0.log.20240501-235959.gz"], "0.log.20240502-000000"),
        (["0.log.nonsense", "1.log.20240601-000000"], "0.log.20240501-101112"),
    ],
)
def test_a_rotated_log_sorts_after_those_before_it(names: list[str], name: str) -> None:
    now = datetime.datetime(2024, 5, 1, 10, 11, 12, 900_000)
    assert rotated_name(LOG, names, now) == name
