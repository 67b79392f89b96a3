"""Starting and restarting: readiness order, strategies, budgets, escalation."""

from __future__ import annotations

import pytest
import structlog
import trio
from trio.testing import MockClock

from kubelet_trio.supervision import (
    ChildSpec,
    ChildState,
    GaveUpError,
    Restart,
    RestartPolicy,
    Strategy,
    Supervisor,
)
from tests.supervision.actors import Actor, node, running, settle, specs


async def test_children_start_in_order_each_when_the_one_before_is_ready(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b, c = (Actor(name, journal, ready_after=1) for name in "abc")
    async with running(Supervisor("top", specs(a, b, c))):
        assert journal == ["a start", "a ready", "b start", "b ready", "c start", "c ready"]
        assert trio.current_time() == 3


async def test_a_supervisor_without_children_is_ready_and_stays(autojump_clock: MockClock) -> None:
    with trio.move_on_after(100) as patience:
        async with running(Supervisor("top", [])):
            await trio.sleep_forever()
    assert patience.cancelled_caught


async def test_a_supervisor_is_ready_when_its_own_children_are(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    inner = Supervisor("inner", specs(Actor("a", journal, ready_after=5)))
    b = Actor("b", journal)
    async with running(Supervisor("top", [inner, *specs(b)])):
        assert journal == ["a start", "a ready", "b start", "b ready"]


async def test_a_crash_before_ready_is_retried_and_the_next_sibling_waits(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a = Actor("a", journal, crash_early=2)
    b = Actor("b", journal)
    async with running(Supervisor("top", specs(a, b))):
        assert journal == [
            *["a start", "a crashed"] * 2,
            *["a start", "a ready"],
            *["b start", "b ready"],
        ]
        assert trio.current_time() == 0.5 + 1


async def test_a_later_crash_does_not_hold_up_siblings_that_have_not_started_yet(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a = Actor("a", journal, crash_after=[1])
    b, c = Actor("b", journal, ready_after=1.2), Actor("c", journal)
    async with running(Supervisor("top", specs(a, b, c))):
        assert c.started_at == [1.2]
        await settle(5)
        assert a.started_at == [0, 1.5]


async def test_one_for_one_restarts_only_the_child_that_failed(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b, c = (Actor(name, journal) for name in "abc")
    async with running(Supervisor("top", specs(a, b, c))):
        b.crash()
        await settle(10)
        assert (a.lives, b.lives, c.lives) == (1, 2, 1)


async def test_rest_for_one_restarts_the_later_siblings_in_order(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b, c, d = (Actor(name, journal) for name in "abcd")
    top = Supervisor("top", specs(a, b, c, d), strategy=Strategy.REST_FOR_ONE)
    async with running(top):
        journal.clear()
        b.crash()
        await settle(10)
        assert journal == [
            *["b crashed", "d cancelled", "c cancelled"],
            *["b start", "b ready", "c start", "c ready", "d start", "d ready"],
        ]
        assert a.lives == 1


async def test_one_for_all_restarts_everybody_in_order(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b, c = (Actor(name, journal) for name in "abc")
    top = Supervisor("top", specs(a, b, c), strategy=Strategy.ONE_FOR_ALL)
    async with running(top):
        journal.clear()
        b.crash()
        await settle(10)
        assert journal == [
            *["b crashed", "c cancelled", "a cancelled"],
            *["a start", "a ready", "b start", "b ready", "c start", "c ready"],
        ]
        assert {n.name: n.restarts for n in top.tree().children} == {"a": 1, "b": 1, "c": 1}


async def test_a_group_restart_waits_for_the_delay_after_the_last_one_is_gone(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal, cleanup=3), Actor("b", journal)
    top = Supervisor("top", specs(a, b), strategy=Strategy.ONE_FOR_ALL)
    async with running(top):
        b.crash()
        await settle(10)
        assert a.started_at == [0, 3 + 0.5]


async def test_two_siblings_that_fail_at_once_both_count(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal), Actor("b", journal)
    top = Supervisor("top", specs(a, b))
    async with running(top):
        a.crash()
        b.crash()
        await settle(10)
        assert [child.restarts for child in top.tree().children] == [1, 1]


async def test_a_child_that_outlasts_its_stop_never_has_two_lives_at_once(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal, cleanup=20), Actor("b", journal)
    top = Supervisor("top", specs(a, b), strategy=Strategy.ONE_FOR_ALL)
    with structlog.testing.capture_logs() as logs:
        async with running(top):
            journal.clear()
            b.crash()
            await settle(10)
            assert journal == ["b crashed"]
            assert node(top.tree(), "a").state is ChildState.STOPPING
            await settle(20)
            assert journal[:3] == ["b crashed", "a cancelled", "a start"]
            assert (a.lives, b.lives) == (2, 2)
    assert {
        "event": "child.stop_timeout",
        "child": "top/a",
        "grace": 5.0,
        "log_level": "error",
    } in logs


async def test_a_permanent_child_that_returns_has_failed(autojump_clock: MockClock) -> None:
    a = Actor("a", [])
    top = Supervisor("top", specs(a))
    async with running(top):
        a.finish()
        await settle(1)
        assert a.lives == 2
        assert node(top.tree(), "a").last_error == "RuntimeError: top/a: returned, and is permanent"


async def test_a_transient_child_may_return_and_is_done(autojump_clock: MockClock) -> None:
    a = Actor("a", [], crash_after=[1])
    top = Supervisor("top", [ChildSpec("a", a.run, Restart.TRANSIENT)])
    async with running(top):
        await settle(2)
        assert a.lives == 2
        a.finish()
        await settle(100)
        assert a.lives == 2
        assert node(top.tree(), "a").state is ChildState.DONE


async def test_a_transient_child_runs_again_with_its_group(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    a, b = Actor("a", journal), Actor("b", journal)
    children = [ChildSpec("a", a.run, Restart.TRANSIENT), ChildSpec("b", b.run)]
    async with running(Supervisor("top", children, strategy=Strategy.ONE_FOR_ALL)):
        a.finish()
        await settle()
        b.crash()
        await settle(5)
        assert (a.lives, b.lives) == (2, 2)


async def test_a_temporary_child_is_never_restarted_by_its_crash_or_its_group(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b, c = (Actor(name, journal) for name in "abc")
    children = [
        ChildSpec("a", a.run, Restart.TEMPORARY),
        ChildSpec("b", b.run, Restart.TEMPORARY),
        ChildSpec("c", c.run),
    ]
    top = Supervisor("top", children, strategy=Strategy.ONE_FOR_ALL)
    async with running(top):
        a.crash()
        await settle(5)
        assert node(top.tree(), "a").state is ChildState.FAILED
        assert (b.lives, c.lives) == (1, 1)
        c.crash()
        await settle(5)
        assert (a.lives, b.lives, c.lives) == (1, 1, 2)
        assert node(top.tree(), "b").state is ChildState.STOPPED


async def test_children_that_end_before_they_are_ready_hold_nobody_up(
    autojump_clock: MockClock,
) -> None:
    async def prepare(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep(1)

    async def fail(*, task_status: trio.TaskStatus[None]) -> None:
        raise ValueError

    c = Actor("c", [])
    children = [
        ChildSpec("a", prepare, Restart.TRANSIENT),
        ChildSpec("b", fail, Restart.TEMPORARY),
        ChildSpec("c", c.run),
    ]
    async with running(Supervisor("top", children)):
        assert c.started_at == [1]


async def test_restarts_are_delayed_as_the_policy_says(autojump_clock: MockClock) -> None:
    a = Actor("a", [], crash_after=[0] * 4)
    policy = RestartPolicy(limit=4, base=1, cap=4)
    async with running(Supervisor("top", [ChildSpec("a", a.run, policy=policy)])):
        await settle(100)
        assert a.started_at == [0, 1, 3, 7, 11]


async def test_more_failures_than_the_limit_stop_the_siblings_and_escalate(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a, b, c = Actor("a", journal), Actor("b", journal, crash_after=[0] * 9), Actor("c", journal)
    policy = RestartPolicy(limit=2)
    top = Supervisor(
        "top",
        [ChildSpec("a", a.run), ChildSpec("b", b.run, policy=policy), ChildSpec("c", c.run)],
    )
    with pytest.raises(GaveUpError) as caught:
        await top.run()
    assert caught.value.child == "top/b"
    assert caught.value.restarts == 2
    assert isinstance(caught.value.__cause__, ValueError)
    assert b.lives == 3
    assert journal[-3:] == ["b crashed", "c cancelled", "a cancelled"]


async def test_a_supervisor_that_gave_up_is_its_parents_failed_child(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    a = Actor("a", journal, crash_after=[0] * 3)
    b = Actor("b", journal)
    inner = Supervisor("inner", [ChildSpec("a", a.run, policy=RestartPolicy(limit=1))])
    top = Supervisor("top", [inner, *specs(b)])
    async with running(top):
        await settle(20)
        # Two lives use up the budget of 1; the inner supervisor's second run has a new one.
        assert a.lives == 4
        inner_node = node(top.tree(), "inner")
        assert (inner_node.restarts, inner_node.state) == (1, ChildState.RUNNING)
        assert inner_node.last_error == "GaveUpError: top/inner/a: gave up after 1 restarts"
        assert node(inner_node, "a").restarts == 3
        assert b.lives == 1


async def test_budgets_multiply_up_to_the_root_which_raises(autojump_clock: MockClock) -> None:
    a = Actor("a", [], crash_after=[0] * 99)
    inner = Supervisor(
        "inner",
        [ChildSpec("a", a.run, policy=RestartPolicy(limit=2))],
        policy=RestartPolicy(limit=3),
    )
    with pytest.raises(GaveUpError) as caught:
        await Supervisor("top", [inner]).run()
    assert caught.value.child == "top/inner"
    assert isinstance(caught.value.__cause__, GaveUpError)
    assert isinstance(caught.value.__cause__.__cause__, ValueError)
    assert a.lives == 3 * 4


async def test_an_exception_group_is_one_failure(autojump_clock: MockClock) -> None:
    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(a.run_inner)
            nursery.start_soon(a.run_inner)

    class Inner:
        lives = 0

        async def run_inner(self) -> None:
            self.lives += 1
            if self.lives <= 2:
                raise ValueError("inner")
            await trio.sleep_forever()

    a = Inner()
    top = Supervisor("top", [ChildSpec("a", body)])
    async with running(top):
        await settle(5)
        assert node(top.tree(), "a").restarts == 1
        assert node(top.tree(), "a").last_error == "ValueError: inner (and 1 more)"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_is_no_exception_travels_to_the_top_and_stops_in_order(
    kind: type[BaseException], autojump_clock: MockClock
) -> None:
    journal: list[str] = []
    a, b, c, d = (Actor(name, journal) for name in "abcd")
    top = Supervisor("top", [*specs(a), Supervisor("inner", specs(b, c)), *specs(d)])

    async def interrupted() -> None:
        async with running(top):
            journal.clear()
            b.crash(kind())
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await interrupted()
    assert caught.value.split(kind)[1] is None
    # Whoever is nearest to the one that raised stops first; then in reverse upwards.
    assert journal == ["b crashed", "c cancelled", "d cancelled", "a cancelled"]


async def test_an_interrupt_in_a_group_with_failures_still_travels(
    autojump_clock: MockClock,
) -> None:
    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        raise BaseExceptionGroup("both", [ValueError("v"), KeyboardInterrupt()])

    with pytest.raises(BaseExceptionGroup) as caught:
        await Supervisor("top", [ChildSpec("a", body)]).run()
    assert caught.group_contains(KeyboardInterrupt)


async def test_started_twice_is_a_failure_of_the_child(autojump_clock: MockClock) -> None:
    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        task_status.started()

    top = Supervisor("top", [ChildSpec("a", body)])
    async with running(top):
        await settle()
        assert "called 'started' twice" in str(node(top.tree(), "a").last_error)


async def test_restarts_and_giving_up_are_logged_with_the_childs_path(
    autojump_clock: MockClock,
) -> None:
    a = Actor("a", [], crash_after=[0] * 9)
    inner = Supervisor(
        "inner",
        [ChildSpec("a", a.run, policy=RestartPolicy(limit=1))],
        policy=RestartPolicy(limit=0),
    )
    with structlog.testing.capture_logs() as logs, pytest.raises(GaveUpError):
        await Supervisor("top", [inner]).run()
    lines = [(line["event"], line["child"], line.get("delay")) for line in logs]
    assert lines == [
        ("child.restart", "top/inner/a", 0.5),
        ("child.gave_up", "top/inner/a", None),
        ("child.gave_up", "top/inner", None),
    ]
    assert all(isinstance(line["exc_info"], Exception) for line in logs)


async def test_a_childs_own_log_lines_have_its_path_in_their_context(
    autojump_clock: MockClock,
) -> None:
    seen: list[str] = []

    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        seen.append(structlog.contextvars.get_contextvars()["child"])
        task_status.started()
        await trio.sleep_forever()

    inner = Supervisor("inner", [ChildSpec("a", body)])
    async with running(Supervisor("top", [inner, ChildSpec("b", body)])):
        assert seen == ["top/inner/a", "top/b"]
    assert "child" not in structlog.contextvars.get_contextvars()


async def test_a_supervisor_does_not_run_twice_at_once(autojump_clock: MockClock) -> None:
    top = Supervisor("top", specs(Actor("a", [])))
    async with running(top):
        with pytest.raises(RuntimeError, match="top: runs already"):
            await top.run()


def test_two_children_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="share a name"):
        Supervisor("top", [*specs(Actor("a", [])), Supervisor("a", [])])
