"""What has been learnt of the runtime's objects, question by question. Pure.

Answers overtake each other: a relist may be in flight while a worker creates, starts and
asks for itself. So every question draws a ticket when it is *asked*, and an answer counts
only against what was asked before it. An object may vanish for good (ids are never used
again); one that a listing does not show has vanished unless something asked later saw it.
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
class Known(Generic[R]):
    """One object: seen by a listing or its maker, and perhaps asked about since."""

    seen: Ticket  # of the newest question that showed it
    record: R | None = None
    asked: Ticket = NEVER  # of the question that `record` answers
    pid_asked: bool = False  # whether a verbose status was asked while it ran


@dataclass(slots=True)
class Asks:
    """The objects of one pod whose status is to be asked."""

    sandboxes: set[SandboxId] = field(default_factory=set)
    containers: set[ContainerId] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.sandboxes or self.containers)


@dataclass(frozen=True, slots=True)
class PodListing:
    """What a listing shows of one pod, with the tickets of the two list calls."""

    sandboxes: Mapping[str, v1.PodSandbox]
    containers: Mapping[str, v1.Container]
    sandboxes_asked: Ticket
    containers_asked: Ticket

    @property
    def is_live(self) -> bool:
        """Whether anything in it runs, or may."""
        ready = v1.PodSandboxState.SANDBOX_READY
        return any(entry.state == ready for entry in self.sandboxes.values()) or any(
            container_state(entry.state) in _LIVE for entry in self.containers.values()
        )


class PodTable:
    """The objects of one pod UID."""

    def __init__(self, uid: PodUid) -> None:
        self.identity = PodIdentity(uid, "", "")
        self.sandboxes: dict[SandboxId, Known[SandboxRecord]] = {}
        self.containers: dict[ContainerId, Known[ContainerRecord]] = {}
        self.sandbox_of: dict[ContainerId, SandboxId] = {}
        self.is_listed_live = False  # whether the last listing showed anything that runs

    def __bool__(self) -> bool:
        return bool(self.sandboxes or self.containers)

    # Learn

    def see_sandbox(self, sandbox_id: SandboxId, ticket: Ticket) -> None:
        """Note that a sandbox exists."""
        known = self.sandboxes.setdefault(sandbox_id, Known(ticket))
        known.seen = max(known.seen, ticket)

    def see_container(
        self, container_id: ContainerId, ticket: Ticket, sandbox_id: SandboxId | None = None
    ) -> None:
        """Note that a container exists; its sandbox is the newest one until it is told."""
        known = self.containers.setdefault(container_id, Known(ticket))
        known.seen = max(known.seen, ticket)
        if sandbox_id is not None:
            self.sandbox_of[container_id] = sandbox_id
            if known.record is not None and known.record.sandbox_id != sandbox_id:
                known.record = replace(known.record, sandbox_id=sandbox_id)

    def learn_sandbox(self, status: v1.PodSandboxStatus, ticket: Ticket) -> None:
        """Take a sandbox's status."""
        known = self.sandboxes.get(SandboxId(status.id))
        if known is None or known.asked > ticket:
            return
        self.identity = pod_identity(status.labels) or self.identity
        known.record, known.asked = sandbox_record(status), ticket
        known.seen = max(known.seen, ticket)

    def learn_container(self, status: v1.ContainerStatus, pid: int | None, ticket: Ticket) -> None:
        """Take a container's status; `pid` is None where it was not asked, 0 if not told."""
        container_id = ContainerId(status.id)
        known = self.containers.get(container_id)
        if known is None or known.asked > ticket or is_final(known.record):
            return
        self.identity = pod_identity(status.labels) or self.identity
        known_pid = pid or (known.record.pid if known.record else 0)
        sandbox_id = self.sandbox_of.setdefault(container_id, self._newest_sandbox())
        record = container_record(status, sandbox_id, pid=known_pid)
        known.record, known.asked = record, ticket
        known.seen = max(known.seen, ticket)
        if pid is not None and record.state is ContainerState.RUNNING:
            known.pid_asked = True

    def lose(self, object_id: str) -> None:
        """Drop an object that is no more."""
        self.sandboxes.pop(SandboxId(object_id), None)
        self.containers.pop(ContainerId(object_id), None)
        self.sandbox_of.pop(ContainerId(object_id), None)

    # Ask

    def unlisted(self, listing: PodListing) -> Iterator[str]:
        """Yield what a listing proves gone."""
        for sandbox_id, sandbox in self.sandboxes.items():
            if sandbox_id not in listing.sandboxes and sandbox.seen < listing.sandboxes_asked:
                yield sandbox_id
        for container_id, container in self.containers.items():
            if container_id not in listing.containers and container.seen < listing.containers_asked:
                yield container_id

    def to_ask(self, listing: PodListing) -> Asks:
        """Return what a listing shows otherwise than the records have it."""
        asks = Asks()
        for sandbox_id, sandbox in self.sandboxes.items():
            entry = listing.sandboxes.get(sandbox_id)
            if lacks_status(sandbox.record) or (
                entry is not None
                and sandbox.asked < listing.sandboxes_asked
                and _differs_sandbox(entry, sandbox.record)
            ):
                asks.sandboxes.add(sandbox_id)
        for container_id, container in self.containers.items():
            listed = listing.containers.get(container_id)
            if container.record is None or (
                listed is not None
                and container.asked < listing.containers_asked
                and _differs_container(listed, container.record)
            ):
                asks.containers.add(container_id)
        return asks

    def settled(self, listing: PodListing) -> bool:
        """Whether the records say what the listing says."""
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

    def contents(self, sandbox_id: SandboxId) -> list[ContainerId]:
        """Return the containers known to be in a sandbox."""
        return [c for c, sandbox in self.sandbox_of.items() if sandbox == sandbox_id]

    def wants_pid(self, container_id: ContainerId) -> bool:
        """Whether the next status of a container should be a verbose one."""
        known = self.containers.get(container_id)
        return known is None or not (known.pid_asked or (known.record and known.record.pid))

    # Tell

    @property
    def complete(self) -> bool:
        """Whether the status of every object is known: only then a snapshot is true."""
        return all(k.record is not None for k in self.sandboxes.values()) and all(
            k.record is not None for k in self.containers.values()
        )

    def running(self) -> Iterator[ContainerRecord]:
        for known in self.containers.values():
            if known.record is not None and known.record.state is ContainerState.RUNNING:
                yield known.record

    @property
    def is_live(self) -> bool:
        """Whether anything of the pod runs, or may: a sandbox, or a container of any."""
        if not self.complete and self.is_listed_live:
            return True
        sandboxes = (known.record for known in self.sandboxes.values())
        containers = (known.record for known in self.containers.values())
        return any(record is not None and record.ready for record in sandboxes) or any(
            record is not None and record.state in _LIVE for record in containers
        )

    def snapshot(self, observed_at: float) -> RuntimePod:
        """Return the pod, newest first.

        By attempt before creation time: attempts only grow, wall clocks may step back.
        """
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
    """Whether a container's status can never change again."""
    return record is not None and record.state is ContainerState.EXITED


def lacks_status(record: SandboxRecord | None) -> bool:
    """Whether a sandbox's status is unknown, or was asked before it had an address."""
    return record is None or (record.ready and not record.ips and not record.host_network)


def _differs_sandbox(entry: v1.PodSandbox, record: SandboxRecord | None) -> bool:
    return record is None or record.ready != (entry.state == v1.PodSandboxState.SANDBOX_READY)


def _differs_container(entry: v1.Container, record: ContainerRecord | None) -> bool:
    if record is None:
        return True
    return not is_final(record) and container_state(entry.state) is not record.state


def _age(record: SandboxRecord | ContainerRecord) -> tuple[int, float, str]:
    return record.attempt, record.created_at, record.id
