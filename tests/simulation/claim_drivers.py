"""The DRA drivers of a simulated node: their processes and their sockets."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import trio
from trio.testing import memory_stream_pair

from kubelet_trio.grpc import GRPCError, Status
from kubelet_trio.model import FileChange, WatchPoints
from kubelet_trio.testing.dra import (
    AskedClaim,
    DraCall,
    DraFaults,
    DraRules,
    FakeClaimDevice,
    FakeDeviceHealth,
    FakeDraDriver,
    calls,
)
from kubelet_trio.testing.kube.store import Store
from tests.harness.dra_services import dra_server, endpoint_of, registration_of
from tests.simulation.claim_witness import ClaimWitness
from tests.simulation.memory_sockets import MemorySockets
from tests.simulation.stepper import Stepper

# Slow enough for the next step to come during a call.
LATENCY = 0.02
GPUS, NICS = "gpu.example.com", "nic.example.com"
DEVICES = {GPUS: tuple(f"gpu-{n}" for n in range(4)), NICS: tuple(f"nic-{n}" for n in range(3))}
POOL = "node1"  # of all devices
SERVICES = {GPUS: (calls.V1, calls.HEALTH_V1), NICS: (calls.V1BETA1, calls.HEALTH_V1ALPHA1)}
_FOR_EVER = 10**9  # seconds that a report of health counts


class WatchedDriver(FakeDraDriver):
    """A driver's instance whose calls a witness sees."""

    witness: ClaimWitness

    async def prepare(self, call: DraCall) -> dict[str, tuple[FakeClaimDevice, ...] | str]:
        self.witness.begins(self.name, call)
        try:
            await trio.sleep(LATENCY)
            found = await super().prepare(call)
        finally:
            self.witness.ends(self.name, call)
        for uid, devices in found.items():
            if not isinstance(devices, str):
                self.witness.prepared(self.name, uid, devices)
        return found

    async def unprepare(self, call: DraCall) -> dict[str, str]:
        self.witness.begins(self.name, call)
        try:
            await trio.sleep(LATENCY)
            return await super().unprepare(call)
        finally:
            self.witness.ends(self.name, call)


