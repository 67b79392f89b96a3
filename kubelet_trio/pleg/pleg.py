"""The pod lifecycle event generator: knows at once what happens in the runtime.

It puts together the exit watchers, the runtime's events and the relist below both, and
owns the cache that everyone reads. A pod whose snapshot changed is woken; what changed is
for its worker to see in the cache. Losing an event costs time, never correctness.

`run` fails only by a bug, and may then be run again: what was learnt is kept, watches are
opened anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import trio

from kubelet_trio.cri import Runtime
from kubelet_trio.durations import format_duration
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    Meter,
    PodKey,
    PodUid,
    RuntimePod,
    SandboxId,
)
from kubelet_trio.pleg.book import Book
from kubelet_trio.pleg.cache import PodStatusCache
from kubelet_trio.pleg.evented import EventListener
from kubelet_trio.pleg.exits import ExitWaiter
from kubelet_trio.pleg.inspector import Inspector, Owns
from kubelet_trio.pleg.relist import SHORT_PERIOD, UNHEALTHY_AFTER, Relister
from kubelet_trio.pleg.watch import ExitWatchers

RELIST_PERIOD = 10.0


class Pleg:
    """Watches the runtime and keeps `cache` true."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        wake: Callable[[PodUid], None],
        exit_waiter: ExitWaiter | None,
        relist_period: float = RELIST_PERIOD,
        events: bool = True,
        owns: Owns = lambda _annotations: True,
        meter: Meter | None = None,
        recovered: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the seams.

        Args:
            runtime: the container runtime.
            wake: told of each pod whose snapshot changed, known to the agent or not; not
                of changes that the pod's worker found itself, by `refresh`.
            exit_waiter: watches processes; None where that is impossible.
            relist_period: s between relists while every exit would be noticed without
                them; it is 1 s (or this, if less) otherwise.
            events: whether to ask for the runtime's events.
            owns: tells by a sandbox's or container's annotations whether it is this
                agent's. What is not does not exist here: it is neither watched nor ended.
            meter: told of relists, and of the runtime's events.
            recovered: called when the runtime was listed after so long that `healthy` denied it.
        """
        self.cache = PodStatusCache()
        self._relist_period = relist_period
        self._events = events
        self._book = Book(self.cache)
        self._watchers = ExitWatchers(exit_waiter, self._book, self._recheck)
        self._inspector = Inspector(runtime, self._book, self._watchers.is_guarded, owns)
        self._relister = Relister(runtime, self._book, self._inspector, self._period, owns)
        self._relister.meter = meter
        self._relister.on_recovered = recovered
        self._listener = EventListener(
            runtime,
            self._book,
            self._inspector,
            is_guarded=self._watchers.is_guarded,
            relist_soon=self._relister.relist_soon,
            on_live=self._recheck,
        )
        self._listener.meter = meter
        self._book.on_change = wake
        self._book.on_dirty = self._recheck
        self._book.on_records = self._watchers.look_at

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch for ever. Ready at once: a runtime that is down is no failure."""
        async with trio.open_nursery() as parts:
            parts.start_soon(self._watchers.run, self._inspector, name="exit watchers")
            if self._events:
                parts.start_soon(self._listener.run, name="runtime events")
            parts.start_soon(self._relister.run, name="relist")
            task_status.started()

    def get(self, uid: PodUid) -> RuntimePod:
        """Return the newest snapshot of a pod; see `PodStatusCache.get`."""
        return self.cache.get(uid)

    def is_certain(self, uid: PodUid) -> bool:
        """Whether `get` may be acted upon.

        It may not after a refresh that failed: what the worker's last call left behind is not
        known then, and a plan made from the old snapshot would do it again. The relist that
        clears it up comes within a second of the runtime's return, and wakes the pod.
        """
        return not self._book.is_dirty(uid)

    def trouble(self, uid: PodUid) -> str:
        """Return the runtime's error for which a pod is uncertain; "" if there is none."""
        return self._book.trouble(uid)

    def namesakes(self, key: PodKey, uid: PodUid) -> frozenset[PodUid]:
        """Return the pods of a name, but of another UID, of which something runs, or may."""
        return frozenset(self._book.namesakes(key, uid))

    async def wait_synced(self, uid: PodUid | None = None) -> None:
        """Wait until the runtime was listed once since the start.

        With a `uid`, also until what it holds of that pod is known in full: only then may
        `get` be acted upon.
        """
        await self.cache.wait_synced(uid)

    async def refresh(
        self,
        uid: PodUid,
        *,
        sandboxes: Iterable[SandboxId] = (),
        containers: Iterable[ContainerId] = (),
        removed: Iterable[SandboxId | ContainerId] = (),
        listing: bool = False,
    ) -> RuntimePod:
        """Ask about a pod now and return its snapshot; called by the pod's worker.

        With ids: asks about those, and about whatever else of the pod would change
        unnoticed. Without any: about all that may still change.

        Args:
            uid: the pod.
            sandboxes: those the caller has just made or stopped.
            containers: those the caller has just made, started or stopped.
            removed: what the caller has removed; it is not asked about. A sandbox takes
                its containers along.
            listing: list the pod's objects afresh. For a caller that does not know what
                its own last act left behind: a call failed, was cancelled, lost its reply.

        Raises:
            RuntimeCallError: the runtime did not answer. The snapshot in the cache is then
                not to be acted upon: see `is_certain`.
        """
        return await self._inspector.refresh(
            uid, sandboxes=sandboxes, containers=containers, removed=removed, listing=listing
        )

    def relist_soon(self) -> None:
        """Relist now, e.g. because the runtime is back."""
        self._relister.relist_soon()

    def find(self, uid: PodUid, container_id: ContainerId) -> ContainerRecord | None:
        """Return what the runtime holds of a pod's container, as last seen."""
        return next((c for c in self.get(uid).containers if c.id == container_id), None)

    def running_pods(self) -> Iterator[RuntimePod]:
        """Yield what the runtime holds of each pod of which something runs."""
        for uid in sorted(self.known_uids):
            pod = self.get(uid)
            if any(pod.running()) or any(sandbox.ready for sandbox in pod.sandboxes):
                yield pod

    @property
    def known_uids(self) -> frozenset[PodUid]:
        """Every pod that something is left of in the runtime, inspected yet or not."""
        return frozenset(uid for uid, table in self._book.tables.items() if table)

    @property
    def watched(self) -> int:
        """How many containers have an exit watcher."""
        return self._watchers.count

    @property
    def relisted_at(self) -> float | None:
        """When the runtime was last listed (trio time)."""
        return self._relister.relisted_at

    def healthy(self, now: float) -> str | None:
        """Return why the PLEG is not healthy at `now` (trio time), None if it is."""
        last = self._relister.relisted_at
        if last is None:
            return "PLEG is not healthy: pleg has yet to be successful"
        if now - last <= UNHEALTHY_AFTER:
            return None
        idle = format_duration(int(now - last))
        return (
            f"PLEG is not healthy: pleg was last seen active {idle} ago; "
            f"threshold is {format_duration(int(UNHEALTHY_AFTER))}"
        )

    def _period(self) -> float:
        if self._listener.live or not self._watchers.has_unguarded():
            return self._relist_period
        return min(SHORT_PERIOD, self._relist_period)

    def _recheck(self) -> None:
        self._relister.recheck()
