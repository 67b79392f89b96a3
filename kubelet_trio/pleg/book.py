"""The PLEG's memory: a table per pod, what is missing in it, and the cache it publishes to.

Written by relists, exit watchers, runtime events and workers that ask for themselves, all
in one thread and without awaiting in between; the tables' tickets sort out who asked last.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from kubelet_trio.containers import PodIdentity
from kubelet_trio.cri import RuntimeCallError, v1
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    PodKey,
    PodUid,
    RuntimePod,
    SandboxId,
    SandboxRecord,
)
from kubelet_trio.pleg.cache import PodStatusCache
from kubelet_trio.pleg.table import Asks, Known, PodListing, PodTable, Ticket, is_final


class Book:
    """Everything learnt so far.

    `on_change` hears of every pod whose published snapshot changed otherwise than by its
    own worker's refresh, `on_records` of every pod whose records were touched, `on_dirty`
    when something is missing.
    """

    def __init__(self, cache: PodStatusCache) -> None:
        self.cache = cache
        self.tables: dict[PodUid, PodTable] = {}
        self.on_change: Callable[[PodUid], None] = lambda _uid: None
        self.on_records: Callable[[PodUid], None] = lambda _uid: None
        self.on_dirty: Callable[[], None] = lambda: None
        # Whether the next listing must be compared even if it shows what the last one did.
        self.unsettled = True
        self._homes: dict[str, PodUid] = {}
        self._gone: dict[str, Ticket] = {}
        self._dirty: dict[PodUid, Ticket] = {}
        self._trouble: dict[PodUid, str] = {}  # of dirty pods: what went wrong
        self._inspections: Counter[PodUid] = Counter()
        self._tickets = itertools.count()

    def ticket(self) -> Ticket:
        """Number a question that is about to be asked."""
        return Ticket(next(self._tickets))

    # Objects

    def home(self, object_id: str) -> PodUid | None:
        """Return whose sandbox or container this is, None if it is not known."""
        return self._homes.get(object_id)

    def container(self, container_id: ContainerId) -> ContainerRecord | None:
        """Return a container's record, None if it is gone or nothing was learnt yet."""
        known = self._known(container_id)
        record = known.record if known else None
        return record if isinstance(record, ContainerRecord) else None

    def is_over(self, container_id: ContainerId) -> bool:
        """Whether a container has exited or gone: nothing about it can change any more."""
        return container_id not in self._homes or is_final(self.container(container_id))

    def is_gone(self, object_id: str) -> bool:
        """Whether an object was known and is no more."""
        return object_id in self._gone

    def is_asked(self, object_id: str) -> bool:
        """Whether a status of an object was ever learnt."""
        known = self._known(object_id)
        return known is not None and known.record is not None

    def is_sandbox(self, object_id: str) -> bool:
        table = self.tables.get(self._homes.get(object_id, PodUid("")))
        return table is not None and object_id in table.sandboxes

    def is_stopped(self, object_id: str) -> bool:
        """Whether an object is known to have stopped for good."""
        known = self._known(object_id)
        record = known.record if known else None
        if isinstance(record, SandboxRecord):
            return not record.ready
        return is_final(record)

    def wants_pid(self, container_id: ContainerId) -> bool:
        """Whether the next status of a container should be a verbose one."""
        table = self.tables.get(self._homes.get(container_id, PodUid("")))
        return table is not None and table.wants_pid(container_id)

    def running(self) -> Iterator[tuple[PodUid, ContainerRecord]]:
        for uid, table in self.tables.items():
            for record in table.running():
                yield uid, record

    def namesakes(self, key: PodKey, uid: PodUid) -> Iterator[PodUid]:
        """Yield the other pods of a name of which something runs, or may."""
        for other, table in self.tables.items():
            identity = table.identity
            if other != uid and (identity.namespace, identity.name) == tuple(key) and table.is_live:
                yield other

    def see_sandbox(self, uid: PodUid, sandbox_id: SandboxId, ticket: Ticket) -> None:
        if sandbox_id not in self._gone:
            self._homes[sandbox_id] = uid
            self._table(uid).see_sandbox(sandbox_id, ticket)

    def see_container(
        self,
        uid: PodUid,
        container_id: ContainerId,
        ticket: Ticket,
        sandbox_id: SandboxId | None = None,
    ) -> None:
        if container_id not in self._gone:
            self._homes[container_id] = uid
            self._table(uid).see_container(container_id, ticket, sandbox_id)

    def learn_sandbox(self, status: v1.PodSandboxStatus, ticket: Ticket) -> None:
        if table := self.tables.get(self._homes.get(status.id, PodUid(""))):
            table.learn_sandbox(status, ticket)

    def learn_container(self, status: v1.ContainerStatus, pid: int | None, ticket: Ticket) -> None:
        if table := self.tables.get(self._homes.get(status.id, PodUid(""))):
            table.learn_container(status, pid, ticket)

    def lose(self, object_id: str) -> None:
        """Take note that an object is no more; listings asked before cannot bring it back."""
        uid = self._homes.pop(object_id, None)
        self._gone[object_id] = self.ticket()
        if uid is not None and (table := self.tables.get(uid)):
            table.lose(object_id)

    def remove(self, object_id: str) -> None:
        """Take note of a removal that was carried out: a sandbox takes its containers along."""
        table = self.tables.get(self._homes.get(object_id, PodUid("")))
        for container_id in table.contents(SandboxId(object_id)) if table else ():
            self.lose(container_id)
        self.lose(object_id)

    def apply(self, uid: PodUid, listing: PodListing, identity: PodIdentity) -> Asks:
        """Take what a listing shows of a pod; return what must be asked now."""
        for sandbox_id in listing.sandboxes:
            self.see_sandbox(uid, SandboxId(sandbox_id), listing.sandboxes_asked)
        for entry in listing.containers.values():
            sandbox_id = SandboxId(entry.pod_sandbox_id)
            self.see_container(uid, ContainerId(entry.id), listing.containers_asked, sandbox_id)
        table = self.tables.get(uid)
        if table is None:
            return Asks()
        table.identity = identity if identity.name else table.identity
        table.is_listed_live = listing.is_live
        for object_id in tuple(table.unlisted(listing)):
            self.lose(object_id)
        return table.to_ask(listing)

    def settled(self, uid: PodUid, listing: PodListing) -> bool:
        """Whether what is known of a pod is what the listing says."""
        table = self.tables.get(uid)
        return table is None or table.settled(listing)

    def forget_gone(self, before: Ticket) -> None:
        """Drop the memory of objects that a full listing asked later did not show."""
        self._gone = {key: ticket for key, ticket in self._gone.items() if ticket > before}

    def _known(self, object_id: str) -> Known[SandboxRecord] | Known[ContainerRecord] | None:
        table = self.tables.get(self._homes.get(object_id, PodUid("")))
        if table is None:
            return None
        sandbox = table.sandboxes.get(SandboxId(object_id))
        return sandbox or table.containers.get(ContainerId(object_id))

    def _table(self, uid: PodUid) -> PodTable:
        if uid not in self.tables:
            self.tables[uid] = PodTable(uid)
        return self.tables[uid]

    # What is missing

    @property
    def dirty(self) -> tuple[PodUid, ...]:
        """The pods that a question about failed since they were last listed in full."""
        return tuple(self._dirty)

    def is_dirty(self, uid: PodUid) -> bool:
        return uid in self._dirty

    def trouble(self, uid: PodUid) -> str:
        """Return the runtime's error for which a pod is dirty; "" if there is none."""
        return self._trouble.get(uid, "")

    def mark_dirty(self, uid: PodUid, error: RuntimeCallError | None = None) -> None:
        """Take note that a question about a pod failed, or was given up (no `error`)."""
        self._dirty[uid] = self.ticket()
        if error is not None:
            self._trouble[uid] = error.go_text
        self._update_pending(uid)
        self.on_dirty()

    def clean(self, uid: PodUid, asked: Ticket) -> bool:
        """Take note that all of a pod is known again, from a listing of that ticket.

        Returns whether something was missing before.
        """
        if uid not in self._dirty or self._dirty[uid] >= asked:
            return False
        del self._dirty[uid]
        self._trouble.pop(uid, None)
        self._update_pending(uid)
        return True

    def is_inspected(self, uid: PodUid) -> bool:
        return self._inspections[uid] > 0

    def begin_inspection(self, uid: PodUid) -> None:
        self._inspections[uid] += 1
        self._update_pending(uid)

    def end_inspection(self, uid: PodUid) -> None:
        self._inspections[uid] -= 1
        if self._inspections[uid] <= 0:
            del self._inspections[uid]
        self._update_pending(uid)

    def _update_pending(self, uid: PodUid) -> None:
        self.cache.set_pending(uid, uid in self._dirty or self._inspections[uid] > 0)

    # Publish

    def publish(
        self, uid: PodUid, observed_at: float | None = None, *, quiet: bool = False
    ) -> None:
        """Hand the pod's snapshot to the cache, if nothing is missing in it.

        Args:
            uid: the pod.
            observed_at: trio time as of which all of the pod is known; None: some of it was
                asked anew, which makes the whole no newer.
            quiet: do not tell of a change; for a worker that gets the snapshot returned.
        """
        self.on_records(uid)
        table = self.tables.get(uid)
        if table is not None and not table.complete:
            return
        before = self.cache.get(uid)
        if observed_at is None or observed_at < before.observed_at:
            observed_at = before.observed_at
        snapshot = (
            table.snapshot(observed_at) if table else RuntimePod(uid, observed_at=observed_at)
        )
        if table is not None and not table:
            del self.tables[uid]
        if self.cache.put(snapshot) and not quiet:
            self.on_change(uid)
