"""A node with one CSI driver that keeps the specification's rules, behind gRPC in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from lightkube.models.core_v1 import (
    CSIPersistentVolumeSource,
    CSIVolumeSource,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    Volume,
    VolumeDevice,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.storage_v1 import CSIDriver, CSIDriverSpec
from trio.testing import memory_stream_pair

from kubelet_trio.grpc import Channel
from kubelet_trio.model import Meter, ObjectRef, Offload, PodUid, inline_offload
from kubelet_trio.model.events import EventType
from kubelet_trio.objects import (
    ApiObject,
    NoTokens,
    ObjectKey,
    ObjectNotFoundError,
    TokenRequester,
    object_key,
)
from kubelet_trio.testing.csi import CsiRules, FakeCsiDriver, FakeStorage
from kubelet_trio.testing.devices import FakeBlockDevices
from kubelet_trio.testing.mounts import FakeMounter
from kubelet_trio.volumes import Issuers, NodeFacts, VolumeManager
from kubelet_trio.volumes.attaching import VolumesInUse
from kubelet_trio.volumes.csi import Attachments, CsiServices, Driver
from kubelet_trio.volumes.csi.types import CallNotes
from kubelet_trio.volumes.expansion import ClaimStatus, NoClaimStatus, VolumeGrowth
from kubelet_trio.volumes.labels import VolumeLabels
from kubelet_trio.volumes.selinux import SELinuxContext
from tests.harness.csi_services import csi_server
from tests.volumes.make import pod

DRIVER = "fake.csi.example.org"


@dataclass
class Objects:
    """An `ObjectStore` of what a test puts in."""

    known: dict[ObjectKey, ApiObject] = field(default_factory=dict)

    def put(self, *values: ApiObject) -> None:
        self.known.update({object_key(value): value for value in values})

    def hold(self, uid: PodUid, keys: Iterable[ObjectKey]) -> None:
        """Do nothing: everything is kept."""

    def release(self, uid: PodUid) -> None:
        """Do nothing: everything is kept."""

    async def get(self, key: ObjectKey, uid: PodUid) -> ApiObject:
        if key not in self.known:
            raise ObjectNotFoundError(key)
        return self.known[key]


@dataclass
class Events:
    """An `EventSink` that keeps the texts, each once, in order."""

    texts: list[str] = field(default_factory=list)

    def emit(self, involved: ObjectRef, type_: EventType, reason: str, message: str) -> None:
        self.texts.append(f"{reason}: {message}")


@dataclass
class InUse:
    """A `VolumesInUse` whose reports arrive at once."""

    names: set[str] = field(default_factory=set)

    def note(self, name: str) -> None:
        self.names.add(name)

    async def wait_reported(self, name: str) -> None:
        assert name in self.names

    def drop(self, name: str) -> None:
        self.names.discard(name)


@dataclass
class World:
    """The node: what outlives an agent, and the agent's volumes."""

    root: Path
    features: tuple[str, ...] = ("STAGE_UNSTAGE_VOLUME",)
    mounter: FakeMounter = field(default_factory=FakeMounter)
    objects: Objects = field(default_factory=Objects)
    events: Events = field(default_factory=Events)
    meter: Meter = field(default_factory=Meter)
    attachments: Attachments | None = None
    in_use: VolumesInUse | None = None
    tokens: TokenRequester = field(default_factory=NoTokens)
    install: Callable[[Driver], Awaitable[None]] | None = None
    claims: ClaimStatus = field(default_factory=NoClaimStatus)
    offload: Offload = inline_offload  # of the driver's volumes
    name: str = DRIVER
    notes: CallNotes | None = None  # is told of the driver's calls
    selinux: SELinuxContext | None = None  # the host's label of containers' files; None: off

    def __post_init__(self) -> None:
        self.rules = CsiRules(self.features)
        self.devices = FakeBlockDevices(self.mounter)
        self.devices.add(Path("/dev/null"), 7)  # what the driver's storage publishes
        self.driver = FakeCsiDriver(self.rules, FakeStorage(self.mounter))
        self.objects.put(driver_object(self.name))
        self._serving: trio.Nursery | None = None
        self.restart()

    def reboot(self) -> None:
        """Lose loop devices and mounts, and what driver and agent remember."""
        for path in list(self.devices.loops):
            self.devices.detach(Path(path))
        for mount in reversed(self.mounter.mounts()):
            self.mounter.unmount(Path(mount.path))
        self.rules = CsiRules(self.features)
        self.driver = FakeCsiDriver(self.rules, FakeStorage(self.mounter))
        self.restart()

    def restart(self) -> None:
        """Replace the agent; nothing of its memory is left."""
        self.csi = CsiServices(
            self.root,
            "node",
            self.mounter,
            self.offload,
            tokens=self.tokens,
            attachments=self.attachments,
            in_use=self.in_use,
            meter=self.meter,
            connect=lambda _: Channel(self._dial),
            install=self.install,
            devices=self.devices,
            notes=self.notes,
        )
        labels = VolumeLabels(self.meter, inline_offload, default=lambda: self.selinux)
        self.volumes = VolumeManager(
            self.root,
            self.mounter,
            inline_offload,
            objects=self.objects,
            issuers=Issuers(tokens=self.tokens),
            meter=self.meter,
            node=NodeFacts(selinux=self.selinux is not None),
            labels=labels if self.selinux is not None else None,
            events=self.events,
            growth=VolumeGrowth(self.events, lambda: 0.0, self.claims),
            async_kinds=lambda walks, measured: [self.csi.kind(walks, measured)],
        )

    async def _dial(self) -> trio.abc.Stream:
        assert self._serving is not None, "the driver does not run"
        near, far = memory_stream_pair()
        self._serving.start_soon(csi_server(self.driver).serve_stream, far)
        return near

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.CancelScope]:
        """Run the driver and register it with the agent; cancelling the scope deregisters it."""
        async with trio.open_nursery() as nursery:
            self._serving = nursery
            await nursery.start(self.driver.run)
            scope = trio.CancelScope()

            async def plugin(*, task_status: trio.TaskStatus[None]) -> None:
                with scope:
                    run = self.csi.table.run_plugin
                    await run(self.name, "/csi.sock", ["1.0.0"], task_status=task_status)

            await nursery.start(plugin)
            yield scope
            nursery.cancel_scope.cancel()
            self._serving = None

    def left_on_disk(self) -> list[str]:
        """Return what is left of volumes: their own directories, files and links, and mounts."""
        csi, common = self.root / "plugins/kubernetes.io/csi", ("staging", "publish")
        tops = [
            *self.root.glob("pods/*/volumes"),
            *self.root.glob("pods/*/volumeDevices"),
            *(path for path in csi.glob("*/*") if path.name not in common),
            *(path for name in common for path in csi.glob(f"volumeDevices/{name}/*")),
        ]
        return sorted(map(str, tops)) + [mount.path for mount in self.mounter.mounts()]

    def check_clean(self) -> None:
        """Check that nothing shows a volume, and that the rules of CSI were kept."""
        self.rules.check()
        assert not any((self.rules.staged(), self.rules.published(), self.devices.loops))
        assert self.left_on_disk() == []


