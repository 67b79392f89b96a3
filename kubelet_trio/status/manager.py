"""Sends pod statuses to the API server: the newest of each pod, as a patch when it changes.

Workers `put` without waiting; the API source reports the server's state (`observe`). One task
compares both and starts a few senders for what differs. A change leaves immediately; while the
server is slow, only the newest status of each pod waits. One sender at a time handles a pod.
A refused patch is retried with its own back-off; an unreachable server delays all of them. An
illegal transition is dropped, and the last status stays.

After its final status a pod that is being deleted is removed with grace period 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import trio
from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.kube import (
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
    is_newer,
)
from kubelet_trio.model import (
    STATUSES,
    Bell,
    Meter,
    PodKey,
    PodUid,
    WallClock,
    about_pod,
    get_logger,
    is_static,
    pod_key,
    pod_uid,
    spec,
    to_datetime,
)
from kubelet_trio.status.merge import may_be_deleted, merge_status, status_patch
from kubelet_trio.status.mirrors import is_mirror_of
from kubelet_trio.status.retry import Retry
from kubelet_trio.status.transitions import illegal_transition

log = get_logger()

_SENDERS = 8
_CALL_LIMIT = 60.0  # seconds; longer than the client's own timeout
_FLUSH_LIMIT = 4.0  # seconds for sending what is left when the agent ends


@dataclass(slots=True, eq=False)
class _Entry:
    """One pod of the node."""

    pod: Pod  # with our status
    is_finished: bool = False
    version: int = 1  # of the status to send
    sent: int = 0  # the last version that the server has
    base: Pod | None = None  # the server's object
    base_uid: str = ""
    ignored: dict[str, object] = field(default_factory=dict)  # fields that the server drops
    illegal: str | None = None  # why the last status was dropped
    retry: Retry = field(default_factory=Retry)
    is_busy: bool = False  # a sender handles it
    is_gone: bool = False  # from the server
    since: float | None = None  # trio time of the first change that has not been sent

    @property
    def is_due(self) -> bool:
        if self.sent >= self.version or self.is_busy or self.is_gone:
            return False
        # The status of a static pod is that of its mirror: wait until the mirror exists.
        return bool(self.base_uid) or not is_static(self.pod)


class StatusManager:
    """Sends pod statuses in `run`; its other methods never block."""

    def __init__(self, api: KubeApi, clock: WallClock, meter: Meter | None = None) -> None:
        """`meter` measures how long a status takes to reach the API server."""
        self._api = api
        self._clock = clock
        self._entries: dict[PodUid, _Entry] = {}
        self._known: Mapping[PodUid, Pod] = {}  # what the server has
        self._mirrors: Mapping[PodKey, Pod] = {}
        self._wake = Bell()
        self._delivered = trio.Event()  # set when a status has been sent or became obsolete
        self._server = Retry(cap=5.0)  # of an unreachable server
        self._is_stopping = False
        self._meter = meter

    # The statuses to send

    def put(self, uid: PodUid, pod: Pod, *, is_finished: bool = False) -> None:
        """Note the newest status of a pod, and whether its worker has removed everything."""
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = _Entry(pod)
            self._rebase(entry, self._known.get(uid), self._mirrors.get(pod_key(pod)))
        else:
            if self._is_legal(entry, entry.pod.status, pod.status):
                entry.pod, entry.illegal = pod, None
            entry.version += 1  # even with the same status: `is_finished` may have changed
        if entry.since is None:
            entry.since = trio.current_time()
        entry.is_finished = entry.is_finished or is_finished
        self._wake.ring()

    def _is_legal(self, entry: _Entry, before: PodStatus | None, after: PodStatus | None) -> bool:
        """Return whether a status may follow another; if not, log the reason once."""
        problem = illegal_transition(before or PodStatus(), after or PodStatus(), spec(entry.pod))
        if problem is not None and problem != entry.illegal:
            log.error("status.illegal_transition", **about_pod(entry.pod), error=problem)
            entry.illegal = problem
        return problem is None

    def forget(self, uid: PodUid) -> None:
        """Drop a pod that has left the node."""
        self._entries.pop(uid, None)
        self._delivered.set()

    # The server's state

    def observe(self, pods: Mapping[PodUid, Pod], mirrors: Mapping[PodKey, Pod]) -> None:
        """Take the pods and mirrors that the server has now."""
        for uid, entry in self._entries.items():
            self._rebase(entry, pods.get(uid), mirrors.get(pod_key(entry.pod)))
        self._known, self._mirrors = pods, mirrors
        self._wake.ring()

    def _rebase(self, entry: _Entry, pod: Pod | None, mirror: Pod | None) -> None:
        known = pod
        if is_static(entry.pod):
            # After an edit of the manifest, the mirror is still the old pod's until it is replaced.
            known = mirror if mirror is not None and is_mirror_of(mirror, entry.pod) else None
        if known is None:
            return
        uid = pod_uid(known)
        if uid != entry.base_uid:  # the mirror was created again
            entry.base, entry.base_uid, entry.is_gone = known, uid, False
            entry.version += 1
            entry.ignored = {}
        elif entry.base is None or (entry.base is not known and is_newer(known, entry.base)):
            # Another client may have overwritten our status; `_deliver` compares and patches.
            entry.base = known
            entry.version += 1

    # Sending

    def stop(self) -> None:
        """Ask `run` to end once all statuses are sent."""
        self._is_stopping = True
        self._wake.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send until cancelled; after `stop`, until nothing waits or the time is up."""
        for entry in self._entries.values():
            entry.is_busy = False  # left by a `run` that crashed
        task_status.started()
        async with trio.open_nursery() as senders:
            while not self._is_stopping:
                self._wake.clear()
                delay = self._send_due(senders)
                with trio.move_on_after(delay):
                    await self._wake.wait_ring()
            with trio.move_on_after(_FLUSH_LIMIT):
                # No flush to an unreachable server, and no wait for a pod that it refuses.
                while self._server.delay == 0 and any(
                    e.is_busy or (e.is_due and e.retry.delay == 0) for e in self._entries.values()
                ):
                    self._wake.clear()
                    self._send_due(senders)
                    await self._wake.wait_ring()
            senders.cancel_scope.cancel()

    def _send_due(self, senders: trio.Nursery) -> float:
        """Start senders for what may be sent now; return the seconds until more may be."""
        now = trio.current_time()
        # One sender is enough to find out whether the server is back.
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
        # Taken before the request: a status that arrives during it is sent next.
        version = entry.version
        try:
            with trio.fail_after(_CALL_LIMIT):
                await self._deliver(entry)
        except _OtherPodError:
            entry.is_gone, entry.base = True, None
        except NotFoundError as exc:
            entry.base = None
            if self._is_known(entry):
                # The watch may be behind, or a proxy on the way has no route for a while.
                self._failed(entry, exc)
            else:
                entry.is_gone = True
        except (KubeUnavailableError, trio.TooSlowError) as exc:
            unavailable = exc if isinstance(exc, KubeUnavailableError) else _no_answer()
            self._server.failed(trio.current_time(), unavailable)
            if self._server.is_news:
                log.info("status.unavailable", error=str(unavailable))
        # The server answered, so it is reachable: only this pod waits.
        except KubeError as exc:
            if exc.code in (409, 422):
                # 409 or 422: the UID may be wrong. Read the object again.
                entry.base = None
            self._failed(entry, exc)
        else:
            entry.sent = version
            self._measure(entry)
            entry.retry.succeeded()
            self._server.succeeded()
        finally:
            entry.is_busy = False
            self._wake.ring()
            self._delivered.set()

    def _is_known(self, entry: _Entry) -> bool:
        """Whether the server has the pod, as far as watches have told."""
        mirror = self._mirrors.get(pod_key(entry.pod))
        return pod_uid(entry.pod) in self._known or (
            mirror is not None and pod_uid(mirror) == entry.base_uid
        )

    def _measure(self, entry: _Entry) -> None:
        """Record the time since the first change that had not been sent."""
        if entry.since is not None and entry.sent >= entry.version:
            if self._meter is not None:
                took = trio.current_time() - entry.since
                self._meter.observe("kubelet_pod_status_sync_duration_seconds", took, (), STATUSES)
            entry.since = None

    def _failed(self, entry: _Entry, failure: KubeError) -> None:
        entry.retry.failed(trio.current_time(), failure)
        self._server.succeeded()
        if entry.retry.is_news:
            log.warning("status.refused", **about_pod(entry.pod), error=str(failure))

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
        is_mirror = is_static(entry.pod)
        if is_mirror:
            # The API server lets nobody add containers to a mirror pod: its status is of those that
            # its spec has, and what was added on this node is shown on this node alone.
            ours = msgspec.structs.replace(ours, ephemeralContainerStatuses=None)
        is_finished = entry.is_finished
        now = to_datetime(self._clock.time())
        merged = merge_status(theirs, ours, now, is_mirror=is_mirror)
        patch = status_patch(theirs, merged)
        if not self._is_legal(entry, theirs, merged):
            # The server has a status of an earlier agent, and would always refuse this patch.
            patch = {}
        if patch and patch != entry.ignored:
            base = await self._api.patch(
                Pod,
                key.name,
                # The UID makes the server refuse the patch if the pod was recreated.
                {"metadata": {"uid": uid}, "status": patch},
                namespace=key.namespace,
                subresource="status",
            )
            # An old server drops fields that it does not know: do not send them again.
            entry.ignored = status_patch(base.status or PodStatus(), merged)
            if entry.base_uid == uid and (entry.base is None or is_newer(base, entry.base)):
                entry.base = base
        if may_be_deleted(base, is_finished=is_finished):
            # The UID is a precondition: a newer pod of this name must not be deleted (syncPod).
            await self._api.delete(Pod, key.name, namespace=key.namespace, grace_period=0, uid=uid)
            log.info("status.pod_deleted", pod=str(key), podUID=uid)
            entry.is_gone = True

    async def wait_delivered(self) -> None:
        """Wait until the server has the newest status of every pod."""
        while any(True for _ in self.waiting()):
            self._delivered = trio.Event()
            await self._delivered.wait()

    def waiting(self) -> Iterable[PodUid]:
        """Yield the pods whose newest status has not reached the server."""
        return (uid for uid, entry in self._entries.items() if entry.sent < entry.version)


class _OtherPodError(Exception):
    """The server's pod of this name has another UID."""


def _no_answer() -> KubeUnavailableError:
    return KubeUnavailableError(f"no answer within {_CALL_LIMIT:g}s")
