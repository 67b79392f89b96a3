"""Keeps a mirror pod at the API server for each static pod.

Only the node creates and deletes mirrors. It reverts any other change to one, and a change of a
mirror has no effect on the static pod. The API server refuses to resize a mirror, so one that shows
other CPU and memory than the manifest is deleted and created again. `plan_mirrors` is pure;
`MirrorPods` carries it out.
Source: pod/mirror_client.go, tryReconcileMirrorPods in kubelet.go, and the rules for orphans in
kubelet_pods.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec
import trio
from lightkube.models.core_v1 import Node, Pod
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from trio_util import AsyncValue

from kubelet_trio.containers import resizable_amounts
from kubelet_trio.kube import (
    AlreadyExistsError,
    ConflictError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
)
from kubelet_trio.model import (
    CONFIG_HASH,
    CONFIG_MIRROR,
    Bell,
    PodKey,
    PodUid,
    about_pod,
    blake2b,
    canonical_quantity,
    get_logger,
    metadata,
    pod_annotations,
    pod_uid,
)
from kubelet_trio.status.retry import Retry

log = get_logger()

_ENDING = 1.0  # seconds between checks of a pod that is being taken down
_OWN_PREFIX = "kubelet-trio/"  # annotations for this agent only
# On a mirror: the digest of the CPU and memory that it was created with. The mirror's own are no
# proof, because an admission plugin or webhook may have changed them.
_SIZE = _OWN_PREFIX + "size"

# The UIDs of pods, by their name.
Present = Mapping[PodKey, Collection[PodUid]]
_Aim = tuple[PodKey, str, str]  # a name, the UIDs of the mirror to delete and the pod to create


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """What to do about one name: first delete, then create."""

    key: PodKey
    delete: Pod | None = None
    create: Pod | None = None  # the static pod


def plan_mirrors(
    static: Mapping[PodKey, Pod],
    mirrors: Mapping[PodKey, Pod],
    *,
    present: Present = MappingProxyType({}),
    is_complete: bool,
) -> list[MirrorPlan]:
    """Return what to do, by name.

    Args:
        static: the static pods that are wanted.
        mirrors: those of the API server.
        present: what the node has of pods, also of those that are not wanted any more: until such
            a pod is gone its mirror stays, and shows how it ends.
        is_complete: whether every source has delivered.
    """
    plans = []
    for key, pod in static.items():
        if _is_preceded(pod, present.get(key, ())):
            continue
        mirror = mirrors.get(key)
        if mirror is None:
            plans.append(MirrorPlan(key, create=pod))
        elif metadata(mirror).deletionTimestamp is not None or not _is_current(mirror, pod):
            plans.append(MirrorPlan(key, delete=mirror, create=pod))
    # Before that, a mirror without a static pod may belong to a source that is not read yet.
    if is_complete:
        plans += [
            MirrorPlan(key, delete=mirror)
            for key, mirror in mirrors.items()
            if key not in static and key not in present
        ]
    return plans


def _is_preceded(pod: Pod, present: Collection[PodUid]) -> bool:
    """Return whether another pod of its name, such as of its manifest before an edit, is there."""
    return any(uid != pod_uid(pod) for uid in present)


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Return whether a mirror is this static pod's, not that of an earlier edit."""
    return pod_annotations(mirror).get(CONFIG_MIRROR) == pod_annotations(pod).get(CONFIG_HASH)


def _is_current(mirror: Pod, pod: Pod) -> bool:
    """Return whether a mirror shows this static pod with its resources."""
    wanted = _size(pod)
    # An earlier agent, and the Go kubelet, created mirrors without a digest.
    shown = pod_annotations(mirror).get(_SIZE) or (wanted and _size(mirror))
    return is_mirror_of(mirror, pod) and shown == wanted


def _size(pod: Pod) -> str:
    """Return a digest of the pod's CPU and memory, "" if it sets none. Raises ValueError."""
    found = [(*place, canonical_quantity(q)) for *place, q in resizable_amounts(pod)]
    return blake2b(msgspec.json.encode(found), digest_size=16).hexdigest() if found else ""


def mirror_of(pod: Pod, node_name: str, node_uid: str) -> Pod:
    """Return the object to create for a static pod."""
    annotations = {k: v for k, v in pod_annotations(pod).items() if not k.startswith(_OWN_PREFIX)}
    annotations[CONFIG_MIRROR] = annotations.get(CONFIG_HASH, "")
    if size := _size(pod):
        annotations[_SIZE] = size
    meta = metadata(pod)
    # The NodeRestriction plugin admits only pods whose single owner and controller is the node.
    owner = OwnerReference(
        apiVersion="v1", kind="Node", name=node_name, uid=node_uid, controller=True
    )
    return msgspec.structs.replace(
        pod,
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            labels=meta.labels,
            annotations=annotations,
            ownerReferences=[owner],
        ),
        status=None,
    )


