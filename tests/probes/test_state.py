"""When a probe runs and what its findings come to: upstream's rules, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Probe

from kubelet_trio.model import ContainerId, ContainerRecord, ContainerState, SandboxId
from kubelet_trio.probes import ProbeKind
from kubelet_trio.probes.state import INITIAL, ProbeResult, ProbeState, is_due

LIVENESS, READINESS, STARTUP = ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP


def fresh(kind: ProbeKind) -> ProbeState:
    return ProbeState(kind, ContainerId("id"), INITIAL[kind])


def run(kind: ProbeKind, findings: str, failures: int = 3, successes: int = 1) -> str:
    """Return the results after each finding: `+` and `-` in, `S`, `F` and `U` out."""
    state, results = fresh(kind), ""
    probe = Probe(failureThreshold=failures, successThreshold=successes)
    for finding in findings:
        state = state.after(probe, is_success=finding == "+")
        results += state.result.name[0]
    return results


@pytest.mark.parametrize(
    ("kind", "findings", "failures", "successes", "results"),
    [
        (READINESS, "+", 3, 1, "S"),
        (READINESS, "---", 3, 1, "FFF"),  # not ready from the start
        (READINESS, "+--+", 3, 1, "SSSS"),  # two failures are not three
        (READINESS, "+---+", 3, 1, "SSSFS"),
        (READINESS, "+-+--+", 3, 1, "SSSSSS"),  # and need to be in a row
        (READINESS, "++-++", 1, 2, "FSFFS"),
        (LIVENESS, "--", 3, 1, "SS"),  # alive until proven dead
        (LIVENESS, "---", 3, 1, "SSF"),
        (LIVENESS, "-", 1, 1, "F"),
        (STARTUP, "--", 3, 1, "UU"),  # neither started nor failed
        (STARTUP, "---", 3, 1, "UUF"),
        (STARTUP, "--+", 3, 1, "UUS"),
    ],
)
def test_a_result_changes_with_as_many_findings_in_a_row_as_its_threshold(
    kind: ProbeKind, findings: str, failures: int, successes: int, results: str
) -> None:
    assert run(kind, findings, failures, successes) == results


@given(st.text("+-", max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_a_result_is_always_that_of_the_last_full_row(
    findings: str, failures: int, successes: int
) -> None:
    results = run(READINESS, findings, failures, successes)
    for end, result in enumerate(results, start=1):
        seen = findings[:end]
        if seen.endswith("-" * failures):
            assert result == "F"
        elif seen.endswith("+" * successes):
            assert result == "S"
        elif end > 1:
            assert result == results[end - 2]


@pytest.mark.parametrize(("kind", "holds"), [(LIVENESS, True), (STARTUP, True), (READINESS, False)])
def test_a_probe_that_has_failed_holds_still_unless_it_is_for_readiness(
    kind: ProbeKind, holds: bool
) -> None:
    state = fresh(kind).after(Probe(failureThreshold=1), is_success=False)
    assert state.on_hold is holds


def container(
    state: ContainerState = ContainerState.RUNNING, started_at: float = 100.0
) -> ContainerRecord:
    return ContainerRecord(
        ContainerId("id"), "c", SandboxId("s"), state, 0, created_at=99.0, started_at=started_at
    )


@pytest.mark.parametrize(
    ("kind", "started", "due"),
    [
        (STARTUP, False, True),
        (STARTUP, True, False),
        (LIVENESS, False, False),
        (LIVENESS, True, True),
        (READINESS, False, False),
        (READINESS, True, True),
    ],
)
def test_the_startup_probe_gates_the_others(kind: ProbeKind, started: bool, due: bool) -> None:
    assert is_due(fresh(kind), Probe(), container(), is_started=started, now=100.0) is due


@pytest.mark.parametrize(("now", "due"), [(104.9, False), (105.0, True)])
def test_the_initial_delay_counts_from_the_containers_start(now: float, due: bool) -> None:
    probe = Probe(initialDelaySeconds=5)
    assert is_due(fresh(LIVENESS), probe, container(), is_started=True, now=now) is due


@pytest.mark.parametrize("state", [s for s in ContainerState if s is not ContainerState.RUNNING])
def test_only_what_runs_is_probed(state: ContainerState) -> None:
    assert not is_due(fresh(LIVENESS), Probe(), container(state), is_started=True, now=200.0)


def test_what_is_on_hold_is_not_probed() -> None:
    state = ProbeState(LIVENESS, ContainerId("id"), ProbeResult.FAILURE, on_hold=True)
    assert not is_due(state, Probe(), container(), is_started=True, now=200.0)
