"""The table of a pod's phases is whole, leads only forward, and is what supervision.md shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.pods.types import PodStage
from kubelet_trio.pods.worker.phases import (
    INITIAL,
    STAGES,
    TRANSITIONS,
    UNWANTED,
    IllegalMoveError,
    Phase,
    PhaseEvent,
    next_phase,
)

DOC = Path(__file__).parents[3] / "supervision.md"
FROM_OUTSIDE = {PhaseEvent.END_REQUESTED, PhaseEvent.MANIFEST_GONE}


def reached(start: Iterable[Phase]) -> set[Phase]:
    """Return the phases that can be reached from those given, these included."""
    found = set(start)
    for _ in Phase:
        found |= {to for phase in found for to in TRANSITIONS[phase].values()}
    return found


def test_every_phase_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(STAGES) == set(Phase)
    assert reached(INITIAL) == set(Phase)


def test_every_event_leads_somewhere() -> None:
    assert {event for moves in TRANSITIONS.values() for event in moves} == set(PhaseEvent)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_leads_to_gone_which_alone_is_terminal(phase: Phase) -> None:
    assert Phase.GONE in reached([phase])
    assert (not TRANSITIONS[phase]) == (phase is Phase.GONE)


def test_a_worker_can_end_every_phase_but_a_wait_for_its_manifest_by_itself() -> None:
    """What only events from outside can end is a pod that runs, and one that is kept."""
    waits = {p for p, moves in TRANSITIONS.items() if moves and not set(moves) - FROM_OUTSIDE}
    assert waits == {Phase.SYNCING, Phase.TERMINATED}


def test_a_phase_is_never_gone_back_to() -> None:
    order = list(Phase)
    for phase, moves in TRANSITIONS.items():
        for to in moves.values():
            # TERMINATED comes after DELETING here, and is skipped from it.
            assert order.index(to) >= order.index(phase)


def test_an_end_can_be_requested_of_every_pod_that_is_not_gone() -> None:
    for phase, moves in TRANSITIONS.items():
        assert (PhaseEvent.END_REQUESTED in moves) == (phase is not Phase.GONE)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", PhaseEvent)
def test_a_move_is_in_the_table_or_raises(phase: Phase, event: PhaseEvent) -> None:
    if event in TRANSITIONS[phase]:
        assert next_phase(phase, event) is TRANSITIONS[phase][event]
    else:
        with pytest.raises(IllegalMoveError, match=event.value):
            next_phase(phase, event)


@given(st.sampled_from(INITIAL), st.lists(st.sampled_from(PhaseEvent)))
def test_whatever_happens_a_decision_is_never_taken_back(
    phase: Phase, events: list[PhaseEvent]
) -> None:
    stages = list(PodStage)
    for event in events:
        try:
            after = next_phase(phase, event)
        except IllegalMoveError:
            assert event not in TRANSITIONS[phase]
            continue
        assert stages.index(STAGES[after]) >= stages.index(STAGES[phase])
        assert after in UNWANTED or phase not in UNWANTED
        if event in FROM_OUTSIDE:
            assert STAGES[after] is not PodStage.SYNC
        assert (after in UNWANTED) >= (event is PhaseEvent.MANIFEST_GONE)
        phase = after


def rows(table: dict[Phase, dict[PhaseEvent, Phase]]) -> list[str]:
    """Return the table as supervision.md shows it."""
    lines = []
    for phase, moves in table.items():
        shown = ", ".join(
            f"{event.value} → {'the same' if to is phase else to.value}"
            for event, to in sorted(moves.items(), key=lambda move: list(PhaseEvent).index(move[0]))
        )
        lines.append(f"| {phase.value} | {STAGES[phase].value} | {shown or 'the end'} |")
    return lines


def test_supervision_md_shows_the_table() -> None:
    section = DOC.read_text().split("## The phases of a pod")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    assert table[2:] == rows(TRANSITIONS)
