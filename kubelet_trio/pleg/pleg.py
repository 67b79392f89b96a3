"""The pod lifecycle event generator (PLEG).

It combines exit watchers, the runtime's events and the relist, which finds what the other two
miss, and owns the cache of pod snapshots. When a snapshot changes, the pod's worker is woken and
reads the cache. A lost event costs time, never correctness.

`run` fails only because of a bug. It may be run again: the state is kept, watches are reopened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

import trio

from kubelet_trio.cri import Runtime
from kubelet_trio.durations import format_duration
from kubelet_trio.model import (
    NOTHING,
    ContainerId,
    ContainerRecord,
    Meter,
    PodKey,
    PodUid,
    RuntimePod,
    SandboxId,
    SystemClock,
    WallClock,
)
from kubelet_trio.pleg.cache import PodStatusCache
from kubelet_trio.pleg.evented import EventListener
from kubelet_trio.pleg.exits import ExitWaiter, ExitWatchers
from kubelet_trio.pleg.inspector import Inspector, Owns
from kubelet_trio.pleg.relist import SHORT_PERIOD, UNHEALTHY_AFTER, Relister
from kubelet_trio.pleg.state import PlegState

RELIST_PERIOD = 10.0  # s


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
        clock: WallClock | None = None,
        recovered: Callable[[], None] = lambda: None,
        is_stopping: Callable[[ContainerId], bool] = lambda _id: False,
    ) -> None:
        """Take what is needed to watch.

        Args:
            runtime: the container runtime.
            wake: called with each pod whose snapshot changed, whether the agent knows the pod or
                not; not for changes that the pod's worker finds itself by `refresh`.
            exit_waiter: watches processes; None if that is impossible.
            relist_period: s between relists while exit watchers or events report every exit;
                otherwise it is 1 s (or this, if less).
            events: whether to listen to the runtime's events.
            owns: whether a sandbox or container with these annotations belongs to this agent.
                Others are ignored: neither watched nor stopped.
            meter: receives metrics of relists and events.
            clock: tells how old events are; None: the system's.
            recovered: called after the first relist of all, and after the first one since
                `problem` reported a problem.
            is_stopping: whether a call is under way that stops a container.
        """
        self.cache = PodStatusCache()
        self._relist_period = relist_period
        self._events = events
        # The parts need each other: the state reports to watchers and relister through methods of
        # this class, which run only once all parts are made.
        self._state = PlegState(
            self.cache, on_change=wake, on_records=self._watch_pod, on_dirty=self._recheck
        )
        self._watchers = ExitWatchers(exit_waiter, self._state, self._recheck, is_stopping)
        self._inspector = Inspector(runtime, self._state, self._watchers.is_guarded, owns)
        parts = runtime, self._state, self._inspector
        self._relister = Relister(*parts, self._period, owns, meter=meter, on_recovered=recovered)
        self._listener = EventListener(
            *parts,
            is_guarded=self._watchers.is_guarded,
            relist_soon=self._relister.relist_soon,
            on_live=self._recheck,
            meter=meter,
            clock=clock or SystemClock(),
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled. Ready at once: a runtime that is down is no failure."""
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
        """Return whether the pod's worker may act on the result of `get`.

        It may not after a failed refresh: the result of the worker's last call is unknown then,
        and a plan made from the old snapshot would repeat that call. A relist resolves this within
        a second after the runtime is back, and wakes the worker.
        """
        return not self._state.is_dirty(uid)

    def refresh_error(self, uid: PodUid) -> str:
        """Return the runtime's error that makes a pod uncertain; "" if there is none."""
        return self._state.error(uid)

    def namesakes(self, key: PodKey, uid: PodUid) -> frozenset[PodUid]:
        """Return the other pods (UIDs) of a name that have something running, or may have."""
        return frozenset(self._state.namesakes(key, uid)) or NOTHING

    def is_synced(self, uid: PodUid) -> bool:
        """Return whether `wait_synced` would return at once."""
        return self.cache.is_synced(uid)

    async def wait_synced(self, uid: PodUid | None = None) -> None:
        """Wait for the first relist since the start.

        With a `uid`, also wait for that pod's first complete snapshot: only then act on `get`.
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
        """Query a pod now and return its snapshot; called by the pod's worker.

        With ids, query those objects, and others of the pod whose changes no watcher would report.
        Without ids, query all objects that may still change.

        Args:
            uid: the pod.
            sandboxes: those that the caller has just created or stopped.
            containers: those that the caller has just created, started or stopped.
            removed: objects that the caller has removed; they are not queried. A sandbox includes
                its containers.
            listing: list the pod's objects first. For a caller that does not know the result of
                its own last call, because it failed, was cancelled or lost its reply.

        Raises:
            RuntimeCallError: the runtime did not answer. Do not act on the cached snapshot then:
                see `is_certain`.
        """
        return await self._inspector.refresh(
            uid, sandboxes=sandboxes, containers=containers, removed=removed, listing=listing
        )

    def relist_soon(self) -> None:
        """Relist now, for instance because the runtime is back."""
        self._relister.relist_soon()

    def find(self, uid: PodUid, container_id: ContainerId) -> ContainerRecord | None:
        """Return the record of a pod's container; None if it is not in the runtime."""
        return next((c for c in self.get(uid).containers if c.id == container_id), None)

    def running_pods(self) -> Iterator[RuntimePod]:
        """Yield the snapshots of the pods with a running container or a ready sandbox."""
        for uid in sorted(self.known_uids):
            pod = self.get(uid)
            if any(pod.running()) or any(sandbox.ready for sandbox in pod.sandboxes):
                yield pod

    @property
    def known_uids(self) -> Set[PodUid]:
        """All pods with an object in the runtime, also those whose status is not known yet.

        A view: it shows what changes later.
        """
        return self._state.known_uids

    @property
    def watched(self) -> int:
        """The number of containers with an exit watcher."""
        return self._watchers.count

    @property
    def relisted_at(self) -> float | None:
        """The Trio time of the last successful relist."""
        return self._relister.relisted_at

    def problem(self, now: float) -> str | None:
        """Return why the PLEG is not healthy at `now` (Trio time); None if it is."""
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

    def _watch_pod(self, uid: PodUid) -> None:
        self._watchers.look_at(uid)
