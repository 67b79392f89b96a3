"""The newest complete snapshot of every pod in the runtime, and its age.

Readers get immutable values. `wait_newer` waits for a snapshot from after a given time. A relist
makes snapshots newer without a query for each pod: one that shows no change of a pod confirms its
snapshot, and one that does not show a pod confirms that it does not exist.

A pod is *pending* while a status query of it is in flight or has failed. A relist never confirms
the snapshot of a pod that is pending at its end, not even after the query is answered: neither the
answer nor the snapshot need hold what the relist has shown. The pod's next snapshot or the next
relist makes it newer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import trio

from kubelet_trio.model import PodUid, RuntimePod


class PodStatusCache:
    """The snapshots of all pods. Only the PLEG writes to it."""

    def __init__(self) -> None:
        self._pods: dict[PodUid, RuntimePod] = {}
        self._pending: set[PodUid] = set()
        self._unconfirmed: set[PodUid] = set()  # pending now, or at the last relist
        self._relisted_at = -math.inf
        self._first_relist = trio.Event()
        self._news: dict[PodUid, trio.Event] = {}

    # Reading

    def get(self, uid: PodUid) -> RuntimePod:
        """Return the newest snapshot; an empty one for a pod that is not in the runtime.

        Before the first relist every pod's is empty: wait for `wait_newer` or `wait_synced` before
        you act on it.
        """
        return self._pods.get(uid) or RuntimePod(uid, observed_at=self.observed_at(uid))

    def pods(self) -> Iterator[RuntimePod]:
        """Return the snapshots of the pods that have a sandbox or container in the runtime."""
        return iter([pod for pod in self._pods.values() if pod.exists])

    def observed_at(self, uid: PodUid) -> float:
        """Return the Trio time as of which the result of `get` is true; -inf if it is not yet."""
        pod = self._pods.get(uid)
        own = -math.inf if pod is None else pod.observed_at
        return own if uid in self._unconfirmed else max(own, self._relisted_at)

    async def wait_newer(self, uid: PodUid, than: float) -> RuntimePod:
        """Wait for a snapshot whose queries were sent at `than` (Trio time) or later."""
        await trio.lowlevel.checkpoint()
        while self.observed_at(uid) < than:
            await self._news.setdefault(uid, trio.Event()).wait()
        return self.get(uid)

    def is_synced(self, uid: PodUid) -> bool:
        """Return whether there was a relist, and a snapshot of this pod since the start."""
        return self._first_relist.is_set() and self.observed_at(uid) > -math.inf

    async def wait_synced(self, uid: PodUid | None = None) -> None:
        """Wait for the first relist and, if `uid` is given, for that pod's first snapshot."""
        await self._first_relist.wait()
        if uid is not None:
            while not self.is_synced(uid):
                await self._news.setdefault(uid, trio.Event()).wait()

    # Writing

    def put(self, pod: RuntimePod) -> bool:
        """Store a snapshot; return whether it differs from the last one in more than its age."""
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        self._announce(pod.uid)
        if before is None:
            return pod.exists
        return replace(before, observed_at=pod.observed_at) != pod

    def set_pending(self, uid: PodUid, pending: bool) -> None:
        """Set whether a pod is pending."""
        if pending:
            self._pending.add(uid)
            self._unconfirmed.add(uid)
        else:
            self._pending.discard(uid)

    def relisted(self, asked_at: float) -> None:
        """Confirm the snapshots of all pods that are not pending as of `asked_at` (Trio time)."""
        self._relisted_at = asked_at
        self._unconfirmed = set(self._pending)
        self._first_relist.set()
        # An empty snapshot says no more than the relist, which `get` falls back to: drop it.
        empty = [uid for uid, pod in self._pods.items() if not pod.exists]
        for uid in empty:
            if uid not in self._pending and self._pods[uid].observed_at <= asked_at:
                del self._pods[uid]
        for uid in tuple(self._news):
            self._announce(uid)

    def _announce(self, uid: PodUid) -> None:
        news = self._news.pop(uid, None)
        if news is not None:
            news.set()
