"""Start, update and end the workers of the node's pods.

The merge of the sources calls `apply` with the full desired set. Until every source has delivered
once, `apply` ends a pod only if the pod's own source does not want it any more and a new pod of
the same name replaces it. After that it ends every pod that the runtime or the disk holds and that
no source wants, no matter which agent started it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import msgspec
import trio
from lightkube.models.core_v1 import Container, Pod, PodSpec
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.containers import container_info, differs
from kubelet_trio.model import (
    CONFIG_SOURCE,
    PodUid,
    RuntimePod,
    Slices,
    about_pod,
    get_logger,
    is_static,
    is_terminal,
    metadata,
    pod_annotations,
    pod_key,
    pod_uid,
    spec,
    static_label,
)
from kubelet_trio.pods.plan import ending_note
from kubelet_trio.pods.records.record import PodRecord, is_removed
from kubelet_trio.pods.records.remains import is_at_rest
from kubelet_trio.pods.services import PodServices
from kubelet_trio.pods.types import EndReason, PodStage, ResizeTrigger, TerminationRequest
from kubelet_trio.pods.worker.admitter import Admitter, RefusedPods
from kubelet_trio.pods.worker.ledger import Ledger, counts
from kubelet_trio.pods.worker.worker import PodWorker
from kubelet_trio.sources import Desired
from kubelet_trio.supervision import ChildSpec, Restart, call_contained

log = get_logger()

# The grace period of a pod without manifest and record (HandlePodCleanups of pkg/kubelet).
ORPHAN_GRACE = 1
_APPLIED = 16  # pods ended, or applied and admitted, between two checkpoints, in some 5 ms
# End reasons that do not always outlast a restart of the agent, see `_take_record`.
_PASSING = (EndReason.SHUTDOWN, EndReason.REJECTED)


class PodRegistry:
    """All pods of the node by UID. Only `apply` lets others run; the workers do the work."""

    def __init__(
        self,
        services: PodServices,
        records: Mapping[PodUid, PodRecord],
        known_uids: Callable[[], Collection[PodUid]],
        start_child: Callable[[ChildSpec], None],
        admitter: Admitter,
        is_listed: Callable[[], bool],
        workers: dict[PodUid, PodWorker] | None = None,
    ) -> None:
        """Begin without workers.

        Args:
            services: what the workers need of the node.
            records: what an earlier agent left; a worker takes its own.
            known_uids: returns the pods of which the runtime holds something.
            start_child: starts the task of a worker.
            admitter: decides who may run.
            is_listed: whether `known_uids` knows yet; `wake_all` is to be called once it does.
            workers: the table to fill, for those who read it before the registry exists.
        """
        self._services = services
        self._records = dict(records)
        self._known_uids = known_uids
        self._start_child = start_child
        self._admitter = admitter
        self._is_listed = is_listed
        self._workers = workers if workers is not None else {}
        self._desired = Desired(pods={}, all_ready=False)
        self._complete = trio.Event()
        self._reclaimed: set[PodUid] = set()  # directories that are being removed
        self._refused = RefusedPods(services)
        self._is_applying = False
        self._ledger = Ledger(self._workers)
        self._admitted_before: tuple[int, list[Pod]] = (-1, [])

    async def wait_complete(self) -> None:
        """Wait until every source has delivered once."""
        await self._complete.wait()

    @property
    def is_complete(self) -> bool:
        """Whether every source has delivered once."""
        return self._complete.is_set()

    def is_owned(self, uid: PodUid) -> bool:
        """Whether a source wants the pod, it has a worker, or the runtime still holds it."""
        return uid in self._desired.pods or uid in self._workers or uid in self._known_uids()

    def has_ended(self, uid: PodUid) -> bool:
        """Whether a pod has terminated: nothing of it runs any more."""
        worker = self._workers.get(uid)
        return worker is not None and worker.stage is PodStage.TERMINATED

    def adopt(self, uid: PodUid) -> None:
        """End a pod that the runtime reports, if it is an orphan."""
        if uid not in self._workers:
            self.wake(uid)

    @contextmanager
    def reclaiming(self, uid: PodUid) -> Iterator[bool]:
        """Prevent a pod of this UID from starting while the caller removes an orphan's directory.

        Yields False, and prevents nothing, if the pod is no orphan.
        """
        if self.is_owned(uid) or uid in self._reclaimed:
            yield False
            return
        self._reclaimed.add(uid)
        try:
            yield True
        finally:
            self._reclaimed.discard(uid)
            if uid in self._desired.pods:
                self._make(self._desired.pods[uid], None)
                self._admit(ResizeTrigger.PODS_ADDED)

    @property
    def workers(self) -> Mapping[PodUid, PodWorker]:
        return self._workers

    @property
    def admitter(self) -> Admitter:
        """Decides who may run; asked what it would decide, it changes nothing."""
        return self._admitter

    def beside(self, without: Collection[PodUid]) -> tuple[list[Pod], list[Pod]]:
        """Return what `Ledger.beside` gives, by pods: those that stay and those that leave.

        Except for the pods `without`, and for what is reserved.
        """
        stay = [pod for pod in self._remembered() if pod_uid(pod) not in without]
        leave: list[Pod] = []
        for uid, worker in self._workers.items():
            if uid not in without and counts(worker, ()):
                (leave if worker.is_leaving else stay).append(worker.counted)
        return stay, leave

    def _remembered(self) -> list[Pod]:
        """Return the pods that an earlier agent admitted, and that have no worker yet."""
        known, pods = self._admitted_before
        if known != len(self._records):  # records are only ever taken out
            records = self._records.values()
            pods = [r.pod for r in records if r.admitted and r.termination is None]
            self._admitted_before = len(self._records), pods
        return pods

    async def apply(self, desired: Desired) -> bool:
        """Start, update and end workers, so that they match the newest desired set.

        Others run in between if there are many. Returns whether all is applied: not if `clear`
        was called meanwhile.
        """
        known = len(self._workers)
        self._desired = desired
        self._is_applying = True
        try:
            # First: a new pod may need the resources or the name of an old one.
            if await self._end_in_turns(desired):
                await self._apply_in_turns(desired)
        finally:
            self._is_applying = False
        self._refused.forget_unwanted(self._desired.pods)
        added = len(self._workers) > known
        self._admit(ResizeTrigger.PODS_ADDED if added else ResizeTrigger.POD_UPDATED)
        return self._desired is desired

    async def _end_in_turns(self, desired: Desired) -> bool:
        slices = Slices(_APPLIED)
        for _ in self._end_unwanted():
            await slices.step()
            if self._desired is not desired:
                return False
        if desired.all_ready:
            self._complete.set()  # only now has each pod that is to be ended a worker
        return True

    async def _apply_in_turns(self, desired: Desired) -> None:
        # By creation, as HandlePodAdditions sorts: the oldest pods are admitted first.
        pods = sorted(desired.pods.items(), key=_creation)
        for done, (uid, pod) in enumerate(pods):
            if done and done % _APPLIED == 0:
                # Resizes are decided on after all new pods, so nobody else admits meanwhile.
                self._admit_new()
                await trio.lowlevel.checkpoint()
                if self._desired is not desired:
                    return
            # An exception that one pod causes must not end this task, which serves all pods.
            failure = call_contained(self._apply_one, uid, pod)
            if isinstance(failure, Exception):
                self._refused.refuse(pod, failure, runs=uid in self._known_uids())

    def clear(self, desired: Desired) -> None:
        """End all workers: `desired` has no pods. Never blocks."""
        self._desired = desired
        if desired.all_ready:
            self._complete.set()
        for _ in self._end_unwanted():
            pass
        self._refused.forget_unwanted(desired.pods)
        self._admit(ResizeTrigger.POD_UPDATED)

    def _apply_one(self, uid: PodUid, pod: Pod) -> None:
        worker = self._workers.get(uid)
        if worker is None and (uid in self._reclaimed or self._refused.is_refused(pod)):
            return  # it starts after the removal (`reclaiming`), or once its manifest is edited
        if worker is None:
            worker = self._new_worker(pod, self._take_record(uid))
            self._start(worker)
        if _has_other_size(worker, pod):
            # By its UID it is the pod that has ended, but there is nothing to resize: as any other
            # edit of the manifest, this one runs it again.
            worker.remove(TerminationRequest(uid, EndReason.DELETED))
        if worker.is_wanted:
            worker.update(pod)
        else:  # it is being removed; `_on_gone` makes a new worker after that
            worker.note_wanted_again(pod)

    def _new_worker(self, pod: Pod, record: PodRecord | None) -> PodWorker:
        return PodWorker(
            *(self._services, pod, record),
            reconsider=self._reconsider,
            on_gone=self._on_gone,
            changed=self._ledger.note,
        )

    def _make(self, pod: Pod, record: PodRecord | None) -> PodWorker | None:
        """Start a pod's worker; return None if it cannot be made because of a bug."""
        made = call_contained(self._new_worker, pod, record)
        if isinstance(made, Exception):
            self._refused.refuse(pod, made, runs=pod_uid(pod) in self._known_uids())
            return None
        self._start(made)
        return made

    def resume(self) -> None:
        """Continue to end the pods that an earlier agent decided to end."""
        # Does not wait for the sources: one may take long to deliver, and none can revoke this.
        for uid, record in list(self._records.items()):
            ended, status = record.termination, record.pod.status
            if ended is None or ended.reason in _PASSING:
                continue
            if is_removed(record) or not is_terminal(status):
                self._make(record.pod, self._records.pop(uid))

    def _take_record(self, uid: PodUid) -> PodRecord | None:
        """Return and drop the record of a pod; None if the pod starts as a new one."""
        record = self._records.pop(uid, None)
        ended = record.termination if record is not None else None
        if record is None or ended is None or ended.reason not in _PASSING:
            return record
        # As with the Go kubelet: a static pod runs again after the node's shutdown, and a rejected
        # static pod is admitted or rejected anew.
        if is_static(record.pod):
            return _allocation(record)
        if ended.reason is EndReason.REJECTED:
            return record
        # The controller replaces other pods. While the API server is unreachable, it cannot know
        # that the pod has ended.
        runs_always = spec(record.pod).restartPolicy in (None, "", "Always")
        return None if runs_always and uid in self._desired.last_known else record

    def wake(self, uid: PodUid) -> None:
        """Wake a pod's worker after a change in the runtime; end the pod if it is an orphan."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.wake()
            return
        if uid not in self._desired.pods:
            self._end_orphan(uid)
        self._wake_waiting(uid)

    def _wake_waiting(self, uid: PodUid) -> None:
        """Wake the pods of the same name that wait until this one has ended."""
        self._wake_those(self._services.names.waiting(uid))

    def _wake_those(self, uids: Iterable[PodUid]) -> None:
        for uid in uids:
            worker = self._workers.get(uid)
            if worker is not None:
                worker.wake()

    def objects_changed(self, uid: PodUid) -> None:
        """Note that an object which a pod refers to was created, changed or deleted."""
        worker = self._workers.get(uid)
        if worker is not None:
            worker.objects_changed()

    def wake_all(self) -> None:
        """Wake every worker to retry at once, for example when the runtime's state has changed."""
        for worker in self._workers.values():
            worker.retry()
        self._admit(ResizeTrigger.PERIODIC)

    def _start(self, worker: PodWorker) -> None:
        uid, key = worker.uid, pod_key(worker.pod)
        self._workers[uid] = worker
        self._ledger.note(uid)
        self._services.remains.take_back(uid)
        self._services.names.claim(key, uid)
        self._start_child(
            ChildSpec(
                f"{key}@{uid}",
                worker.run,
                Restart.TRANSIENT,  # it returns when its pod is gone
                stop=worker.leave,
                note=partial(self._note, uid),
            )
        )

    def _note(self, uid: PodUid) -> str:
        shown = self._services.statuses.pods.value.get(uid)
        return "" if shown is None else ending_note(shown, self._services.clock.time())

    def _on_gone(self, uid: PodUid) -> None:
        del self._workers[uid]
        self._ledger.drop(uid)
        pod = self._desired.pods.get(uid)
        if pod is not None:
            # A source delivered the same UID again while the pod was being removed.
            self._services.meter.count("kubelet_restarted_pods_total", (static_label(pod),))
            self._make(pod, None)
        self._wake_waiting(uid)
        self._admit(ResizeTrigger.PODS_REMOVED)

    def _reconsider(self, trigger: ResizeTrigger) -> None:
        """Let waiting pods continue: another one may have made room, or freed its name."""
        if trigger is ResizeTrigger.POD_TERMINATED:
            # Not for other triggers: a pod that waits asks in each round to be resized.
            self._wake_those(self._services.names.waiting())
        self._admit(trigger)

    def _admit(self, trigger: ResizeTrigger) -> None:
        """Decide on the waiting pods and on resizes, once the runtime has been listed."""
        if self._is_applying:
            return  # it ends with this
        if self._take_over():
            self._admitter.admit(
                self._ledger, self._workers, trigger=trigger, all_known=self._knows_all()
            )

    def _admit_new(self) -> None:
        """Decide on the waiting pods only."""
        if self._take_over():
            self._admitter.admit(
                *(self._ledger, self._workers),
                trigger=ResizeTrigger.PODS_ADDED,
                all_known=self._knows_all(),
                resizes=False,
            )

    def _knows_all(self) -> bool:
        """Whether every pod that holds something of the node has a worker or a record.

        Upstream waits for all sources, because it has no records.
        """
        return self.is_complete or all(
            uid in self._workers or uid in self._records for uid in self._known_uids()
        )

    def _take_over(self) -> bool:
        """Admit what another kubelet has started; return whether the runtime has been listed."""
        if not self._is_listed():
            return False
        self._ledger.remember(self._remembered())
        known = self._known_uids()
        for uid in self._ledger.waiting():
            if uid in known:
                # A Go kubelet started it: taking over its node ends no pod.
                self._workers[uid].admit()
        return True

    def _end_unwanted(self) -> Iterator[None]:
        """End what the desired set does not have, a pod a step; others may run in between."""
        wanted = self._desired.pods
        for uid, worker in list(self._workers.items()):
            if self._workers.get(uid) is not worker:
                continue  # it has gone meanwhile
            if uid in wanted or not self._may_end(worker.pod):
                continue
            if worker.is_wanted:
                worker.remove(TerminationRequest(uid, EndReason.DELETED))
            else:
                worker.note_wanted_again(None)
            yield
        for uid in [*self._records, *self._known_uids()]:
            if uid not in wanted and uid not in self._workers:
                self._end_orphan(uid)
                yield

    def _may_end(self, pod: Pod) -> bool:
        """Whether an unwanted pod may be ended: no source keeps it or can still deliver it."""
        desired = self._desired
        if pod_uid(pod) in desired.kept:
            return False
        # Its own source must have delivered, but not the others, which may never do so, or depend
        # on its end (an API server that is itself a static pod). Upstream waits for all of them.
        return desired.all_ready or pod_annotations(pod).get(CONFIG_SOURCE) in desired.delivered

    def _end_orphan(self, uid: PodUid) -> None:
        """End a pod whose manifest was removed while the agent was down, with or without record."""
        observed, remains = self._services.observer.get(uid), self._services.remains
        if uid in self._reclaimed or (remains.is_left(uid) and is_at_rest(observed)):
            return
        record = self._records.get(uid)
        if record is None and not observed.exists:
            return  # the PLEG has not inspected it yet, and calls `wake` when it has
        pod = record.pod if record is not None else orphan_pod(observed)
        if not self._may_end(pod):
            return
        self._records.pop(uid, None)
        self._services.meter.count("kubelet_orphaned_runtime_pods_total")
        log.info("pod.orphan", **about_pod(pod), known=record is not None)
        worker = self._make(pod, record)
        if worker is not None:
            # Without a record its grace period is not certain: upstream gives 1 s.
            grace = None if record is not None else ORPHAN_GRACE
            worker.remove(TerminationRequest(uid, EndReason.DELETED, grace_period=grace))


