"""What each pod keeps standing: two tasks, and nothing that most pods have no use for."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import trio
from trio.testing import MockClock

from tests.agent.node import Node, make_pod, ready


def _standing() -> Counter[str]:
    gc.collect()
    found = Counter(f"{type(one).__module__}.{type(one).__name__}" for one in gc.get_objects())
    found["tasks"] = _tasks()
    return found


def _tasks() -> int:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    left, count = [root], 0
    while left:
        task = left.pop()
        count += 1
        for nursery in task.child_nurseries:
            left.extend(nursery.child_tasks)
    return count


async def test_a_running_pod_keeps_two_tasks_and_few_events(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    pods = [make_pod(f"pod-{number}") for number in range(12)]

    async def settle(count: int) -> Counter[str]:
        node.feed.put(*pods[:count])
        await trio.sleep(60)
        assert all(ready(node.status(pod)) for pod in pods[:count])
        return _standing()

    async with node.running(pods[0], pods[1]):
        before = await settle(2)
        after = await settle(12)
    each = {name: (after[name] - before[name]) / 10 for name in after}
    assert each["tasks"] == 2  # its worker, and the watcher of its container's process
    assert each["trio._core._run.CancelStatus"] <= 8  # of scopes that are entered
    assert each["trio.Event"] <= 5
    assert each.get("trio_util._async_value.AsyncValue", 0.0) == 0
