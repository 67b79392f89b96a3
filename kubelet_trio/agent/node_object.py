"""Shows the node itself, for `kubelet-trio describe node`, with or without an API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from lightkube.models.core_v1 import Node, NodeStatus, Pod

from kubelet_trio.agent.device_plugins import with_devices
from kubelet_trio.agent.parts import Parts
from kubelet_trio.containers import pod_limits, pod_requests
from kubelet_trio.model import is_terminal, metadata
from kubelet_trio.pods import declared_features
from kubelet_trio.pressure import Amount
from kubelet_trio.server import HttpError

if TYPE_CHECKING:
    from kubelet_trio.node import NodeObserver


class NodeObjectPage:
    """Writes the JSON of the control socket's `/node`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._observer: NodeObserver | None = None
        self._last = NodeStatus()  # conditions keep the time of their last change

    async def page(self) -> bytes:
        """Return `object`, a v1 Node; `pods` with amounts; `eviction`; `managers`.

        Amounts are those of scheduling, in units of 10^-9 of the resource's unit.

        Raises:
            HttpError: the agent is an embedded one, whose program is no node.
        """
        parts = self._parts
        page = {
            "object": msgspec.to_builtins(await self._object()),
            "pods": [_pod(pod) for pod in parts.reports.statuses.pods.value.values()],
            "eviction": self._eviction(),
            "managers": self._managers(),
        }
        return msgspec.json.encode(page) + b"\n"

    async def _object(self) -> Node:
        """Return the node as the API server knows it, else as it would be reported."""
        cluster, own = self._parts.setup.cluster, self._parts.setup.settings.own_node
        known = cluster.known_node() if cluster is not None else None
        if known is not None:
            await trio.lowlevel.checkpoint()
            return known
        if own is None:
            raise HttpError(404, "an embedded agent has no node object")
        from kubelet_trio.node import initial_node, node_status  # deferred: few ask

        view = await self._observe().observe()
        self._last = node_status(own.identity, view, self._last)
        return initial_node(own.identity, self._last)

    def _observe(self) -> NodeObserver:
        if self._observer is None:
            from kubelet_trio.node import NodeObserver

            parts, own = self._parts, self._parts.setup.settings.own_node
            assert own is not None
            runtime, links = parts.runtime, parts.setup.links
            self._observer = NodeObserver(
                own.identity,
                with_devices(own.resources, parts.supplies.devices),
                own.info,
                own.host_ips,
                declared_features(own.identity.gates_off),
                parts.setup.seams.clock,
                runtime.health.state,
                links.pressure,
                (lambda: runtime.pleg.problem(trio.current_time()), links.not_ready),
                runtime.runtime.list_images,
            )
        return self._observer

    def _eviction(self) -> list[dict[str, Any]]:
        return [
            {
                "signal": each.signal,
                "value": _amount(each.value),
                "grace_seconds": 0.0 if each.is_hard else each.grace,
                "min_reclaim": _amount(each.min_reclaim) if each.min_reclaim else None,
            }
            for each in self._parts.setup.settings.eviction.thresholds
        ]

    def _managers(self) -> Mapping[str, str]:
        managers = self._parts.setup.settings.managers
        return {
            "cpuManagerPolicy": managers.cpu_policy,
            "memoryManagerPolicy": managers.memory_policy,
            "topologyManagerPolicy": managers.topology_policy,
            "topologyManagerScope": managers.topology_scope,
        }


def _amount(amount: Amount) -> str:
    return str(amount.quantity) if amount.percent is None else f"{amount.percent:g}%"


def _pod(pod: Pod) -> dict[str, Any]:
    meta = metadata(pod)
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "is_terminal": is_terminal(pod.status),
        "requests": dict(pod_requests(pod)),
        "limits": dict(pod_limits(pod)),
    }
