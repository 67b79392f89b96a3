"""What health endpoints ask of the agent: is what keeps its pods going well?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from trio_util import AsyncValue

from kubelet_trio.cri import RuntimeState
from kubelet_trio.pleg import Pleg
from kubelet_trio.supervision import ChildState, DynamicSupervisor, Supervisor

_LEAST = 300.0  # seconds without a turn that are never too long


def check_functions(
    runtime: AsyncValue[RuntimeState], pleg: Pleg, sync_loop: SyncLoop
) -> dict[str, Callable[[], str | None]]:
    """Return the checks by name; each returns None while it is well, else why it is not."""
    return {
        "syncloop": sync_loop.problem,
        "pleg": lambda: pleg.healthy(trio.current_time()),
        "runtime": lambda: runtime.value.problem or None,
        "network": lambda: runtime.value.network_problem or None,
    }


@dataclass(slots=True)
class SyncLoop:
    """Tells when what dispatches to the pods' workers does not run, or takes no turns.

    The merge of the sources takes a turn at each delivery and every `sync_period` seconds.

    Source: syncLoopHealthCheck in pkg/kubelet/server/server.go.
    """

    sync_period: float
    pods: DynamicSupervisor
    sources: Supervisor
    _turned: float | None = field(default=None)

    def turn(self) -> None:
        """Note a turn of the merge."""
        self._turned = trio.current_time()

    def problem(self) -> str | None:
        """Return what is wrong, None while nothing is."""
        for part in (self.pods.tree(), *self.sources.tree().children):
            if part.name in ("pods", "merge") and part.state is not ChildState.RUNNING:
                return f"{part.name} is {part.state.value}"
        return overdue(self._turned, trio.current_time(), self.sync_period)


def overdue(turned: float | None, now: float, sync_period: float) -> str | None:
    """Return why the last turn is too long ago, None if it is not or there was none yet."""
    limit = max(2 * sync_period, _LEAST)
    if turned is None or now - turned <= limit:
        return None
    return f"the sources were last merged {now - turned:.0f} s ago, more than {limit:.0f} s"
