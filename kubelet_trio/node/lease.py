"""The node's lease, renewed every quarter of its duration.

The lease's owner is the node's object: it is deleted with it, and not created before it. Source:
k8s.io/component-helpers/apimachinery/lease.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass, field

import msgspec
import trio
from lightkube.models.coordination_v1 import Lease, LeaseSpec
from lightkube.models.core_v1 import Node
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference

from kubelet_trio.kube import (
    ConflictError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    NotFoundError,
)
from kubelet_trio.model import Backoff, WallClock, get_logger
from kubelet_trio.node.registration import CALL_LIMIT, NodeObject

log = get_logger()

NAMESPACE = "kube-node-lease"
_RENEWALS = 4  # in one lease duration
_JITTER = 0.04
_FIRST_RETRY = 0.1
_LAST_RETRY = 7.0


def node_lease(before: Lease | None, node: Node, seconds: int, now: float) -> Lease:
    """Return the lease to write: a new one, or the renewed previous one."""
    meta = node.metadata or ObjectMeta()
    owner = OwnerReference(apiVersion="v1", kind="Node", name=meta.name or "", uid=meta.uid or "")
    lease = before or Lease(metadata=ObjectMeta(name=meta.name, namespace=NAMESPACE))
    own = lease.metadata or ObjectMeta()
    # Without an owner the lease would outlive the node's object.
    if not own.ownerReferences:
        own = msgspec.structs.replace(own, ownerReferences=[owner])
    return msgspec.structs.replace(
        lease,
        metadata=own,
        spec=msgspec.structs.replace(
            lease.spec or LeaseSpec(),
            holderIdentity=meta.name,
            leaseDurationSeconds=seconds,
            renewTime=_micro_time(now),
        ),
    )


def _micro_time(now: float) -> datetime.datetime:
    """Return a time with a fraction: API servers refuse a MicroTime without one."""
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return moment.replace(microsecond=moment.microsecond or 1)


@dataclass(slots=True)
class NodeLease:
    """Renews the node's lease. One task runs it."""

    api: KubeApi
    node: NodeObject
    clock: WallClock
    seconds: int = 40
    _lease: Lease | None = field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew until cancelled."""
        task_status.started()
        backoff, told = Backoff(_FIRST_RETRY, _LAST_RETRY), ""
        while True:
            node = await self.node.value.wait_value(lambda value: value is not None)
            try:
                with trio.fail_after(CALL_LIMIT):
                    await self.renew(node)
            except (KubeError, KubeUnavailableError, trio.TooSlowError) as exc:
                delay = backoff.next_delay()
                problem = str(exc) or f"no answer within {CALL_LIMIT:g}s"
                if problem != told:
                    told = problem
                    log.warning("node.lease_failed", error=problem)
                await trio.sleep(delay)
                continue
            backoff.reset()
            if told:
                told = ""
                log.info("node.lease_renewed")
            # Jitter, so that the renewals of many nodes spread out.
            await trio.sleep(self.seconds / _RENEWALS * random.uniform(1, 1 + _JITTER))

    async def renew(self, node: Node) -> None:
        """Renew once. Raises `KubeError` and `KubeUnavailableError`."""
        if self._lease is None:
            self._lease = await self._find(node)
        lease = node_lease(self._lease, node, self.seconds, self.clock.time())
        try:
            if self._lease is None:
                self._lease = await self.api.create(lease, namespace=NAMESPACE)
            else:
                self._lease = await self.api.update(lease, namespace=NAMESPACE)
        except (ConflictError, NotFoundError):
            self._lease = None  # another client changed or deleted it: read it again
            raise

    async def _find(self, node: Node) -> Lease | None:
        name = node.metadata.name if node.metadata is not None else None
        try:
            return await self.api.get(Lease, name or "", namespace=NAMESPACE)
        except NotFoundError:
            return None
