"""Children that come and go: start, stop, crashes for ever, and nobody else notices."""

from __future__ import annotations

import pytest
import structlog
import trio
from trio.testing import MockClock

from kubelet_trio.supervision import (
    DEFAULT_POLICY,
    ChildSpec,
    ChildState,
    DynamicSupervisor,
    Restart,
    RestartPolicy,
    Strategy,
    Supervisor,
)
from tests.supervision.actors import Actor, node, running, settle


def pod(actor: Actor, policy: RestartPolicy = DEFAULT_POLICY) -> ChildSpec:
    return ChildSpec(actor.name, actor.run, Restart.TRANSIENT, policy)


async def test_a_child_starts_when_wanted_and_is_forgotten_when_done(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    pods = DynamicSupervisor("pods")
    a = Actor("a", journal)
    async with running(pods):
        assert pods.names() == ()
        pods.start_child(pod(a))
        assert pods.names() == ("a",)
        assert node(pods.tree(), "a").state is ChildState.WAITING
        await settle()
        assert node(pods.tree(), "a").state is ChildState.RUNNING
        a.finish()
        await pods.wait_idle()
        assert pods.names() == ()
        assert journal == ["a start", "a ready", "a returned"]


async def test_children_wanted_before_it_runs_start_with_it(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    a, b = Actor("a", []), Actor("b", [])
    pods.start_child(pod(a))
    pods.start_child(pod(b))
    pods.stop_child("b")
    async with running(pods):
        await settle()
        assert (a.lives, b.lives) == (1, 0)


async def test_a_name_is_taken_until_its_child_is_gone(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    async with running(pods):
        pods.start_child(pod(Actor("a", [])))
        with pytest.raises(ValueError, match="pods: the name 'a' is in use"):
            pods.start_child(pod(Actor("a", [])))


async def test_one_that_always_raises_leaves_every_other_undisturbed(
    autojump_clock: MockClock,
) -> None:
    crashes: list[tuple[str, str, int]] = []
    pods = DynamicSupervisor(
        "pods", on_crash=lambda name, exc, count: crashes.append((name, str(exc), count))
    )
    bad = Actor("bad", [], crash_early=10_000)
    good = [Actor(f"good-{number}", []) for number in range(20)]
    top = Supervisor("top", [pods], policy=RestartPolicy(limit=0))
    async with running(top):
        for actor in (*good, bad):
            pods.start_child(pod(actor, RestartPolicy(base=1, cap=10)))
        await settle(3600)
        assert [actor.lives for actor in good] == [1] * 20
        assert node(top.tree(), "pods").restarts == 0
        assert bad.lives == pytest.approx(3600 / 10, rel=0.01)
        assert crashes[:2] == [("bad", "bad broke early", 1), ("bad", "bad broke early", 2)]
        assert len(crashes) == bad.lives


async def test_delays_double_to_the_cap_and_start_anew_after_a_long_life(
    autojump_clock: MockClock,
) -> None:
    a = Actor("a", [], crash_after=[0, 0, 0, 0, 0, 61, 0])
    pods = DynamicSupervisor("pods")
    async with running(pods):
        pods.start_child(pod(a, RestartPolicy(base=1, cap=5, within=60)))
        await settle(200)
        starts = a.started_at
        assert starts == [0, 1, 3, 7, 12, 17, 17 + 61 + 1, 79 + 2]


async def test_a_permanent_child_that_returns_comes_back(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    a = Actor("a", [])
    async with running(pods):
        pods.start_child(ChildSpec("a", a.run))
        await settle()
        a.finish()
        await settle(1)
        assert a.lives == 2
        assert node(pods.tree(), "a").last_error == (
            "RuntimeError: pods/a: returned, and is permanent"
        )


async def test_a_temporary_child_that_crashes_is_told_of_and_forgotten(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    pods = DynamicSupervisor("pods", on_crash=lambda name, _exc, _count: told.append(name))
    a = Actor("a", [], crash_early=1)
    async with running(pods):
        pods.start_child(ChildSpec("a", a.run, Restart.TEMPORARY))
        await pods.wait_idle()
        assert (a.lives, told) == (1, ["a"])


async def test_a_hook_that_raises_ends_no_child(autojump_clock: MockClock) -> None:
    def hook(_name: str, _exc: BaseException, _count: int) -> None:
        raise ValueError("hook")

    pods = DynamicSupervisor("pods", on_crash=hook)
    a = Actor("a", [], crash_early=1)
    with structlog.testing.capture_logs() as logs:
        async with running(pods):
            pods.start_child(pod(a))
            await settle(1)
            assert a.lives == 2
    assert [line["event"] for line in logs] == ["child.restart", "child.on_crash_failed"]
    assert [line["child"] for line in logs] == ["pods/a", "pods/a"]


async def test_a_stopped_child_is_cancelled_and_forgotten(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    pods = DynamicSupervisor("pods")
    a, b = Actor("a", journal, cleanup=2), Actor("b", journal)
    async with running(pods):
        pods.start_child(pod(a))
        pods.start_child(pod(b))
        await settle()
        pods.stop_child("a")
        pods.stop_child("a")
        pods.stop_child("nobody")
        await settle()
        assert node(pods.tree(), "a").state is ChildState.STOPPING
        await pods.wait_child_gone("a")
        await pods.wait_child_gone("nobody")
        assert trio.current_time() == 2
        assert pods.names() == ("b",)
        assert b.lives == 1


async def test_a_stopped_child_is_asked_first(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    pods = DynamicSupervisor("pods")
    a, b = Actor("a", journal), Actor("b", journal)
    async with running(pods):
        pods.start_child(ChildSpec("a", a.run, stop=a.finish))
        pods.start_child(ChildSpec("b", b.run, stop=lambda: b.write("asked"), stop_grace=3))
        await settle()
        journal.clear()
        pods.stop_child("a")
        pods.stop_child("b")
        await pods.wait_idle()
        assert journal == ["a returned", "b asked", "b cancelled"] or journal == [
            "b asked",
            "a returned",
            "b cancelled",
        ]
        assert trio.current_time() == 3


async def test_a_child_stopped_in_its_back_off_is_gone_at_once(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    a = Actor("a", [], crash_early=99)
    async with running(pods):
        pods.start_child(ChildSpec("a", a.run, stop=a.finish))
        await settle()
        assert node(pods.tree(), "a").state is ChildState.BACKOFF
        pods.stop_child("a")
        await pods.wait_idle()
        assert trio.current_time() == 0


async def test_a_child_that_crashes_while_it_is_stopped_does_not_come_back(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    pods = DynamicSupervisor("pods", on_crash=lambda name, _exc, _count: told.append(name))
    a = Actor("a", [])
    async with running(pods):
        pods.start_child(ChildSpec("a", a.run, stop=a.crash))
        await settle()
        pods.stop_child("a")
        await pods.wait_idle()
        await settle(100)
        assert (a.lives, told) == (1, [])


async def test_a_successor_starts_only_when_the_one_before_is_gone(
    autojump_clock: MockClock,
) -> None:
    journal: list[str] = []
    pods = DynamicSupervisor("pods")
    old, new = Actor("a", journal, cleanup=2), Actor("a", journal)
    async with running(pods):
        pods.start_child(pod(old))
        await settle()
        pods.stop_child("a")
        pods.start_child(pod(new))
        await pods.wait_child_gone("a")
        await settle()
        assert journal == ["a start", "a ready", "a cancelled", "a start", "a ready"]
        assert new.started_at == [2]
        assert pods.names() == ("a",)


async def test_a_successor_can_be_unwanted_again(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    new = Actor("a", [])
    async with running(pods):
        pods.start_child(pod(Actor("a", [], cleanup=2)))
        await settle()
        pods.stop_child("a")
        pods.start_child(pod(new))
        pods.stop_child("a")
        await pods.wait_idle()
        assert new.lives == 0


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_child_may_name_its_successor_on_its_way_out(
    crashes: bool, autojump_clock: MockClock
) -> None:
    pods = DynamicSupervisor("pods")
    new = Actor("a", [])

    async def leave(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        pods.start_child(pod(new))
        await trio.sleep(1)
        with pytest.raises(ValueError, match="is in use"):
            pods.start_child(pod(new))
        if crashes:
            raise ValueError("all the same")

    async with running(pods):
        pods.start_child(ChildSpec("a", leave, Restart.TRANSIENT))
        await settle(100)
        assert new.started_at == [1]
        assert pods.names() == ("a",)


async def test_wait_idle_waits_for_a_successor_too(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    new = Actor("a", [], ready_after=5)
    async with running(pods):
        pods.start_child(pod(Actor("a", [])))
        await settle()
        pods.stop_child("a")
        pods.start_child(pod(new))
        with trio.move_on_after(3) as waiting:
            await pods.wait_idle()
        assert waiting.cancelled_caught


async def test_a_child_may_start_another_and_stop_itself(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    b = Actor("b", [])

    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        pods.start_child(pod(b))
        pods.stop_child("a")
        await trio.sleep_forever()

    async with running(pods):
        pods.start_child(ChildSpec("a", body))
        await settle(1)
        assert pods.names() == ("b",)
        assert b.lives == 1


async def test_stop_asks_all_children_at_the_same_time(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    pods = DynamicSupervisor("pods")
    asked = [
        ChildSpec(name, Actor(name, journal).run, stop=lambda: None, stop_grace=3) for name in "abc"
    ]
    async with trio.open_nursery() as nursery:
        await nursery.start(pods.run)
        for spec in asked:
            pods.start_child(spec)
        await settle()
        journal.clear()
        pods.stop()
    assert sorted(journal) == ["a cancelled", "b cancelled", "c cancelled"]
    assert trio.current_time() == 3


async def test_a_child_that_does_not_end_is_named(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    with structlog.testing.capture_logs() as logs:
        async with running(pods):
            pods.start_child(pod(Actor("a", [], cleanup=9)))
            await settle()
            pods.stop_child("a")
            await pods.wait_idle()
    assert [(line["event"], line["child"]) for line in logs] == [("child.stop_timeout", "pods/a")]


async def test_cancelled_from_above_a_crash_does_not_escalate(autojump_clock: MockClock) -> None:
    told: list[str] = []
    pods = DynamicSupervisor("pods", on_crash=lambda name, _exc, _count: told.append(name))

    async def converts(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("instead of Cancelled")

    async def adds(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await converts(task_status=trio.TASK_STATUS_IGNORED)

    with structlog.testing.capture_logs() as logs:
        async with running(pods):
            pods.start_child(ChildSpec("a", converts))
            pods.start_child(ChildSpec("b", adds))
            await settle()
    assert told == []
    assert sorted((line["event"], line["child"]) for line in logs) == [
        ("child.stop_failed", "pods/a"),
        ("child.stop_failed", "pods/b"),
    ]


async def test_an_interrupt_in_a_child_travels(autojump_clock: MockClock) -> None:
    journal: list[str] = []
    pods = DynamicSupervisor("pods")
    a, b = Actor("a", journal), Actor("b", journal)

    async def interrupted() -> None:
        async with running(pods):
            pods.start_child(pod(a))
            pods.start_child(pod(b))
            await settle()
            a.crash(KeyboardInterrupt())
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await interrupted()
    assert caught.value.split(KeyboardInterrupt)[1] is None
    assert journal[-2:] == ["a crashed", "b cancelled"]


async def test_restarted_with_its_group_it_goes_on_with_the_children_it_had(
    autojump_clock: MockClock,
) -> None:
    pods = DynamicSupervisor("pods")
    a, done, unwanted, other = (Actor(name, []) for name in ("a", "done", "unwanted", "other"))
    top = Supervisor("top", [pods, ChildSpec("other", other.run)], strategy=Strategy.ONE_FOR_ALL)
    async with running(top):
        for actor in (a, done, unwanted):
            pods.start_child(pod(actor))
        await settle()
        done.finish()
        pods.stop_child("unwanted")
        await settle()
        other.crash()
        await settle(10)
        assert (a.lives, done.lives, unwanted.lives) == (2, 1, 1)
        assert pods.names() == ("a",)


async def test_a_worker_can_supervise_children_of_its_own(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    probes_of_a = DynamicSupervisor("probes")

    async def probe(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        seen.append(structlog.contextvars.get_contextvars()["child"])
        await trio.sleep_forever()

    async def worker(*, task_status: trio.TaskStatus[None]) -> None:
        probes_of_a.start_child(ChildSpec("web/liveness", probe))
        async with trio.open_nursery() as nursery:
            await nursery.start(probes_of_a.run)
            task_status.started()
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    pods = DynamicSupervisor("pods")
    async with running(Supervisor("top", [pods])):
        pods.start_child(ChildSpec("ns/a@1", worker, Restart.TRANSIENT))
        await settle(1)
        assert node(pods.tree(), "ns/a@1", "probes", "web/liveness").state is ChildState.RUNNING
        assert seen == ["top/pods/ns/a@1/probes/web/liveness"]
        await settle(5)
        assert pods.tree().children == ()


async def test_it_does_not_run_twice_at_once(autojump_clock: MockClock) -> None:
    pods = DynamicSupervisor("pods")
    async with running(pods):
        with pytest.raises(RuntimeError, match="pods: runs already"):
            await pods.run()
