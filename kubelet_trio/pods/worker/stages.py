"""The stages of a pod's life on the node, as data. A stage is never gone back to.

    SYNC -> TERMINATING -> TERMINATED

A pod begins in SYNC, or, if the agent had recorded the decision to end it before it was
restarted, in TERMINATING.
"""

from __future__ import annotations

import enum

from kubelet_trio.pods.types import PodStage


class StageEvent(enum.Enum):
    """What moves a pod from one stage to the next."""

    FINISHED = "finished"  # all containers ended and none will start again
    END_REQUESTED = "end requested"  # deleted, evicted, past its deadline ...
    TORN_DOWN = "torn down"  # nothing of it runs, its final status is known


class IllegalMoveError(Exception):
    """An event that the stage has no answer to: a bug of whoever raised the event."""

    def __init__(self, stage: PodStage, event: StageEvent) -> None:
        super().__init__(f"{event.value!r} cannot happen in stage {stage.value!r}")


INITIAL = frozenset({PodStage.SYNC, PodStage.TERMINATING})

TRANSITIONS: dict[PodStage, dict[StageEvent, PodStage]] = {
    PodStage.SYNC: {
        StageEvent.FINISHED: PodStage.TERMINATING,
        StageEvent.END_REQUESTED: PodStage.TERMINATING,
    },
    PodStage.TERMINATING: {
        StageEvent.END_REQUESTED: PodStage.TERMINATING,  # its grace may shrink
        StageEvent.TORN_DOWN: PodStage.TERMINATED,
    },
    PodStage.TERMINATED: {},  # terminal, and said so
}


def next_stage(stage: PodStage, event: StageEvent) -> PodStage:
    """Return the stage that an event leads to. Raises `IllegalMoveError`."""
    try:
        return TRANSITIONS[stage][event]
    except KeyError:
        raise IllegalMoveError(stage, event) from None
