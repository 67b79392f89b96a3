"""A node on which everything may run short: memory, disk, time, and the runtime's sanity."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import AgentSettings, Seams
from kubelet_trio.cri import Listing, v1
from kubelet_trio.gc import ImagePolicy
from kubelet_trio.model import (
    CONFIG_SOURCE,
    ContainerId,
    DiskSpace,
    PodUid,
    SandboxId,
    inline_offload,
    is_terminal,
    metadata,
)
from kubelet_trio.pressure import EvictionPolicy, FileSystems, Observation, parse_thresholds
from kubelet_trio.shutdown import ShutdownPeriod
from kubelet_trio.sources import FileSource
from kubelet_trio.testing import FakeContainer
from kubelet_trio.testing.objects import FakeUsage
from tests.agent.node import Feed
from tests.harness.pod_files import load_pods
from tests.shutdown.fake import FakeLogind
from tests.simulation.stepper import Stepper
from tests.simulation.world import NODE, WitnessRuntime, World

P = ParamSpec("P")
T = TypeVar("T")

MI = 1 << 20
ENOUGH, SHORT = 1000 * MI, 50 * MI
EVICTION = EvictionPolicy(
    parse_thresholds({"memory.available": "100Mi", "nodefs.available": "100Mi"})
)

# What the agent does on disk, by the name of the function. The rest reads.
_WRITES = frozenset(
    {
        "_write",
        "prepare",
        "container_files",
        "write_hosts",
        "write_text",
        "write",
        "write_intent",
        "link_log",
    }
    | {
        "_write_checkpoints",
        "_set_up_all",
        "_get_or_create",
        "mkdir",
        "_prepare",
        "_prepare_pod",
        "map",
    }
)
_REMOVALS = frozenset(
    {"_remove", "remove", "remove_logs", "_remove_files", "tear_down", "remove_intent"}
    | {"remove_log_directories", "_remove_unpublished", "forget", "remove_mount_point", "rmdir"}
    | {"_remove_pod", "_remove_volume", "_remove_nameless", "unmap"}
)


class Disk:
    """The disk of the agent's root directory and logs; `error` is what it answers."""

    def __init__(self) -> None:
        self.error = 0  # an errno: ENOSPC, EROFS; 0: it is well
        self.refused = 0

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a blocking call here and now, unless the disk cannot do it."""
        name = getattr(fn.func if isinstance(fn, partial) else fn, "__name__", "")
        failing: frozenset[str] | None = {
            errno.ENOSPC: _WRITES,
            errno.EROFS: _WRITES | _REMOVALS,
        }.get(self.error)
        if failing is not None and name in failing:
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error))
        return await inline_offload(fn, *args, **kwargs)


class Garble:
    """How a runtime's answers are wrong while it is out of its mind.

    None of these hides what runs: an agent that cannot see a container starts another, and
    no agent could know better.
    """

    KINDS = ("no metadata", "unknown state", "other times", "stranger", "other id", "no image")

    @staticmethod
    def container(kind: str, listed: v1.Container) -> v1.Container:
        if kind == "no metadata":
            return replace(listed, metadata=None)
        if kind == "other times":
            return replace(listed, created_at=-(2**62))
        if kind == "no image":
            return replace(listed, image=None, image_ref="", image_id="")
        return listed

    @staticmethod
    def status(kind: str, status: v1.ContainerStatus) -> v1.ContainerStatus:
        if kind == "no metadata":
            return replace(status, metadata=None)
        if kind == "unknown state" and status.state == v1.ContainerState.CONTAINER_RUNNING:
            return replace(status, finished_at=2**62, exit_code=3, reason="Error")
        if kind == "other times":
            return replace(status, created_at=-(2**62), started_at=2**62, finished_at=-1)
        if kind == "other id":
            return replace(status, id="somebody-else")
        if kind == "no image":
            return replace(status, image=None, image_ref="", image_id="")
        return status

    @staticmethod
    def sandbox(kind: str, status: v1.PodSandboxStatus) -> v1.PodSandboxStatus:
        if kind == "no metadata":
            return replace(status, metadata=None)
        if kind == "other times":
            return replace(status, created_at=2**62)
        if kind == "other id":
            return replace(status, id="somebody-else")
        if kind == "no image":
            return replace(status, network=v1.PodSandboxNetworkStatus(ip="no address"), linux=None)
        return status


STRANGER = v1.Container(
    id="stranger",
    pod_sandbox_id="nowhere",
    labels={"io.kubernetes.pod.uid": "../../etc", "io.kubernetes.container.name": "\u0000"},
    state=v1.ContainerState.CONTAINER_UNKNOWN,
)


class HardRuntime(WitnessRuntime):
    """A runtime that may talk nonsense, and that says when an image goes that is used."""

    garble = ""  # one of `Garble.KINDS`; "": it is sane

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.needed: Callable[[], set[str]] = set  # names of images that may not go

    def _usage(self, container: FakeContainer) -> FakeUsage:
        word = container.image.removeprefix("use-")
        return FakeUsage(memory=int(word) * MI) if word.isdigit() else super()._usage(container)

    async def remove_image(self, image: v1.ImageSpec) -> None:
        used = {c.image for c in self.alive()} | self.needed()
        found = self.images.find(image.image)
        if found in used:
            self.violations.append(f"image {found} removed while it is used")
        await super().remove_image(image)

    async def list_containers(
        self, previous: Listing[v1.Container] | None = None, *, uid: PodUid | None = None
    ) -> Listing[v1.Container]:
        listing = await super().list_containers(previous, uid=uid)
        if not self.garble:
            return listing
        entries = {i: Garble.container(self.garble, e) for i, e in listing.entries.items()}
        if self.garble == "stranger":
            entries[STRANGER.id] = STRANGER
        return Listing(entries)

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        status, pid = await super().container_status(container_id, verbose=verbose)
        return Garble.status(self.garble, status), pid

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        return Garble.sandbox(self.garble, await super().pod_sandbox_status(sandbox_id))


@dataclass
class Machine:
    """What the node has left."""

    memory: int = ENOUGH
    disk: int = ENOUGH
    images: int = 50  # percent of the images' file system that is used

    def observe(self, places: FileSystems) -> Mapping[str, Observation]:
        return {
            "memory.available": Observation(self.memory, ENOUGH),
            "nodefs.available": Observation(self.disk, ENOUGH),
        }

    def space(self, mountpoint: str) -> DiskSpace:
        return DiskSpace(capacity=100 * MI, available=(100 - self.images) * MI)


class HardWorld(World):
    """The node of `World`, with pods that no file holds: those may be evicted."""

    def __init__(
        self, run: Stepper, make_runtime: Callable[..., HardRuntime] = HardRuntime
    ) -> None:
        super().__init__(run, make_runtime)
        assert isinstance(self.runtime, HardRuntime)
        self.hard_runtime: HardRuntime = self.runtime
        self.machine = Machine()
        self.disk = Disk()
        self.logind = FakeLogind()
        self.fed: dict[str, Pod] = {}
        self._feed = Feed()
        self.hard_runtime.needed = self.images_needed
        self.hard_runtime.image_fs = v1.ImageFsInfoResponse(
            image_filesystems=[
                v1.FilesystemUsage(fs_id=v1.FilesystemIdentifier(mountpoint=str(self.top)))
            ]
        )

    def feed(self, pods: Mapping[str, Pod]) -> None:
        """Want these pods, as somebody who keeps them in no file."""
        self.fed = dict(pods)
        self.run.call(lambda: self._feed.put(*self.fed.values()))

    def settings(self) -> AgentSettings:
        return replace(
            super().settings(),
            eviction=EVICTION,
            image_gc=ImagePolicy(high_threshold=85, low_threshold=80, min_age=0.0),
            shutdown=(ShutdownPeriod(0, 20), ShutdownPeriod(2_000_000_000, 10)),
        )

    def seams(self, files: FileSource) -> Seams:
        seams = super().seams(files)
        self._feed = Feed()
        self._feed.name = "feed"
        self.feed(self.fed)
        return replace(
            seams,
            sources=(*seams.sources, self._feed),
            disk_space=self.machine.space,
            signals=self.machine,
            logind=self.logind,
        )

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        result = await self.disk.offload(fn, *args, **kwargs)
        self.resizes.see_records(args)
        return result

    def images_needed(self) -> set[str]:
        """Return the images of pods that the agent has and that are not over."""
        assert self.agent is not None
        pods = self.agent.pods.value.values()
        live = [p for p in pods if not is_terminal(p.status)]
        live = [p for p in live if metadata(p).deletionTimestamp is None]
        return {c.image or "" for p in live if p.spec for c in p.spec.containers}


def fed_pod(name: str, use: int, uid: str) -> Pod:
    """Return a pod that may be evicted, using so many MiB."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "web", "image": f"use-{use}"}]},
    }
    (pod,) = load_pods(json.dumps(manifest).encode(), "/fed", node_name=NODE)
    meta = metadata(pod)
    annotations = {**(meta.annotations or {}), CONFIG_SOURCE: "api"}
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(meta, annotations=annotations, uid=uid, name=name),
    )
