"""Registers the node: creates its object, or puts one right that is there already.

Source: registerWithAPIServer in the Go kubelet: tried for ever, 100 ms after the first time
and 7 s at the most. A node whose object somebody deletes is not registered again before the
agent starts anew, as upstream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio
from lightkube.models.core_v1 import Node, NodeStatus
from trio_util import AsyncValue

from kubelet_trio.kube import AlreadyExistsError, KubeApi, KubeError, KubeUnavailableError
from kubelet_trio.model import Backoff, get_logger
from kubelet_trio.node.object import initial_node, metadata_patch, without_extended
from kubelet_trio.node.status import node_status, status_patch
from kubelet_trio.node.types import NodeIdentity, NodeView

log = get_logger()

_FIRST_RETRY = 0.1
_LAST_RETRY = 7.0
_FORBIDDEN = 403
CALL_LIMIT = 10.0  # seconds for one request of the heartbeat


class NodeObject:
    """The node's object as the API server had it last; None until it is known.

    `register` and the heartbeat write it, and whoever watches it there.
    """

    def __init__(self) -> None:
        self.value: AsyncValue[Node | None] = AsyncValue(None)

    def put(self, node: Node) -> None:
        """Take over a newer state; an older one is left."""
        before = self.value.value
        if before is None or _is_newer(node, before):
            self.value.value = node

    def forget(self) -> None:
        """The object is gone from the server."""
        self.value.value = None


def _is_newer(node: Node, than: Node) -> bool:
    one = (node.metadata.resourceVersion if node.metadata else None) or ""
    other = (than.metadata.resourceVersion if than.metadata else None) or ""
    if node.metadata and than.metadata and node.metadata.uid != than.metadata.uid:
        return True
    return int(one) >= int(other) if one.isdigit() and other.isdigit() else True


@dataclass(frozen=True, slots=True)
class Registration:
    """See the module."""

    api: KubeApi
    identity: NodeIdentity
    node: NodeObject
    observe: Callable[[], Awaitable[NodeView]]
    reset_extended: bool = True  # no device plugin has registered with this agent

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register; return once it is done. Ready at once: connected or not."""
        task_status.started()
        if not self.identity.register:
            return
        backoff = Backoff(_FIRST_RETRY, _LAST_RETRY)
        while True:
            try:
                with trio.fail_after(CALL_LIMIT):
                    self.node.put(await self.register())
            except (KubeError, KubeUnavailableError, trio.TooSlowError) as exc:
                delay = backoff.next_delay()
                problem = str(exc) or f"no answer within {CALL_LIMIT:g}s"
                log.warning("node.register_failed", error=problem, retry_in=delay)
            else:
                log.info("node.registered", node=self.identity.name)
                return
            await trio.sleep(delay)

    async def register(self) -> Node:
        """Try once. Raises `KubeError` or `KubeUnavailableError`."""
        status = node_status(self.identity, await self.observe(), NodeStatus())
        try:
            return await self.api.create(initial_node(self.identity, status))
        except AlreadyExistsError:
            pass
        except KubeError as exc:
            # Who may not create nodes may have been given one (the gate puts an end to that).
            if exc.code != _FORBIDDEN or self.identity.get_on_exists_only:
                raise
            log.info("node.create_forbidden", node=self.identity.name, error=str(exc))
        existing = await self.api.get(Node, self.identity.name)
        patch: dict[str, Any] = {}
        meta = metadata_patch(self.identity, existing)
        if meta:
            patch["metadata"] = meta
        if self.reset_extended:
            patch |= status_patch(existing, without_extended(existing.status or NodeStatus()))
        if not patch:
            return existing
        return await self.api.patch(Node, self.identity.name, patch, subresource="status")
