"""Follows the node's object at the API server, and what changes the node's status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio
from lightkube.models.core_v1 import Node
from trio_util import AsyncValue

from kubelet_trio.kube import KubeApi, Reflector, ServerFeatures
from kubelet_trio.model import Bell
from kubelet_trio.node.registration import NodeObject
from kubelet_trio.node.types import Pressure


@dataclass(frozen=True, slots=True)
class NodeFollower:
    """The child `watch` of `node`.

    Attributes:
        api: the API server.
        name: the node's name.
        features: the API server's, as learnt by all who follow it.
        node: gets the node's object.
        on_node: called with each version of it.
        is_listed: set once it is known whether the API server has the object.
        pressure: the node's pressures.
        wait_runtime_listed: waits for the first relist of the runtime.
        changed: rung when the status has to be reported at once.
    """

    api: KubeApi
    name: str
    features: ServerFeatures
    node: NodeObject
    on_node: Callable[[Node], None]
    is_listed: trio.Event
    pressure: AsyncValue[Pressure]
    wait_runtime_listed: Callable[[], Awaitable[None]]
    changed: Bell

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled."""
        reflector = Reflector(
            self.api, Node, field_selector=f"metadata.name={self.name}", features=self.features
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(reflector.run)
            nursery.start_soon(self._watch_pressure)
            nursery.start_soon(self._watch_relist)
            task_status.started()
            while True:
                delivery = await reflector.wait_delivery()
                for node in delivery.objects.values():
                    self.node.put(node)
                    self.on_node(node)
                self.is_listed.set()

    async def _watch_pressure(self) -> None:
        while True:
            await self.pressure.wait_transition()
            self.changed.ring()

    async def _watch_relist(self) -> None:
        # Without it a node that registers before the first relist becomes Ready a period later.
        await self.wait_runtime_listed()
        self.changed.ring()
