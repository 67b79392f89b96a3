"""Events are folded, bounded, and can be asked for by what is new."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.events import EventRing
from kubelet_trio.model import Event, ObjectRef, pod_ref

WEB = pod_ref("default", "web", "u1", "spec.containers{web}")


def event(message: str = "m", *, time: float = 100.0, involved: ObjectRef = WEB) -> Event:
    return Event(involved, "Warning", "BackOff", message, time)


def test_repeats_are_one_event_whose_count_and_last_time_grow() -> None:
    ring = EventRing("node1")
    assert [ring.fold(event(time=t)) for t in (100.0, 107.5, 130.0)] == [1, 2, 3]
    [folded] = ring.events()
    assert folded.count == 3
    assert folded.firstTimestamp is not None
    assert folded.lastTimestamp is not None
    assert folded.firstTimestamp.timestamp() == 100
    assert folded.lastTimestamp.timestamp() == 130


def test_whatever_differs_is_an_event_of_its_own() -> None:
    ring = EventRing("node1")
    for one in (
        event("a"),
        event("b"),
        event("a", involved=pod_ref("default", "web", "u2")),
        Event(WEB, "Normal", "BackOff", "a", 1.0),
        Event(WEB, "Warning", "Failed", "a", 1.0),
    ):
        assert ring.fold(one) == 1
    assert len(ring) == 5


def test_an_event_has_the_shape_of_core_v1() -> None:
    ring = EventRing("node1")
    ring.fold(event(time=1.5))
    assert msgspec.to_builtins(ring.events()[0]) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"web.{1_500_000_000:x}",
            "namespace": "default",
            "creationTimestamp": "1970-01-01T00:00:01Z",
            "resourceVersion": "1",
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "web",
            "namespace": "default",
            "uid": "u1",
            "fieldPath": "spec.containers{web}",
        },
        "type": "Warning",
        "reason": "BackOff",
        "message": "m",
        "count": 1,
        "firstTimestamp": "1970-01-01T00:00:01Z",
        "lastTimestamp": "1970-01-01T00:00:01Z",
        "source": {"component": "kubelet", "host": "node1"},
        "reportingComponent": "kubelet",
        "reportingInstance": "node1",
    }


def test_an_event_about_the_node_stands_in_the_default_namespace() -> None:
    ring = EventRing("node1")
    ring.fold(Event(ObjectRef("Node", "node1", uid="node1"), "Normal", "Starting", "m", 1.0))
    [told] = ring.events()
    assert told.metadata is not None
    assert told.metadata.namespace == "default"
    assert told.involvedObject.namespace is None


def test_the_events_that_changed_longest_ago_are_forgotten() -> None:
    ring = EventRing("node1", capacity=2)
    for message in ("a", "b", "a", "c"):
        ring.fold(event(message))
    assert [e.message for e in ring.events()] == ["a", "c"]


def test_a_reader_gets_what_is_newer_than_it_saw() -> None:
    ring = EventRing("node1")
    ring.fold(event("a"))
    ring.fold(event("b"))
    seen = ring.version.value
    assert ring.events(seen) == []
    ring.fold(event("a"))
    assert [(e.message, e.count) for e in ring.events(seen)] == [("a", 2)]


def test_events_are_chosen_by_the_object() -> None:
    ring = EventRing("node1")
    ring.fold(event("a"))
    ring.fold(event("b", involved=pod_ref("kube-system", "web", "u2")))
    ring.fold(event("c", involved=ObjectRef("Node", "node1")))
    assert [e.message for e in ring.events(namespace="default")] == ["a"]
    assert [e.message for e in ring.events(kind="Pod", name="web")] == ["a", "b"]
    assert [e.message for e in ring.events(kind="Node")] == ["c"]


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 5))
def test_the_ring_holds_the_last_changes_in_their_order(messages: list[str], room: int) -> None:
    ring = EventRing("node1", capacity=room)
    for message in messages:
        ring.fold(event(message))
    expected = list(dict.fromkeys(reversed(messages)))[:room][::-1]
    assert [e.message for e in ring.events()] == expected
    assert ring.version.value == len(messages)
