"""Keeps the last hour of measurements for the node page: the child `history`.

It is idle until a page asks. A port that serves the page alone asks at its start, so its plots are
full when it is opened; the kubelet API's page asks with its first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from kubelet_trio.agent.settings import Seams
from kubelet_trio.agent.stats import AgentStats
from kubelet_trio.model import Purpose

if TYPE_CHECKING:
    from kubelet_trio.stats import History


class AgentHistory:
    """The last hour of one agent's node."""

    def __init__(self, stats: AgentStats, seams: Seams) -> None:
        self._stats = stats
        self._clock = seams.clock
        self._offload = seams.offload_for(Purpose.STATS)
        self._wanted = trio.Event()
        self._history: History | None = None

    def want(self) -> None:
        """Keep a history from now on. Never blocks."""
        self._wanted.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure periodically until cancelled; idle until `want`."""
        task_status.started()
        await self._wanted.wait()
        from kubelet_trio.stats import HISTORY_PERIOD, History  # loaded when a page is served

        if self._history is None:  # else it outlives a restart of this task
            self._history = History()
        while True:
            began = trio.current_time()
            summary = await self._stats.measure()
            self._history.add(self._clock.time(), summary)
            await trio.sleep_until(began + HISTORY_PERIOD)

    async def page(self, uid: str = "") -> bytes:
        """Return the JSON of `stats.Shown`: of the node and its pods, or of the pod `uid`."""
        self.want()
        if self._history is None:
            await trio.lowlevel.checkpoint()
            return b'{"period":10,"times":[],"pods":[]}'
        shown = self._history.shown(uid)
        return await self._offload(lambda: msgspec.json.encode(shown.page()))
