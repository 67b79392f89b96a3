"""A node whose agent gives CPUs, memory and devices away: two NUMA nodes, and a device plugin."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import trio
from trio.testing import memory_stream_pair

from kubelet_trio.agent import AgentSettings, Seams
from kubelet_trio.managers import DeviceManagers, LoadedManagers, load_managers
from kubelet_trio.managers.shares import DevicePluginError
from kubelet_trio.model import NANO, FileChange, WatchPoints
from kubelet_trio.sources import FileSource
from kubelet_trio.testing.devices import FakeDevice, FakeDevicePlugin
from tests.harness.device_services import device_plugin_server
from tests.managers.node.machines import GI, static, two_nodes
from tests.simulation.memory_sockets import MemorySockets
from tests.simulation.stepper import Stepper
from tests.simulation.world import World

GPU = "example.com/gpu"
RESERVED = frozenset({0})
CPUS = 16
DEVICES = tuple(FakeDevice(f"gpu-{n}", nodes=(n % 2,)) for n in range(4))
_REGISTERS_AGAIN = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Need:
    """What a pod asks for: CPUs, GiB and devices of each container; 0 CPUs: it is BestEffort."""

    mains: int = 1
    cpus: int = 0
    gib: int = 1
    devices: int = 0
    init_cpus: int = 0  # of an init container; 0: there is none

    def manifest(self, name: str, uid: str) -> dict[str, Any]:
        """Return the Pod manifest."""
        mains = [self._container(f"m{n}", "run", self.cpus) for n in range(self.mains)]
        inits = [self._container("i", "exit-0-after-2", self.init_cpus)] if self.init_cpus else []
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "uid": uid},
            "spec": {
                "terminationGracePeriodSeconds": 3,
                "containers": mains,
                "initContainers": inits,
            },
        }

    def _container(self, name: str, image: str, cpus: int) -> dict[str, Any]:
        limits = {"cpu": str(cpus), "memory": f"{self.gib}Gi"} if cpus else {}
        if self.devices and name != "i":
            limits[GPU] = str(self.devices)
        return {"name": name, "image": image, "resources": {"limits": limits}}


class PluginProcess:
    """The process of a device plugin: it registers at each agent, again and again."""

    def __init__(self, run: Stepper, agent: Callable[[], DeviceManagers | None]) -> None:
        self.run = run
        self.plugin = FakeDevicePlugin(GPU, DEVICES, latency=0.02)
        self._agent = agent
        self._life = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        run.call(trio.socket.set_custom_socket_factory, MemorySockets(self._dial))

    @property
    def is_up(self) -> bool:
        return self._tasks is not None

    def start(self) -> None:
        if not self.is_up:
            self._life = trio.CancelScope()
            self.run.take(self._start)

    def kill(self) -> None:
        """End the process; its connections end with it."""
        self.run.call(self._life.cancel)
        self.run.settle()

    def tasks(self) -> int:
        """Return how many tasks it has."""
        return 0 if self._tasks is None else self.run.call(lambda: 1 + _below(self._tasks))

    async def _start(self) -> None:
        await self.run.nursery.start(self._serve)

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._life:
                async with trio.open_nursery() as self._tasks:
                    await self._tasks.start(self._live)
                    self._tasks.start_soon(self._keep_registered)
                    task_status.started()
        finally:
            self._tasks = None

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.plugin.run(task_status=task_status)
        self._life.cancel()  # a fault has killed it

    async def _keep_registered(self) -> None:
        while True:
            managers = self._agent()
            if managers is not None and managers.plugins.endpoint(GPU) is None:
                # An agent that is killed meanwhile never answers.
                with suppress(DevicePluginError), trio.move_on_after(15):
                    await managers.plugins.register(GPU, "/plugin.sock")
            await trio.sleep(_REGISTERS_AGAIN)

    async def _dial(self, path: str) -> trio.abc.HalfCloseableStream:
        await trio.lowlevel.checkpoint()
        if self._tasks is None:
            raise ConnectionRefusedError(111, "Connection refused", path)
        near, far = memory_stream_pair()
        self._tasks.start_soon(device_plugin_server(self.plugin).serve_stream, far)
        return near


class ManagedWorld(World):
    """The node. Its pods are `Need`s."""

    def __init__(self, run: Stepper, policy: str = "none", *, with_memory: bool = True) -> None:
        self.process: PluginProcess | None = None
        super().__init__(run)
        self.node = replace(
            self.node, allocatable={"cpu": (CPUS - 1) * NANO, "memory": 15 * GI * NANO}
        )
        self.rules = static(topology=policy, memory=with_memory)
        self.process = PluginProcess(run, self._device_managers)

    def put(self, name: str, need: Need, uid: str) -> None:
        self.write_text(name, json.dumps(need.manifest(name, uid)))

    @property
    def held(self) -> DeviceManagers:
        """The managers of the agent, which must run."""
        found = self._device_managers()
        assert found is not None
        return found

    def _device_managers(self) -> DeviceManagers | None:
        return self.agent.parts.supplies.devices if self.agent is not None else None

    def settings(self) -> AgentSettings:
        return replace(super().settings(), managers=self.rules)

    def managers(self) -> LoadedManagers | None:
        (self.node.root_dir).mkdir(parents=True, exist_ok=True)
        return load_managers(self.rules, self.node.root_dir, two_nodes, device_plugins=True)

    def seams(self, files: FileSource) -> Seams:
        return replace(super().seams(files), plugin_watcher=_SilentWatcher)

    def tasks(self) -> int:
        return super().tasks() - (self.process.tasks() if self.process is not None else 0)


class _SilentWatcher:
    """Tells of no socket in `plugins_registry`."""

    def watch(self, points: WatchPoints) -> bool:
        return False

    async def wait_changes(self) -> list[FileChange]:
        await trio.sleep_forever()
        raise AssertionError

    def close(self) -> None:
        """Do nothing."""


def _below(nursery: trio.Nursery | None) -> int:
    tasks = nursery.child_tasks if nursery is not None else ()
    return sum(1 + sum(map(_below, task.child_nurseries)) for task in tasks)