def _aim(plan: MirrorPlan) -> _Aim:
    """Return the key of a plan's retry delay; the next plan for the name starts anew."""
    gone = pod_uid(plan.delete) if plan.delete is not None else ""
    made = pod_uid(plan.create) if plan.create is not None else ""
    return plan.key, gone, made


class MirrorPods:
    """Creates and deletes mirrors in `run`; its other methods never block."""

    def __init__(
        self,
        api: KubeApi,
        node: AsyncValue[Node | None],
        present: Callable[[], Present],
    ) -> None:
        """Set it up.

        Args:
            api: the API server.
            node: the node's object, the owner of mirrors; without it none are created.
            present: returns the pods that the node has, also those that are not wanted any more.
        """
        self._api = api
        self._node = node
        self._present = present
        self._static: Mapping[PodKey, Pod] = {}
        self._mirrors: Mapping[PodKey, Pod] | None = None  # None: not known yet
        self._is_complete = False
        self._retries: dict[_Aim, Retry] = {}
        self._wake = Bell()

    def want(self, static: Mapping[PodKey, Pod], *, is_complete: bool) -> None:
        """Take the wanted static pods, and whether every source has delivered."""
        self._static, self._is_complete = static, is_complete
        self._wake.ring()

    def observe(self, mirrors: Mapping[PodKey, Pod]) -> None:
        """Take the mirrors that the API server has."""
        self._mirrors = mirrors
        self._wake.ring()

    @property
    def count(self) -> int:
        """How many mirrors the API server has, as far as is known."""
        return len(self._mirrors or ())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create and delete mirrors as planned, until cancelled."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_node)
            while True:
                self._wake.clear()
                delay = await self._round()
                with trio.move_on_after(delay):
                    await self._wake.wait_ring()

    async def _watch_node(self) -> None:
        while True:
            await self._node.wait_transition()
            self._wake.ring()

    async def _round(self) -> float:
        """Carry out the plans that are due; return the seconds until the next one."""
        node = self._node.value
        if node is None or node.metadata is None or self._mirrors is None:
            return float("inf")
        present = self._present()
        plans = plan_mirrors(
            self._static, self._mirrors, present=present, is_complete=self._is_complete
        )
        if node.metadata.deletionTimestamp is not None:
            # Its finalizers may wait until it is drained, of mirrors too.
            plans = [replace(plan, create=None) for plan in plans if plan.delete is not None]
        kept = {_aim(plan) for plan in plans}
        self._retries = {aim: retry for aim, retry in self._retries.items() if aim in kept}
        now, waits = trio.current_time(), [float("inf")]
        if any(self._is_ending(key, uids) for key, uids in present.items()):
            waits.append(_ENDING)  # the mirror of that name is deleted when the pod is gone
        for plan in plans:
            retry = self._retries.setdefault(_aim(plan), Retry())
            if retry.until > now:
                waits.append(retry.until - now)
                continue
            try:
                await self._carry_out(plan, node.metadata.name or "", node.metadata.uid or "")
            except (KubeError, KubeUnavailableError) as exc:
                waits.append(retry.failed(trio.current_time(), exc))
                if retry.is_news:
                    log.warning("mirror.failed", pod=str(plan.key), error=str(exc))
            else:
                # The next watch event completes the plan. If none comes, carry it out again.
                retry.until = trio.current_time() + retry.cap
                waits.append(retry.cap)
        return min(waits)

    def _is_ending(self, key: PodKey, present: Collection[PodUid]) -> bool:
        """Return whether a pod of this name that is not wanted any more is there."""
        wanted = self._static.get(key)
        if wanted is None:
            return key in (self._mirrors or {})
        return _is_preceded(wanted, present)

    async def _carry_out(self, plan: MirrorPlan, node_name: str, node_uid: str) -> None:
        key = plan.key
        if plan.delete is not None:
            try:
                await self._api.delete(
                    Pod,
                    key.name,
                    namespace=key.namespace,
                    grace_period=0,  # nothing runs for a mirror: delete the object itself
                    uid=pod_uid(plan.delete),
                )
            except (NotFoundError, ConflictError):
                pass  # it was replaced or deleted meanwhile; the watch reports it
            else:
                log.info("mirror.deleted", pod=str(key))
        if plan.create is not None:
            try:
                await self._api.create(
                    mirror_of(plan.create, node_name, node_uid), namespace=key.namespace
                )
            except AlreadyExistsError:
                return  # the watch lags behind our create, or will report another's mirror
            log.info("mirror.created", **about_pod(plan.create))
