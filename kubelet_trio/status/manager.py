"""Pod statuses on their way to the API server: the newest of each pod, patched as it changes.

Workers `put` and never wait; the API source tells what the server has (`observe`). One task
compares both and hands what differs to a few senders, so that a change leaves at once and,
while the server is slow, only the newest of each pod waits. A pod is sent by one sender at a
time. What the server refuses is tried again with delays of its own; a server that is not
there holds back everything at once. What cannot be true is dropped, and what was said stands.

After the final status a pod whose deletion was asked for is deleted with grace 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import trio
from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.kube import (
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
)
from kubelet_trio.model import (
    STATUSES,
    Bell,
    Meter,
    PodKey,
    PodUid,
    WallClock,
    get_logger,
    is_static,
    pod_key,
    pod_uid,
    spec,
    to_datetime,
)
from kubelet_trio.status.merge import is_newer, may_be_deleted, merge_status, status_patch
from kubelet_trio.status.mirror_plan import is_mirror_of
from kubelet_trio.status.retry import Retry
from kubelet_trio.status.transitions import illegal_transition

log = get_logger()

_SENDERS = 8
_CALL_LIMIT = 60.0  # beyond what the client itself waits for an answer
_FLUSH_LIMIT = 4.0  # for what is still to be said when the agent ends


@dataclass(slots=True, eq=False)
class _Entry:
    """One pod of the node."""

    pod: Pod  # with our status
    is_finished: bool = False
    version: int = 1  # of what is to be said
    sent: int = 0
    base: Pod | None = None  # as the server has it
    base_uid: str = ""
    refused: dict[str, object] = field(default_factory=dict)  # what it does not take over
    illegal: str | None = None  # why a status was dropped last
    retry: Retry = field(default_factory=Retry)
    is_busy: bool = False
    is_gone: bool = False  # from the server
    since: float | None = None  # trio time of the first change that has not been said

    @property
    def is_due(self) -> bool:
        if self.sent >= self.version or self.is_busy or self.is_gone:
            return False
        # A static pod is spoken of once its mirror is there.
        return bool(self.base_uid) or not is_static(self.pod)


class StatusManager:
    """See the module. Its methods never block; `run` is the one that sends."""

    def __init__(self, api: KubeApi, clock: WallClock) -> None:
        self._api = api
        self._clock = clock
        self._entries: dict[PodUid, _Entry] = {}
        self._known: Mapping[PodUid, Pod] = {}  # what the server has
        self._mirrors: Mapping[PodKey, Pod] = {}
        self._wake = Bell()
        self._said = trio.Event()  # a status has reached the server, or need not any more
        self._server = Retry(cap=5.0)  # whether it answers at all
        self._is_stopping = False
        self.meter: Meter | None = None  # told how long statuses take to be known

    # What is to be said

    def put(self, uid: PodUid, pod: Pod, *, is_finished: bool = False) -> None:
        """Note the newest status of a pod, and whether nothing is left of it but its object."""
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = _Entry(pod)
            self._rebase(entry, self._known.get(uid), self._mirrors.get(pod_key(pod)))
        else:
            if self._is_legal(entry, entry.pod.status, pod.status):
                entry.pod, entry.illegal = pod, None
            entry.version += 1  # what was said may be the last word now
        if entry.since is None:
            entry.since = trio.current_time()
        entry.is_finished = entry.is_finished or is_finished
        self._wake.ring()

    def _is_legal(self, entry: _Entry, before: PodStatus | None, after: PodStatus | None) -> bool:
        """Return whether a status may follow another, and log once why it may not."""
        problem = illegal_transition(before or PodStatus(), after or PodStatus(), spec(entry.pod))
        if problem is not None and problem != entry.illegal:
            log.error("status.illegal_transition", pod=str(pod_key(entry.pod)), error=problem)
            entry.illegal = problem
        return problem is None

    def forget(self, uid: PodUid) -> None:
        """Drop a pod that has left the node."""
        self._entries.pop(uid, None)
        self._said.set()

    # What the server has

    def observe(self, pods: Mapping[PodUid, Pod], mirrors: Mapping[PodKey, Pod]) -> None:
        """Take over what the server has now, pods and mirrors."""
        for uid, entry in self._entries.items():
            self._rebase(entry, pods.get(uid), mirrors.get(pod_key(entry.pod)))
        self._known, self._mirrors = pods, mirrors
        self._wake.ring()

    def _rebase(self, entry: _Entry, pod: Pod | None, mirror: Pod | None) -> None:
        known = pod
        if is_static(entry.pod):
            # An edited pod has its predecessor's mirror until that is replaced.
            known = mirror if mirror is not None and is_mirror_of(mirror, entry.pod) else None
        if known is None:
            return
        uid = pod_uid(known)
        if uid != entry.base_uid:  # a mirror that was made anew
            entry.base, entry.base_uid, entry.is_gone = known, uid, False
            entry.version += 1
            entry.refused = {}
        elif entry.base is None or (entry.base is not known and is_newer(known, entry.base)):
            # Whether somebody wrote over what we said is seen when it is sent: mostly not.
            entry.base = known
            entry.version += 1

    # Sending

    def stop(self) -> None:
        """Ask `run` to end once it has said what there is to say."""
        self._is_stopping = True
        self._wake.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send until cancelled, or, once stopped, until nothing waits or time is up."""
        for entry in self._entries.values():
            entry.is_busy = False  # of a life that crashed
        task_status.started()
        async with trio.open_nursery() as senders:
            while not self._is_stopping:
                self._wake.clear()
                delay = self._send_due(senders)
                with trio.move_on_after(delay):
                    await self._wake.wait_ring()
            with trio.move_on_after(_FLUSH_LIMIT):
                while self._server.delay == 0 and any(
                    e.is_busy or (e.is_due and e.retry.delay == 0) for e in self._entries.values()
                ):
                    self._wake.clear()
                    self._send_due(senders)
                    await self._wake.wait_ring()
            senders.cancel_scope.cancel()

    def _send_due(self, senders: trio.Nursery) -> float:
        """Start what may be sent now; return the seconds until more may be."""
        now = trio.current_time()
        # One is enough to find out whether a server is back.
        free = 1 if self._server.delay else _SENDERS
        free -= sum(entry.is_busy for entry in self._entries.values())
        waits = []
        for entry in list(self._entries.values()):
            if not entry.is_due:
                continue
            ready_at = max(entry.retry.until, self._server.until)
            if ready_at > now:
                waits.append(ready_at - now)
            elif free > 0:
                free -= 1
                entry.is_busy = True
                senders.start_soon(self._send, entry, name=f"status:{pod_key(entry.pod)}")
        return min(waits, default=float("inf"))

    async def _send(self, entry: _Entry) -> None:
        version = entry.version
        try:
            with trio.fail_after(_CALL_LIMIT):
                await self._deliver(entry)
        except (NotFoundError, _OtherPodError):
            entry.is_gone, entry.base = True, None
        except (KubeUnavailableError, trio.TooSlowError) as exc:
            unavailable = exc if isinstance(exc, KubeUnavailableError) else _no_answer()
            self._server.failed(trio.current_time(), unavailable)
            log.info("status.unavailable", error=str(unavailable), retry_in=self._server.delay)
        except KubeError as exc:
            if exc.code in (409, 422):
                entry.base = None  # ask what it is now: servers call another's UID invalid
            self._failed(entry, exc)
        else:
            entry.sent = version
            self._measure(entry)
            entry.retry.succeeded()
            self._server.succeeded()
        finally:
            entry.is_busy = False
            self._wake.ring()
            self._said.set()

    def _measure(self, entry: _Entry) -> None:
        """Tell how long it took since the first change that had not been said."""
        if entry.since is not None and entry.sent >= entry.version:
            if self.meter is not None:
                took = trio.current_time() - entry.since
                self.meter.observe("kubelet_pod_status_sync_duration_seconds", took, (), STATUSES)
            entry.since = None

    def _failed(self, entry: _Entry, failure: KubeError) -> None:
        wait = entry.retry.failed(trio.current_time(), failure)
        self._server.succeeded()
        log.warning(
            "status.refused", pod=str(pod_key(entry.pod)), error=str(failure), retry_in=wait
        )

    async def _deliver(self, entry: _Entry) -> None:
        key = pod_key(entry.pod)
        uid = entry.base_uid or pod_uid(entry.pod)
        base = entry.base
        if base is None:
            base = await self._api.get(Pod, key.name, namespace=key.namespace)
            if pod_uid(base) != uid:
                raise _OtherPodError(str(key))
            entry.base, entry.base_uid = base, uid
        theirs, ours = base.status or PodStatus(), entry.pod.status or PodStatus()
        is_finished = entry.is_finished
        merged = merge_status(theirs, ours, to_datetime(self._clock.time()))
        patch = status_patch(theirs, merged)
        if not self._is_legal(entry, theirs, merged):
            # As an earlier agent said it: the server would refuse another word for ever.
            patch = {}
        if patch and patch != entry.refused:
            base = await self._api.patch(
                Pod,
                key.name,
                {"metadata": {"uid": uid}, "status": patch},
                namespace=key.namespace,
                subresource="status",
            )
            # An old server drops fields that it does not know: no reason to say them again.
            entry.refused = status_patch(base.status or PodStatus(), merged)
            if entry.base_uid == uid and (entry.base is None or is_newer(base, entry.base)):
                entry.base = base
        if may_be_deleted(base, is_finished=is_finished):
            await self._api.delete(Pod, key.name, namespace=key.namespace, grace_period=0, uid=uid)
            log.info("status.pod_deleted", pod=str(key), uid=uid)
            entry.is_gone = True

    async def wait_said(self) -> None:
        """Wait until the server has every pod's status as it is now."""
        while any(True for _ in self.waiting()):
            self._said = trio.Event()
            await self._said.wait()

    def waiting(self) -> Iterable[PodUid]:
        """Yield the pods whose newest status has not reached the server."""
        return (uid for uid, entry in self._entries.items() if entry.sent < entry.version)


class _OtherPodError(Exception):
    """The name belongs to another UID by now."""


def _no_answer() -> KubeUnavailableError:
    return KubeUnavailableError(f"no answer within {_CALL_LIMIT:g}s")
