"""How often an idle agent wakes up, in virtual time: periodic work shares its moments.

A moment is a time at which some task takes a step: a wake-up of the process, since nothing here
takes any time. `bench/` counts those of a real daemon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.cgroups import CgroupHost, CgroupTree
from kubelet_trio.daemon.garbage import Collections, collect_when_quiet
from kubelet_trio.model import FileChange, WatchPoints, inline_offload
from kubelet_trio.pressure import Amount, EvictionPolicy, Threshold
from kubelet_trio.sources import FileSource
from tests.agent.node import Node, make_pod

P = ParamSpec("P")
T = TypeVar("T")
MINUTES = 3


class QuietWatcher:
    """A watcher of files that never change."""

    def watch(self, points: WatchPoints) -> bool:
        return False

    async def wait_changes(self) -> list[FileChange]:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    def close(self) -> None:
        pass


class Steps(trio.abc.Instrument):
    """Counts the moments, and the steps of each task by its name."""

    def __init__(self) -> None:
        self.moments = set[float]()
        self.steps = Counter[str]()
        self._test = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._test:
            return
        self.moments.add(trio.current_time())
        self.steps[task.name] += 1


class CountedThreads:
    """Work that would be done in threads, by the name of the function."""

    def __init__(self) -> None:
        self.calls = Counter[str]()

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.calls[getattr(fn, "__qualname__", str(fn))] += 1
        return await inline_offload(fn, *args, **kwargs)


@pytest.mark.parametrize("pods", [0, 30])
async def test_an_idle_agent_wakes_up_every_five_seconds_and_takes_few_threads(
    tmp_path: Path, autojump_clock: MockClock, pods: int
) -> None:
    node, steps = Node(tmp_path), Steps()
    node.offload = threads = CountedThreads()
    node.cgroup_tree = lambda driver: CgroupTree(CgroupHost(1), driver, threads)
    node.plugin_watcher = QuietWatcher
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    files = FileSource(manifests, "node", open_watcher=QuietWatcher, offload=threads)
    eviction = EvictionPolicy((Threshold("memory.available", Amount(1)),), local_storage=True)
    made = [make_pod(f"pod-{n}") for n in range(pods)]
    async with (
        node.running(*made, recorder_size=1 << 20, eviction=eviction),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(files.run)
        nursery.start_soon(collect_when_quiet, lambda: Collections(0, 0), lambda: None)
        await trio.sleep(123)
        threads.calls.clear()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(60 * MINUTES)
        trio.lowlevel.remove_instrument(steps)
        calls = Counter({name: count / MINUTES for name, count in threads.calls.items()})
        nursery.cancel_scope.cancel()
    assert {moment % 5 for moment in steps.moments} == {0.0}
    # Signals, plugins and manifests; then housekeeping, once each; with pods the sizes of logs.
    assert calls.total() <= 6 + 6 + 3 + 9 + (6 if pods else 0), calls
    assert calls["Writer.write"] == 0  # the flight recorder has nothing to write
    assert steps.steps.total() / MINUTES <= 200 + 3 * pods, steps.steps
