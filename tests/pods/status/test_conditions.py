"""The conditions of a resize: what they say, and when they were set."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lightkube.models.core_v1 import PodCondition, PodStatus

from kubelet_trio.model import RuntimePod, to_datetime
from kubelet_trio.pods.status.pod_status import pod_status
from kubelet_trio.pods.types import PendingResize, PodResize, PodStage, StatusInput
from kubelet_trio.status.merge import KUBELET_CONDITIONS
from tests.pods.make import EXITED, pod, record, runtime

DEFERRED = PendingResize("Deferred", "Node didn't have enough resource: cpu", generation=3)
INFEASIBLE = PendingResize("Infeasible", "In-place resize is not supported.", generation=3)
RESIZE = PodResize(generation=2)
RUNS = runtime(record("web"))
ENDED = runtime(record("web", EXITED))


def status(
    observed: RuntimePod = RUNS,
    stage: PodStage = PodStage.SYNC,
    now: float = 1000.0,
    api: PodStatus | None = None,
    **given: Any,
) -> PodStatus:
    of = pod(generation=7, status=api)
    return pod_status(of, observed, StatusInput(now=now, stage=stage, **given))


def test_a_disruption_is_dated_and_of_the_generation_that_was_ended() -> None:
    said = PodCondition(type="DisruptionTarget", status="True", reason="TerminationByKubelet")
    first = status(ENDED, PodStage.TERMINATED, end_conditions=(said,))
    later = status(ENDED, PodStage.TERMINATED, 2000.0, previous=first, end_conditions=(said,))
    for made in (first, later):
        (found,) = [c for c in made.conditions or () if c.type == said.type]
        assert found == msgspec.structs.replace(
            said, observedGeneration=7, lastTransitionTime=to_datetime(1000.0)
        )


def resizing(made: PodStatus) -> list[PodCondition]:
    return [c for c in made.conditions or () if c.type.startswith("PodResize")]


def condition(
    type_: str, reason: str | None, message: str | None, generation: int, now: float = 1000.0
) -> PodCondition:
    return PodCondition(
        type=type_,
        status="True",
        reason=reason,
        message=message,
        observedGeneration=generation,
        lastTransitionTime=to_datetime(now),
        lastProbeTime=to_datetime(now),
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        (
            {"pending_resize": DEFERRED},
            [condition("PodResizePending", "Deferred", DEFERRED.message, 3)],
        ),
        (
            {"pending_resize": INFEASIBLE},
            [condition("PodResizePending", "Infeasible", INFEASIBLE.message, 3)],
        ),
        ({"resize": RESIZE}, [condition("PodResizeInProgress", None, None, 2)]),
        (
            {"resize": RESIZE, "resize_error": "cannot decrease memory limits"},
            [condition("PodResizeInProgress", "Error", "cannot decrease memory limits", 2)],
        ),
        (
            {"resize": RESIZE, "pending_resize": DEFERRED},
            [
                condition("PodResizePending", "Deferred", DEFERRED.message, 3),
                condition("PodResizeInProgress", None, None, 2),
            ],
        ),
        # An error without a resize is an old one.
        ({"resize_error": "cannot decrease memory limits"}, []),
    ],
)
def test_a_resize_is_shown_with_its_reason_and_the_generation_that_asks_for_it(
    given: dict[str, Any], expected: list[PodCondition]
) -> None:
    assert resizing(status(**given)) == expected


def test_the_conditions_of_a_resize_come_between_those_of_others_and_our_own() -> None:
    theirs = PodStatus(conditions=[PodCondition("True", "x/theirs")])
    made = status(api=theirs, resize=RESIZE, pending_resize=DEFERRED)
    assert [c.type for c in made.conditions or ()] == [
        "x/theirs",
        "PodResizePending",
        "PodResizeInProgress",
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]


def test_a_resize_that_is_over_is_not_shown_even_if_the_api_server_has_it() -> None:
    shown = status(resize=RESIZE, pending_resize=DEFERRED)
    assert len(resizing(shown)) == 2
    assert resizing(status(api=shown, previous=shown)) == []


def test_every_condition_of_the_kubelet_is_computed_here() -> None:
    theirs = PodStatus(conditions=[PodCondition("Unknown", t) for t in KUBELET_CONDITIONS])
    made = status(api=theirs)
    assert "Unknown" not in {c.status for c in made.conditions or ()}


# When.


def times(made: PodStatus) -> list[tuple[float, float]]:
    return [
        (c.lastTransitionTime.timestamp(), c.lastProbeTime.timestamp())
        for c in resizing(made)
        if c.lastTransitionTime is not None and c.lastProbeTime is not None
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # Nothing new: nothing to send.
        ({"pending_resize": DEFERRED}, {"pending_resize": DEFERRED}, (100, 100)),
        ({"resize": RESIZE}, {"resize": RESIZE}, (100, 100)),
        # The same reason.
        (
            {"pending_resize": DEFERRED},
            {"pending_resize": PendingResize("Deferred", "memory", 4)},
            (100, 200),
        ),
        (
            {"resize": RESIZE, "resize_error": "a"},
            {"resize": RESIZE, "resize_error": "b"},
            (100, 200),
        ),
        # Another reason.
        ({"pending_resize": DEFERRED}, {"pending_resize": INFEASIBLE}, (200, 200)),
        ({"resize": RESIZE}, {"resize": RESIZE, "resize_error": "a"}, (200, 200)),
        # Another resize.
        ({"resize": RESIZE}, {"resize": PodResize(generation=3)}, (200, 200)),
    ],
)
def test_a_transition_is_a_change_of_the_reason_and_a_probe_any_change(
    before: dict[str, Any], after: dict[str, Any], expected: tuple[float, float]
) -> None:
    said = status(now=100.0, **before)
    assert times(said) == [(100, 100)]
    assert times(status(now=200.0, previous=said, **after)) == [expected]


def test_an_error_stays_until_the_resize_is_complete_or_another_one_begins() -> None:
    failed = status(now=100.0, resize=RESIZE, resize_error="no")
    # The next agent does not know why the last attempt of this one failed.
    again = status(now=200.0, resize=RESIZE, previous=failed)
    assert resizing(again) == [condition("PodResizeInProgress", "Error", "no", 2, now=100)]
    other = status(now=200.0, resize=PodResize(generation=4), previous=failed)
    assert resizing(other) == [condition("PodResizeInProgress", None, None, 4, now=200)]


@pytest.mark.parametrize(
    ("stage", "observed", "count"),
    [
        (PodStage.SYNC, RUNS, 2),
        (PodStage.SYNC, ENDED, 2),
        (PodStage.TERMINATING, RUNS, 2),
        (PodStage.TERMINATING, ENDED, 0),
        (PodStage.TERMINATED, ENDED, 0),
    ],
)
def test_a_pod_of_which_nothing_runs_any_more_is_not_resized(
    stage: PodStage, observed: RuntimePod, count: int
) -> None:
    made = status(observed, stage, resize=RESIZE, pending_resize=DEFERRED)
    assert len(resizing(made)) == count
