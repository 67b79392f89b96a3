"""What client-go's correlator does with floods of events."""

from __future__ import annotations

from kubelet_trio.events.correlator import PREFIX, Correlator, ServerEvent
from kubelet_trio.model import Event, ObjectRef

NOW = 1_767_225_600.0
WEB = ObjectRef("Pod", "web", "default", "uid-1")


def event(
    message: str = "m", at: float = 0.0, involved: ObjectRef = WEB, reason: str = "R"
) -> Event:
    return Event(involved, "Warning", reason, message, NOW + at)


def tell(correlator: Correlator, *events: Event) -> list[ServerEvent | None]:
    return [correlator.correlate(each) for each in events]


def test_the_first_of_an_event_is_created_and_its_repeats_are_counted() -> None:
    first, second, third = tell(Correlator(), event(at=0), event(at=1), event(at=5))
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.count, second.count, third.count) == (1, 2, 3)
    assert first.name == second.name == third.name == f"web.{int(NOW * 10**9):x}"
    assert (third.first, third.event.time) == (NOW, NOW + 5)


def test_containers_of_a_pod_have_events_of_their_own() -> None:
    a = ObjectRef("Pod", "web", "default", "uid-1", "spec.containers{a}")
    b = ObjectRef("Pod", "web", "default", "uid-1", "spec.containers{b}")
    found = tell(Correlator(), event(involved=a), event(involved=b))
    assert [told.count for told in found if told] == [1, 1]


def test_ten_different_messages_become_one_event() -> None:
    correlator = Correlator()
    found = [t for t in tell(correlator, *(event(f"m{i}", at=i) for i in range(12))) if t]
    assert [t.event.message for t in found[:9]] == [f"m{i}" for i in range(9)]
    assert [t.event.message for t in found[9:]] == [PREFIX + f"m{i}" for i in (9, 10, 11)]
    assert [t.count for t in found[9:]] == [1, 2, 3]
    assert len({t.key for t in found[9:]}) == 1


def test_similar_events_long_ago_do_not_count() -> None:
    correlator = Correlator()
    tell(correlator, *(event(f"m{i}") for i in range(9)))
    (late,) = tell(correlator, event("m9", at=601))
    assert late is not None
    assert late.event.message == "m9"


def test_other_reasons_are_not_similar() -> None:
    correlator = Correlator()
    tell(correlator, *(event(f"m{i}") for i in range(9)))
    (other,) = tell(correlator, event("m9", reason="Other"))
    assert other is not None
    assert other.event.message == "m9"


def test_an_object_has_so_many_events_and_then_one_every_five_minutes() -> None:
    correlator = Correlator()
    found = tell(correlator, *(event() for _ in range(30)))
    assert [t is not None for t in found] == [True] * 25 + [False] * 5
    assert tell(correlator, event(at=299)) == [None]
    (later,) = tell(correlator, event(at=600))
    assert later is not None
    assert later.count == 32  # those that were dropped are in it


def test_repeats_do_not_hide_what_is_new() -> None:
    correlator = Correlator()
    tell(correlator, *(event("Readiness probe failed", at=i) for i in range(75)))
    killing, again = tell(correlator, *(event("Stopping", at=75 + i, reason="K") for i in (0, 1)))
    assert killing is not None
    assert killing.count == 1
    assert again is None
    flood = tell(correlator, *(event(f"m{i}", at=80, reason="F") for i in range(1000)))
    assert sum(told is not None for told in flood) == 10  # nine, and what combines the rest


def test_a_noisy_object_takes_nothing_from_others() -> None:
    correlator = Correlator()
    tell(correlator, *(event() for _ in range(30)))
    other = ObjectRef("Pod", "db", "default", "uid-2")
    assert all(tell(correlator, *(event(involved=other) for _ in range(25))))


def test_a_clock_set_back_takes_nothing_away() -> None:
    correlator = Correlator()
    tell(correlator, *(event(at=0) for _ in range(20)))
    assert all(tell(correlator, *(event(at=-3600) for _ in range(5))))


def test_an_event_that_is_gone_from_the_server_begins_anew() -> None:
    correlator = Correlator()
    first, _ = tell(correlator, event(at=0), event(at=1))
    assert first is not None
    anew = correlator.forget(first.key)
    assert anew is not None
    assert (anew.count, anew.first) == (1, NOW + 1)
    assert anew.name != first.name
    (then,) = tell(correlator, event(at=2))
    assert then is not None
    assert (then.count, then.name) == (2, anew.name)


def test_memory_is_bounded() -> None:
    correlator = Correlator()
    for i in range(5000):
        correlator.correlate(event(involved=ObjectRef("Pod", f"p{i}", "default", str(i))))
    again = correlator.correlate(event(involved=ObjectRef("Pod", "p0", "default", "0")))
    assert again is not None
    assert again.count == 1  # what was known of it made room for others
