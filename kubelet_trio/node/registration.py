"""Registers the node: creates its object, or reconciles an existing one.

Retried for ever, after 100 ms at first and 7 s at most. As upstream, a node whose object is deleted
is not registered again before the agent restarts. Source: registerWithAPIServer in
kubelet_node_status.go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import trio
from lightkube.models.core_v1 import Node, NodeStatus
from trio_util import AsyncValue

from kubelet_trio.kube import (
    AlreadyExistsError,
    KubeApi,
    KubeError,
    KubeUnavailableError,
    is_newer,
)
from kubelet_trio.model import Backoff, EventSink, ObjectRef, get_logger
from kubelet_trio.node.conditions import transitions
from kubelet_trio.node.object import initial_node, metadata_patch, without_extended
from kubelet_trio.node.startup import NodeStartup
from kubelet_trio.node.status import node_status, status_patch
from kubelet_trio.node.types import NodeIdentity, NodeView

log = get_logger()

_FIRST_RETRY = 0.1
_LAST_RETRY = 7.0
_FORBIDDEN = 403
CALL_LIMIT = 10.0  # seconds for one request of the heartbeat


class NodeObject:
    """The last known state of the node's object; None until it is known.

    Registration, the heartbeat and the watch write it.
    """

    def __init__(self) -> None:
        self.value: AsyncValue[Node | None] = AsyncValue(None)

    def put(self, node: Node) -> None:
        """Store a state, unless it is older than the known one."""
        before = self.value.value
        if before is None or _uid(before) != _uid(node) or is_newer(node, before):
            self.value.value = node

    def forget(self) -> None:
        """Forget the object: it has been deleted."""
        self.value.value = None


@dataclass(frozen=True, slots=True)
class Registration:
    """Registers the node once."""

    api: KubeApi
    identity: NodeIdentity
    node: NodeObject
    observe: Callable[[], Awaitable[NodeView]]
    events: EventSink
    # As no device plugin has registered with this agent yet. An agent that knows the resources of
    # an earlier one's plugins reports these as 0 itself (ShouldResetExtendedResourceCapacity).
    reset_extended: bool = True
    startup: NodeStartup | None = None  # measures a node's first start

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register, with retries. Ready at once, connected or not."""
        task_status.started()
        if not self.identity.register:
            return
        backoff, told = Backoff(_FIRST_RETRY, _LAST_RETRY), ""
        is_announced = False
        while True:
            try:
                if self.startup is not None:
                    self.startup.note_attempt()
                with trio.fail_after(CALL_LIMIT):
                    status = node_status(self.identity, await self.observe(), NodeStatus())
                    if not is_announced:
                        is_announced = True
                        self._announce(status)
                    self.node.put(await self.register(status))
            except (KubeError, KubeUnavailableError, trio.TooSlowError) as exc:
                delay = backoff.next_delay()
                problem = str(exc) or f"no answer within {CALL_LIMIT:g}s"
                if problem != told:
                    told = problem
                    log.warning("node.register_failed", error=problem)
            else:
                log.info("node.registered", node=self.identity.name)
                return
            await trio.sleep(delay)

    def _announce(self, status: NodeStatus) -> None:
        """Emit events of the node's conditions, as each start does, whether the node is new or not.

        The Go kubelet repeats them with each attempt (initialNode).
        """
        emit_node_events(self.events, self.identity.name, transitions((), status.conditions or ()))

    async def register(self, status: NodeStatus) -> Node:
        """Try once. Raises `KubeError` and `KubeUnavailableError`."""
        try:
            created = await self.api.create(initial_node(self.identity, status))
        except AlreadyExistsError:
            pass
        except KubeError as exc:
            # An agent that may not create nodes may have an existing one; the gate
            # KubeletRegistrationGetOnExistsOnly ends that.
            if exc.code != _FORBIDDEN or self.identity.get_on_exists_only:
                raise
            log.info("node.create_forbidden", node=self.identity.name, error=str(exc))
        else:
            if self.startup is not None:
                self.startup.note_created()
            return created
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


def emit_node_events(events: EventSink, name: str, reasons: Iterable[str]) -> None:
    """Emit events about the node's state: the reason is the state's name."""
    ref = ObjectRef("Node", name, uid=name)  # as upstream, clients select by the name
    for reason in reasons:
        events.emit(ref, "Normal", reason, f"Node {name} status is now: {reason}")


def _uid(node: Node) -> str:
    return (node.metadata.uid if node.metadata is not None else None) or ""
