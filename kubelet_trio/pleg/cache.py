"""The newest complete snapshot of every pod in the runtime, and how old it may be.

Readers get immutable values and never wait for a lock; `wait_newer` waits until the
runtime has been asked after a given time. That counts for pods that were not asked about
one by one too: a relist that shows nothing new of a pod confirms what is known of it, and
one that does not show a pod at all confirms that there is none.

A pod is *pending* while something about it is known to be missing (its status is being
asked, or could not be asked): a relist does not make the snapshot of a pending pod newer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import trio

from kubelet_trio.model import PodUid, RuntimePod


class PodStatusCache:
    """What readers see of the runtime. `put` and the like are for the PLEG alone."""

    def __init__(self) -> None:
        self._pods: dict[PodUid, RuntimePod] = {}
        self._pending: set[PodUid] = set()
        self._relisted_at = -math.inf
        self._first_relist = trio.Event()
        self._news: dict[PodUid, trio.Event] = {}

    # Read

    def get(self, uid: PodUid) -> RuntimePod:
        """Return the newest snapshot; an empty one for a pod the runtime does not hold.

        Before the first relist that is said of every pod: who acts on it waits for
        `wait_newer` first.
        """
        return self._pods.get(uid) or RuntimePod(uid, observed_at=max(self._relisted_at, 0.0))

    def pods(self) -> Iterator[RuntimePod]:
        """Yield the snapshots of the pods that the runtime holds something of."""
        return iter([pod for pod in self._pods.values() if pod.exists])

    def observed_at(self, uid: PodUid) -> float:
        """Return the trio time as of which `get` tells the truth, -inf if it does not yet."""
        pod = self._pods.get(uid)
        own = -math.inf if pod is None else pod.observed_at
        return own if uid in self._pending else max(own, self._relisted_at)

    async def wait_newer(self, uid: PodUid, than: float) -> RuntimePod:
        """Wait for a snapshot that was asked for at `than` (trio time) or later."""
        await trio.lowlevel.checkpoint()
        while self.observed_at(uid) < than:
            await self._news.setdefault(uid, trio.Event()).wait()
        return self.get(uid)

    async def wait_synced(self, uid: PodUid | None = None) -> None:
        """Wait until the runtime has been listed once, and what it holds of `uid` is known."""
        await self._first_relist.wait()
        if uid is not None:
            while self.observed_at(uid) == -math.inf:
                await self._news.setdefault(uid, trio.Event()).wait()

    # Write

    def put(self, pod: RuntimePod) -> bool:
        """Take a snapshot; return whether it differs from the last in more than its age."""
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        self._announce(pod.uid)
        if before is None:
            return pod.exists
        return replace(before, observed_at=pod.observed_at) != pod

    def set_pending(self, uid: PodUid, pending: bool) -> None:
        """Say whether something is missing in what is known of a pod."""
        if pending:
            self._pending.add(uid)
        elif uid in self._pending:
            self._pending.discard(uid)
            self._announce(uid)

    def relisted(self, asked_at: float) -> None:
        """Say that all pods not pending are as they were known at `asked_at` (trio time)."""
        self._relisted_at = asked_at
        self._first_relist.set()
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