def _allocation(record: PodRecord) -> PodRecord | None:
    """Return the record of a pod that starts as a new one, with the resources that it has had."""
    if not record.admitted:
        return None
    pod = msgspec.structs.replace(record.pod, status=None)
    return PodRecord(record.uid, pod, start_time=0.0, admitted=True, allocates=True)


def _has_other_size(worker: PodWorker, pod: Pod) -> bool:
    """Whether the manifest of a static pod that has ended asks for other CPU or memory."""
    is_over = worker.is_wanted and worker.is_ending and is_static(pod)
    return is_over and differs(worker.allocation.desired, pod)


def _creation(entry: tuple[PodUid, Pod]) -> float:
    """Return when a pod was created; static pods have no such time and come first."""
    created = metadata(entry[1]).creationTimestamp
    return created.timestamp() if created is not None else 0.0


def orphan_pod(observed: RuntimePod) -> Pod:
    """Make the object of a pod without manifest and record from the runtime's labels.

    It has what is needed to end the pod: name, containers, and the grace period from the
    containers' annotations.
    """
    names = dict.fromkeys(c.name for c in observed.containers)
    source = next((s.source for s in observed.sandboxes if s.source), None)
    graces = [container_info(c.annotations).termination_grace_period for c in observed.containers]
    return Pod(
        metadata=ObjectMeta(
            name=observed.name,
            namespace=observed.namespace,
            uid=observed.uid,
            annotations={CONFIG_SOURCE: source} if source else None,
        ),
        spec=PodSpec(
            containers=[Container(name=name) for name in names],
            terminationGracePeriodSeconds=next((g for g in graces if g is not None), None),
        ),
    )
