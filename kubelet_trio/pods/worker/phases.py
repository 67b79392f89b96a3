"""The phases of a pod on the node, and the table of events that lead from one to the next.

A worker is in one phase at a time and changes it only through `next_phase`. It raises most events
itself when it has finished the work of its phase; `END_REQUESTED` and `MANIFEST_GONE` may come from
outside at any time. supervision.md shows the table.
"""

from __future__ import annotations

import enum

from kubelet_trio.pods.records.record import PodRecord, is_removed
from kubelet_trio.pods.types import PodStage


class Phase(enum.Enum):
    """What a worker does with its pod now."""

    LISTING = "listing"  # waits until the runtime has listed the pod's sandboxes and containers
    WAITING_NAME = "waiting for its name"  # a pod of the same name is still on the node
    WAITING_ADMISSION = "waiting for admission"
    SYNCING = "syncing"
    TERMINATING = "terminating"  # stops all of it; keeps its logs and dead containers
    DELETING = "deleting"  # as terminating, but removes those too
    TERMINATED = "terminated"  # nothing runs; its manifest still exists
    REMOVING = "removing"  # removes the logs and dead containers of a terminated pod
    GONE = "gone"


class PhaseEvent(enum.Enum):
    """What moves a pod from one phase to the next."""

    LISTED = "listed"
    NAME_FREE = "name free"
    ADMITTED = "admitted"
    END_REQUESTED = "end requested"  # evicted, finished, past its deadline, deleted by the API ...
    MANIFEST_GONE = "manifest gone"  # no source wants it any more
    TORN_DOWN = "torn down"  # nothing of it runs
    REMOVED = "removed"  # nothing of it is left


class IllegalMoveError(Exception):
    """An event that cannot happen in a phase: a bug in the caller of `next_phase`."""

    def __init__(self, phase: Phase, event: PhaseEvent) -> None:
        super().__init__(f"{event.value!r} cannot happen in phase {phase.value!r}")


_ASKED = {
    PhaseEvent.END_REQUESTED: Phase.TERMINATING,
    PhaseEvent.MANIFEST_GONE: Phase.DELETING,
}
TRANSITIONS: dict[Phase, dict[PhaseEvent, Phase]] = {
    Phase.LISTING: {PhaseEvent.LISTED: Phase.WAITING_NAME, **_ASKED},
    Phase.WAITING_NAME: {PhaseEvent.NAME_FREE: Phase.WAITING_ADMISSION, **_ASKED},
    Phase.WAITING_ADMISSION: {PhaseEvent.ADMITTED: Phase.SYNCING, **_ASKED},
    Phase.SYNCING: _ASKED,
    Phase.TERMINATING: {PhaseEvent.TORN_DOWN: Phase.TERMINATED, **_ASKED},  # its grace may shrink
    Phase.DELETING: {
        PhaseEvent.REMOVED: Phase.GONE,
        # The manifest was removed during a teardown that keeps logs and dead containers.
        PhaseEvent.TORN_DOWN: Phase.REMOVING,
        PhaseEvent.END_REQUESTED: Phase.DELETING,
        # An orphan's record may already say that it was being deleted.
        PhaseEvent.MANIFEST_GONE: Phase.DELETING,
    },
    Phase.TERMINATED: {
        PhaseEvent.END_REQUESTED: Phase.TERMINATED,
        PhaseEvent.MANIFEST_GONE: Phase.REMOVING,
    },
    Phase.REMOVING: {
        PhaseEvent.REMOVED: Phase.GONE,
        PhaseEvent.END_REQUESTED: Phase.REMOVING,
    },
    Phase.GONE: {},
}

# A restarted agent continues a recorded decision, but does not know how far the last agent got.
INITIAL = (Phase.LISTING, Phase.TERMINATING, Phase.DELETING)
# No source wants the pod: all of it is to be removed.
UNWANTED = (Phase.DELETING, Phase.REMOVING, Phase.GONE)

# The three stages of the Go kubelet's pod workers, on which metrics and statuses depend.
STAGES: dict[Phase, PodStage] = {
    Phase.LISTING: PodStage.SYNC,
    Phase.WAITING_NAME: PodStage.SYNC,
    Phase.WAITING_ADMISSION: PodStage.SYNC,
    Phase.SYNCING: PodStage.SYNC,
    Phase.TERMINATING: PodStage.TERMINATING,
    Phase.DELETING: PodStage.TERMINATING,
    Phase.TERMINATED: PodStage.TERMINATED,
    Phase.REMOVING: PodStage.TERMINATED,
    Phase.GONE: PodStage.TERMINATED,
}


def first_phase(record: PodRecord | None) -> Phase:
    """Return the phase in which a pod begins; `record` is the one of an earlier agent, if any."""
    if record is None or record.termination is None:
        return Phase.LISTING
    return Phase.DELETING if is_removed(record) else Phase.TERMINATING


def next_phase(phase: Phase, event: PhaseEvent) -> Phase:
    """Return the phase that an event leads to. Raises `IllegalMoveError`."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise IllegalMoveError(phase, event) from None
