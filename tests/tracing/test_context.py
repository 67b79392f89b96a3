"""Whose child a span is, by the way in which its task was started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from kubelet_trio.cri import CallsInFlight, GuardedRuntime
from kubelet_trio.model import ContainerId, Meter, thread_offload
from kubelet_trio.pods.steps.concurrency import run_alongside, run_together
from kubelet_trio.supervision import ChildSpec, DynamicSupervisor, Restart, Supervisor
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.tracing import span
from tests.tracing.traces import ended, tracer, trees

Work = Callable[[], Awaitable[None]]


async def work() -> None:
    with span("work"):
        await trio.sleep(1)


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


async def in_a_nursery(run: Work) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(nothing)


async def in_a_nested_nursery(run: Work) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_a_nursery, run)
        nursery.start_soon(nothing)


async def by_start(run: Work) -> None:
    async def body(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(nothing)
        await nursery.start(body)


async def under_a_deadline(run: Work) -> None:
    with trio.fail_after(5):
        await run()


async def under_a_shield(run: Work) -> None:
    with trio.CancelScope(shield=True):
        await run()


async def after_a_thread(run: Work) -> None:
    await thread_offload(lambda: None)
    await run()


@pytest.mark.parametrize(
    "how",
    [
        in_a_nursery,
        in_a_nested_nursery,
        by_start,
        under_a_deadline,
        under_a_shield,
        lambda run: run_together([run]),
        lambda run: run_alongside(run, [nothing]),
        lambda run: run_together([nothing, run]),
    ],
)
async def test_tasks_continue_the_span_of_the_task_that_starts_them(
    how: Callable[[Work], Awaitable[None]], autojump_clock: MockClock
) -> None:
    made, queue = tracer()
    with made.active(), span("around"):
        await how(work)
    (tree,) = trees(ended(queue))
    assert list(tree.lines()) == ["around", "  work"]


async def test_a_hop_to_a_thread_keeps_it() -> None:
    made, queue = tracer()
    with made.active(), span("around"):
        await after_a_thread(nothing)
        with span("work"):
            pass
    assert list(trees(ended(queue))[0].lines()) == ["around", "  work"]


async def test_siblings_do_not_see_each_others_spans(autojump_clock: MockClock) -> None:
    made, queue = tracer()

    async def sibling(name: str, delay: float) -> None:
        await trio.sleep(delay)
        with span(name):
            await trio.sleep(3)

    with made.active(), span("around"):
        async with trio.open_nursery() as nursery:
            for index, name in enumerate("abc"):
                nursery.start_soon(sibling, name, index)  # each begins within the one before
    (tree,) = trees(ended(queue))
    assert list(tree.lines()) == ["around", "  a", "  b", "  c"]


async def test_a_call_that_runs_in_a_task_of_its_own_is_its_callers(
    autojump_clock: MockClock,
) -> None:
    made, queue = tracer()
    calls = CallsInFlight()
    with made.active():
        async with trio.open_nursery() as nursery:
            await nursery.start(calls.run)
            with span("around"):
                await calls.finish("call", work, may_leave=False)
            nursery.cancel_scope.cancel()
    (tree,) = trees(ended(queue))
    assert list(tree.lines()) == ["around", "  work"]


async def test_a_call_that_outlives_its_cancelled_caller_is_still_below_it(
    autojump_clock: MockClock,
) -> None:
    made, queue = tracer()
    calls, runtime = CallsInFlight(), FakeRuntime()
    guarded = GuardedRuntime(runtime, calls, Meter())
    runtime.latency = {"": 5.0}
    with made.active():
        async with trio.open_nursery() as nursery:
            await nursery.start(calls.run)
            with trio.move_on_after(1), span("around"):
                await guarded.stop_container(ContainerId("c"), 3)
            assert [found.name for found in ended(queue)] == ["around"]
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
    (tree,) = trees(ended(queue))
    assert list(tree.lines()) == ["around", "  runtime.v1.RuntimeService/StopContainer"]
    assert tree.attributes == {"kubelet_trio.cancelled": True}


async def test_a_child_of_a_supervisor_begins_without_the_span_of_who_asked_for_it(
    autojump_clock: MockClock,
) -> None:
    made, queue = tracer()
    pods = DynamicSupervisor("pods")

    async def child(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await work()

    with made.active():
        async with trio.open_nursery() as nursery:
            await nursery.start(pods.run)
            with span("sync"):
                pods.start_child(ChildSpec("probe", child, Restart.TRANSIENT))
                await trio.sleep(5)
            nursery.cancel_scope.cancel()
    assert [list(tree.lines()) for tree in trees(ended(queue))] == [["sync"], ["work"]]


async def test_a_restarted_child_begins_without_a_span(autojump_clock: MockClock) -> None:
    made, queue = tracer()
    lives = 0

    async def child(*, task_status: trio.TaskStatus[None]) -> None:
        nonlocal lives
        lives += 1
        task_status.started()
        with span(f"life {lives}"):
            if lives < 3:
                raise ValueError("again")
            await trio.sleep(1)
        await trio.sleep_forever()

    tree = Supervisor("root", [ChildSpec("child", child)])
    with made.active():
        async with trio.open_nursery() as nursery:
            await nursery.start(tree.run)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
    assert [t.name for t in trees(ended(queue))] == ["life 1", "life 2", "life 3"]
    assert all(t.is_root for t in trees(ended(queue)))


async def test_without_an_agent_around_it_a_task_traces_nothing() -> None:
    made, queue = tracer()
    async with trio.open_nursery() as nursery:
        with made.active():
            pass
        nursery.start_soon(partial(run_together, [nothing]))
        with span("outside"):
            pass
    assert ended(queue) == []
