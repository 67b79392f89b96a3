"""What the node's pods hold, kept as sums while they come, change and end.

A worker says that it has changed, and is looked at again before the next decision: what it held is
taken off the sums, and what it holds now is added. So a decision on one pod does not look at all
others, and a node of n pods is filled by n looks. The registry owns the ledger; all calls come from
the Trio thread and never block.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from lightkube.models.core_v1 import Pod

from kubelet_trio.model import PodKey, PodUid, is_static, pod_key, pod_uid
from kubelet_trio.pods.admission import Held, Listed, Share, Sums, share_of
from kubelet_trio.pods.types import PodStage
from kubelet_trio.pods.worker.state import WorkerState
from kubelet_trio.supervision import call_contained


def counts(worker: WorkerState, reserved: Collection[PodUid]) -> bool:
    """Return whether a pod's resources count as used."""
    if worker.stage is PodStage.TERMINATED:
        return False
    # The Go kubelet forgets a static pod with its file, though it may still be terminating: the
    # next version of the pod never has to fit next to it.
    if not worker.is_wanted and (worker.yields or is_static(worker.pod)):
        return False
    return worker.is_admitted or worker.uid in reserved


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a worker was found to be when it was looked at last."""

    order: int  # that in which the workers were made
    key: PodKey
    pod: Pod | None  # as it counts; None: it does not count, or its requests are not known
    share: Share | None  # None: it does not count
    is_leaving: bool
    runs: bool  # admitted, and not ending


class Ledger:
    """The pods that admission counts, and those that wait for it."""

    def __init__(self, workers: Mapping[PodUid, WorkerState]) -> None:
        """Begin without pods; `workers` is the table of the registry."""
        self._workers = workers
        self._entries: dict[PodUid, _Entry] = {}
        self._orders = itertools.count()
        self._changed: dict[PodUid, None] = {}
        self._others, self._leaving = Sums(), Sums()
        self._waiting: set[PodUid] = set()
        self._resizing: set[PodUid] = set()
        self._present: set[PodUid] = set()
        self._unwanted: dict[PodKey, dict[PodUid, None]] = {}
        self._unadopted: dict[PodUid, None] = {}
        self._reserved: set[PodUid] = set()
        self._remembered: Sequence[Pod] = ()

    def note(self, uid: PodUid) -> None:
        """Note that a worker was made, or has changed."""
        self._changed[uid] = None

    def drop(self, uid: PodUid) -> None:
        """Forget a worker that is gone; another of the UID comes last of all."""
        self._forget(uid)
        self._changed.pop(uid, None)
        self._unadopted.pop(uid, None)
        self._reserved.discard(uid)

    def remember(self, pods: Sequence[Pod]) -> None:
        """Count the pods that an earlier agent admitted and no source has delivered yet."""
        if pods is self._remembered:
            return
        for pod in self._remembered:
            self._others.take_off(_share(pod))
        for pod in pods:
            self._others.add(_share(pod))
        self._remembered = pods

    def reserve(self, uid: PodUid) -> None:
        """Count a pod that is admitted as soon as others have ended, until `end_reservations`."""
        self._reserved.add(uid)
        self.note(uid)

    def end_reservations(self) -> None:
        """Count no pod any more that waits for others."""
        for uid in self._reserved:
            self.note(uid)
        self._reserved.clear()

    # What admission asks

    def waiting(self) -> list[PodUid]:
        """Return the pods that are not admitted, in the order in which they came."""
        self._look()
        return self._in_order(self._waiting)

    def resizing(self) -> list[PodUid]:
        """Return the pods that ask for other resources, in the order in which they came."""
        self._look()
        return self._in_order(self._resizing)

    def take_unadopted(self) -> list[PodUid]:
        """Return the admitted pods that run and were not returned before."""
        self._look()
        taken, self._unadopted = self._unadopted, {}
        return self._in_order([uid for uid in taken if self._entries[uid].runs])

    def present(self) -> Collection[PodUid]:
        """Return the pods that have not ended. Not to be kept: it changes."""
        self._look()
        if not self._remembered:
            return self._present
        return self._present | {pod_uid(pod) for pod in self._remembered}

    def unwanted(self, key: PodKey) -> list[PodUid]:
        """Return the pods of a name that no source wants any more."""
        self._look()
        return self._in_order(self._unwanted.get(key, ()))

    @contextmanager
    def beside(self, uid: PodUid) -> Iterator[tuple[Held, Held]]:
        """Give what all pods but one hold: those that stay, and those that leave.

        A pod that is preempted leaves, and one that its source wants no more, as after a forced
        deletion: the scheduler counts it no longer. Upstream forgets the latter at once, though
        it still runs; here it counts until it `yields`.
        """
        self._look()
        entry = self._entries.get(uid)
        if entry is not None:
            self._take_off(entry)
        try:
            yield (
                Held(self._others, Listed(partial(self._list, uid, leaving=False))),
                Held(self._leaving, Listed(partial(self._list, uid, leaving=True))),
            )
        finally:
            if entry is not None:
                self._add(entry)

    def _list(self, without: PodUid, *, leaving: bool) -> list[Pod]:
        found = [
            worker.counted
            for uid, worker in self._workers.items()
            if uid != without and worker.is_leaving is leaving and counts(worker, self._reserved)
        ]
        return found if leaving else [*found, *self._remembered]

    # Looking at workers that have changed

    def _look(self) -> None:
        changed, self._changed = self._changed, {}
        for uid in changed:
            worker, was = self._workers.get(uid), self._forget(uid)
            if worker is not None:
                self._enter(uid, worker, was)

    def _enter(self, uid: PodUid, worker: WorkerState, was: _Entry | None) -> None:
        order = was.order if was is not None else next(self._orders)
        key, runs = pod_key(worker.pod), worker.is_admitted and not worker.is_ending
        pod, share = self._share(worker, was)
        entry = _Entry(order, key, pod, share, worker.is_leaving, runs)
        self._entries[uid] = entry
        self._add(entry)
        if runs and (was is None or not was.runs):
            self._unadopted[uid] = None
        if not worker.is_admitted and not worker.is_ending:
            self._waiting.add(uid)
        if worker.asks_resize:
            self._resizing.add(uid)
        if worker.stage is not PodStage.TERMINATED:
            self._present.add(uid)
        if not worker.is_wanted:
            self._unwanted.setdefault(key, {})[uid] = None

    def _share(self, worker: WorkerState, was: _Entry | None) -> tuple[Pod | None, Share | None]:
        """Return the pod as it counts, and what it holds; None twice if it does not count."""
        if not counts(worker, self._reserved):
            return None, None
        pod = call_contained(_counted, worker)
        if isinstance(pod, Exception):
            return None, Share(failure=pod)
        if was is not None and was.pod is pod:
            return pod, was.share  # most changes are of its phase
        return pod, _share(pod)

    def _forget(self, uid: PodUid) -> _Entry | None:
        entry = self._entries.pop(uid, None)
        if entry is None:
            return None
        self._take_off(entry)
        for group in (self._waiting, self._resizing, self._present):
            group.discard(uid)
        namesakes = self._unwanted.get(entry.key, {})
        namesakes.pop(uid, None)
        if not namesakes:
            self._unwanted.pop(entry.key, None)
        return entry

    def _add(self, entry: _Entry) -> None:
        if entry.share is not None:
            (self._leaving if entry.is_leaving else self._others).add(entry.share)

    def _take_off(self, entry: _Entry) -> None:
        if entry.share is not None:
            (self._leaving if entry.is_leaving else self._others).take_off(entry.share)

    def _in_order(self, uids: Collection[PodUid]) -> list[PodUid]:
        return sorted(uids, key=lambda uid: self._entries[uid].order)


def _counted(worker: WorkerState) -> Pod:
    return worker.counted


def _share(pod: Pod) -> Share:
    """Return what a pod holds; a bug in that fails the decisions that need it, not their task."""
    share = call_contained(share_of, pod)
    return share if isinstance(share, Share) else Share(failure=share)
