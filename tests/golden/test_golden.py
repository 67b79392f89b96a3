"""The corpus on this agent, and what the Go kubelet made of it: the same, but for the list.

Everything is compared at once and then asserted on subject by subject, so that a
difference fails the test of its pod, its page or its container alone.
"""

from __future__ import annotations

import pytest

from tests.golden.corpus import objects
from tests.golden.differences import MEANT, Meant
from tests.golden.recording import Recording
from tests.golden.tables import KINDS, Difference, differences

# What a 1.36 API server does not take in: it never comes to a kubelet.
REFUSED = {"runtimeclass-missing"}
SUBJECTS = [(kind.name, subject) for kind in KINDS for subject in sorted(kind.go())]


@pytest.fixture(scope="session")
def found(recording: Recording) -> list[Difference]:
    """All differences, meant or not."""
    return [found for kind in KINDS for found in differences(kind, recording)]


@pytest.mark.parametrize(("table", "subject"), SUBJECTS)
def test_it_is_as_the_go_kubelet_has_it(found: list[Difference], table: str, subject: str) -> None:
    mine = [one for one in found if (one.table, one.subject) == (table, subject)]
    unmeant = [str(one) for one in mine if not any(meant.covers(one) for meant in MEANT)]
    assert not unmeant, "\n".join(unmeant)


def test_there_is_nothing_that_the_go_kubelet_has_not(found: list[Difference]) -> None:
    strange = [one for one in found if (one.table, one.subject) not in SUBJECTS]
    unmeant = [str(one) for one in strange if not any(meant.covers(one) for meant in MEANT)]
    assert not unmeant, "\n".join(unmeant)


@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: f"{meant.table}: {meant.what}")
def test_what_is_meant_to_differ_does(found: list[Difference], meant: Meant) -> None:
    assert any(meant.covers(one) for one in found), f"take it off the list: {meant.reason}"


def test_every_pod_was_there(recording: Recording) -> None:
    assert recording.refused.keys() == REFUSED, recording.refused
    assert recording.pods.keys() | REFUSED == {pod["metadata"]["name"] for pod in objects("Pod")}
