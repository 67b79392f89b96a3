"""Pods whose worker cannot be made because of a bug.

One task writes the registry for all pods. An exception that one pod causes must end neither that
task nor the agent, so the pod is reported as rejected, once for each manifest. A pod of which
something runs keeps its status: it has not failed.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec
from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.model import (
    EventSink,
    PodUid,
    get_logger,
    pod_key,
    pod_object_ref,
    pod_ref,
    pod_uid,
)
from kubelet_trio.pods.services import PodServices

log = get_logger()

_REASON = "UnexpectedAdmissionError"


def tell_crash(events: EventSink, name: str, failure: BaseException, restarts: int) -> None:
    """Emit an event about a crash of a pod's worker; `name` is the worker's in the tree."""
    key, _, uid = name.partition("@")
    namespace, _, pod_name = key.partition("/")
    events.emit(
        pod_ref(namespace, pod_name, uid),
        "Warning",
        "FailedSync",
        f"the pod's worker failed and is started again (restart {restarts}): {failure!r}",
    )


class RefusedPods:
    """The refused pods, by UID. The registry owns them."""

    def __init__(self, services: PodServices) -> None:
        self._services = services
        self._pods: dict[PodUid, Pod] = {}

    def is_refused(self, pod: Pod) -> bool:
        """Whether this manifest of a pod was refused; an edited one is tried again."""
        return _same(self._pods.get(pod_uid(pod)), pod)

    def refuse(self, pod: Pod, failure: Exception, *, runs: bool) -> None:
        """Report a pod as rejected. `runs`: the runtime holds something of it."""
        uid = pod_uid(pod)
        self._pods[uid] = pod
        log.error("pod.refused", pod=str(pod_key(pod)), uid=uid, exc_info=failure)
        message = f"Unexpected error while attempting to admit the pod: {failure!r}"
        self._services.events.emit(pod_object_ref(pod), "Warning", _REASON, message)
        if runs:
            return
        status = msgspec.structs.replace(
            pod.status or PodStatus(),
            phase="Failed",
            reason=_REASON,
            message=f"Pod was rejected: {message}",
        )
        self._services.statuses.put(uid, msgspec.structs.replace(pod, status=status))
        self._services.statuses.finish(uid)

    def forget_unwanted(self, wanted: Container[PodUid]) -> None:
        """Drop those that no source wants any more."""
        for uid in [uid for uid in self._pods if uid not in wanted]:
            del self._pods[uid]
            self._services.statuses.forget(uid)


def _same(refused: Pod | None, pod: Pod) -> bool:
    """Whether two states of a pod differ in nothing but their status."""
    if refused is None:
        return False
    plain = (msgspec.structs.replace(p, status=None, metadata=_meta(p)) for p in (refused, pod))
    return next(plain) == next(plain)


def _meta(pod: Pod) -> object:
    """Return the metadata without what every write at the API server changes."""
    meta = pod.metadata
    return meta and msgspec.structs.replace(meta, resourceVersion=None, managedFields=None)
