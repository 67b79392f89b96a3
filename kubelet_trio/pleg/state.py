"""The PLEG's state: a table per pod, which queries failed, and the cache that it publishes to.

Relists, exit watchers, runtime events and refreshes of pod workers write to it, all in the Trio
thread and without an await in between. The tables' tickets order their answers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TypeVar

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
from kubelet_trio.pleg.table import PodListing, PodTable, Queries, Ticket, Tracked, is_final

T = TypeVar("T")


class KnownPods(Set[PodUid]):
    """A view of the pods with an object in the runtime."""

    def __init__(self, tables: Mapping[PodUid, PodTable]) -> None:
        self._tables = tables

    def __contains__(self, uid: object) -> bool:
        return bool(self._tables.get(uid))  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[PodUid]:
        return iter([uid for uid, table in self._tables.items() if table])

    def __len__(self) -> int:
        return sum(1 for table in self._tables.values() if table)

    @classmethod
    def _from_iterable(cls, it: Iterable[T]) -> Set[T]:
        return frozenset(it)


class PlegState:
    """What is known of all pods in the runtime."""

    def __init__(
        self,
        cache: PodStatusCache,
        *,
        on_change: Callable[[PodUid], None],
        on_records: Callable[[PodUid], None],
        on_dirty: Callable[[], None],
    ) -> None:
        """Start without pods.

        Args:
            cache: receives the snapshots.
            on_change: called with every pod whose published snapshot changed, unless by its own
                worker's refresh.
            on_records: called with every pod whose records may have changed.
            on_dirty: called when a query about a pod failed.
        """
        self.cache = cache
        self.tables: dict[PodUid, PodTable] = {}
        self.known_uids = KnownPods(self.tables)
        self._named: dict[PodKey, dict[PodUid, None]] = {}  # the pods of each name
        # Whether the next listing must be compared even if it equals the last one.
        self.must_compare = True
        self.on_change = on_change
        self._on_records = on_records
        self._on_dirty = on_dirty
        self._pods: dict[str, PodUid] = {}  # by id of a sandbox or container
        self._gone: dict[str, Ticket] = {}
        self._dirty: dict[PodUid, Ticket] = {}
        self._errors: dict[PodUid, str] = {}  # of dirty pods
        self._inspections: Counter[PodUid] = Counter()
        self._tickets = itertools.count()

    def ticket(self) -> Ticket:
        """Return the ticket of a query that is about to be sent."""
        return Ticket(next(self._tickets))

    # Objects

    def pod_of(self, object_id: str) -> PodUid | None:
        """Return the pod of a sandbox or container; None if it is not known."""
        return self._pods.get(object_id)

    def container(self, container_id: ContainerId) -> ContainerRecord | None:
        """Return a container's record; None if it is gone or its status is not known yet."""
        known = self._known(container_id)
        record = known.record if known else None
        return record if isinstance(record, ContainerRecord) else None

    def has_ended(self, container_id: ContainerId) -> bool:
        """Return whether a container has exited or is gone: it cannot change any more."""
        return container_id not in self._pods or is_final(self.container(container_id))

    def is_gone(self, object_id: str) -> bool:
        """Return whether an object was known and is gone."""
        return object_id in self._gone

    def has_status(self, object_id: str) -> bool:
        """Return whether a status of an object is known."""
        known = self._known(object_id)
        return known is not None and known.record is not None

    def is_sandbox(self, object_id: str) -> bool:
        table = self.tables.get(self._pods.get(object_id, PodUid("")))
        return table is not None and object_id in table.sandboxes

    def is_stopped(self, object_id: str) -> bool:
        """Return whether a container has exited, or a sandbox is not ready any more."""
        known = self._known(object_id)
        record = known.record if known else None
        if isinstance(record, SandboxRecord):
            return not record.ready
        return is_final(record)

    def wants_pid(self, container_id: ContainerId) -> bool:
        """Return whether the next status query of a container should be verbose, for its PID."""
        table = self.tables.get(self._pods.get(container_id, PodUid("")))
        return table is not None and table.wants_pid(container_id)

    def running(self) -> Iterator[tuple[PodUid, ContainerRecord]]:
        for uid, table in self.tables.items():
            for record in table.running():
                yield uid, record

    def namesakes(self, key: PodKey, uid: PodUid) -> Iterator[PodUid]:
        """Yield the other pods of a name that have something running, or may have."""
        for other in self._named.get(key, ()):
            table = self.tables.get(other)
            if other == uid or table is None or not table.is_live:
                continue
            if (table.identity.namespace, table.identity.name) == tuple(key):
                yield other

    def see_sandbox(self, uid: PodUid, sandbox_id: SandboxId, ticket: Ticket) -> None:
        if sandbox_id not in self._gone:
            self._pods[sandbox_id] = uid
            self._table(uid).see_sandbox(sandbox_id, ticket)

    def see_container(
        self,
        uid: PodUid,
        container_id: ContainerId,
        ticket: Ticket,
        sandbox_id: SandboxId | None = None,
    ) -> None:
        if container_id not in self._gone:
            self._pods[container_id] = uid
            self._table(uid).see_container(container_id, ticket, sandbox_id)

    def learn_sandbox(self, status: v1.PodSandboxStatus, ticket: Ticket) -> None:
        uid = self._pods.get(status.id, PodUid(""))
        if table := self.tables.get(uid):
            table.learn_sandbox(status, ticket)
            self._note_name(uid, table)

    def learn_container(self, status: v1.ContainerStatus, pid: int | None, ticket: Ticket) -> None:
        uid = self._pods.get(status.id, PodUid(""))
        if table := self.tables.get(uid):
            table.learn_container(status, pid, ticket)
            self._note_name(uid, table)

    def mark_gone(self, object_id: str) -> None:
        """Record that an object is gone; answers to earlier listings cannot bring it back."""
        uid = self._pods.pop(object_id, None)
        self._gone[object_id] = self.ticket()
        if uid is not None and (table := self.tables.get(uid)):
            table.mark_gone(object_id)

    def remove(self, object_id: str) -> None:
        """Record a completed removal; that of a sandbox includes its containers."""
        table = self.tables.get(self._pods.get(object_id, PodUid("")))
        for container_id in table.containers_in(SandboxId(object_id)) if table else ():
            self.mark_gone(container_id)
        self.mark_gone(object_id)

    def apply(self, uid: PodUid, listing: PodListing, identity: PodIdentity) -> Queries:
        """Apply what a listing shows of a pod; return the status queries to send now."""
        for sandbox_id in listing.sandboxes:
            self.see_sandbox(uid, SandboxId(sandbox_id), listing.sandboxes_asked)
        for entry in listing.containers.values():
            sandbox_id = SandboxId(entry.pod_sandbox_id)
            self.see_container(uid, ContainerId(entry.id), listing.containers_asked, sandbox_id)
        table = self.tables.get(uid)
        if table is None:
            return Queries()
        table.identity = identity if identity.name else table.identity
        self._note_name(uid, table)
        table.is_listed_live = listing.is_live
        for object_id in tuple(table.unlisted(listing)):
            self.mark_gone(object_id)
        return table.queries(listing)

    def matches(self, uid: PodUid, listing: PodListing) -> bool:
        """Return whether the records of a pod agree with a listing."""
        table = self.tables.get(uid)
        return table is None or table.matches(listing)

    def forget_gone(self, before: Ticket) -> None:
        """Forget gone objects, once a full listing that was sent later did not show them."""
        self._gone = {key: ticket for key, ticket in self._gone.items() if ticket > before}

    def _known(self, object_id: str) -> Tracked[SandboxRecord] | Tracked[ContainerRecord] | None:
        table = self.tables.get(self._pods.get(object_id, PodUid("")))
        if table is None:
            return None
        sandbox = table.sandboxes.get(SandboxId(object_id))
        return sandbox or table.containers.get(ContainerId(object_id))

    def _note_name(self, uid: PodUid, table: PodTable) -> None:
        identity = table.identity
        if identity.name:
            key = PodKey(identity.namespace, identity.name)
            self._named.setdefault(key, {})[uid] = None

    def _forget_table(self, uid: PodUid) -> None:
        identity = self.tables.pop(uid).identity
        key = PodKey(identity.namespace, identity.name)
        namesakes = self._named.get(key, {})
        namesakes.pop(uid, None)
        if not namesakes:
            self._named.pop(key, None)

    def _table(self, uid: PodUid) -> PodTable:
        if uid not in self.tables:
            self.tables[uid] = PodTable(uid)
        return self.tables[uid]

    # Pods with failed or pending queries

    @property
    def dirty(self) -> tuple[PodUid, ...]:
        """The pods with a failed query since they were last listed in full."""
        return tuple(self._dirty)

    def is_dirty(self, uid: PodUid) -> bool:
        return uid in self._dirty

    def error(self, uid: PodUid) -> str:
        """Return the runtime's error of a dirty pod; "" if there is none."""
        return self._errors.get(uid, "")

    def mark_dirty(self, uid: PodUid, error: RuntimeCallError | None = None) -> None:
        """Record that a query about a pod failed, or was cancelled (no `error`)."""
        self._dirty[uid] = self.ticket()
        if error is not None:
            self._errors[uid] = error.go_text
        self._update_pending(uid)
        self._on_dirty()

    def mark_clean(self, uid: PodUid, asked: Ticket) -> bool:
        """Record that a listing of that ticket shows all of a pod again.

        Returns whether the pod was dirty before.
        """
        # A query that failed after the listing was sent keeps the pod dirty.
        if uid not in self._dirty or self._dirty[uid] >= asked:
            return False
        del self._dirty[uid]
        self._errors.pop(uid, None)
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

    # Publishing

    def publish(
        self, uid: PodUid, observed_at: float | None = None, *, quiet: bool = False
    ) -> None:
        """Put the pod's snapshot into the cache, if it is complete.

        Args:
            uid: the pod.
            observed_at: Trio time as of which the whole pod is known; None if only a part of it
                was queried, which makes the snapshot no newer.
            quiet: do not call `on_change`: the pod's worker gets the snapshot returned.
        """
        self._on_records(uid)
        table = self.tables.get(uid)
        if table is not None and not table.complete:
            return
        known_at = self.cache.observed_at(uid)
        observed_at = known_at if observed_at is None else max(known_at, observed_at)
        snapshot = (
            table.snapshot(observed_at) if table else RuntimePod(uid, observed_at=observed_at)
        )
        if table is not None and not table:
            self._forget_table(uid)
        if self.cache.put(snapshot) and not quiet:
            self.on_change(uid)
