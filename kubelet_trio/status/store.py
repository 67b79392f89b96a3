"""Where pod statuses go: latest per UID, drained by one task, read by whoever asks.

Workers `put` and never wait. The `status` child delivers: here to the local view that the
control socket serves. Being started before the workers it stops after them, so that what
they said last still leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.model import Bell, PodUid


class StatusListener(Protocol):
    """Who passes statuses on. Its methods do not block."""

    def put(self, uid: PodUid, pod: Pod, *, is_finished: bool = False) -> None: ...

    def forget(self, uid: PodUid) -> None: ...


class StatusStore:
    """The pods as the node last saw them, each with its status.

    `pods` maps UID to a Pod that carries its status; the mapping is replaced, never
    changed, so a reader holds a consistent snapshot and a watcher compares by identity.
    """

    def __init__(self, listener: StatusListener | None = None) -> None:
        self.listener = listener
        self.on_delivered: Callable[[Mapping[PodUid, Pod | None]], None] = lambda _changed: None
        self.pods: AsyncValue[Mapping[PodUid, Pod]] = AsyncValue({})
        self._pending: dict[PodUid, Pod | None] = {}
        self._finished: set[PodUid] = set()
        self._unconfirmed: set[PodUid] = set()  # listed here, and told to nobody
        self._wake = Bell()

    def put(self, uid: PodUid, pod: Pod) -> None:
        """Note the newest status of a pod; an older one that has not left is dropped."""
        self._unconfirmed.discard(uid)
        self._pending[uid] = pod
        self._wake.ring()

    def show(self, uid: PodUid, pod: Pod) -> None:
        """List a pod of which nothing is known yet: only here, the listener hears nothing.

        What was told of it already stays.
        """
        if (self._pending[uid] if uid in self._pending else self.pods.value.get(uid)) is None:
            self._pending[uid] = pod
            self._unconfirmed.add(uid)
            self._wake.ring()

    def finish(self, uid: PodUid) -> None:
        """Note that nothing of a pod runs any more, nor will: its status is the last one."""
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
        """How many pods' statuses have not been delivered yet."""
        return len(self._pending)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        task_status.started()
        while True:
            await self._wake.wait_ring()
            self.deliver()

    def deliver(self) -> None:
        """Move what is pending into the view: one new snapshot for all of it."""
        self._wake.clear()
        pending, self._pending = self._pending, {}
        view = {**self.pods.value, **{u: p for u, p in pending.items() if p is not None}}
        for uid, pod in pending.items():
            if pod is None:
                view.pop(uid, None)
        self.on_delivered(pending)
        if self.listener is not None:
            for uid, pod in pending.items():
                if pod is None or uid in self._unconfirmed:
                    self.listener.forget(uid)
                else:
                    self.listener.put(uid, pod, is_finished=uid in self._finished)
        self.pods.value = view
