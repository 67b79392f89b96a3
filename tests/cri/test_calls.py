"""Calls that change something run to their answer; the others end with whoever asked."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
import trio.lowlevel
from trio.testing import MockClock

from kubelet_trio.cri import (
    CallsInFlight,
    GuardedRuntime,
    Runtime,
    RuntimeCallError,
    RuntimeUnavailableError,
)
from kubelet_trio.cri.generated.runtime import v1
from kubelet_trio.model import ContainerId, Meter

C = ContainerId("c")
# What the names of CRI's calls begin with. A call of a new kind is to be put on a side here.
CHANGES = (
    "run",
    "create",
    "start",
    "stop",
    "remove",
    "update",
    "exec_sync",
    "reopen",
    "checkpoint",
)
READS = (
    *("version", "status", "runtime_config", "list", "container_status", "pod_sandbox_status"),
    *("image_status", "image_fs_info", "sandbox_image"),
    "pull_image",  # leaves nothing behind that runs
    *("exec_url", "attach_url", "port_forward_url"),  # prepared only
)
METHODS = {
    name: member
    for base in Runtime.__mro__
    if base.__module__.startswith("kubelet_trio")
    for name, member in vars(base).items()
    if inspect.iscoroutinefunction(member)
}


class SlowRuntime:
    """Whatever it is asked takes 2 s; `done` is what came to its end."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun: list[str] = []
        self.takes = 2.0
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., Awaitable[str]]:
        async def call(*_args: Any, **_kwargs: Any) -> str:
            self.begun.append(name)
            await trio.sleep(self.takes)
            self.done.append(name)
            if self.error is not None:
                raise self.error
            return name

        return call


class Case:
    def __init__(self) -> None:
        self.below = SlowRuntime()
        self.calls = CallsInFlight(limit=60.0)
        self.meter = Meter()
        self.runtime = GuardedRuntime(typing.cast("Runtime", self.below), self.calls, self.meter)
        self.life = trio.CancelScope()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._live)
            yield
            self.life.cancel()

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.life:
            await self.calls.run(task_status=task_status)


def arguments(method: Callable[..., Any]) -> list[Any]:
    """Make something of each type that a method wants."""
    hints = typing.get_type_hints(method)
    wanted = [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.name != "self" and parameter.default is parameter.empty
    ]
    return [value_of(hints[parameter.name]) for parameter in wanted]


