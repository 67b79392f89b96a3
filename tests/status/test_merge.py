"""Our status meets the API server's: who owns what, and what never goes back."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import PodIP, PodStatus

from kubelet_trio.kube import apply_strategic, is_newer
from kubelet_trio.status.merge import may_be_deleted, merge_status, status_patch
from tests.status.make import api_pod, condition, conditions, with_status

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
THEN = NOW - datetime.timedelta(hours=1)


def test_conditions_of_others_are_kept_and_ours_are_ours() -> None:
    theirs = PodStatus(
        conditions=[
            condition("example.com/gate"),
            condition("Ready", "False"),
            condition("PodResizePending"),
        ]
    )
    ours = PodStatus(conditions=[condition("Ready"), condition("example.com/gate", "False")])
    assert conditions(merge_status(theirs, ours, NOW)) == {
        "example.com/gate": "True",
        "Ready": "True",
    }


def test_what_others_own_is_kept() -> None:
    theirs = PodStatus(nominatedNodeName="node-2", resourceClaimStatuses=[])
    merged = merge_status(theirs, PodStatus(nominatedNodeName="node-3"), NOW)
    assert merged.nominatedNodeName == "node-2"
    assert merged.resourceClaimStatuses == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_phase_that_was_terminal_stays(phase: str) -> None:
    theirs = PodStatus(phase=phase, reason="Why", message="because")
    merged = merge_status(theirs, PodStatus(phase="Running", conditions=[condition("Ready")]), NOW)
    assert (merged.phase, merged.reason, merged.message) == (phase, "Why", "because")
    assert conditions(merged) == {"Ready": "False"}


def test_start_time_and_generation_never_go_back() -> None:
    theirs = PodStatus(startTime=THEN, observedGeneration=5)
    merged = merge_status(theirs, PodStatus(startTime=NOW, observedGeneration=3), NOW)
    assert (merged.startTime, merged.observedGeneration) == (THEN, 5)


def test_a_mirror_pod_has_the_start_time_of_the_agent_that_runs() -> None:
    theirs = PodStatus(startTime=THEN)
    merged = merge_status(theirs, PodStatus(startTime=NOW), NOW, is_mirror=True)
    assert merged.startTime == NOW


def test_a_disruption_is_told_with_the_terminal_phase() -> None:
    running = PodStatus(phase="Running")
    ours = PodStatus(phase="Running", conditions=[condition("DisruptionTarget")])
    assert conditions(merge_status(running, ours, NOW)) == {}
    ended = PodStatus(phase="Failed", conditions=[condition("DisruptionTarget")])
    assert conditions(merge_status(running, ended, NOW)) == {"DisruptionTarget": "True"}
    # Somebody else's stays.
    said = PodStatus(phase="Running", conditions=[condition("DisruptionTarget", reason="Evicted")])
    assert conditions(merge_status(said, running, NOW)) == {"DisruptionTarget": "True"}


def test_a_patch_has_only_what_differs_and_makes_the_one_the_other() -> None:
    before = PodStatus(
        phase="Pending",
        podIPs=[PodIP(ip="10.0.0.1"), PodIP(ip="2001:db8::1")],
        conditions=[condition("Ready", "False", reason="X", message="y"), condition("Other")],
    )
    after = PodStatus(
        phase="Running",
        podIPs=[PodIP(ip="10.0.0.2")],
        conditions=[condition("Other"), condition("Ready")],
        startTime=NOW,
    )
    patch = status_patch(before, after)
    assert status_patch(after, after) == {}
    assert "hostIP" not in patch
    plain = {"status": msgspec.to_builtins(before)}
    left = apply_strategic(plain, {"status": patch}, "Pod")["status"]
    assert left == msgspec.to_builtins(after)


def test_a_list_that_was_not_there_is_given_no_order() -> None:
    # A server that does not know the field refuses the order, and drops the list.
    patch = status_patch(PodStatus(), PodStatus(podIPs=[PodIP(ip="10.0.0.1")]))
    assert patch == {"podIPs": [{"ip": "10.0.0.1"}]}


def test_an_object_is_deleted_when_all_is_over_and_somebody_asked() -> None:
    asked: dict[str, Any] = {"deletionTimestamp": NOW}
    mirror: dict[str, Any] = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    over = with_status(api_pod(**asked), "Succeeded")
    assert may_be_deleted(over, is_finished=True)
    assert not may_be_deleted(over, is_finished=False)
    assert not may_be_deleted(with_status(api_pod(**asked), "Running"), is_finished=True)
    assert not may_be_deleted(with_status(api_pod(), "Failed"), is_finished=True)
    assert not may_be_deleted(with_status(api_pod(**asked, **mirror), "Failed"), is_finished=True)


def test_resource_versions_tell_what_came_later() -> None:
    assert is_newer(api_pod(resourceVersion="100"), api_pod(resourceVersion="99"))
    assert not is_newer(api_pod(resourceVersion="99"), api_pod(resourceVersion="100"))
    assert not is_newer(api_pod(resourceVersion="99"), api_pod(resourceVersion="99"))
    assert is_newer(api_pod(resourceVersion="b"), api_pod(resourceVersion="c"))
