"""Records agents on a fake node, as the flight recorder does on a real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.cli.why import why_lines
from kubelet_trio.model import pod_uid
from kubelet_trio.recorder import Entry, read_entries, segment_contents, write_recording
from kubelet_trio.replay.blocking import ReplayOffload
from kubelet_trio.testing import FakeMounter
from tests.agent.node import Node

SIZE = 8 << 20  # bytes of the ring

# What happens to an agent.
Story = Callable[[Node, Agent], Awaitable[None]]


def record(node: Node, story: Story, *, size: int = SIZE, **told: Any) -> Path:
    """Let something happen to an agent, and return the packed recording.

    `told` are further fields of its settings.
    """

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            if isinstance(node.mounter, HangingMounter):
                nursery.start_soon(node.mounter.run)
            async with node.running(recorder_size=size, **told) as agent:
                await story(node, agent)
                agent.stop()
                await trio.sleep(5)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    path = node.base / "node.rec"
    write_recording(path, entries_of(node))
    return path


def entries_of(node: Node) -> list[Entry]:
    """Return all entries of a node's ring."""
    segments = segment_contents(node.base / "root" / "recorder")
    return [each for path, data in segments for each in read_entries(data, str(path))]


def screen(agent: Agent, pod: Pod) -> list[str]:
    """Return what `why` says of a pod, on its one screen."""
    found = agent.why(pod_uid(pod))
    assert found is not None
    lines = why_lines(msgspec.json.decode(msgspec.json.encode(found)), 100)
    assert len(lines) <= 24
    return lines


class HangingMounter(FakeMounter):
    """Mounts of NFS hang until `well` is set, in virtual time; use `offload` for blocking work."""

    def __init__(self) -> None:
        super().__init__()
        self.well = trio.Event()
        self._threads = ReplayOffload(threads=True)
        self.offload = self._threads

    async def run(self) -> None:
        """Keep the clock while a thread works."""
        await self._threads.hold_clock()

    def mount_nfs(self, source: str, target: Path, options: Any = ()) -> None:
        waited = 0
        while not self.well.is_set():
            waited += 1
            self._threads.wait(float(waited))  # virtual seconds
        super().mount_nfs(source, target, options)
