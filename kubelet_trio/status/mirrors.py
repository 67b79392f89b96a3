"""Keeps the mirrors of static pods as they should be: what `plan_mirrors` says, done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import trio
from lightkube.models.core_v1 import Node, Pod
from trio_util import AsyncValue

from kubelet_trio.kube import (
    AlreadyExistsError,
    ConflictError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
)
from kubelet_trio.model import Bell, PodKey, get_logger, pod_key, pod_uid
from kubelet_trio.status.mirror_plan import MirrorPlan, mirror_of, plan_mirrors
from kubelet_trio.status.retry import Retry

log = get_logger()

_ENDING = 1.0  # seconds between looks at a pod that is being taken down

_Aim = tuple[PodKey, str, str]  # a name, the UIDs of what is to go and of what is to come


def _aim(plan: MirrorPlan) -> _Aim:
    """Return what a plan's waits belong to: what is planned next of a name has its own."""
    gone = pod_uid(plan.delete) if plan.delete is not None else ""
    made = pod_uid(plan.create) if plan.create is not None else ""
    return plan.key, gone, made


class MirrorPods:
    """See the module. One task runs it; the other methods never block."""

    def __init__(
        self,
        api: KubeApi,
        node: AsyncValue[Node | None],
        ending: Callable[[], Collection[PodKey]],
    ) -> None:
        """Make it.

        Args:
            api: the API server.
            node: the node's object, which owns the mirrors; there are none before it.
            ending: the names of pods that are being taken down.
        """
        self._api = api
        self._node = node
        self._ending = ending
        self._static: Mapping[PodKey, Pod] = {}
        self._mirrors: Mapping[PodKey, Pod] | None = None  # None: not known yet
        self._is_complete = False
        self._retries: dict[_Aim, Retry] = {}
        self._wake = Bell()

    def want(self, static: Mapping[PodKey, Pod], *, is_complete: bool) -> None:
        """Take over the static pods that are wanted, and whether every source has spoken."""
        self._static, self._is_complete = static, is_complete
        self._wake.ring()

    def observe(self, mirrors: Mapping[PodKey, Pod]) -> None:
        """Take over the mirrors that the API server has."""
        self._mirrors = mirrors
        self._wake.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Bring the mirrors into line until cancelled."""
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
        """Do what there is to do; return the seconds until something is tried again."""
        node = self._node.value
        if node is None or node.metadata is None or self._mirrors is None:
            return float("inf")
        ending = self._ending()
        plans = plan_mirrors(
            self._static, self._mirrors, ending=ending, is_complete=self._is_complete
        )
        kept = {_aim(plan) for plan in plans}
        self._retries = {aim: retry for aim, retry in self._retries.items() if aim in kept}
        now, waits = trio.current_time(), [float("inf")]
        if any(key in ending and key not in self._static for key in self._mirrors):
            waits.append(_ENDING)  # it goes when its pod is gone
        for plan in plans:
            retry = self._retries.setdefault(_aim(plan), Retry())
            if retry.until > now:
                waits.append(retry.until - now)
                continue
            try:
                await self._carry_out(plan, node.metadata.name or "", node.metadata.uid or "")
            except (KubeError, KubeUnavailableError) as exc:
                waits.append(retry.failed(trio.current_time(), exc))
                log.warning("mirror.failed", pod=str(plan.key), error=str(exc), retry_in=waits[-1])
            else:
                # What the watch tells next ends it. If that does not come, it is done again.
                retry.until = trio.current_time() + retry.cap
                waits.append(retry.cap)
        return min(waits)

    async def _carry_out(self, plan: MirrorPlan, node_name: str, node_uid: str) -> None:
        key = plan.key
        if plan.delete is not None:
            try:
                await self._api.delete(
                    Pod,
                    key.name,
                    namespace=key.namespace,
                    grace_period=0,
                    uid=pod_uid(plan.delete),
                )
            except (NotFoundError, ConflictError):
                pass  # it is another by now, and the watch tells which
            else:
                log.info("mirror.deleted", pod=str(key))
        if plan.create is not None:
            try:
                await self._api.create(
                    mirror_of(plan.create, node_name, node_uid), namespace=key.namespace
                )
            except AlreadyExistsError:
                return  # by us, and the watch lags; or by somebody: it is seen there
            log.info("mirror.created", pod=str(pod_key(plan.create)))
