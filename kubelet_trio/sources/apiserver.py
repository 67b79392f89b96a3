"""Pods that the API server has bound to this node.

They have been validated and defaulted there, by a server that may be older or newer than
this agent, and are taken as they are; what the node cannot do is admission's to refuse.
Mirror pods are not wanted by anybody: they go to those who keep them.

Pods are taken once the node's object has been listed as well (`wait_node`): admission judges
them by the labels and taints that others gave the node, and refuses for good.

The source has delivered once the first list is in. While the server is away the last set
stands. A node that is cut off when it starts may go by what was known before (`fall_back`):
after `FALLBACK_AFTER` without a first list these pods are wanted, and nothing else is unwanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.kube import Abilities, KubeApi, Reflector
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
from kubelet_trio.sources.defaults import default_pod
from kubelet_trio.sources.static import MANIFEST, mark_seen, seen_now
from kubelet_trio.sources.types import SourceProblem, SourceSnapshot

log = get_logger()

# Annotations that only the node gives, whatever an object says.
_NODES_OWN = (CONFIG_SEEN, INSTANCE, MANIFEST)

# Seconds from the start. A server that is there answers long before, a network that is on its
# way up mostly as well: pods that have been moved elsewhere meanwhile are not to start twice.
FALLBACK_AFTER = 10.0

Observer = Callable[[Mapping[PodUid, Pod], Mapping[PodKey, Pod]], None]


class ApiSource:
    """See the module. `observe` is told of every state as the server has it: pods, mirrors."""

    name = "api"

    def __init__(
        self,
        api: KubeApi,
        node_name: str,
        clock: WallClock,
        observe: Observer,
        host: str = "",
        fall_back: Callable[[], Sequence[Pod] | None] = lambda: None,
        abilities: Abilities | None = None,
        wait_node: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
    ) -> None:
        """`fall_back` says which pods the server had before this start; None: nobody knows.

        `abilities` are the server's, for all who follow it. `wait_node` returns once it is known
        what the server has of the node.
        """
        self._wait_node = wait_node
        self._abilities = abilities
        self._api = api
        self._node_name = node_name
        self._clock = clock
        self._observe = observe
        self._host = host
        self._fall_back = fall_back
        self._taken: dict[PodUid, tuple[Pod, Pod]] = {}  # as it came, as it is wanted
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
            abilities=self._abilities,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            nursery.start_soon(self._wait_first)
            task_status.started()
            await self._wait_node()
            while True:
                delivery = await reflector.wait_delivery()
                self.take({metadata(pod).uid or "": pod for pod in delivery.objects.values()})

    async def _wait_first(self) -> None:
        """Go by what was known before, if nothing comes."""
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
        self._deliver(SourceSnapshot(self.name, wanted, is_complete=False))

    def _deliver(self, snapshot: SourceSnapshot) -> None:
        self.delivered = snapshot
        self.snapshots.put(snapshot)

    def take(self, raw: Mapping[str, Pod]) -> None:
        """Take over all pods of the node as the server has them, by UID."""
        mirrors = {pod_key(pod): pod for pod in raw.values() if is_mirror(pod)}
        pods = {PodUid(uid): pod for uid, pod in raw.items() if not is_mirror(pod)}
        self._observe(pods, mirrors)
        seen = seen_now(self._clock.time())
        self._taken = {uid: (pod, self._wanted(uid, pod, seen)) for uid, pod in pods.items()}
        wanted = tuple(wanted for _, wanted in self._taken.values())
        before = self.delivered
        # What only mirrors and our own echo changed is nothing new to anybody.
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
        if raw is pod:
            return wanted
        fresh = as_wanted(pod, pod_annotations(wanted)[CONFIG_SEEN])
        return wanted if fresh == wanted else fresh


def _same(before: tuple[Pod, ...], after: tuple[Pod, ...]) -> bool:
    return len(before) == len(after) and all(
        one is other for one, other in zip(before, after, strict=True)
    )


def as_wanted(pod: Pod, seen: str) -> Pod:
    """Return the pod as its worker is to see it, marked with where and when it came from."""
    meta = metadata(pod)
    kept = {k: v for k, v in (meta.annotations or {}).items() if k not in _NODES_OWN}
    own = msgspec.structs.replace(
        meta,
        annotations={**kept, CONFIG_SOURCE: "api"},
        # They change with every status that we write.
        resourceVersion=None,
        managedFields=None,
    )
    return mark_seen(default_pod(msgspec.structs.replace(pod, metadata=own)), seen)