def driver_object(driver: str = DRIVER, **fields: Any) -> CSIDriver:
    """A CSIDriver with attachRequired false, unless the fields say otherwise."""
    fields.setdefault("attachRequired", False)
    fields.setdefault("podInfoOnMount", True)  # the driver knows an inline volume by it
    fields.setdefault("volumeLifecycleModes", ["Persistent", "Ephemeral"])
    return CSIDriver(metadata=ObjectMeta(name=driver), spec=CSIDriverSpec(**fields))


def persistent(
    name: str = "pv",
    handle: str = "vol-1",
    *,
    modes: Iterable[str] = ("ReadWriteOnce",),
    attributes: Mapping[str, str] | None = None,
    mount_options: Iterable[str] = (),
    **source: Any,
) -> list[ApiObject]:
    """A persistent volume and its claim `claim-<name>`."""
    claim_name = f"claim-{name}"
    csi = CSIPersistentVolumeSource(
        driver=DRIVER, volumeHandle=handle, volumeAttributes=dict(attributes or {}), **source
    )
    return [
        PersistentVolume(
            metadata=ObjectMeta(name=name),
            spec=PersistentVolumeSpec(
                csi=csi,
                accessModes=list(modes),
                mountOptions=list(mount_options),
                claimRef=ObjectReference(namespace="default", name=claim_name, uid=f"c-{name}"),
            ),
        ),
        PersistentVolumeClaim(
            metadata=ObjectMeta(name=claim_name, namespace="default", uid=f"c-{name}"),
            spec=PersistentVolumeClaimSpec(volumeName=name),
            status=PersistentVolumeClaimStatus(phase="Bound"),
        ),
    ]


def block(name: str = "pv", handle: str = "vol-1", **fields: Any) -> list[ApiObject]:
    """A block volume and its claim."""
    found = persistent(name, handle, **fields)
    for each in found:
        if isinstance(each, PersistentVolume):
            assert each.spec is not None
            each.spec.volumeMode = "Block"
    return found


def claimed(name: str = "data", pv: str = "pv", **fields: Any) -> Volume:
    """A volume of a pod through the claim of a persistent volume."""
    claim = PersistentVolumeClaimVolumeSource(claimName=f"claim-{pv}", **fields)
    return Volume(name=name, persistentVolumeClaim=claim)


def inline(name: str = "data", **fields: Any) -> Volume:
    return Volume(name=name, csi=CSIVolumeSource(driver=DRIVER, **fields))


def pod_of(uid: str, *volumes: Volume, **fields: Any) -> Pod:
    """A pod whose container mounts all its volumes."""
    made = pod(*volumes)
    assert made.metadata is not None
    assert made.spec is not None
    made.metadata.uid = uid
    made.metadata.name = f"pod-{uid}"
    for key, value in fields.items():
        setattr(made.spec, key, value)
    return made


def user_of(uid: str, *, read_only: bool = False, **devices: str) -> Pod:
    """A pod whose container has block volumes as devices: volume name to path."""
    volumes = [claimed(name, name, readOnly=read_only or None) for name in devices or ("pv",)]
    made = pod_of(uid, *volumes)
    assert made.spec is not None
    (container,) = made.spec.containers
    container.volumeMounts = None
    container.volumeDevices = [
        VolumeDevice(devicePath=path, name=name)
        for name, path in (devices or {"pv": "/dev/xvda"}).items()
    ]
    return made
