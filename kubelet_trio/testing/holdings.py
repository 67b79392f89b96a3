"""The index of a fake runtime's objects, with look-ups whose cost does not grow with the pods.

It finds sandboxes and containers by id (in the order of their creation), pod, name and process.
Times are in heaps; a stale entry stays until it reaches the top.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeVar

from kubelet_trio.model import ContainerId, PodUid, SandboxId
from kubelet_trio.testing.objects import FakeContainer, FakeSandbox

K = TypeVar("K")
Id = TypeVar("Id")
V = TypeVar("V")
ReservedName = tuple[str, str, str, int]


class Due:
    """Containers by a time that can change; `time_of` returns the current one."""

    def __init__(self, time_of: Callable[[FakeContainer], float]) -> None:
        self._time_of = time_of
        self._heap: list[tuple[float, int, FakeContainer]] = []
        self._order = count()

    def note(self, container: FakeContainer) -> None:
        """Add a container after its time was set; not needed for inf."""
        # The count breaks ties: containers cannot be compared.
        heapq.heappush(self._heap, (self._time_of(container), next(self._order), container))

    def next(self) -> float:
        """Return the earliest time, inf if there is none."""
        # An entry with another time than its container's is stale.
        while self._heap and self._time_of(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now: float) -> list[FakeContainer]:
        """Remove and return the containers that are due, the earliest first."""
        # A dict as an ordered set: a container whose time was set twice has two entries.
        due: dict[FakeContainer, None] = {}
        while self.next() <= now:
            due[heapq.heappop(self._heap)[2]] = None
        return list(due)


class Holdings:
    """The index. Callers must not change `sandboxes` and `containers`."""

    def __init__(self) -> None:
        self.sandboxes: dict[SandboxId, FakeSandbox] = {}
        self.containers: dict[ContainerId, FakeContainer] = {}
        self.deaths = Due(lambda c: c.dies_at if c.alive else math.inf)
        self.tellings = Due(lambda c: c.told_at)
        self._reserved: dict[ReservedName, FakeSandbox] = {}
        self._by_name: dict[tuple[str, str], dict[SandboxId, FakeSandbox]] = defaultdict(dict)
        self._by_uid: dict[PodUid, dict[SandboxId, FakeSandbox]] = defaultdict(dict)
        self._inside: dict[SandboxId, dict[ContainerId, FakeContainer]] = defaultdict(dict)
        self._of_pod: dict[PodUid, dict[ContainerId, FakeContainer]] = defaultdict(dict)
        self._by_pid: dict[int, FakeContainer] = {}

    # Sandboxes

    def add_sandbox(self, sandbox: FakeSandbox) -> None:
        self.sandboxes[sandbox.id] = sandbox
        self._reserved[sandbox.reserved_name] = sandbox
        self._by_uid[sandbox.uid][sandbox.id] = sandbox
        self._by_name[_name(sandbox)][sandbox.id] = sandbox

    def drop_sandbox(self, sandbox: FakeSandbox) -> None:
        del self.sandboxes[sandbox.id], self._reserved[sandbox.reserved_name]
        _drop(self._by_uid, sandbox.uid, sandbox.id)
        _drop(self._by_name, _name(sandbox), sandbox.id)

    def holder(self, name: ReservedName) -> FakeSandbox | None:
        """Return the sandbox that has reserved this name."""
        return self._reserved.get(name)

    def rivals(self, sandbox: FakeSandbox) -> list[FakeSandbox]:
        """Return the sandboxes of the same pod, and those of pods of the same name."""
        same = {**self._by_uid.get(sandbox.uid, {}), **self._by_name.get(_name(sandbox), {})}
        return list(same.values())

    def sandboxes_of(self, uid: PodUid | None) -> Iterable[FakeSandbox]:
        """Return the sandboxes of one pod; None: all."""
        held = self.sandboxes if uid is None else self._by_uid.get(uid, {})
        return list(held.values())

    # Containers

    def add_container(self, container: FakeContainer) -> None:
        self.containers[container.id] = container
        self._inside[container.sandbox.id][container.id] = container
        self._of_pod[container.uid][container.id] = container

    def drop_container(self, container: FakeContainer) -> None:
        """Remove a container. Idempotent."""
        if self.containers.pop(container.id, None) is None:
            return
        _drop(self._inside, container.sandbox.id, container.id)
        _drop(self._of_pod, container.uid, container.id)
        self._by_pid.pop(container.pid, None)

    def started(self, container: FakeContainer) -> None:
        """Index a container by its new process."""
        self._by_pid[container.pid] = container

    def inside(self, sandbox: FakeSandbox) -> list[FakeContainer]:
        return list(self._inside.get(sandbox.id, {}).values())

    def containers_of(self, uid: PodUid | None) -> list[FakeContainer]:
        """Return the containers of one pod; None: all."""
        held = self.containers if uid is None else self._of_pod.get(uid, {})
        return list(held.values())

    def by_pid(self, pid: int) -> FakeContainer | None:
        """Return the container that has or had this process."""
        return self._by_pid.get(pid)


def _name(sandbox: FakeSandbox) -> tuple[str, str]:
    return sandbox.metadata.namespace, sandbox.metadata.name


def _drop(index: dict[K, dict[Id, V]], key: K, item: Id) -> None:
    held = index.get(key, {})
    held.pop(item, None)
    if not held:
        index.pop(key, None)
