"""Which events a watch gets of what happens to pods."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.server.pods_api.watches import QUEUE, PodEventType, PodWatch
from tests.server.pods_api.pods import Node, pod_named

WEB, READY, DB = pod_named("web"), pod_named("web", "Running"), pod_named("db")
ADDED, MODIFIED, DELETED = PodEventType.ADDED, PodEventType.MODIFIED, PodEventType.DELETED


def queued(watch: PodWatch) -> list[tuple[PodEventType, Pod]]:
    """Return the events that wait."""
    found: list[tuple[PodEventType, Pod]] = []
    while True:
        try:
            event = watch._receive.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return found
        found.append((event.type, event.pod))


def end_and_remove(node: Node) -> None:
    node.finish(WEB)
    node.forget(WEB)


def replace(node: Node) -> None:
    end_and_remove(node)
    node.put(READY)


CASES: list[tuple[str, tuple[Pod, ...], Callable[[Node], None], list[tuple[PodEventType, Pod]]]] = [
    ("a new pod", (), lambda n: n.put(WEB), [(ADDED, WEB)]),
    ("a change", (WEB,), lambda n: n.put(READY), [(MODIFIED, READY)]),
    ("the same status", (WEB,), lambda n: n.put(pod_named("web")), []),
    ("another pod", (WEB,), lambda n: n.put(DB), [(ADDED, DB)]),
    ("its end", (WEB,), lambda n: n.finish(WEB), [(DELETED, WEB)]),
    ("its end and removal", (WEB,), end_and_remove, [(DELETED, WEB)]),
    ("its removal", (WEB,), lambda n: n.forget(WEB), [(DELETED, WEB)]),
    ("the removal of an unknown pod", (), lambda n: n.forget(WEB), []),
    (
        "a pod of the same UID after its end",
        (WEB,),
        replace,
        [(DELETED, WEB), (ADDED, READY)],
    ),
]


@pytest.mark.parametrize(
    ("what", "before", "happens", "expected"), CASES, ids=[c[0] for c in CASES]
)
def test_a_watch_gets_the_events(
    what: str,
    before: tuple[Pod, ...],
    happens: Callable[[Node], None],
    expected: list[tuple[PodEventType, Pod]],
) -> None:
    node = Node(*before)
    with node.watches.watching(node.store.pods.value) as watch:
        assert list(watch.initial) == list(before)
        happens(node)
        assert queued(watch) == expected


def test_a_watch_that_begins_after_a_pods_end_is_told_of_its_removal() -> None:
    node = Node(WEB)
    node.finish(WEB)
    with node.watches.watching(node.store.pods.value) as watch:
        assert list(watch.initial) == [WEB]
        node.forget(WEB)
        assert queued(watch) == [(DELETED, WEB)]


def test_a_new_label_of_a_pod_that_has_ended_is_no_removal() -> None:
    done = pod_named("web", "Succeeded")
    node = Node(done)
    node.finish(done)
    with node.watches.watching(node.store.pods.value) as watch:
        assert done.metadata is not None
        meta = msgspec.structs.replace(done.metadata, labels={"state": "seen"})
        node.put(msgspec.structs.replace(done, metadata=meta))
        assert queued(watch) == []
        node.forget(done)
        assert queued(watch) == [(DELETED, done)]
        node.put(WEB)  # a static pod that returns has the same UID
        node.finish(WEB)
        assert queued(watch) == [(ADDED, WEB), (DELETED, WEB)]


def test_a_pod_without_a_status_is_added_once() -> None:
    node = Node()
    node.store.show(pod_uid(WEB), WEB)
    node.store.deliver()
    with node.watches.watching(node.store.pods.value) as watch:
        assert list(watch.initial) == [WEB]
        node.put(READY)
        assert queued(watch) == [(MODIFIED, READY)]


def test_the_initial_pods_are_in_the_order_of_their_uids() -> None:
    node = Node(pod_named("c"), pod_named("a"), pod_named("b"))
    with node.watches.watching(node.store.pods.value) as watch:
        uids = [pod_uid(pod) for pod in watch.initial]
    assert uids == ["a-uid", "b-uid", "c-uid"]


async def test_a_full_queue_ends_one_watch_and_no_other(autojump_clock: MockClock) -> None:
    node = Node()
    value = node.store.pods.value
    with node.watches.watching(value) as slow, node.watches.watching(value) as fast:
        for number in range(QUEUE):
            node.put(pod_named(f"pod-{number}"))
        assert len(queued(fast)) == QUEUE
        assert node.dropped == 0
        node.put(WEB, DB)
        assert [pod for _, pod in queued(fast)] == [WEB, DB]
        assert node.dropped == 1
        node.put(READY)
        assert node.dropped == 1
        # What was queued is still read, then the end.
        for _ in range(QUEUE):
            assert await slow.next_event() is not None
        assert await slow.next_event() is None
        assert await fast.next_event() is not None


async def test_what_a_lost_watch_still_sends_is_cut_off_later(autojump_clock: MockClock) -> None:
    node = Node()
    with node.watches.watching(node.store.pods.value) as watch:
        for number in range(QUEUE + 1):
            node.put(pod_named(f"pod-{number}"))
        began = trio.current_time()
        with watch.scope:
            await trio.sleep_forever()
        assert trio.current_time() - began == 30


# What happens to one of three pods: a phase of its status, its end, or its removal.
STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["Pending", "Running", "end", "gone"])),
    max_size=40,
)


@given(before=STEPS, after=STEPS)
def test_a_client_that_follows_events_knows_the_pods_that_have_not_ended(
    before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    node = Node()
    ended: set[str] = set()

    def happen(steps: list[tuple[str, str]]) -> None:
        for name, what in steps:
            pod = pod_named(name)
            if what == "gone":
                node.forget(pod)
                ended.discard(name)
            elif what == "end":
                if pod_uid(pod) in node.store.pods.value:
                    node.finish(pod)
                    ended.add(name)
            elif name not in ended:  # no status follows the final one
                node.put(pod_named(name, what))

    happen(before)
    early = set(ended)
    with node.watches.watching(node.store.pods.value) as watch:
        known: dict[PodUid, Pod] = {pod_uid(pod): pod for pod in watch.initial}
        happen(after)
        for kind, pod in queued(watch):
            uid = pod_uid(pod)
            assert (uid in known) == (kind is not ADDED)
            if kind is DELETED:
                del known[uid]
            else:
                assert known.get(uid) != pod
                known[uid] = pod
    over = {pod_uid(pod_named(name)) for name in ended}
    still = {pod_uid(pod_named(name)) for name in early & ended}
    assert {u: p for u, p in known.items() if u not in still} == {
        u: p for u, p in node.store.pods.value.items() if u not in over
    }
