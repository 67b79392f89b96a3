"""The end of the daemon, with threads that hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.config import parse_flags, settle
from kubelet_trio.daemon.run import _STOP_LIMIT, _run
from kubelet_trio.model import Purpose, thread_offload
from kubelet_trio.supervision import ChildSpec, Supervisor


@pytest.fixture
def clock() -> MockClock:
    """Time that passes a hundred times as fast: the autojump clock knows of no threads."""
    return MockClock(rate=100)


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


IGNORED = trio.TASK_STATUS_IGNORED


class Agent:
    """An agent with one child, which waits for a thread."""

    def __init__(self, purpose: Purpose, hang: threading.Event) -> None:
        self._purpose, self._hang = purpose, hang
        self._root = Supervisor("kubelet", [ChildSpec("room", self._room)])
        self.settings = SimpleNamespace(node=SimpleNamespace(node_name="node"))

    async def _room(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await thread_offload.of(self._purpose)(self._hang.wait, 30)
        await trio.sleep_forever()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self._root.run(task_status=task_status)

    def stop(self) -> None:
        self._root.stop()

    def check_functions(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("purpose", Purpose)
async def test_a_thread_that_hangs_does_not_hold_up_the_end(
    purpose: Purpose, hang: threading.Event, clock: MockClock, tmp_path: Path
) -> None:
    stop = trio.Event()
    agent: Any = Agent(purpose, hang)
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            assert (
                await _run(agent, None, settle(parse_flags([])), stop, trio.Event(), IGNORED) == 0
            )

        nursery.start_soon(run)
        await trio.sleep(10)
        stop.set()
        nursery.cancel_scope.deadline = trio.current_time() + _STOP_LIMIT + 20
    assert not nursery.cancel_scope.cancelled_caught


async def test_without_such_a_thread_it_ends_at_once(
    hang: threading.Event, autojump_clock: MockClock
) -> None:
    stop = trio.Event()
    stop.set()
    hang.set()
    agent: Any = Agent(Purpose.SIGNALS, hang)
    with trio.fail_after(10):
        assert await _run(agent, None, settle(parse_flags([])), stop, trio.Event(), IGNORED) == 0
    assert trio.current_time() < _STOP_LIMIT
