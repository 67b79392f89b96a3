"""The known objects of one pod, from answers that may arrive out of order. Pure.

A relist may be in flight while a worker creates, starts and queries a container. So every query
takes a ticket when it is *sent*, and an answer replaces only what was queried before it. Ids are
never reused: an object that is gone stays gone. An object that a listing does not show is gone,
unless a query that was sent later has seen it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NewType, TypeVar

from kubelet_trio.containers import (
    PodIdentity,
    container_record,
    container_state,
    pod_identity,
    sandbox_record,
)
from kubelet_trio.cri import v1
from kubelet_trio.model import (
    ContainerId,
    ContainerRecord,
    ContainerState,
    PodUid,
    RuntimePod,
    SandboxId,
    SandboxRecord,
)

Ticket = NewType("Ticket", int)
NEVER = Ticket(-1)

_LIVE = (ContainerState.RUNNING, ContainerState.UNKNOWN)

R = TypeVar("R", SandboxRecord, ContainerRecord)


@dataclass(slots=True)
class Tracked(Generic[R]):
    """One object that a listing or its creator has shown, and its status if it is known."""

    seen: Ticket  # of the newest query that showed it
    record: R | None = None
    asked: Ticket = NEVER  # of the status query that `record` answers
    pid_asked: bool = False  # whether a verbose status was queried while it ran


@dataclass(slots=True)
class Queries:
    """The objects of one pod whose status to query."""

    sandboxes: set[SandboxId] = field(default_factory=set)
    containers: set[ContainerId] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.sandboxes or self.containers)


@dataclass(frozen=True, slots=True)
class PodListing:
    """One pod's entries in a listing, with the tickets of the two list calls."""

    sandboxes: Mapping[str, v1.PodSandbox]
    containers: Mapping[str, v1.Container]
    sandboxes_asked: Ticket
    containers_asked: Ticket

    @property
    def is_live(self) -> bool:
        """Whether anything in it runs, or may run."""
        ready = v1.PodSandboxState.SANDBOX_READY
        return any(entry.state == ready for entry in self.sandboxes.values()) or any(
            container_state(entry.state) in _LIVE for entry in self.containers.values()
        )


