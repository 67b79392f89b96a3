"""The volumes of a node in virtual time: an agent's part for them, and a CSI driver.

Agents come and go on the same disk and driver. Each has a task a pod, which does what a pod's
worker does with volumes: mount, refresh while the pod runs, unmount when it is gone; each until it
succeeds.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import trio
from lightkube.models.core_v1 import EmptyDirVolumeSource, Pod, Volume
from trio.testing import memory_stream_pair

from kubelet_trio.grpc import Channel
from kubelet_trio.model import PodUid, inline_offload, pod_uid
from kubelet_trio.objects import NoTokens
from kubelet_trio.testing import FakeMounter
from kubelet_trio.testing.csi import CsiRules, FakeCsiDriver, FakeStorage, NodeFeature
from kubelet_trio.volumes import VolumeError, VolumeManager
from kubelet_trio.volumes.csi import CsiServices
from tests.harness.csi_services import csi_server
from tests.simulation.stepper import Stepper
from tests.volumes.csi.world import (
    DRIVER,
    Events,
    Objects,
    claimed,
    driver_object,
    inline,
    persistent,
    pod_of,
)

SHARED = ("v0", "v1")  # for any number of pods
ONE_POD = "v2"  # ReadWriteOncePod
INLINE, SCRATCH = "inline", "scratch"  # not from a claim
RETRY = 2.0  # seconds between a worker's attempts
REFRESH = 60.0
CLEAN = 60.0


@dataclass(eq=False)
class LivePod:
    """A pod, from its creation until nothing is left of it."""

    pod: Pod
    volumes: frozenset[str]
    removed: trio.Event = field(default_factory=trio.Event)
    is_running: bool = False  # its volumes are mounted, by the agent's word

    @property
    def uid(self) -> PodUid:
        return pod_uid(self.pod)


class VolumeWorld:
    """The node. `close` it in the end."""

    def __init__(self, run: Stepper, *, stages: bool, republishes: bool) -> None:
        self.run = run
        self.root = Path(tempfile.mkdtemp(prefix="kubelet-trio-volumes-"))
        (self.root / "pods").mkdir()
        features = set(NodeFeature)
        if not stages:
            features.remove(NodeFeature.STAGE_UNSTAGE_VOLUME)
        self.mounter = FakeMounter()
        self.rules = CsiRules(features)
        # Slow enough for the next step to come during a call.
        self.storage = FakeStorage(self.mounter)
        self.driver = FakeCsiDriver(self.rules, self.storage, latency=0.02)
        self.objects, self.events = Objects(), Events()
        self.objects.put(driver_object(requiresRepublish=republishes))
        for name in SHARED:
            self.objects.put(*persistent(name, name, modes=["ReadWriteMany"]))
        self.objects.put(*persistent(ONE_POD, ONE_POD, modes=["ReadWriteOncePod"]))
        self.pods: dict[PodUid, LivePod] = {}
        self.gone: set[PodUid] = set()
        self._made = 0
        self._connections: trio.Nursery | None = None  # None: the driver does not run
        self._driver_life = trio.CancelScope()
        self._registered = trio.CancelScope()
        self._agent_life: trio.CancelScope | None = None
        self._agent_dead = trio.Event()
        self._lives: trio.Nursery | None = None

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    # The driver

    @property
    def is_driver_up(self) -> bool:
        return self._connections is not None

    def start_driver(self) -> None:
        if not self.is_driver_up:
            self._driver_life = trio.CancelScope()
            self.run.take(self._start_serving)

    async def _start_serving(self) -> None:
        await self.run.nursery.start(self._serve)

    def kill_driver(self) -> None:
        """End the driver's process: its calls end where they are, its mounts stay."""
        self.run.call(self._driver_life.cancel)
        self.run.settle()

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._driver_life:
            async with trio.open_nursery() as nursery:
                self._connections = nursery
                await nursery.start(self.driver.run)
                task_status.started()
                await trio.sleep_forever()
        self._connections = None

    async def _dial(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self._connections is None:
            raise ConnectionRefusedError("the driver does not run")
        near, far = memory_stream_pair()
        self._connections.start_soon(csi_server(self.driver).serve_stream, far)
        return near

    # The agent

    @property
    def is_agent_up(self) -> bool:
        return self._agent_life is not None

    def start_agent(self) -> None:
        if not self.is_agent_up:
            self._agent_life, self._agent_dead = trio.CancelScope(), trio.Event()
            self.run.call(self.run.nursery.start_soon, self._live)

    def kill_agent(self) -> None:
        """Cancel all tasks of the agent, wherever they are."""
        if self._agent_life is not None:
            self.run.call(self._agent_life.cancel)
            self.run.settle()
            assert self._agent_dead.is_set(), "the agent does not end"

    async def _live(self) -> None:
        assert self._agent_life is not None
        csi = CsiServices(
            self.root,
            "node",
            self.mounter,
            inline_offload,
            tokens=NoTokens(),
            connect=lambda _path: Channel(self._dial),
        )
        self._volumes = VolumeManager(
            self.root,
            self.mounter,
            inline_offload,
            objects=self.objects,
            events=self.events,
            async_kinds=lambda walks, measured: [csi.kind(walks, measured)],
        )
        try:
            with self._agent_life:
                async with trio.open_nursery() as self._lives:
                    self._lives.start_soon(self._register, csi)
                    for live in self.pods.values():
                        self._lives.start_soon(self._live_pod, live)
                    self._lives.start_soon(self._clean)
        finally:
            self._lives = self._agent_life = None
            self._agent_dead.set()

    async def _register(self, csi: CsiServices) -> None:
        """Keep the driver registered, as its supervised task in the agent does."""
        while True:
            with trio.CancelScope() as self._registered:
                try:
                    await csi.table.run_plugin(DRIVER, "/csi.sock", ["1.0.0"])
                except* csi.table.errors:
                    pass
            await trio.sleep(1)

    def register_again(self) -> None:
        """Replace the registration, as a driver that restarts does."""
        if self.is_agent_up:
            self.run.call(self._registered.cancel)

    async def _clean(self) -> None:
        while True:
            await trio.sleep(CLEAN)
            try:
                await self._volumes.unused.clean()
            except VolumeError:
                continue  # it comes again

    # Pods

    def create(self, volumes: frozenset[str]) -> PodUid:
        """Let a pod come; return its UID."""
        self._made += 1
        uid = PodUid(f"uid-{self._made}")
        live = LivePod(pod_of(uid, *map(_volume, sorted(volumes))), volumes)
        self.pods[uid] = live
        if self._lives is not None:
            self.run.call(self._lives.start_soon, self._live_pod, live)
        return uid

    def remove(self, uid: PodUid) -> None:
        """Let a pod go, unless it has gone already."""
        if uid in self.pods:
            self.run.call(self.pods[uid].removed.set)

    async def _live_pod(self, live: LivePod) -> None:
        """Do with volumes what a pod's worker does."""
        async with trio.open_nursery() as mounting:
            mounting.start_soon(self._mount, live)
            await live.removed.wait()
            mounting.cancel_scope.cancel()
        live.is_running = False
        while True:
            try:
                await self._volumes.unmount(live.uid)
            except VolumeError:
                await trio.sleep(RETRY)
            else:
                break
        shutil.rmtree(self.root / "pods" / live.uid, ignore_errors=True)
        del self.pods[live.uid]
        self.gone.add(live.uid)

    async def _mount(self, live: LivePod) -> None:
        call = self._volumes.mount
        while True:
            try:
                await call(live.pod)
            except VolumeError:
                await trio.sleep(RETRY)
                continue
            live.is_running = True
            call = self._volumes.refresh
            await trio.sleep(REFRESH)

    # What is there

    def targets(self, live: LivePod) -> list[str]:
        """Return where the pod's CSI volumes are mounted once it runs."""
        below = self.root / "pods" / live.uid / "volumes/kubernetes.io~csi"
        return [str(below / name / "mount") for name in live.volumes if name != SCRATCH]

    def mounted(self) -> set[str]:
        return {mount.path for mount in self.mounter.mounts()}

    def published(self) -> set[str]:
        """Return the targets that the driver may have published."""
        return {path for paths in self.rules.published().values() for path in paths}


def _volume(name: str) -> Volume:
    if name == SCRATCH:
        return Volume(name=name, emptyDir=EmptyDirVolumeSource(medium="Memory"))
    return inline(name) if name == INLINE else claimed(name, name)
