"""Stopping: reverse order, asked or cancelled, and what may go wrong meanwhile."""

from __future__ import annotations

import pytest
import structlog
import trio
from trio.testing import MockClock

from kubelet_trio.supervision import (
    ChildSpec,
    ChildState,
    DynamicSupervisor,
    GaveUpError,
    Restart,
    RestartPolicy,
    Strategy,
    Supervisor,
)
from tests.supervision.actors import Actor, node, running, settle, specs


def askable(actor: Actor, *, grace: float = 5) -> ChildSpec:
    return ChildSpec(actor.name, actor.run, stop=actor.finish, stop_grace=grace)


async def test_cancelling_stops_children_one_by_one_in_reverse(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b, c = (Actor(name, journal, cleanup=1) for name in "abc")
    async with running(Supervisor("top", specs(a, b, c))):
        journal.clear()
    assert journal == ["c cancelled", "b cancelled", "a cancelled"]
    assert trio.current_time() == 3


async def test_cancelling_a_tree_stops_it_depth_first_in_reverse(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b, c, d = (Actor(name, journal, cleanup=1) for name in "abcd")
    top = Supervisor("top", [*specs(a), Supervisor("inner", specs(b, c)), *specs(d)])
    async with running(top):
        journal.clear()
    assert journal == ["d cancelled", "c cancelled", "b cancelled", "a cancelled"]


async def test_a_child_that_does_not_end_holds_its_siblings_no_longer_than_its_grace(
    autojump_clock: MockClock,
) -> None:
    ended_at: dict[str, float] = {}

    def child(name: str, cleanup: float) -> ChildSpec:
        async def body(*, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(cleanup, shield=True):
                    await trio.sleep_forever()
                ended_at[name] = trio.current_time()

        return ChildSpec(name, body, stop_grace=2)

    with structlog.testing.capture_logs() as logs:
        async with running(Supervisor("top", [child("a", 0), child("b", 9)])):
            pass
    assert ended_at == {"a": 2, "b": 9}
    assert [(line["event"], line["child"]) for line in logs] == [("child.stop_timeout", "top/b")]


async def test_stop_asks_in_reverse_and_cancels_nobody_who_finishes(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b, c = (Actor(name, journal) for name in "abc")
    top = Supervisor("top", [askable(child) for child in (a, b, c)])
    async with running(top):
        journal.clear()
        top.stop()
        await settle()
        assert journal == ["c returned", "b returned", "a returned"]
        assert top.tree().state is ChildState.STOPPED


async def test_a_child_that_does_not_finish_when_asked_is_cancelled_after_its_grace(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal), Actor("b", journal)
    top = Supervisor(
        "top", [askable(a), ChildSpec("b", b.run, stop=lambda: b.write("asked"), stop_grace=3)]
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(top.run)
        journal.clear()
        top.stop()
    assert journal == ["b asked", "b cancelled", "a returned"]
    assert trio.current_time() == 3


async def test_a_child_that_cannot_be_asked_is_cancelled_in_its_turn(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b, c = (Actor(name, journal) for name in "abc")
    top = Supervisor("top", [askable(a), *specs(b), askable(c)])
    async with trio.open_nursery() as nursery:
        await nursery.start(top.run)
        journal.clear()
        top.stop()
    assert journal == ["c returned", "b cancelled", "a returned"]
    assert trio.current_time() == 0


async def test_stop_reaches_down_the_tree(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b, c, d = (Actor(name, journal) for name in "abcd")
    pods = DynamicSupervisor("pods")
    top = Supervisor(
        "top", [askable(a), pods, Supervisor("inner", [askable(b), askable(c)]), askable(d)]
    )
    pods.start_child(askable(Actor("p", journal)))
    async with trio.open_nursery() as nursery:
        await nursery.start(top.run)
        await settle()
        journal.clear()
        top.stop()
    assert journal == ["d returned", "c returned", "b returned", "p returned", "a returned"]


async def test_cancelling_cuts_a_graceful_stop_short(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal), Actor("b", journal)
    deaf = ChildSpec("b", b.run, stop=lambda: b.write("asked"), stop_grace=100)
    top = Supervisor("top", [askable(a), deaf])
    async with running(top):
        journal.clear()
        top.stop()
        await settle(1)
    assert journal == ["b asked", "b cancelled", "a cancelled"]
    assert trio.current_time() == 1


async def test_nothing_is_restarted_while_stopping(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b, c = Actor("a", journal), Actor("b", journal), Actor("c", journal, cleanup=3)
    top = Supervisor("top", specs(a, b, c))
    async with running(top):
        a.crash()  # in its back-off when the stop comes
        await settle()
        top.stop()
        await settle(1)
        b.crash()  # while c takes its time
        await settle(100)
        assert (a.lives, b.lives, c.lives) == (1, 1, 1)
        assert [child.state for child in top.tree().children] == [ChildState.STOPPED] * 3


async def test_a_crash_during_stop_shows_and_disturbs_nobody(autojump_clock: MockClock) -> None:
    journal: list[str] = []

    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("on my way out")

    a, c = Actor("a", journal), Actor("c", journal)
    top = Supervisor("top", [*specs(a), ChildSpec("b", body), *specs(c)])
    with structlog.testing.capture_logs() as logs:
        async with running(top):
            journal.clear()
    assert journal == ["c cancelled", "a cancelled"]
    assert [(line["event"], line["child"]) for line in logs] == [("child.stop_failed", "top/b")]
    assert node(top.tree(), "b").last_error == "ValueError: on my way out"
    assert node(top.tree(), "b").restarts == 0


async def test_a_stop_hook_that_raises_disturbs_nobody(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal), Actor("b", journal)

    def broken() -> None:
        raise ValueError("hook")

    top = Supervisor("top", [askable(a), ChildSpec("b", b.run, stop=broken, stop_grace=1)])
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(top.run)
            journal.clear()
            top.stop()
    assert journal == ["b cancelled", "a returned"]
    assert [(line["event"], line["child"]) for line in logs] == [("child.stop_failed", "top/b")]


async def test_a_group_restart_in_progress_gives_way_to_a_stop(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal, cleanup=3), Actor("b", journal)
    top = Supervisor("top", specs(a, b), strategy=Strategy.ONE_FOR_ALL)
    async with trio.open_nursery() as nursery:
        await nursery.start(top.run)
        b.crash()
        await settle(1)
        top.stop()
    assert (a.lives, b.lives) == (1, 1)


async def test_stopped_before_it_runs_a_supervisor_starts_nothing(
    autojump_clock: MockClock,
) -> None:
    a = Actor("a", [])
    top = Supervisor("top", specs(a))
    top.stop()
    await top.run()
    assert a.lives == 0


async def test_a_supervisor_runs_again_after_a_stop(autojump_clock: MockClock) -> None:
    a = Actor("a", [])
    top = Supervisor("top", specs(a))
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(top.run)
            top.stop()
    assert a.lives == 2
    assert node(top.tree(), "a").restarts == 1


async def test_a_stopped_subtree_is_done_and_not_restarted(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    inner = Supervisor("inner", specs(Actor("a", journal)))
    top = Supervisor("top", [inner, *specs(Actor("b", journal))])
    async with running(top):
        inner.stop()
        await settle(100)
        assert node(top.tree(), "inner").state is ChildState.DONE
        assert node(top.tree(), "b").state is ChildState.RUNNING


async def test_an_asked_subtree_that_crashed_meanwhile_starts_anew_with_its_group(
    autojump_clock: MockClock,
) -> None:
    """A stop meant for one run must not be taken up by the next one."""
    journal: list[str] = []
    a, b = Actor("a", journal), Actor("b", journal)
    inner = Supervisor("inner", [ChildSpec("a", a.run, policy=RestartPolicy(limit=0))])
    middle = Supervisor("middle", [inner, ChildSpec("b", b.run, policy=RestartPolicy(limit=0))])
    top = Supervisor("top", [middle])
    async with running(top):
        a.crash()
        b.crash()
        middle.stop()
        await settle(100)
        assert node(top.tree(), "middle").state is ChildState.DONE
    async with running(middle):
        await settle(1)
        assert node(middle.tree(), "inner", "a").state is ChildState.RUNNING


async def test_giving_up_and_a_stop_hang_together(autojump_clock: MockClock) -> None:
    a = Actor("a", [], crash_after=[0])
    top = Supervisor("top", [ChildSpec("a", a.run, Restart.PERMANENT, RestartPolicy(limit=0))])
    with pytest.raises(GaveUpError):
        await top.run()
    assert node(top.tree(), "a").state is ChildState.FAILED


async def test_a_child_that_ended_just_now_is_not_asked(autojump_clock: MockClock) -> None:
    """A supervisor would take the question for its next run."""
    asked: list[str] = []

    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        top.stop()
        raise ValueError

    top = Supervisor("top", [ChildSpec("a", body, stop=lambda: asked.append("a"))])
    await top.run()
    assert asked == []


async def test_an_old_life_that_outlasts_its_stop_readies_nobody(
    autojump_clock: MockClock,
) -> None:
    late_ends: list[float] = []

    async def late(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.move_on_after(10, shield=not late_ends):
            await trio.sleep(8)
            task_status.started()
            await trio.sleep_forever()
        late_ends.append(trio.current_time())

    journal: list[str] = []
    x, b = Actor("x", journal, crash_after=[1]), Actor("b", journal)
    top = Supervisor(
        "top",
        [ChildSpec("x", x.run), ChildSpec("late", late), ChildSpec("b", b.run)],
        strategy=Strategy.ONE_FOR_ALL,
    )
    async with running(top):
        assert late_ends == [10]
        assert b.started_at == [18]
