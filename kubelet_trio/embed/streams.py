"""Streams of pod changes and of events, as async iterators without open resources.

Level-triggered: a slow reader misses intermediate states of a pod, never its latest. They
end (`StopAsyncIteration`) with the kubelet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import trio
from lightkube.models.core_v1 import Event, Pod

from kubelet_trio.events import EventRing
from kubelet_trio.model import PodUid

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class PodChange:
    """One change, as in a watch of the API server. A deleted pod has its last state."""

    type: ChangeType
    pod: Pod


class PodWatch:
    """Iterates over changes of pods: first the current pods (ADDED), then each change."""

    def __init__(self, pods: Callable[[], Mapping[PodUid, Pod]], wait: WaitForPods) -> None:
        """Internal: programs call `Kubelet.watch`."""
        self._pods = pods
        self._wait = wait
        self._seen: Mapping[PodUid, Pod] = {}
        self._changes: deque[PodChange] = deque()

    def __aiter__(self) -> PodWatch:
        return self

    async def __anext__(self) -> PodChange:
        """Return the next change, waiting for it."""
        if self._changes:  # no wait below: a checkpoint all the same, so that loops are fair
            await trio.lowlevel.checkpoint()
        while not self._changes:
            if not await self._wait(self._seen):
                raise StopAsyncIteration
            before, self._seen = self._seen, self._pods()
            self._changes.extend(pod_changes(before, self._seen))
        return self._changes.popleft()


# Waits until the pods differ from these; False when the kubelet has ended.
WaitForPods = Callable[[Mapping[PodUid, Pod]], Awaitable[bool]]


def pod_changes(before: Mapping[PodUid, Pod], now: Mapping[PodUid, Pod]) -> list[PodChange]:
    """Return the changes from one set of pods to the next."""
    changes = [PodChange("DELETED", pod) for uid, pod in before.items() if uid not in now]
    for uid, pod in now.items():
        if uid not in before:
            changes.append(PodChange("ADDED", pod))
        elif pod is not before[uid]:
            changes.append(PodChange("MODIFIED", pod))
    return changes


class EventStream:
    """Iterates over events, kept ones first; a repeated event comes again, with its count."""

    def __init__(self, ring: EventRing, wait: Callable[[int], Awaitable[bool]]) -> None:
        """Internal: programs call `Kubelet.events`."""
        self._ring = ring
        self._wait = wait
        self._seen = 0
        self._events: deque[Event] = deque()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        """Return the next event, waiting for it."""
        # As in `PodWatch`: each iteration is a checkpoint.
        if self._events:
            await trio.lowlevel.checkpoint()
        while not self._events:
            if not await self._wait(self._seen):
                raise StopAsyncIteration
            self._events.extend(self._ring.events(self._seen))
            self._seen = self._ring.version.value
        return self._events.popleft()
