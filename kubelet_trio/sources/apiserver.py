"""Source `api`: runs the pods that the API server has bound to this node.

The API server has validated and defaulted them. It may be older or newer than this agent, so
they are taken as they are; admission refuses what the node cannot do. Mirror pods are not
wanted; `observe` passes them to the status manager and to `MirrorPods`.

The first delivery follows the first list. While the server is unreachable the last snapshot
stays in force. A node that starts without a connection may use the pods known from before
(`fall_back`): they become wanted if there is no first list within `FALLBACK_AFTER` seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.kube import KubeApi, Reflector, ServerFeatures
from kubelet_trio.model import (
    CONFIG_SEEN,
    CONFIG_SOURCE,
    INSTANCE,
    Latest,
    PodKey,
    PodUid,
    WallClock,
    get_logger,
    is_mirror,
    metadata,
    pod_annotations,
    pod_key,
)
from kubelet_trio.sources.manifest.defaults import default_pod
from kubelet_trio.sources.manifest.static import MANIFEST, mark_seen, seen_now
from kubelet_trio.sources.source import SourceProblem, SourceSnapshot

log = get_logger()

# Annotations that only this node sets; an object's own values are ignored.
_SET_BY_NODE = (CONFIG_SEEN, INSTANCE, MANIFEST)

# Seconds after the start. A reachable server answers long before that, and a network that is
# still coming up mostly does, too. Not sooner: a pod that was moved to another node while this
# one was down must not start here again.
FALLBACK_AFTER = 10.0

Observer = Callable[[Mapping[PodUid, Pod], Mapping[PodKey, Pod]], None]


class ApiSource:
    """Source of the pods bound to this node; `observe` gets every state: pods and mirrors."""

    name = "api"

    def __init__(
        self,
        api: KubeApi,
        node_name: str,
        clock: WallClock,
        observe: Observer,
        host: str = "",
        fall_back: Callable[[], Sequence[Pod] | None] = lambda: None,
        features: ServerFeatures | None = None,
        wait_node: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
        meet: Callable[[Sequence[Pod]], Awaitable[None]] | None = None,
    ) -> None:
        """Set the source up; `run` does the work.

        Args:
            api: the API server.
            node_name: selects the pods by `spec.nodeName`.
            clock: for `config.seen`.
            observe: called with pods and mirrors whenever the server's state changes.
            host: the server, as the tree and `status` show it.
            fall_back: returns the pods that were known before this start; None if unknown.
            features: the server's features, shared with the other reflectors.
            wait_node: returns once the node's own object has been listed.
            meet: called with new pods before they are delivered.
        """
        self._wait_node = wait_node
        self._meet = meet
        self._features = features
        self._api = api
        self._node_name = node_name
        self._clock = clock
        self._observe = observe
        self._host = host
        self._fall_back = fall_back
        self._taken: dict[PodUid, tuple[Pod, Pod]] = {}  # the server's object, the wanted pod
        self.snapshots: Latest[SourceSnapshot] = Latest()
        self.delivered: SourceSnapshot | None = None
        self.problems: AsyncValue[tuple[SourceProblem, ...]] = AsyncValue(())

    @property
    def origin(self) -> str:
        return self._host

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver snapshots until cancelled. Ready at once: connected or not."""
        reflector = Reflector(
            self._api,
            Pod,
            field_selector=f"spec.nodeName={self._node_name}",
            features=self._features,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            nursery.start_soon(self._wait_first)
            task_status.started()
            # Admission judges pods by the node's labels and taints, and a refusal is final.
            await self._wait_node()
            while True:
                delivery = await reflector.wait_delivery()
                raw = {metadata(pod).uid or "": pod for pod in delivery.objects.values()}
                if self._meet is not None:
                    new = [pod for uid, pod in raw.items() if uid not in self._taken]
                    await self._meet([pod for pod in new if not is_mirror(pod)])
                self.take(raw)

    async def _wait_first(self) -> None:
        """Deliver the pods known from before if no first list arrives in time."""
        await trio.sleep(FALLBACK_AFTER)
        known = self._fall_back() if self.delivered is None else None
        if known is None:
            return
        message = (
            f"the API server has not answered since the start: {len(known)} pods run as last known"
        )
        log.warning("apiserver.silent", host=self._host, pods=len(known))
        self.problems.value = (SourceProblem(self.name, self._host, message),)
        seen = seen_now(self._clock.time())
        pods = {PodUid(metadata(pod).uid or ""): pod for pod in known}
        self._taken = {uid: (pod, as_wanted(pod, seen)) for uid, pod in pods.items()}
        wanted = tuple(wanted for _, wanted in self._taken.values())
        # Not complete: pods that only the server knows must not count as unwanted.
        self._deliver(SourceSnapshot(self.name, wanted, is_complete=False))

    def _deliver(self, snapshot: SourceSnapshot) -> None:
        self.delivered = snapshot
        self.snapshots.put(snapshot)

    def take(self, raw: Mapping[str, Pod]) -> None:
        """Take all pods of the node as the server has them, by UID."""
        mirrors = {pod_key(pod): pod for pod in raw.values() if is_mirror(pod)}
        pods = {PodUid(uid): pod for uid, pod in raw.items() if not is_mirror(pod)}
        self._observe(pods, mirrors)
        seen = seen_now(self._clock.time())
        self._taken = {uid: (pod, self._wanted(uid, pod, seen)) for uid, pod in pods.items()}
        wanted = tuple(wanted for _, wanted in self._taken.values())
        before = self.delivered
        # Changes of mirrors and the echo of our own status patches change no wanted pod.
        if before is not None and before.is_complete and _same(before.pods, wanted):
            return
        if self.problems.value:
            self.problems.value = ()
        self._deliver(SourceSnapshot(self.name, wanted))

    def _wanted(self, uid: PodUid, pod: Pod, seen: str) -> Pod:
        before = self._taken.get(uid)
        if before is None:
            return as_wanted(pod, seen)
        raw, wanted = before
        # The reflector keeps the identity of unchanged objects.
        if raw is pod:
            return wanted
        fresh = as_wanted(pod, pod_annotations(wanted)[CONFIG_SEEN])
        return wanted if fresh == wanted else fresh


def _same(before: tuple[Pod, ...], after: tuple[Pod, ...]) -> bool:
    return len(before) == len(after) and all(
        one is other for one, other in zip(before, after, strict=True)
    )


def as_wanted(pod: Pod, seen: str) -> Pod:
    """Return the pod for its worker: defaulted, and annotated with its source and time."""
    meta = metadata(pod)
    kept = {k: v for k, v in (meta.annotations or {}).items() if k not in _SET_BY_NODE}
    own = msgspec.structs.replace(
        meta,
        annotations={**kept, CONFIG_SOURCE: "api"},
        # Both change with every status patch of ours, which must not look like a new pod.
        resourceVersion=None,
        managedFields=None,
    )
    return mark_seen(default_pod(msgspec.structs.replace(pod, metadata=own)), seen)
