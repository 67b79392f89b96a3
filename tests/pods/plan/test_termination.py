"""Grace periods only shrink, and sidecars are stopped last, in reverse order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.pods.plan.termination import (
    MINIMUM_STOP_GRACE,
    StopOrder,
    deadline_at,
    deadline_failure,
    effective_grace,
    merge_requests,
    remaining_grace,
    stop_order,
    stop_timeout,
)
from kubelet_trio.pods.types import EndReason, PodFailure, TerminationRequest
from tests.pods.make import UID, pod, sidecar


def request(
    grace: int | None = None, at: float = 0.0, reason: EndReason = EndReason.DELETED
) -> TerminationRequest:
    return TerminationRequest(UID, reason, grace, requested_at=at)


@pytest.mark.parametrize(
    ("own", "deletion", "asked", "expected"),
    [
        pytest.param(None, None, None, 30, id="the API's default"),
        pytest.param(60, None, None, 60, id="the pod's own"),
        pytest.param(60, 5, None, 5, id="the API server's word"),
        pytest.param(60, 90, None, 90, id="the API server may ask for more"),
        pytest.param(60, None, 5, 5, id="a request shrinks it"),
        pytest.param(60, None, 90, 60, id="a request never stretches it"),
        pytest.param(60, 5, 25, 25, id="merged with what had gone by"),
        pytest.param(0, None, None, 1, id="1 at least, of its own"),
        pytest.param(60, 0, None, 1, id="1 at least, from the API server"),
        pytest.param(60, None, 0, 1, id="1 at least, asked for"),
    ],
)
def test_the_effective_grace_period(
    own: int | None, deletion: int | None, asked: int | None, expected: int
) -> None:
    of = pod(terminationGracePeriodSeconds=own, deletion_grace=deletion)
    assert effective_grace(of, request(asked)) == expected


def test_without_a_request_the_pods_own_counts() -> None:
    assert effective_grace(pod(terminationGracePeriodSeconds=7)) == 7


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(request(None), request(None, 20), None, id="neither asks"),
        pytest.param(request(30), request(None, 20), 30, id="only the first asks"),
        pytest.param(request(None), request(5, 20), 25, id="only the second asks"),
        pytest.param(request(30), request(5, 20), 25, id="the second ends sooner"),
        pytest.param(request(30), request(15, 20), 30, id="the first ends sooner"),
        pytest.param(request(30, 100), request(5, 20), 5, id="the wall clock was set back"),
    ],
)
def test_merged_requests_end_at_the_earlier_of_both(
    first: TerminationRequest, second: TerminationRequest, expected: int | None
) -> None:
    merged = merge_requests(first, second)
    assert merged.grace_period == expected
    assert merged.requested_at == first.requested_at


def test_the_first_reason_and_the_first_verdict_stay() -> None:
    evicted, deadline = PodFailure("Evicted", "low on memory"), PodFailure("DeadlineExceeded", "")
    first = request(reason=EndReason.DELETED)
    second = TerminationRequest(UID, EndReason.FINISHED, failure=evicted)
    third = TerminationRequest(UID, EndReason.DEADLINE, failure=deadline)
    merged = merge_requests(merge_requests(first, second), third)
    assert merged.reason is EndReason.DELETED
    assert merged.failure == evicted


graces = st.one_of(st.none(), st.integers(0, 600))
requests = st.tuples(graces, st.floats(0, 600)).map(lambda p: request(p[0], p[1]))


@given(own=st.integers(0, 600), asked=st.lists(requests, min_size=1, max_size=6))
def test_no_later_request_ever_makes_a_pod_end_later(
    own: int, asked: list[TerminationRequest]
) -> None:
    of = pod(terminationGracePeriodSeconds=own)
    asked.sort(key=lambda r: r.requested_at)
    merged, ends = asked[0], float("inf")
    for one in asked:
        merged = merge_requests(merged, one)
        before, ends = ends, merged.requested_at + effective_grace(of, merged)
        assert ends <= before


@pytest.mark.parametrize(
    ("now", "left"), [(100.0, 30.0), (110.0, 20.0), (130.0, 0.0), (500.0, 0.0), (50.0, 30.0)]
)
def test_what_is_left_of_a_grace_period_survives_a_restart_of_the_agent(
    now: float, left: float
) -> None:
    assert remaining_grace(100.0, 30, now) == left


def test_a_stop_gets_two_seconds_at_least() -> None:
    assert MINIMUM_STOP_GRACE == 2
    assert [stop_timeout(left) for left in (0.0, 1.9, 2.6, 30.0)] == [2, 2, 3, 30]
    # Never less than is left: a container may use all of its grace period.
    assert [stop_timeout(left) for left in (2.1, 19.4)] == [3, 20]
    assert stop_timeout(1796000030.1 - 1796000005.1) == stop_timeout(25.0000003) == 25


OF = pod("a", "b", init=["i", sidecar("s"), sidecar("t"), sidecar("u")], ephemeral=["e"])


@pytest.mark.parametrize(
    ("running", "order"),
    [
        pytest.param([], StopOrder((), (), ()), id="nothing runs"),
        pytest.param(["a"], StopOrder(("a",), (), ()), id="no sidecar"),
        pytest.param(["s"], StopOrder((), (), ("s",)), id="only a sidecar"),
        pytest.param(
            ["s", "a", "e", "t", "b", "u"],
            StopOrder(("a", "b"), ("e",), ("u", "t", "s")),
            id="sidecars last, in reverse",
        ),
        pytest.param(
            ["s", "i"],
            StopOrder((), ("i",), ("s",)),
            id="no sidecar waits for an init container",
        ),
        pytest.param(
            ["s", "x"],
            StopOrder((), ("x",), ("s",)),
            id="a name that the spec does not have",
        ),
        pytest.param(
            ["u", "s"],
            StopOrder((), (), ("u", "s")),
            id="a sidecar that does not run is left out",
        ),
    ],
)
def test_the_order_of_stopping(running: list[str], order: StopOrder) -> None:
    assert stop_order(OF, running) == order


def test_a_pod_without_a_deadline_never_passes_it() -> None:
    assert deadline_at(pod(), 100.0) is None
    assert deadline_failure(pod(), 100.0, 1e12) is None


def test_a_deadline_counts_from_the_start_time() -> None:
    of = pod(activeDeadlineSeconds=60)
    assert deadline_at(of, 100.0) == 160.0
    assert deadline_failure(of, 100.0, 159.9) is None
    assert deadline_failure(of, 100.0, 160.0) == PodFailure(
        "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
    )