def value_of(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None
    hint = getattr(hint, "__supertype__", hint)
    kind = typing.get_origin(hint) or hint
    return [] if kind is Sequence else kind()


def is_change(name: str) -> bool:
    """Say on which side a call is; a name that is on neither, or on both, is no answer."""
    sides = [
        side
        for side, beginnings in ((True, CHANGES), (False, READS))
        if any(name == word or name.startswith(f"{word}_") for word in beginnings)
    ]
    assert len(sides) == 1, f"{name}: does it change something?"
    return sides[0]


@pytest.mark.parametrize("name", METHODS)
async def test_what_changes_something_survives_its_asker(
    name: str, autojump_clock: MockClock
) -> None:
    case = Case()
    async with case.running():
        with trio.move_on_after(1) as asker:
            await getattr(case.runtime, name)(*arguments(METHODS[name]))
        assert asker.cancelled_caught
        await trio.sleep(5)
        assert case.below.begun == [name]
        assert bool(case.below.done) is is_change(name)


@pytest.mark.parametrize("name", METHODS)
async def test_every_call_hands_on_its_answer_and_is_measured(
    name: str, autojump_clock: MockClock
) -> None:
    case = Case()
    async with case.running():
        answer = await getattr(case.runtime, name)(*arguments(METHODS[name]))
        assert answer in (name, None)
    assert sum(value for _, value in case.meter.counters("kubelet_runtime_operations_total")) == 1


async def test_who_is_cancelled_waits_for_a_start_to_end(autojump_clock: MockClock) -> None:
    case = Case()
    async with case.running():
        with trio.move_on_after(1):
            await case.runtime.start_container(C)
        assert trio.current_time() == 2


async def test_a_stop_is_left_at_once_and_a_shorter_one_made_beside_it(
    autojump_clock: MockClock,
) -> None:
    case = Case()
    async with case.running():
        with trio.move_on_after(1):
            await case.runtime.stop_container(C, 30)
        assert not case.runtime.is_stopping(C)  # the call goes on, and nobody waits for it
        assert trio.current_time() == 1
        await case.runtime.stop_container(C, 1)
        assert case.below.done == ["stop_container"] * 2


async def test_a_stop_is_under_way_as_long_as_its_caller_waits(autojump_clock: MockClock) -> None:
    case = Case()
    async with case.running(), trio.open_nursery() as nursery:
        nursery.start_soon(case.runtime.stop_container, C, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert case.runtime.is_stopping(C)
        assert not case.runtime.is_stopping(ContainerId("other"))
    assert not case.runtime.is_stopping(C)


async def test_nothing_is_begun_for_who_is_cancelled_already(autojump_clock: MockClock) -> None:
    case = Case()
    async with case.running():
        with trio.CancelScope() as asker:
            asker.cancel()
            await case.runtime.start_container(C)
        assert not case.below.begun


async def test_a_call_that_hangs_and_nobody_wants_is_given_up_in_the_end(
    autojump_clock: MockClock,
) -> None:
    case = Case()
    case.below.takes = 10_000
    async with case.running():
        with trio.move_on_after(1):
            await case.runtime.create_container(*arguments(METHODS["create_container"]))
        assert trio.current_time() == 61


async def test_an_agent_that_ends_waits_some_seconds_only(autojump_clock: MockClock) -> None:
    case = Case()
    case.below.takes = 10_000
    async with case.running():
        with trio.move_on_after(1):
            await case.runtime.exec_sync(C, ["sleep"], 0)
        assert [node.name for node in case.calls.tree().children] == ["exec_sync@c"]
    assert trio.current_time() == 6


async def test_who_waits_when_the_agent_ends_is_let_go_as_soon(autojump_clock: MockClock) -> None:
    case = Case()
    case.below.takes = 10_000
    async with case.running(), trio.open_nursery() as nursery:
        asker = trio.CancelScope()

        async def ask() -> None:
            with asker:
                await case.runtime.start_container(C)

        nursery.start_soon(ask)
        await trio.sleep(1)
        case.calls.hurry()
        asker.cancel()
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.deadline = trio.current_time() + 100
    assert trio.current_time() == 6


async def test_a_call_that_is_wanted_is_not_hurried(autojump_clock: MockClock) -> None:
    case = Case()
    case.below.takes = 20
    async with case.running():
        case.calls.hurry()
        await case.runtime.start_container(C)
    assert case.below.done == ["start_container"]


async def test_once_the_agent_has_ended_nothing_is_begun(autojump_clock: MockClock) -> None:
    case = Case()
    async with case.running():
        await case.runtime.start_container(C)
    with pytest.raises(RuntimeUnavailableError):
        await case.runtime.start_container(C)
    assert len(case.below.begun) == 1


async def test_a_failure_reaches_who_asked(autojump_clock: MockClock) -> None:
    case = Case()
    case.below.error = RuntimeCallError("StartContainer", "no")
    async with case.running():
        with pytest.raises(RuntimeCallError, match="no"):
            await case.runtime.start_container(C)
        with trio.move_on_after(1):  # nobody is there to hear of this one
            await case.runtime.stop_container(C, 0)
        await trio.sleep(5)


async def test_a_bug_is_not_lost_with_the_asker(autojump_clock: MockClock) -> None:
    case = Case()
    case.below.error = ValueError("a bug")
    with pytest.RaisesGroup(pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug"))):
        async with case.running():
            with trio.move_on_after(1):
                await case.runtime.stop_container(C, 0)
            await trio.sleep(5)


def test_messages_of_a_request_are_made_from_nothing() -> None:
    assert arguments(METHODS["image_status"]) == [v1.ImageSpec()]


async def test_what_is_logged_in_a_call_names_the_pod_of_its_asker(
    autojump_clock: MockClock,
) -> None:
    """Although the call is carried out in a task of `runtime/calls`, and outlives who asked."""
    case, told = Case(), list[object]()

    class Told(list[str]):
        def append(self, name: str) -> None:
            told.append(structlog.contextvars.get_contextvars().get("pod"))

    case.below.begun, case.below.done = Told(), Told()
    async with case.running():
        with structlog.contextvars.bound_contextvars(pod="prod/web"), trio.move_on_after(1):
            await case.runtime.stop_container(C, 30)
        await trio.sleep(5)
    assert told == ["prod/web", "prod/web"]
