"""Collects pod statuses: the newest per UID, published by one task.

Workers `put` without waiting. The `status` child publishes to the local view, which the control
socket serves, and to the listener. It starts before the workers and stops after them, so that
their last statuses are still published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import Bell, PodUid

# Takes the pods that changed, None for one that is gone, and the UIDs of all that have finished.
OnChange = Callable[[Mapping[PodUid, Pod | None], Set[PodUid]], None]


class StatusListener(Protocol):
    """Receives statuses, such as `StatusManager`. Its methods do not block."""

    def put(self, uid: PodUid, pod: Pod, *, is_finished: bool = False) -> None: ...

    def forget(self, uid: PodUid) -> None: ...


def no_watches(_changed: Mapping[PodUid, Pod | None], _finished: Set[PodUid]) -> None:
    """Tell nobody."""


class StatusStore:
    """The pods of the node, each with its newest status.

    `pods` maps a UID to a Pod with its status. The mapping is replaced, never changed: a reader
    has a consistent snapshot, and a watcher may compare by identity.
    """

    def __init__(
        self,
        listener: StatusListener | None = None,
        on_delivered: Callable[[Mapping[PodUid, Pod | None]], None] = lambda _changed: None,
        on_change: OnChange = no_watches,
    ) -> None:
        """Take the readers of statuses.

        Args:
            listener: receives each status; None: statuses stay in the view.
            on_delivered: called with the pods that changed, None for a pod that is gone.
            on_change: called with the same pods, and the UIDs of all pods that have finished.
        """
        self._listener = listener
        self._on_delivered = on_delivered
        self._on_change = on_change
        self.pods: AsyncValue[Mapping[PodUid, Pod]] = AsyncValue({})
        self._pending: dict[PodUid, Pod | None] = {}
        self._finished: set[PodUid] = set()
        self._unconfirmed: set[PodUid] = set()  # in the view only, not passed to the listener
        self._wake = Bell()

    def put(self, uid: PodUid, pod: Pod) -> None:
        """Note the newest status of a pod; it replaces one that was not published yet."""
        self._unconfirmed.discard(uid)
        self._pending[uid] = pod
        self._wake.ring()

    def show(self, uid: PodUid, pod: Pod) -> None:
        """List a pod without a status yet; the listener does not get it.

        A status that was put before stays.
        """
        if (self._pending[uid] if uid in self._pending else self.pods.value.get(uid)) is None:
            self._pending[uid] = pod
            self._unconfirmed.add(uid)
            self._wake.ring()

    def finish(self, uid: PodUid) -> None:
        """Note that nothing of a pod runs, now or later: its status is the final one."""
        self._finished.add(uid)
        pod = self._pending.get(uid) or self.pods.value.get(uid)
        if pod is not None:
            self.put(uid, pod)

    def forget(self, uid: PodUid) -> None:
        """Drop a pod that is gone from the node."""
        self._finished.discard(uid)
        self._unconfirmed.discard(uid)
        self._pending[uid] = None
        self._wake.ring()

    @property
    def waiting(self) -> int:
        """The number of pods whose newest status has not been published."""
        return len(self._pending)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish until cancelled."""
        task_status.started()
        while True:
            await self._wake.wait_ring()
            self.deliver()

    def deliver(self) -> None:
        """Publish all pending statuses in one new snapshot of the view."""
        self._wake.clear()
        pending, self._pending = self._pending, {}
        # A new mapping: readers hold the old one as their snapshot.
        view = {**self.pods.value, **{u: p for u, p in pending.items() if p is not None}}
        for uid, pod in pending.items():
            if pod is None:
                view.pop(uid, None)
        self._on_delivered(pending)
        self._on_change(pending, self._finished)
        if self._listener is not None:
            for uid, pod in pending.items():
                if pod is None or uid in self._unconfirmed:
                    self._listener.forget(uid)
                else:
                    self._listener.put(uid, pod, is_finished=uid in self._finished)
        self.pods.value = view
