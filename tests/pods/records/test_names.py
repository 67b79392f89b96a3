from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from kubelet_trio.model import PodKey, PodUid
from kubelet_trio.pods.records.names import PodNames

KEY = PodKey("default", "web")
OLD, NEW, NEWER = PodUid("old"), PodUid("new"), PodUid("newer")


def test_first_to_claim_a_name_holds_it() -> None:
    names = PodNames()
    names.claim(KEY, OLD)
    names.claim(KEY, NEW)
    assert names.is_holder(KEY, OLD)
    assert not names.is_holder(KEY, NEW)


def test_claiming_twice_keeps_the_place() -> None:
    names = PodNames()
    names.claim(KEY, OLD)
    names.claim(KEY, NEW)
    names.claim(KEY, OLD)
    names.release(KEY, OLD)
    assert names.is_holder(KEY, NEW)


async def test_next_in_line_waits_until_the_name_is_free() -> None:
    names = PodNames()
    for uid in (OLD, NEW, NEWER):
        names.claim(KEY, uid)
    got: list[PodUid] = []

    async def wait(uid: PodUid) -> None:
        await names.wait_turn(KEY, uid)
        got.append(uid)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, NEW)
        nursery.start_soon(wait, NEWER)
        await wait_all_tasks_blocked()
        assert got == []
        names.release(KEY, OLD)
        await wait_all_tasks_blocked()
        assert got == [NEW]
        names.release(KEY, NEW)
    assert got == [NEW, NEWER]


async def test_one_who_gives_up_waiting_is_passed_over() -> None:
    names = PodNames()
    for uid in (OLD, NEW, NEWER):
        names.claim(KEY, uid)
    names.release(KEY, NEW)
    names.release(KEY, OLD)
    assert names.is_holder(KEY, NEWER)


def test_a_released_name_leaves_nothing_behind() -> None:
    names = PodNames()
    names.claim(KEY, OLD)
    names.release(KEY, OLD)
    names.claim(KEY, NEW)
    assert names.is_holder(KEY, NEW)
    assert not names.is_holder(KEY, OLD)


def test_a_holder_lets_another_pass_and_comes_after_it() -> None:
    names = PodNames()
    names.claim(KEY, OLD)
    names.claim(KEY, NEW)
    names.claim(KEY, NEWER)
    names.let_pass(KEY, OLD, NEWER)
    assert names.is_holder(KEY, NEWER)
    assert not names.is_holder(KEY, OLD)
    names.let_pass(KEY, OLD, NEW)  # it has nothing to give
    names.let_pass(KEY, NEWER, NEWER)
    assert names.is_holder(KEY, NEWER)
    names.release(KEY, NEWER)
    assert names.is_holder(KEY, OLD)
    names.release(KEY, OLD)
    assert names.is_holder(KEY, NEW)
