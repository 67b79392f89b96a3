"""The CSI driver of a simulated node: its process, its sockets, and what must hold of volumes."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
from trio.testing import memory_stream_pair

from kubelet_trio.model import FileChange, PodUid, WatchPoints
from kubelet_trio.testing import FakeContainer, FakeMounter
from kubelet_trio.testing.csi import (
    CsiDriverFacts,
    CsiRules,
    FakeCsiDriver,
    FakeStorage,
    NodeFeature,
)
from kubelet_trio.testing.devices import FakeBlockDevices
from tests.harness.csi_services import csi_server
from tests.simulation.csi_volumes import DEVICE, DRIVER, storage_documents
from tests.simulation.memory_sockets import MemorySockets
from tests.simulation.stepper import Stepper

FACTS = CsiDriverFacts(DRIVER, "node-1", 10, {"zone": "z"})
# What a driver may say that is wrong. It is then registered not at all, or for nothing good.
LIES: dict[str, dict[str, Any]] = {
    "another type": {"plugin_type": "DevicePlugin"},
    "a path as name": {"name": "../../etc"},
    "no name": {"name": ""},
    "no versions": {"versions": ()},
    "future versions": {"versions": ("2.0.0", "99999999999.0")},
    "an endpoint that nobody serves": {"endpoint": "/run/nobody.sock"},
    "an endpoint that is no path": {"endpoint": "tcp://192.0.2.1:1"},
    "no node": {"node_id": "", "max_volumes": -5},
    "a continent of topology": {"topology": {f"k{n}": "v" for n in range(1001)}},
}


class CsiNode:
    """The driver of a node. It serves every socket of the registry while its process runs."""

    def __init__(
        self,
        run: Stepper,
        root: Path,
        mounter: FakeMounter,
        *,
        stages: bool = True,
        republishes: bool = False,
    ) -> None:
        self.run = run
        self.root = root
        self.registry = root / "plugins_registry"
        self.mounter = mounter
        self.devices = FakeBlockDevices(mounter)
        self.devices.add(Path("/dev/null"), 7)  # what the driver's storage publishes
        features = set(NodeFeature) - (set() if stages else {NodeFeature.STAGE_UNSTAGE_VOLUME})
        self.rules = CsiRules(features)
        self.storage = FakeStorage(mounter)
        # Slow enough for the next step to come during a call.
        self.driver = FakeCsiDriver(self.rules, self.storage, replace(FACTS), latency=0.02)
        self.is_deaf = False  # takes connections, and never answers
        self._republishes = republishes
        self._numbers = itertools.count(1)
        self._life = trio.CancelScope()
        self._tasks: trio.Nursery | None = None  # None: the driver does not run
        self._news = trio.Event()
        run.call(trio.socket.set_custom_socket_factory, MemorySockets(self._dial))

    def documents(self) -> str:
        return storage_documents(republishes=self._republishes)

    # Its process

    @property
    def is_up(self) -> bool:
        return self._tasks is not None

    def start(self) -> None:
        """Start the driver, with a new socket, as its registrar does."""
        if not self.is_up:
            self._life = trio.CancelScope()
            self.run.take(self._start)
            self.register()

    async def _start(self) -> None:
        await self.run.nursery.start(self._serve)

    def kill(self) -> None:
        """End its process: calls end where they are, mounts and sockets stay."""
        self.run.call(self._life.cancel)
        self.run.settle()

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._life:
                async with trio.open_nursery() as self._tasks:
                    await self._tasks.start(self._run_driver)
                    task_status.started()
        finally:
            self._tasks = None

    async def _run_driver(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.driver.run(task_status=task_status)
        self._life.cancel()  # a fault has killed it

    async def _dial(self, path: str) -> trio.abc.HalfCloseableStream:
        await trio.lowlevel.checkpoint()
        if not _exists(path):
            raise FileNotFoundError(2, os.strerror(2), path)
        if self._tasks is None:
            raise ConnectionRefusedError(111, os.strerror(111), path)
        near, far = memory_stream_pair()
        if self.is_deaf:
            self._tasks.start_soon(_keep, far)
        else:
            self._tasks.start_soon(csi_server(self.driver).serve_stream, far)
        return near

    def tasks(self) -> int:
        """Return how many tasks the driver has."""
        return 0 if self._tasks is None else self.run.call(lambda: 1 + _below(self._tasks))

    # Its registration

    def register(self, *, beside: bool = False) -> None:
        """Put a new socket into the registry: in the place of the last, or beside it."""
        self.registry.mkdir(parents=True, exist_ok=True, mode=0o750)
        if not beside:
            self.deregister()
        path = self.registry / f"driver-{next(self._numbers)}.sock"
        os.mknod(path, 0o600 | stat.S_IFSOCK)
        # Of two sockets the newer one wins; time is the simulation's, not the machine's.
        now = int(1e9 * self.run.now())
        os.utime(path, ns=(now, now))
        self.nudge()

    def deregister(self) -> None:
        """Remove its sockets."""
        for path in sorted(self.registry.glob("*.sock")):
            path.unlink()
        self.nudge()

    def make_watcher(self) -> RegistryWatcher:
        """Return what the agent watches the registry with."""
        return RegistryWatcher(self)

    def nudge(self) -> None:
        self.run.call(self._news.set)

    async def wait_news(self) -> None:
        await self._news.wait()
        self._news = trio.Event()

    # Its faults

    def lie(self, lie: str) -> None:
        """Say something wrong from now on, and register again with it."""
        self.driver.facts = replace(FACTS, **LIES[lie])
        self.register()

    def mend(self) -> None:
        """End all its faults; it registers again, as it does when it is restarted."""
        self.run.call(self.driver.faults.clear)
        self.driver.facts, self.is_deaf = replace(FACTS), False
        if self.is_up:
            self.register()
        else:
            self.start()

    # What must be so

    def check(self, alive: Iterable[FakeContainer]) -> None:
        """Check what holds at every moment. `alive` are the containers that run."""
        assert not self.rules.violations, self.rules.violations
        destroyed = self.storage.destroyed
        assert not destroyed, f"data removed through its mount: {destroyed}"
        self._check_records()
        mounted = {mount.path for mount in self.mounter.mounts()}
        for container in alive:
            lost = [path for path in _used(container, self.root) if path not in mounted]
            assert not lost, f"volumes lost by {container.name} of {container.uid}: {lost}"

    def _check_records(self) -> None:
        """Whatever may be staged or published has its record, of the right volume."""
        for volume, paths in (*self.rules.staged().items(), *self.rules.published().items()):
            for path in paths:
                found = self._record_of(Path(path))
                assert found.is_file(), f"no record of {volume} at {path}"
                record = json.loads(found.read_bytes())
                assert (record["driverName"], record["volumeHandle"]) == (DRIVER, volume), found

    def _record_of(self, path: Path) -> Path:
        blocks = self.root / "plugins/kubernetes.io/csi/volumeDevices"
        if blocks in path.parents:
            return blocks / DEVICE / "data/vol_data.json"
        return path.parent / "vol_data.json"

    def check_calm(self, users: Mapping[PodUid, Sequence[str]]) -> None:
        """Check what must be so once faults are over. `users` may have these volumes, by UID."""
        for paths in self.rules.published().values():
            for path in paths:
                assert users.keys() & set(Path(path).parts), f"published for no pod: {path}"
        wanted = {name for names in users.values() for name in names}
        assert set(self.rules.staged()) <= wanted, f"staged for no pod: {self.rules.staged()}"

    def check_published(self, uid: PodUid, names: Sequence[str]) -> None:
        """Check that a pod that runs has its volumes."""
        published = [p for paths in self.rules.published().values() for p in paths]
        mine = [path for path in published if uid in Path(path).parts]
        assert len(mine) == len(names), f"{uid} should have {names}, has {mine}"


class RegistryWatcher:
    """Tells of the sockets that come and go."""

    def __init__(self, node: CsiNode) -> None:
        self._node = node

    def watch(self, points: WatchPoints) -> bool:
        return False

    async def wait_changes(self) -> list[FileChange]:
        await self._node.wait_news()
        return []

    def close(self) -> None:
        """Do nothing: the node keeps what it tells."""


def _exists(path: str) -> bool:
    return os.path.exists(path)


async def _keep(stream: trio.abc.Stream) -> None:
    """Hold a connection that nobody reads."""
    async with stream:
        await trio.sleep_forever()


def _below(nursery: trio.Nursery | None) -> int:
    """Return how many tasks a nursery has, with theirs."""
    tasks = nursery.child_tasks if nursery is not None else ()
    return sum(1 + sum(map(_below, task.child_nurseries)) for task in tasks)


def _used(container: FakeContainer, root: Path) -> list[str]:
    """Return where the CSI volumes of a container are mounted."""
    files = [mount.host_path for mount in container.config.mounts]
    found = [path for path in files if "/volumes/kubernetes.io~csi/" in path]
    for device in container.config.devices:
        name = Path(device.host_path).name
        blocks = root / "plugins/kubernetes.io/csi/volumeDevices"
        found.append(str(blocks / name / "dev" / container.uid))
    return found