class PodTable:
    """The objects of one pod UID."""

    def __init__(self, uid: PodUid) -> None:
        self.identity = PodIdentity(uid, "", "")
        self.sandboxes: dict[SandboxId, Tracked[SandboxRecord]] = {}
        self.containers: dict[ContainerId, Tracked[ContainerRecord]] = {}
        self.sandbox_of: dict[ContainerId, SandboxId] = {}
        self.is_listed_live = False  # `PodListing.is_live` of the last listing

    def __bool__(self) -> bool:
        return bool(self.sandboxes or self.containers)

    # Answers

    def see_sandbox(self, sandbox_id: SandboxId, ticket: Ticket) -> None:
        """Record that a sandbox exists."""
        known = self.sandboxes.setdefault(sandbox_id, Tracked(ticket))
        known.seen = max(known.seen, ticket)

    def see_container(
        self, container_id: ContainerId, ticket: Ticket, sandbox_id: SandboxId | None = None
    ) -> None:
        """Record that a container exists, and in which sandbox if that is known."""
        known = self.containers.setdefault(container_id, Tracked(ticket))
        known.seen = max(known.seen, ticket)
        if sandbox_id is not None:
            self.sandbox_of[container_id] = sandbox_id
            if known.record is not None and known.record.sandbox_id != sandbox_id:
                known.record = replace(known.record, sandbox_id=sandbox_id)

    def learn_sandbox(self, status: v1.PodSandboxStatus, ticket: Ticket) -> None:
        """Store a sandbox's status, unless a newer one is known."""
        known = self.sandboxes.get(SandboxId(status.id))
        if known is None or known.asked > ticket:
            return
        self.identity = pod_identity(status.labels) or self.identity
        known.record, known.asked = sandbox_record(status), ticket
        known.seen = max(known.seen, ticket)

    def learn_container(self, status: v1.ContainerStatus, pid: int | None, ticket: Ticket) -> None:
        """Store a container's status, unless a newer one is known.

        `pid` is None if it was not queried, 0 if the runtime does not report it.
        """
        container_id = ContainerId(status.id)
        known = self.containers.get(container_id)
        # Skip an answer older than the record; and an exited container cannot change any more.
        if known is None or known.asked > ticket or is_final(known.record):
            return
        self.identity = pod_identity(status.labels) or self.identity
        known_pid = pid or (known.record.pid if known.record else 0)
        # A status does not name the sandbox. Until a listing does, take the newest: the worker
        # that queries a new container has created it in that one.
        sandbox_id = self.sandbox_of.setdefault(container_id, self._newest_sandbox())
        record = container_record(status, sandbox_id, pid=known_pid)
        known.record, known.asked = record, ticket
        known.seen = max(known.seen, ticket)
        if pid is not None and record.state is ContainerState.RUNNING:
            known.pid_asked = True

    def mark_gone(self, object_id: str) -> None:
        """Remove an object."""
        self.sandboxes.pop(SandboxId(object_id), None)
        self.containers.pop(ContainerId(object_id), None)
        self.sandbox_of.pop(ContainerId(object_id), None)

    # Comparing with a listing

    def unlisted(self, listing: PodListing) -> Iterator[str]:
        """Yield the objects that are gone according to a listing."""
        for sandbox_id, sandbox in self.sandboxes.items():
            if sandbox_id not in listing.sandboxes and sandbox.seen < listing.sandboxes_asked:
                yield sandbox_id
        for container_id, container in self.containers.items():
            if container_id not in listing.containers and container.seen < listing.containers_asked:
                yield container_id

    def queries(self, listing: PodListing) -> Queries:
        """Return the objects without a status, or whose status differs from a listing."""
        queries = Queries()
        for sandbox_id, sandbox in self.sandboxes.items():
            entry = listing.sandboxes.get(sandbox_id)
            if lacks_status(sandbox.record) or (
                entry is not None
                and sandbox.asked < listing.sandboxes_asked
                and _differs_sandbox(entry, sandbox.record)
            ):
                queries.sandboxes.add(sandbox_id)
        for container_id, container in self.containers.items():
            listed = listing.containers.get(container_id)
            if container.record is None or (
                listed is not None
                and container.asked < listing.containers_asked
                and _differs_container(listed, container.record)
            ):
                queries.containers.add(container_id)
        return queries

    def matches(self, listing: PodListing) -> bool:
        """Return whether the records agree with a listing."""
        for sandbox_id, sandbox in self.sandboxes.items():
            entry = listing.sandboxes.get(sandbox_id)
            if entry is None or lacks_status(sandbox.record):
                return False
            if _differs_sandbox(entry, sandbox.record):
                return False
        for container_id, container in self.containers.items():
            listed = listing.containers.get(container_id)
            if listed is None or _differs_container(listed, container.record):
                return False
        return True

    def containers_in(self, sandbox_id: SandboxId) -> list[ContainerId]:
        """Return the known containers in a sandbox."""
        return [c for c, sandbox in self.sandbox_of.items() if sandbox == sandbox_id]

    def wants_pid(self, container_id: ContainerId) -> bool:
        """Return whether the next status query of a container should be verbose, for its PID."""
        known = self.containers.get(container_id)
        return known is None or not (known.pid_asked or (known.record and known.record.pid))

    # Reading

    @property
    def complete(self) -> bool:
        """Whether the status of every object is known. Only then may a snapshot be published."""
        return all(k.record is not None for k in self.sandboxes.values()) and all(
            k.record is not None for k in self.containers.values()
        )

    def running(self) -> Iterator[ContainerRecord]:
        for known in self.containers.values():
            if known.record is not None and known.record.state is ContainerState.RUNNING:
                yield known.record

    @property
    def is_live(self) -> bool:
        """Whether a sandbox is ready or a container runs, or may."""
        if not self.complete and self.is_listed_live:
            return True
        sandboxes = (known.record for known in self.sandboxes.values())
        containers = (known.record for known in self.containers.values())
        return any(record is not None and record.ready for record in sandboxes) or any(
            record is not None and record.state in _LIVE for record in containers
        )

    def snapshot(self, observed_at: float) -> RuntimePod:
        """Return the pod, with the newest sandboxes and containers first."""
        sandboxes = [k.record for k in self.sandboxes.values() if k.record is not None]
        containers = [k.record for k in self.containers.values() if k.record is not None]
        return RuntimePod(
            uid=self.identity.uid,
            namespace=self.identity.namespace,
            name=self.identity.name,
            sandboxes=tuple(sorted(sandboxes, key=_age, reverse=True)),
            containers=tuple(sorted(containers, key=_age, reverse=True)),
            observed_at=observed_at,
        )

    def _newest_sandbox(self) -> SandboxId:
        records = [k.record for k in self.sandboxes.values() if k.record is not None]
        if records:
            return max(records, key=_age).id
        return next(reversed(self.sandboxes), SandboxId(""))


def is_final(record: ContainerRecord | None) -> bool:
    """Return whether a container has exited, so that its status cannot change any more."""
    return record is not None and record.state is ContainerState.EXITED


def lacks_status(record: SandboxRecord | None) -> bool:
    """Return whether a sandbox's status is unknown, or was queried before it had an address."""
    return record is None or (record.ready and not record.ips and not record.host_network)


def _differs_sandbox(entry: v1.PodSandbox, record: SandboxRecord | None) -> bool:
    return record is None or record.ready != (entry.state == v1.PodSandboxState.SANDBOX_READY)


def _differs_container(entry: v1.Container, record: ContainerRecord | None) -> bool:
    if record is None:
        return True
    return not is_final(record) and container_state(entry.state) is not record.state


def _age(record: SandboxRecord | ContainerRecord) -> tuple[int, float, str]:
    # By attempt before creation time: attempts only grow, wall clocks may step back.
    return record.attempt, record.created_at, record.id
