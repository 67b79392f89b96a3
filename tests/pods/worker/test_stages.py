"""The table of a pod's stages is whole, and only leads forward."""

from __future__ import annotations

import pytest

from kubelet_trio.pods.types import PodStage
from kubelet_trio.pods.worker.stages import (
    INITIAL,
    TRANSITIONS,
    IllegalMoveError,
    StageEvent,
    next_stage,
)


def test_every_stage_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(PodStage)
    reached = set(INITIAL)
    for _ in PodStage:
        reached |= {to for stage in reached for to in TRANSITIONS[stage].values()}
    assert reached == set(PodStage)


def test_every_event_leads_somewhere() -> None:
    assert {event for moves in TRANSITIONS.values() for event in moves} == set(StageEvent)


def test_a_stage_is_never_gone_back_to() -> None:
    order = list(PodStage)
    for stage, moves in TRANSITIONS.items():
        assert all(order.index(to) >= order.index(stage) for to in moves.values())


def test_every_stage_can_end_and_only_the_last_is_terminal() -> None:
    assert [stage for stage, moves in TRANSITIONS.items() if not moves] == [PodStage.TERMINATED]
    for stage in PodStage:
        at, steps = stage, 0
        while TRANSITIONS[at]:
            at = max(TRANSITIONS[at].values(), key=list(PodStage).index)
            steps += 1
            assert steps <= len(PodStage)


@pytest.mark.parametrize("stage", PodStage)
@pytest.mark.parametrize("event", StageEvent)
def test_a_move_is_in_the_table_or_raises(stage: PodStage, event: StageEvent) -> None:
    if event in TRANSITIONS[stage]:
        assert next_stage(stage, event) is TRANSITIONS[stage][event]
    else:
        with pytest.raises(IllegalMoveError, match=event.value):
            next_stage(stage, event)
