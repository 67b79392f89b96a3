"""activeDeadlineSeconds."""

from __future__ import annotations

from kubelet_trio.pods.plan.deadline import deadline_at, deadline_failure
from kubelet_trio.pods.types import PodFailure
from tests.pods.make import pod


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
