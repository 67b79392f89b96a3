"""The relist: the net below the exit watchers and the runtime's events.

Both lists are asked with the last answer in hand, and entries that did not change come
back as the same objects: an idle relist compares identities and does nothing else.
What changed is asked about pod by pod, in tasks that the relist does not wait for, so a
status call that hangs delays its own pod and no other; that pod is not asked about again
while the call is out. A pod about which a question failed is asked about again by the
next relist, which then comes within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from kubelet_trio.containers import PodIdentity, pod_identity
from kubelet_trio.cri import Listing, Runtime, RuntimeCallError, v1
from kubelet_trio.model import Bell, Meter, PodUid, get_logger
from kubelet_trio.pleg.book import Book
from kubelet_trio.pleg.inspector import Inspector, Owns
from kubelet_trio.pleg.table import Asks, PodListing, Ticket

log = get_logger()

Entry = TypeVar("Entry", "v1.PodSandbox", "v1.Container")

SHORT_PERIOD = 1.0
UNHEALTHY_AFTER = 180.0  # pkg/kubelet/kubelet.go, genericPlegRelistThreshold


@dataclass(slots=True)
class _PodEntries:
    """The entries of one pod while a listing is sorted by pod."""

    identity: PodIdentity
    sandboxes: dict[str, v1.PodSandbox] = field(default_factory=dict)
    containers: dict[str, v1.Container] = field(default_factory=dict)


class Relister:
    """Lists everything again and again."""

    def __init__(
        self,
        runtime: Runtime,
        book: Book,
        inspector: Inspector,
        period: Callable[[], float],
        owns: Owns,
    ) -> None:
        """Take what is needed to relist.

        Args:
            runtime: whom to ask.
            book: where the answers go.
            inspector: asks for what changed.
            period: s until the next relist if nothing went wrong, asked whenever `recheck`
                was called in between.
            owns: tells by an object's annotations whether it is this agent's at all.
        """
        self._runtime = runtime
        self._book = book
        self._inspector = inspector
        self._period = period
        self._owns = owns
        self._sandboxes: Listing[v1.PodSandbox] | None = None
        self._containers: Listing[v1.Container] | None = None
        self._failing = False
        self._wanted_now = False
        self._recheck = Bell()
        self.relisted_at: float | None = None  # trio time of the last success
        self.on_recovered: Callable[[], None] = lambda: None
        self.meter: Meter | None = None  # told how long relists take, and how often they are
        self._began_at: float | None = None

    def relist_soon(self) -> None:
        """Do not wait for the period to pass."""
        self._wanted_now = True
        self._recheck.ring()

    def recheck(self) -> None:
        """Take note that the period may have become shorter."""
        self._recheck.ring()

    async def run(self) -> None:
        """Relist for ever, the first time at once."""
        self._book.unsettled = True
        async with trio.open_nursery() as inspections:
            while True:
                await self._relist(inspections)
                await self._wait_due()

    async def _wait_due(self) -> None:
        last = trio.current_time()
        while not self._wanted_now:
            troubled = self._failing or bool(self._book.dirty)
            period = min(self._period(), SHORT_PERIOD) if troubled else self._period()
            with trio.move_on_at(last + period) as waited:
                await self._recheck.wait_ring()
            if waited.cancelled_caught:
                break
        self._wanted_now = False

    async def _relist(self, inspections: trio.Nursery) -> None:
        if self.meter is not None:
            self._tell_interval(self.meter, trio.current_time())
        asked_at, sandboxes_asked = trio.current_time(), self._book.ticket()
        try:
            sandboxes = await self._runtime.list_pod_sandboxes(self._sandboxes)
            containers_asked = self._book.ticket()
            containers = await self._runtime.list_containers(self._containers)
        except RuntimeCallError as exc:
            if not self._failing:
                log.warning("pleg.relist_failed", error=str(exc))
            self._failing = True
            return
        self._failing = False
        same = _same(self._sandboxes, sandboxes) and _same(self._containers, containers)
        self._sandboxes, self._containers = sandboxes, containers
        if not same or self._book.unsettled or self._book.dirty:
            self._compare(sandboxes_asked, containers_asked, asked_at, inspections)
        self._book.forget_gone(before=sandboxes_asked)
        before, self.relisted_at = self.relisted_at, trio.current_time()
        if before is not None and self.relisted_at - before > UNHEALTHY_AFTER:
            self.on_recovered()
        if self.meter is not None:
            took = self.relisted_at - asked_at
            self.meter.observe("kubelet_pleg_relist_duration_seconds", took)
        self._book.cache.relisted(asked_at)

    def _tell_interval(self, meter: Meter, now: float) -> None:
        if self._began_at is not None:
            meter.observe("kubelet_pleg_relist_interval_seconds", now - self._began_at)
        self._began_at = now

    def _compare(
        self,
        sandboxes_asked: Ticket,
        containers_asked: Ticket,
        asked_at: float,
        inspections: trio.Nursery,
    ) -> None:
        """Sort out what the lists say of each pod, and have asked what they do not say."""
        assert self._sandboxes is not None
        assert self._containers is not None
        listed = _by_pod(self._sandboxes, self._containers, self._owns)
        self._book.unsettled = False
        for uid in dict.fromkeys((*listed, *self._book.tables, *self._book.dirty)):
            entries = listed.get(uid) or _PodEntries(PodIdentity(uid, "", ""))
            listing = PodListing(
                entries.sandboxes, entries.containers, sandboxes_asked, containers_asked
            )
            if self._book.is_inspected(uid):
                self._book.unsettled = True
                continue
            asks = self._book.apply(uid, listing, entries.identity)
            if asks:
                self._book.begin_inspection(uid)
                inspections.start_soon(
                    self._inspect, uid, asks, listing, asked_at, name=f"inspect {uid}"
                )
            else:
                self._conclude(uid, listing, asked_at)

    async def _inspect(self, uid: PodUid, asks: Asks, listing: PodListing, asked_at: float) -> None:
        try:
            errors = await self._inspector.ask(uid, asks)
        finally:
            self._book.end_inspection(uid)
        if errors:
            log.warning("pleg.inspect_failed", uid=uid, error=str(errors[0]))
            self._book.mark_dirty(uid, errors[0])
            self._book.publish(uid)
        else:
            self._conclude(uid, listing, asked_at)

    def _conclude(self, uid: PodUid, listing: PodListing, asked_at: float) -> None:
        """Publish a pod of which nothing is missing, unless a later question failed."""
        cleaned = self._book.clean(uid, listing.sandboxes_asked)
        if not self._book.settled(uid, listing):
            self._book.unsettled = True
        self._book.publish(uid, None if self._book.is_dirty(uid) else asked_at)
        if cleaned:
            # Its worker has been waiting to know, even if nothing turns out to have changed.
            self._book.on_change(uid)


def _same(before: Listing[Entry] | None, after: Listing[Entry]) -> bool:
    """Whether two listings hold the very same entries."""
    if before is None or len(before.entries) != len(after.entries):
        return False
    known = before.entries
    return all(known.get(key) is entry for key, entry in after.entries.items())


def _by_pod(
    sandboxes: Iterable[v1.PodSandbox], containers: Iterable[v1.Container], owns: Owns
) -> dict[PodUid, _PodEntries]:
    """Sort entries by pod UID; without Kubernetes' labels they are nobody's, or another's."""
    pods: dict[PodUid, _PodEntries] = {}
    for sandbox in sandboxes:
        identity = pod_identity(sandbox.labels)
        if identity and owns(sandbox.annotations):
            pods.setdefault(identity.uid, _PodEntries(identity)).sandboxes[sandbox.id] = sandbox
    for container in containers:
        identity = pod_identity(container.labels)
        if identity and owns(container.annotations):
            pods.setdefault(identity.uid, _PodEntries(identity)).containers[container.id] = (
                container
            )
    return pods
