"""Keeps the node's status at the API server up to date.

The status is computed every `nodeStatusUpdateFrequency`, and at once after `wake` (the runtime's
state or the pressure changed). It is sent if it differs in more than heartbeat times, else every
`nodeStatusReportFrequency`, at a random time. Source: syncNodeStatus and tryUpdateNodeStatus in
kubelet_node_status.go.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio
from lightkube.models.core_v1 import Node, NodeStatus

from kubelet_trio.kube import KubeApi, KubeError, KubeUnavailableError, NotFoundError
from kubelet_trio.model import Backoff, Bell, EventSink, ObjectRef, get_logger
from kubelet_trio.node.conditions import transitions
from kubelet_trio.node.object import upkeep_patch
from kubelet_trio.node.registration import CALL_LIMIT, NodeObject, emit_node_events
from kubelet_trio.node.startup import NodeStartup
from kubelet_trio.node.status import material_patch, node_status, status_patch
from kubelet_trio.node.types import NodeIdentity, NodeView

log = get_logger()

_RETRY_FIRST = 0.2
_JITTER = 0.04
_START_POLL = 1.0  # seconds between two looks for what does not ring


@dataclass(frozen=True, slots=True)
class HeartbeatPeriods:
    """The periods in seconds: of computing the status, and of reporting an unchanged one."""

    update: float = 10.0
    report: float = 300.0


class NodeHeartbeat:
    """Reports the node's status. One task runs it."""

    def __init__(
        self,
        api: KubeApi,
        identity: NodeIdentity,
        node: NodeObject,
        observe: Callable[[], Awaitable[NodeView]],
        events: EventSink,
        periods: HeartbeatPeriods | None = None,
        wake: Bell | None = None,
        on_volumes: Callable[[Sequence[str]], None] = lambda _names: None,
        startup: NodeStartup | None = None,
    ) -> None:
        """Report the node's status, once `run` runs.

        Args:
            api: the API server.
            identity: the node's settings.
            node: its object.
            observe: returns its current state.
            events: of its conditions.
            periods: None: the defaults.
            wake: rung when something in the status has changed; None: nobody rings.
            on_volumes: called with the `volumesInUse` that the API server has.
            startup: told when the node is Ready; None: nobody measures it.
        """
        self._api = api
        self._identity = identity
        self._node = node
        self._observe = observe
        self._events = events
        self._periods = periods or HeartbeatPeriods()
        self._wake = wake or Bell()
        self._on_volumes = on_volumes
        self._startup = startup
        self._report_at = 0.0  # trio time
        self._backoff = Backoff(_RETRY_FIRST, self._periods.update)
        self._is_unschedulable = False  # as in the last event
        self._refused: dict[str, Any] = {}  # the part of the last patch that the server dropped

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report until cancelled, once the node is registered."""
        task_status.started()
        if self._identity.register:
            await self._node.value.wait_value(lambda node: node is not None)
        await self._wait_known()
        told = ""
        while True:
            self._wake.clear()
            try:
                # A report is up to two requests: a GET of the object before the first PATCH.
                with trio.fail_after(2 * CALL_LIMIT):
                    await self.report()
            except (KubeError, KubeUnavailableError, trio.TooSlowError) as exc:
                # Not woken meanwhile: while the server does not answer, a report only fails.
                delay = self._backoff.next_delay()
                problem = str(exc) or "no answer in time"
                if problem != told:
                    told = problem
                    log.warning("node.status_failed", error=problem)
                await trio.sleep(delay)
            else:
                self._backoff.reset()
                if told:
                    told = ""
                    log.info("node.status_reported")
                with trio.move_on_after(self._periods.update * random.uniform(1, 1 + _JITTER)):
                    await self._wake.wait_ring()

    async def _wait_known(self) -> None:
        """Wait until the node is ready again, where an earlier agent has reported it so.

        At the start of an agent not all is known yet. A moment of NotReady would take the traffic
        from all pods of the node.
        """
        node = self._node.value.value
        if node is None or not _is_ready(node):
            return
        with trio.move_on_after(self._periods.update):
            while (await self._observe()).not_ready:
                with trio.move_on_after(_START_POLL):
                    await self._wake.wait_ring()
                self._wake.clear()

    async def report(self) -> None:
        """Send the status if that is due. Raises `KubeError` and `KubeUnavailableError`."""
        node = self._node.value.value
        if node is None:
            node = await self._api.get(Node, self._identity.name)
            self._node.put(node)
        self._emit_cordon(node)
        before = node.status or NodeStatus()
        view = await self._observe()
        status = node_status(self._identity, view, before)
        # A server that drops a part of each patch must not get the same patch for ever.
        is_changed = self._material(node, status, view) != self._refused
        if not is_changed and trio.current_time() < self._report_at:
            # An earlier agent has reported volumes that this one asks for now.
            self._on_volumes(before.volumesInUse or ())
            return
        patch = {**status_patch(node, status), **self._upkeep(node, view)}
        try:
            after = await self._api.patch(Node, self._identity.name, patch, subresource="status")
        except NotFoundError:
            self._node.forget()
            raise
        self._node.put(after)
        if self._startup is not None and _is_ready(after):
            self._startup.note_ready()
        self._on_volumes((after.status.volumesInUse if after.status is not None else None) or ())
        self._refused = self._material(after, status, view)
        # At random, so that the nodes of a cluster do not report at the same moment.
        self._report_at = trio.current_time() + self._periods.report * random.uniform(0.5, 1.5)
        self._emit_changes(node, before, status)

    def _material(self, node: Node, status: NodeStatus, view: NodeView) -> dict[str, Any]:
        """Return what a report would change besides heartbeat times."""
        changes = material_patch(node.status or NodeStatus(), status)
        return {**changes, **self._upkeep(node, view)}

    def _upkeep(self, node: Node, view: NodeView) -> dict[str, Any]:
        return upkeep_patch(self._identity, node, is_ip_valid=view.address_problem is None)

    def _emit_cordon(self, node: Node) -> None:
        """Emit an event when the node is cordoned or uncordoned."""
        is_unschedulable = bool(node.spec is not None and node.spec.unschedulable)
        if is_unschedulable != self._is_unschedulable:
            self._is_unschedulable = is_unschedulable
            reason = "NodeNotSchedulable" if is_unschedulable else "NodeSchedulable"
            emit_node_events(self._events, self._identity.name, (reason,))

    def _emit_changes(self, node: Node, before: NodeStatus, after: NodeStatus) -> None:
        name = self._identity.name
        boot_before = before.nodeInfo.bootID if before.nodeInfo is not None else ""
        boot = after.nodeInfo.bootID if after.nodeInfo is not None else ""
        if boot_before and boot and boot != boot_before:
            text = f"Node {name} has been rebooted, boot id: {boot}"
            self._events.emit(ObjectRef("Node", name, uid=name), "Warning", "Rebooted", text)
        reasons = transitions(before.conditions or (), after.conditions or ())
        emit_node_events(self._events, name, reasons)
        for reason in reasons:
            log.info("node.condition", reason=reason)


def _is_ready(node: Node) -> bool:
    conditions = (node.status.conditions if node.status is not None else None) or ()
    return any(c.type == "Ready" and c.status == "True" for c in conditions)
