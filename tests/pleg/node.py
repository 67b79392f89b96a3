"""A runtime and a PLEG on it, for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from kubelet_trio.model import ContainerId, ContainerState, Meter, PodUid
from kubelet_trio.pleg import ExitWaiter, Pleg
from kubelet_trio.testing import FakeRuntime

WEB = PodUid("web-uid")
OTHER = PodUid("other-uid")


@dataclass
class Watched:
    """A runtime under watch, and the wake-ups that came of it: (trio time, UID)."""

    runtime: FakeRuntime
    pleg: Pleg
    wakes: list[tuple[float, PodUid]] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)  # trio times
    meter: Meter = field(default_factory=Meter)

    def state(self, container_id: ContainerId, uid: PodUid = WEB) -> ContainerState | None:
        """Return what the cache says of a container, None if nothing."""
        containers = self.pleg.cache.get(uid).containers
        return next((c.state for c in containers if c.id == container_id), None)

    def woken_at(self, uid: PodUid = WEB) -> float | None:
        """Return when the last wake-up of a pod came, and forget all of them."""
        times = [when for when, woken in self.wakes if woken == uid]
        self.wakes.clear()
        return times[-1] if times else None


@asynccontextmanager
async def watched(
    runtime: FakeRuntime,
    *,
    waiter: ExitWaiter | bool | None = True,
    relist_period: float = 10.0,
    is_stopping: Callable[[ContainerId], bool] = lambda _id: False,
) -> AsyncIterator[Watched]:
    """Run a PLEG on a runtime; `waiter` True is the runtime's own fake of pidfds."""
    wakes: list[tuple[float, PodUid]] = []
    recoveries: list[float] = []
    meter = Meter()
    pleg = Pleg(
        runtime,
        wake=lambda uid: wakes.append((trio.current_time(), uid)),
        exit_waiter=runtime.exit_waiter if waiter is True else waiter or None,
        relist_period=relist_period,
        meter=meter,
        recovered=lambda: recoveries.append(trio.current_time()),
        is_stopping=is_stopping,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(pleg.run)
        yield Watched(runtime, pleg, wakes, recoveries, meter)
        nursery.cancel_scope.cancel()
    assert runtime.exit_waiter.open_watches == 0
