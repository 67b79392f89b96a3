"""Pods that bring out a bug before they have a worker: refused, and nobody else's trouble.

The registry is written by one task for all pods. What one of them makes it raise must end
neither that task nor the agent, so such a pod is told of as rejected, once a manifest. One
of which something runs is left as it is: nothing says that it has failed.
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
    """Tell whoever looks at a pod of a bug in its worker; `name` is the worker's in the tree."""
    key, _, uid = name.partition("@")
    namespace, _, pod_name = key.partition("/")
    events.emit(
        pod_ref(namespace, pod_name, uid),
        "Warning",
        "FailedSync",
        f"the pod's worker failed and is started again (restart {restarts}): {failure!r}",
    )


class RefusedPods:
    """Who was refused, by UID; the registry's."""

    def __init__(self, services: PodServices) -> None:
        self._services = services
        self._pods: dict[PodUid, Pod] = {}

    def is_refused(self, pod: Pod) -> bool:
        """Whether a pod was refused as it is now; an edited one is tried again."""
        return _same(self._pods.get(pod_uid(pod)), pod)

    def refuse(self, pod: Pod, failure: Exception, *, runs: bool) -> None:
        """Say what a pod brought out. `runs`: the runtime holds something of it."""
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
        """Drop those that nobody wants any more."""
        for uid in [uid for uid in self._pods if uid not in wanted]:
            del self._pods[uid]
            self._services.statuses.forget(uid)


def _same(refused: Pod | None, pod: Pod) -> bool:
    """Whether two states of a pod differ in their statuses at the most."""
    if refused is None:
        return False
    plain = (msgspec.structs.replace(p, status=None, metadata=_meta(p)) for p in (refused, pod))
    return next(plain) == next(plain)


def _meta(pod: Pod) -> object:
    """Return the metadata but for what every write changes."""
    meta = pod.metadata
    return meta and msgspec.structs.replace(meta, resourceVersion=None, managedFields=None)