class DriverProcess:
    """The process of one instance; its sockets outlive it, unless it ends in order."""

    def __init__(self, run: Stepper, root: Path, driver: WatchedDriver) -> None:
        self.run, self.driver = run, driver
        self.endpoint = endpoint_of(driver, root)
        self.registration = registration_of(driver, root)
        self.began = 0.0  # the simulation's time
        self._life = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        self._connections: trio.Nursery | None = None

    @property
    def is_up(self) -> bool:
        return self._tasks is not None

    def start(self) -> None:
        if not self.is_up:
            self._life, self.began = trio.CancelScope(), self.run.now()
            self.run.take(self._start)

    def kill(self) -> None:
        self.run.call(self._life.cancel)
        self.run.settle()

    def cut(self) -> None:
        """End its connections, and the calls on them: the other end has died."""
        if self._connections is not None:
            self._connections.cancel_scope.cancel()

    def tasks(self) -> int:
        return 0 if self._tasks is None else self.run.call(lambda: 1 + tasks_below(self._tasks))

    def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Serve a connection. Raises OSError if the process does not run."""
        if self._connections is None or self._connections.cancel_scope.cancel_called:
            raise ConnectionRefusedError(111, os.strerror(111), str(self.endpoint))
        server = dra_server(self.driver, str(self.endpoint))
        self._connections.start_soon(server.serve_stream, stream)

    async def _start(self) -> None:
        await self.run.nursery.start(self._live)

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._life:
                async with trio.open_nursery() as self._tasks:
                    self._tasks.start_soon(self._accept)
                    await self._tasks.start(self._run_driver)
                    task_status.started()
        finally:
            self._tasks = None

    async def _run_driver(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.driver.run(task_status=task_status)
        self._life.cancel()  # a fault has killed it

    async def _accept(self) -> None:
        try:
            while True:
                async with trio.open_nursery() as self._connections:
                    self._connections.start_soon(trio.sleep_forever)
        finally:
            self._connections = None


class DraNode:
    """The drivers of a node: of each an instance `a`, and during an update `b` beside it."""

    def __init__(self, run: Stepper, root: Path, store: Store, *, plain: bool) -> None:
        """Set the drivers up.

        Args:
            run: the simulation.
            root: of the kubelet.
            store: has the claims, as drivers read them.
            plain: whether drivers name a request without the alternative that it got.
        """
        self.run, self._root, self._store, self._plain = run, root, store, plain
        self.registry = root / "plugins_registry"
        self.rules = {name: DraRules() for name in DEVICES}
        self.faults = {name: DraFaults() for name in DEVICES}
        self.healths = {n: dict.fromkeys(devices, calls.HEALTHY) for n, devices in DEVICES.items()}
        self.processes: dict[tuple[str, str], DriverProcess] = {}
        self._numbers = itertools.count(1)
        self._news = trio.Event()
        run.call(trio.socket.set_custom_socket_factory, MemorySockets(self._dial))

    def begin(self, witness: ClaimWitness) -> None:
        """Make the instances; none of them runs."""
        for name, instance in itertools.product(DEVICES, "ab"):
            driver = WatchedDriver(
                name,
                DEVICES[name],
                self.rules[name],
                instance=instance,
                pool=POOL,
                services=SERVICES[name],
                choose=self._chosen_by(name),
            )
            driver.faults, driver.witness = self.faults[name], witness
            self.processes[name, instance] = DriverProcess(self.run, self._root, driver)
            self._tell_health(name)

    # Its processes

    def start(self, name: str, instance: str = "a") -> None:
        """Start an instance, which registers."""
        process = self.processes[name, instance]
        if not process.is_up:
            process.start()
            self._put_socket(process.registration)

    def kill(self, name: str) -> None:
        """Kill all instances of a driver. Their sockets stay."""
        for process in self._of(name):
            process.kill()

    def update(self, name: str) -> None:
        """Begin a rolling update: a second instance registers beside the first."""
        _, new = self._by_age(name)
        if not new.is_up:
            self.start(name, new.driver.instance)
        else:
            self.retire(name)

    def retire(self, name: str) -> None:
        """End a rolling update: the older instance ends in order."""
        old, new = self._by_age(name)
        if old.is_up and new.is_up:
            old.registration.unlink(missing_ok=True)
            self.nudge()
            old.kill()

    def deregister(self, name: str) -> None:
        """Remove the registration of a driver, whose processes go on."""
        for process in self._of(name):
            process.registration.unlink(missing_ok=True)
        self.nudge()

    def mend(self) -> None:
        """End all faults, and let each driver run in one registered instance."""
        for name in DEVICES:
            self.run.call(self.faults[name].clear)
            self.retire(name)
            running = next((p for p in self._of(name) if p.is_up), self.processes[name, "a"])
            for process in self._of(name):
                if process is not running:
                    process.registration.unlink(missing_ok=True)
            running.start()
            self._put_socket(running.registration)

    def cut(self) -> None:
        """End all connections: the agent has died. To be called inside trio."""
        for process in self.processes.values():
            process.cut()

    def tasks(self) -> int:
        return sum(process.tasks() for process in self.processes.values())

    def running(self) -> Iterator[WatchedDriver]:
        """Yield an instance of each driver that runs."""
        for name in DEVICES:
            yield from [p.driver for p in self._of(name) if p.is_up][:1]

    def set_health(self, name: str, device: str, status: str) -> None:
        self.healths[name][device] = status
        self.run.call(self._tell_health, name)

    def _tell_health(self, name: str) -> None:
        for process in self._of(name):
            process.driver.set_health(
                *(
                    FakeDeviceHealth(device, status, f"is {status}", _FOR_EVER)
                    for device, status in self.healths[name].items()
                )
            )

    def _of(self, name: str) -> list[DriverProcess]:
        return [process for (of, _), process in self.processes.items() if of == name]

    def _by_age(self, name: str) -> tuple[DriverProcess, DriverProcess]:
        """Return the two instances, the one that is to end first."""
        first, second = self._of(name)
        if not first.is_up:
            first, second = second, first
        if first.is_up and second.is_up and first.began > second.began:
            first, second = second, first
        return first, second

    # What it prepares

    def _chosen_by(self, name: str) -> Callable[[AskedClaim], list[FakeClaimDevice]]:
        return partial(self._chosen, name)

    def _chosen(self, name: str, claim: AskedClaim) -> list[FakeClaimDevice]:
        """Return what is allocated of a driver for a claim. Raises `GRPCError` if it is gone."""
        found = self._store.get("ResourceClaim", claim.namespace, claim.name)
        status = (found or {}).get("status") or {}
        if found is None or found["metadata"]["uid"] != claim.uid or "allocation" not in status:
            raise GRPCError(Status.NOT_FOUND, f"{claim.name}: not allocated, or another one")
        return [
            FakeClaimDevice(
                result["device"],
                result["pool"],
                (result["request"].partition("/")[0] if self._plain else result["request"],),
            )
            for result in status["allocation"]["devices"]["results"]
            if result["driver"] == name
        ]

    # Its sockets

    def _put_socket(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        path.unlink(missing_ok=True)
        os.mknod(path, 0o600 | stat.S_IFSOCK)
        # Time is the simulation's; a socket that replaces another one at once differs as well.
        now = int(1e9 * self.run.now()) + next(self._numbers)
        os.utime(path, ns=(now, now))
        self.nudge()

    async def _dial(self, path: str) -> trio.abc.HalfCloseableStream:
        await trio.lowlevel.checkpoint()
        for process in self.processes.values():
            if path == str(process.endpoint) or path == str(process.registration):
                near, far = memory_stream_pair()
                process.serve(far)
                return near
        raise FileNotFoundError(2, os.strerror(2), path)

    def make_watcher(self) -> DraWatcher:
        """Return what the agent watches the registry with."""
        return DraWatcher(self)

    def nudge(self) -> None:
        self.run.call(self._news.set)

    async def wait_news(self) -> None:
        await self._news.wait()
        self._news = trio.Event()


class DraWatcher:
    """Tells of the sockets that come and go."""

    def __init__(self, node: DraNode) -> None:
        self._node = node

    def watch(self, points: WatchPoints) -> bool:
        return False

    async def wait_changes(self) -> list[FileChange]:
        await self._node.wait_news()
        return []

    def close(self) -> None:
        """Do nothing: the node keeps what it tells."""


def tasks_below(nursery: trio.Nursery | None) -> int:
    """Return how many tasks a nursery has, with theirs."""
    tasks = nursery.child_tasks if nursery is not None else ()
    return sum(1 + sum(map(tasks_below, task.child_nurseries)) for task in tasks)
