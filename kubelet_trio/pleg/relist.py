"""The relist: it lists all sandboxes and containers periodically, and queries what changed.

It finds the changes that exit watchers and events miss. List entries that did not change are the
same objects as in the last answer, so an idle relist only compares identities. Changed pods are
queried in tasks that the relist does not wait for: a status call that hangs delays its own pod
only, which is not queried again meanwhile. A pod with a failed query is queried again by the next
relist, within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from kubelet_trio.containers import PodIdentity, pod_identity
from kubelet_trio.cri import Listing, Runtime, RuntimeCallError, v1
from kubelet_trio.model import Bell, Meter, PodUid, Slices, get_logger, next_due, pod_fields
from kubelet_trio.pleg.inspector import Inspector, Owns, observe_query
from kubelet_trio.pleg.state import PlegState
from kubelet_trio.pleg.table import PodListing, Queries, Ticket

log = get_logger()

Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")

SHORT_PERIOD = 1.0  # s
# Between two checkpoints: pods compared, and list entries sorted by pod. A few ms each.
_COMPARED, _SORTED = 20, 500
UNHEALTHY_AFTER = 180.0  # pkg/kubelet/kubelet.go, genericPlegRelistThreshold


@dataclass(slots=True)
class _PodEntries:
    """The list entries of one pod."""

    identity: PodIdentity
    sandboxes: dict[str, v1.PodSandbox] = field(default_factory=dict)
    containers: dict[str, v1.Container] = field(default_factory=dict)


class Relister:
    """Lists the runtime's objects periodically."""

    def __init__(
        self,
        runtime: Runtime,
        state: PlegState,
        inspector: Inspector,
        period: Callable[[], float],
        owns: Owns,
        *,
        meter: Meter | None,
        on_recovered: Callable[[], None],
    ) -> None:
        """Take what is needed to relist.

        Args:
            runtime: the container runtime.
            state: receives the answers.
            inspector: queries what changed.
            period: returns the s between relists without failures; called again after `recheck`.
            owns: whether an object with these annotations belongs to this agent.
            meter: receives durations and intervals of relists.
            on_recovered: called after the first success of all, and after the first one since
                `UNHEALTHY_AFTER` without one.
        """
        self._runtime = runtime
        self._state = state
        self._inspector = inspector
        self._period = period
        self._owns = owns
        self._sandboxes: Listing[v1.PodSandbox] | None = None
        self._containers: Listing[v1.Container] | None = None
        self._failing = False
        self._wanted_now = False
        self._recheck = Bell()
        self.relisted_at: float | None = None  # Trio time of the last success
        self._on_recovered = on_recovered
        self._meter = meter
        self._began_at: float | None = None  # Trio time at which the last relist began

    def relist_soon(self) -> None:
        """Relist without waiting for the period to pass."""
        self._wanted_now = True
        self._recheck.ring()

    def recheck(self) -> None:
        """Evaluate the period again: it may have become shorter."""
        self._recheck.ring()

    async def run(self) -> None:
        """Relist until cancelled, the first time at once."""
        self._state.must_compare = True
        async with trio.open_nursery() as inspections:
            while True:
                await self._relist(inspections)
                await self._wait_due()

    async def _wait_due(self) -> None:
        last = trio.current_time()
        while not self._wanted_now:
            with trio.move_on_at(self._due(last)) as waited:
                await self._recheck.wait_ring()
            if waited.cancelled_caught:
                break
        self._wanted_now = False

    def _due(self, last: float) -> float:
        """Return when to relist, given the end of the last one."""
        period, soon = self._period(), last + SHORT_PERIOD
        if self._failing or self._state.dirty or period <= SHORT_PERIOD:
            return min(soon, last + period)
        # Not at once, if the runtime took nearly the whole period to answer.
        return max(soon, next_due(period, after=last))

    async def _relist(self, inspections: trio.Nursery) -> None:
        if self._meter is not None:
            self._observe_interval(self._meter, trio.current_time())
        asked_at, sandboxes_asked = trio.current_time(), self._state.ticket()
        try:
            sandboxes = await self._runtime.list_pod_sandboxes(self._sandboxes)
            containers_asked = self._state.ticket()
            containers = await self._runtime.list_containers(self._containers)
        except RuntimeCallError as exc:
            if not self._failing:  # once per outage, not once per second
                log.warning("pleg.relist_failed", error=str(exc))
            self._failing = True
            return
        self._failing = False
        same = _same(self._sandboxes, sandboxes) and _same(self._containers, containers)
        self._sandboxes, self._containers = sandboxes, containers
        if not same or self._state.must_compare or self._state.dirty:
            await self._compare(sandboxes_asked, containers_asked, asked_at, inspections)
        self._state.forget_gone(before=sandboxes_asked)
        # Health counts from the end of a relist, snapshots are only as new as its beginning.
        before, self.relisted_at = self.relisted_at, trio.current_time()
        if self._meter is not None:
            took = self.relisted_at - asked_at
            self._meter.observe("kubelet_pleg_relist_duration_seconds", took)
        self._state.cache.relisted(asked_at)
        if before is None or self.relisted_at - before > UNHEALTHY_AFTER:
            self._on_recovered()

    def _observe_interval(self, meter: Meter, now: float) -> None:
        if self._began_at is not None:
            meter.observe("kubelet_pleg_relist_interval_seconds", now - self._began_at)
        self._began_at = now

    async def _compare(
        self,
        sandboxes_asked: Ticket,
        containers_asked: Ticket,
        asked_at: float,
        inspections: trio.Nursery,
    ) -> None:
        """Apply the lists pod by pod, and start queries for pods that changed."""
        assert self._sandboxes is not None
        assert self._containers is not None
        self._state.must_compare = False  # what changes from here on asks for another
        listed = await _by_pod(self._sandboxes, self._containers, self._owns)
        slices = Slices(_COMPARED)
        for uid in dict.fromkeys((*listed, *self._state.tables, *self._state.dirty)):
            await slices.step()
            entries = listed.get(uid) or _PodEntries(PodIdentity(uid, "", ""))
            listing = PodListing(
                entries.sandboxes, entries.containers, sandboxes_asked, containers_asked
            )
            if self._state.is_inspected(uid):
                # Its queries are in flight. The next relist must look at it again.
                self._state.must_compare = True
                continue
            queries = self._state.apply(uid, listing, entries.identity)
            if queries:
                self._state.begin_inspection(uid)
                identity = self._state.tables[uid].identity
                inspections.start_soon(
                    self._inspect, identity, queries, listing, asked_at, name=f"inspect {uid}"
                )
            else:
                self._conclude(uid, listing, asked_at)

    async def _inspect(
        self, identity: PodIdentity, queries: Queries, listing: PodListing, asked_at: float
    ) -> None:
        uid = identity.uid
        try:
            began = trio.current_time()
            errors = await self._inspector.ask(uid, queries)
            observe_query(self._meter, began)
        finally:
            self._state.end_inspection(uid)
        if errors:
            if errors[0].go_text != self._state.error(uid):  # it is tried again every second
                log.warning(
                    "pleg.inspect_failed",
                    **pod_fields(identity.namespace, identity.name, uid),
                    error=str(errors[0]),
                )
            self._state.mark_dirty(uid, errors[0])
            self._state.publish(uid)
        else:
            self._conclude(uid, listing, asked_at)

    def _conclude(self, uid: PodUid, listing: PodListing, asked_at: float) -> None:
        """Publish a pod whose queries are answered, as new unless a later query failed."""
        cleaned = self._state.mark_clean(uid, listing.sandboxes_asked)
        if not self._state.matches(uid, listing):
            self._state.must_compare = True
        self._state.publish(uid, None if self._state.is_dirty(uid) else asked_at)
        if cleaned:
            # Even if the snapshot did not change: its worker waits until the pod is certain.
            self._state.on_change(uid)


def _same(before: Listing[Entry] | None, after: Listing[Entry]) -> bool:
    """Return whether two listings hold the same entry objects."""
    if before is None or len(before.entries) != len(after.entries):
        return False
    known = before.entries
    return all(known.get(key) is entry for key, entry in after.entries.items())


async def _by_pod(
    sandboxes: Iterable[v1.PodSandbox], containers: Iterable[v1.Container], owns: Owns
) -> dict[PodUid, _PodEntries]:
    """Return the entries by pod UID, without those that lack pod labels or are not ours."""
    pods: dict[PodUid, _PodEntries] = {}
    slices = Slices(_SORTED)
    for sandbox in sandboxes:
        await slices.step()
        identity = pod_identity(sandbox.labels)
        if identity and owns(sandbox.annotations):
            pods.setdefault(identity.uid, _PodEntries(identity)).sandboxes[sandbox.id] = sandbox
    for container in containers:
        await slices.step()
        identity = pod_identity(container.labels)
        if identity and owns(container.annotations):
            pods.setdefault(identity.uid, _PodEntries(identity)).containers[container.id] = (
                container
            )
    return pods
