"""Comparisons of a pod before and after an edit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import EmptyDirVolumeSource, HostPathVolumeSource, Volume

from kubelet_trio.pods.edits import (
    ContainerChange,
    changed_fields,
    container_changes,
    ended_containers,
    new_containers,
    volume_changes,
)
from kubelet_trio.pods.plan import PodPlan, StopContainer
from tests.pods.make import EXITED, RUNNING, planned, pod, record, runtime, sidecar


def test_a_new_pod_starts_its_containers_in_their_order() -> None:
    of = pod("web", init=["setup", sidecar("mesh")], ephemeral=["debug"])
    assert [(c.name, c.why) for c in new_containers(of)] == [
        ("setup", "init"),
        ("mesh", "init"),
        ("web", ""),
    ]


def test_only_what_runs_ends() -> None:
    observed = runtime(record("web"), record("old", EXITED))
    assert ended_containers(observed) == (ContainerChange("web", "end"),)


def test_what_happens_anyway_is_not_the_edits_doing() -> None:
    of, observed = pod("a", "b"), runtime(record("a"), record("b", EXITED))
    now = planned(of, observed)
    assert now.start  # b is about to start again
    assert container_changes(now, now, observed) == ()


def test_a_changed_definition_restarts() -> None:
    of = pod()
    observed = runtime(record("web", RUNNING, hash="1"))
    now = planned(of, observed, hashes={"web": 1})
    then = planned(of, observed, hashes={"web": 2})
    assert container_changes(now, then, observed) == (
        ContainerChange("web", "restart", "Container web definition changed, will be restarted"),
    )


def test_a_container_that_left_the_spec_ends() -> None:
    observed = runtime(record("web"), record("gone"))
    now, then = planned(pod("web", "gone"), observed), planned(pod("web"), observed)
    stop = StopContainer(observed.latest("gone").id, "gone", "Stopping container gone")  # type: ignore[union-attr]
    assert then == PodPlan(sandbox_id=then.sandbox_id, stop_containers=(stop,))
    assert container_changes(now, then, observed) == (
        ContainerChange("gone", "end", "Stopping container gone"),
    )


def test_only_an_empty_dir_loses_its_content() -> None:
    of = pod(
        volumes=[
            Volume(name="cache", emptyDir=EmptyDirVolumeSource()),
            Volume(name="data", hostPath=HostPathVolumeSource(path="/srv")),
        ]
    )
    changes = volume_changes(of, of)
    assert [(v.name, v.action, v.loses_data) for v in changes] == [
        ("cache", "unmount", True),
        ("data", "unmount", False),
        ("cache", "mount", False),
        ("data", "mount", False),
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, ()),
        ({"a": 1}, {"a": 2}, ("a",)),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, ("a.c",)),
        ({"a": [1, 2]}, {"a": [2, 1]}, ("a",)),
        (
            {"c": [{"name": "x", "image": "1"}, {"name": "y"}]},
            {"c": [{"name": "y"}, {"name": "x", "image": "2"}, {"name": "z"}]},
            ("c[x].image", "c[z]"),
        ),
        ({"c": [{"name": "x"}, {"name": "x"}]}, {"c": [{"name": "x"}]}, ("c",)),
        ({"a": {}}, {"a": []}, ("a",)),
    ],
)
def test_fields_go_by_names(before: object, after: object, expected: tuple[str, ...]) -> None:
    assert changed_fields(before, after) == expected


def test_very_many_fields_are_counted() -> None:
    before, after = ({str(i): i + more for i in range(100)} for more in (0, 1))
    assert changed_fields(before, after)[-1] == "and 70 more"


values = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=8,
)


@given(before=values, after=values)
def test_there_is_a_field_exactly_if_something_differs(before: object, after: object) -> None:
    assert bool(changed_fields(before, after)) == (before != after)
