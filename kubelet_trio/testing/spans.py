"""A receiver of spans that keeps them, for tests of what is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class FakeReceiver:
    """A receiver of OTLP, in memory.

    Attributes:
        spans: what has arrived, in the order in which the spans ended.
        away: the error of every request while it cannot be reached; "": it is there.
        refuses: the names of spans that it does not take.
        latency: seconds that a request takes.
    """

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.away = ""
        self.refuses: frozenset[str] = frozenset()
        self.latency = 0.0
        self.requests = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be there until cancelled."""
        task_status.started()
        await trio.sleep_forever()

    async def export(self, spans: Sequence[ReadableSpan]) -> tuple[int, str]:
        """Take spans. Raises `ExportError` while it is away."""
        from kubelet_trio.tracing import ExportError

        self.requests += 1
        await trio.sleep(self.latency)
        if self.away:
            raise ExportError(self.away, is_temporary=True)
        taken = [span for span in spans if span.name not in self.refuses]
        self.spans += taken
        refused = len(spans) - len(taken)
        return refused, "refused by name" if refused else ""
