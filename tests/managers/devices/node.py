"""A node with device plugins in memory: sockets are streams, files are real, time is virtual."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from lightkube.models.core_v1 import Pod
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from kubelet_trio.grpc import Dial
from kubelet_trio.managers import LoadedManagers, Machine, NumaNode
from kubelet_trio.managers.affinity import Affinity
from kubelet_trio.managers.devices.provider import DIRECTORY, load_devices
from kubelet_trio.managers.devices.registration import registration_server
from kubelet_trio.managers.node import CheckpointKeeper, DeviceManagers
from kubelet_trio.managers.settings import TopologyOptions
from kubelet_trio.model import Meter, PodUid, inline_offload
from kubelet_trio.testing.devices import FakeDevicePlugin
from tests.harness.device_services import device_plugin_server, register_plugin

MACHINE = Machine((), (NumaNode(0, frozenset(), 0), NumaNode(1, frozenset(), 0)))


class DeviceNode:
    """The managers of a node, and the sockets of its plugins."""

    def __init__(self, root: Path, policy: str = "none") -> None:
        self.directory = root / DIRECTORY
        self.directory.mkdir(exist_ok=True)
        self.meter = Meter()
        self.served: dict[str, FakeDevicePlugin] = {}  # by path
        self.woken: list[PodUid] = []
        self.capacities: list[dict[str, int]] = []
        self.admitted: set[tuple[str, str]] = set()  # containers that an earlier agent admitted
        affinity = Affinity(policy, "container", TopologyOptions(), MACHINE)
        self.managers = DeviceManagers(
            LoadedManagers(MACHINE, {}, affinity, devices=load_devices(root)),
            CheckpointKeeper(root, inline_offload),
            self.meter,
            self.directory,
            inline_offload,
            was_admitted=lambda uid, name: (uid, name) in self.admitted,
            dial=self._dial,
            on_capacity=self._note_capacity,
            on_health=self.woken.append,
        )
        self.plugins = self.managers.plugins
        self.inventory = self.plugins.inventory
        self._server = registration_server(self.plugins, self.directory)
        self._connections: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run what the agent's tree would."""
        async with trio.open_nursery() as self._connections:
            await self._connections.start(self.plugins.registered.run)
            await self._connections.start(self.managers.keeper.run)
            await self._connections.start(self.managers.run_news)
            task_status.started()

    @property
    def agent(self) -> Dial:
        """Dials the agent's socket."""

        async def dial() -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            return self._connect(self._server.serve_stream)

        return dial

    async def register(self, plugin: FakeDevicePlugin, name: str = "plugin.sock") -> None:
        """Register a plugin, which must run, on the agent's socket. Raises `GRPCError`."""
        self.served[str(self.directory / name)] = plugin
        await register_plugin(plugin, self.agent, name)
        await wait_all_tasks_blocked()

    async def placed(self, pod: Pod) -> None:
        """Admit a pod, and let the plugins allocate. Raises `PlacementError`."""
        refusal = self.managers.admit(pod)
        assert refusal is None, refusal
        await self.managers.settle(pod)

    def ids(self, container: str, resource: str, uid: str = "p") -> list[str]:
        """Return the devices of a container."""
        shares = self.managers.devices.shares(PodUid(uid), container)
        return sorted(shares[resource].ids) if resource in shares else []

    @property
    def allocatable(self) -> dict[str, int]:
        """Return how many devices can be allocated, by resource."""
        return dict(self.managers.capacity().allocatable)

    def _note_capacity(self) -> None:
        self.capacities.append(self.allocatable)

    async def _dial(self, path: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        plugin = self.served.get(path)
        if plugin is None:
            raise FileNotFoundError(path)
        return self._connect(device_plugin_server(plugin).serve_stream)

    def _connect(self, serve: Any) -> trio.abc.Stream:
        near, far = memory_stream_pair()
        assert self._connections is not None
        self._connections.start_soon(serve, far)
        return near


@asynccontextmanager
async def open_node(root: Path, policy: str = "none") -> AsyncIterator[DeviceNode]:
    """Run a node within a block."""
    async with trio.open_nursery() as nursery:
        node = DeviceNode(root, policy)
        await nursery.start(node.run)
        yield node
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def living(*plugins: FakeDevicePlugin) -> AsyncIterator[None]:
    """Run plugins within a block."""
    async with trio.open_nursery() as nursery:
        for plugin in plugins:
            await nursery.start(plugin.run)
        yield
        nursery.cancel_scope.cancel()
