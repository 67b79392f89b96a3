"""The parts of the node that every pod worker shares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lightkube.models.core_v1 import Container, Pod
from trio_util import AsyncValue

from kubelet_trio.cgroups import CgroupLimits
from kubelet_trio.containers import NodeSettings, without_quota
from kubelet_trio.cri import Runtime, RuntimeState
from kubelet_trio.managers import NO_SHARE, ClaimHealth, ContainerShare, DeviceHealth, Refusal
from kubelet_trio.model import (
    ContainerId,
    EventSink,
    Meter,
    Offload,
    PodKey,
    PodUid,
    RuntimePod,
    SandboxId,
    Turnstile,
    WallClock,
    is_static,
)
from kubelet_trio.objects import ObjectStore
from kubelet_trio.pods.images import ImagePuller
from kubelet_trio.pods.plan import BackOffTable, PodPlan
from kubelet_trio.pods.records.names import PodNames
from kubelet_trio.pods.records.record import PodRecords
from kubelet_trio.pods.records.remains import Remains
from kubelet_trio.pods.records.userns import UserNamespaceManager
from kubelet_trio.probes import ExecOrphans
from kubelet_trio.status import StatusStore
from kubelet_trio.volumes import VolumeManager

if TYPE_CHECKING:
    from kubelet_trio.probes import ContainerScript


class PodObserver(Protocol):
    """What a worker asks of the PLEG: the last snapshot of a pod, or a fresh one."""

    def get(self, uid: PodUid) -> RuntimePod:
        """Return the last snapshot."""
        ...

    def is_certain(self, uid: PodUid) -> bool:
        """Whether `get` may be acted upon: the snapshot is newer than the worker's last call.

        False after a refresh that failed; the worker is woken once it is true again.
        """
        ...

    def refresh_error(self, uid: PodUid) -> str:
        """Return the runtime's error that makes a pod uncertain; "" if there is none."""
        ...

    def problem(self, now: float) -> str | None:
        """Return why snapshots may be out of date at `now` (trio time), None if they are not."""
        ...

    def namesakes(self, key: PodKey, uid: PodUid) -> frozenset[PodUid]:
        """Return the pods of a name, but of another UID, of which something runs or may run."""
        ...

    async def refresh(
        self,
        uid: PodUid,
        *,
        sandboxes: Iterable[SandboxId] = (),
        containers: Iterable[ContainerId] = (),
        removed: Iterable[SandboxId | ContainerId] = (),
        listing: bool = False,
    ) -> RuntimePod:
        """Return a fresh snapshot of what is named, or of all with `listing`.

        `removed` are known to be gone. Raises `RuntimeCallError`.
        """
        ...

    def is_synced(self, uid: PodUid) -> bool:
        """Whether `wait_synced` would return at once."""
        ...

    async def wait_synced(self, uid: PodUid | None = None) -> None:
        """Wait until all that the runtime holds of a pod (None: of any) is known."""
        ...


class ServiceVariables(Protocol):
    """The environment variables that name the services of a pod's namespace."""

    async def variables(self, pod: Pod) -> Mapping[str, str]:
        """Return a pod's variables. Raises `ContainerConfigError` while no services are known."""
        ...


class NoServices:
    """The service variables of a node without an API server: none."""

    async def variables(self, pod: Pod) -> Mapping[str, str]:
        return {}


class PodCgroups(Protocol):
    """Cgroups of pods: each exists before anything of its pod runs, and goes when nothing does."""

    async def ensure(self, pod: Pod) -> None:
        """Create the cgroup if it is missing and apply the pod's limits. Raises `CgroupError`."""
        ...

    async def read(self, pod: Pod) -> CgroupLimits | None:
        """Return the cgroup's CPU and memory limits; None if there is none to limit.

        Raises `CgroupError`.
        """
        ...

    async def limit(self, pod: Pod, limits: CgroupLimits) -> None:
        """Write these limits to the existing cgroup. Raises `CgroupError`, with the file."""
        ...

    async def memory_usage(self, pod: Pod) -> int | None:
        """Return the cgroup's memory usage in bytes; None if it cannot be read."""
        ...

    async def remove(self, uid: PodUid) -> None:
        """Remove the cgroup, and kill what is left in it. Raises `CGROUP_ERRORS`."""
        ...


class PodManagers(Protocol):
    """The managers of CPUs, memory and devices: see `managers.ResourceManagers`.

    Only `settle` and `prepare` block.
    """

    def admit(self, pod: Pod, replaces: Collection[PodUid] = ()) -> Refusal | None:
        """Reserve what a pod needs; what the pods `replaces` have is free. Return why not."""
        ...

    def would_refuse(
        self, pod: Pod, leaving: Collection[PodUid], *, counts: bool = False
    ) -> Refusal | None:
        """Return why a pod would not be admitted even once other pods have left.

        `counts`: as an admission in the metrics.
        """
        ...

    def adopt(self, pod: Pod) -> None:
        """Give a pod that was admitted before what it needs, if it has nothing."""
        ...

    def retain(self, pods: Collection[PodUid]) -> None:
        """Release what all other pods have."""
        ...

    def is_settled(self, pod: Pod) -> bool:
        """Whether `settle` has nothing to wait for."""
        ...

    async def settle(self, pod: Pod) -> None:
        """Wait until the pod's first container may be made.

        Raises `CheckpointError`, to be retried, and `PlacementError`.
        """
        ...

    def lost(self, pod: Pod) -> Refusal | None:
        """Return why a pod of which nothing runs cannot have what it had before a reboot."""
        ...

    async def prepare(self, pod: Pod, container: Container) -> None:
        """Get a container's devices ready for a start.

        Raises `CheckpointError` and `DevicePluginError`: the start fails, and is retried.
        """
        ...

    def share(self, uid: PodUid, container: str) -> ContainerShare:
        """Return what a container gets when it is created now."""
        ...

    def device_health(self, uid: PodUid, container: str) -> tuple[DeviceHealth, ...]:
        """Return the health of a container's devices."""
        ...

    def has_no_quota(self, pod: Pod) -> bool:
        """Whether the pod's cgroup has no CFS quota."""
        ...

    def note_started(
        self, pod: Pod, container: Container, container_id: ContainerId, share: ContainerShare
    ) -> None:
        """Note that a container runs, which was created with `share`."""
        ...


class NoManagers:
    """The managers of a node whose policies are all `none`, without device plugins."""

    def admit(self, pod: Pod, replaces: Collection[PodUid] = ()) -> Refusal | None:
        return None

    def would_refuse(
        self, pod: Pod, leaving: Collection[PodUid], *, counts: bool = False
    ) -> Refusal | None:
        return None

    def adopt(self, pod: Pod) -> None:
        pass

    def retain(self, pods: Collection[PodUid]) -> None:
        pass

    def is_settled(self, pod: Pod) -> bool:
        return True

    async def settle(self, pod: Pod) -> None:
        pass

    def lost(self, pod: Pod) -> Refusal | None:
        return None

    async def prepare(self, pod: Pod, container: Container) -> None:
        pass

    def share(self, uid: PodUid, container: str) -> ContainerShare:
        return NO_SHARE

    def device_health(self, uid: PodUid, container: str) -> tuple[DeviceHealth, ...]:
        return ()

    def has_no_quota(self, pod: Pod) -> bool:
        return False

    def note_started(
        self, pod: Pod, container: Container, container_id: ContainerId, share: ContainerShare
    ) -> None:
        pass


class PodClaims(Protocol):
    """The resource claims of pods: devices that their drivers prepare (KEP-4381)."""

    async def prepare(self, pod: Pod) -> None:
        """Prepare what a pod claims, before its sandbox runs. Raises `ClaimError`: try again."""
        ...

    async def unprepare(self, pod: Pod) -> None:
        """Give back what a pod claims, after all of it has stopped. Raises `ClaimError`."""
        ...

    def holds(self, uid: PodUid) -> bool:
        """Whether a pod may have to give something back."""
        ...

    def cdi_ids(self, pod: Pod, container: Container) -> tuple[str, ...]:
        """Return the CDI devices of a container that is created now. Raises `ClaimError`."""
        ...

    def health(self, pod: Pod, container: Container) -> tuple[ClaimHealth, ...]:
        """Return the health of a container's devices."""
        ...


class NoClaims:
    """The claims of a node without dynamic resource allocation, which admits no such pods."""

    async def prepare(self, pod: Pod) -> None:
        pass

    async def unprepare(self, pod: Pod) -> None:
        pass

    def holds(self, uid: PodUid) -> bool:
        return False

    def cdi_ids(self, pod: Pod, container: Container) -> tuple[str, ...]:
        return ()

    def health(self, pod: Pod, container: Container) -> tuple[ClaimHealth, ...]:
        return ()


class PodNotes(Protocol):
    """What the flight recorder is told of pods. Nothing blocks, and nothing is changed."""

    def plan(self, uid: PodUid, plan: PodPlan) -> None:
        """Note what a sync has decided."""
        ...

    def finding(
        self, uid: PodUid, name: str, container: ContainerId, kind: str, result: str, text: str
    ) -> None:
        """Note what a probe has found: `success`, `failure` or `unknown`."""
        ...


class NoNotes:
    """The notes of an agent without a flight recorder."""

    def plan(self, uid: PodUid, plan: PodPlan) -> None:
        pass

    def finding(
        self, uid: PodUid, name: str, container: ContainerId, kind: str, result: str, text: str
    ) -> None:
        pass


@dataclass(frozen=True, slots=True)
class PodServices:
    """The parts of the node that every worker shares, and does not replace."""

    runtime: Runtime
    runtime_state: AsyncValue[RuntimeState]
    observer: PodObserver
    images: ImagePuller
    volumes: VolumeManager
    objects: ObjectStore
    cgroups: PodCgroups
    records: PodRecords
    users: UserNamespaceManager
    statuses: StatusStore
    events: EventSink
    clock: WallClock
    offload: Offload
    names: PodNames
    remains: Remains
    crash_back_off: BackOffTable
    node: Callable[[], NodeSettings]
    service_env: ServiceVariables = field(default_factory=NoServices)
    started_at: float = 0.0  # Unix seconds at which the agent began
    exec_orphans: ExecOrphans | None = None  # ends what commands of probes leave behind
    dead_kept: int | None = 1  # dead instances kept of each container; None: all
    sync_period: float = 60.0  # syncFrequency: seconds to a worker's next round without a wake-up
    meter: Meter = field(default_factory=Meter)
    managers: PodManagers = field(default_factory=NoManagers)
    claims: PodClaims = field(default_factory=NoClaims)
    replaces_failed: bool = True  # the cluster makes others of failed pods, and can be reached
    notes: PodNotes = field(default_factory=NoNotes)
    script: ContainerScript | None = None  # None: containers are asked
    turnstile: Turnstile = field(default_factory=Turnstile)  # before rounds of workers

    def is_replaced(self, pod: Pod) -> bool:
        """Return whether another pod can be expected if this one fails."""
        return self.replaces_failed and not is_static(pod)

    def node_of(self, pod: Pod) -> NodeSettings:
        """Return the node's settings as they apply to a pod's cgroup and sandbox."""
        node = self.node()
        return without_quota(node) if self.managers.has_no_quota(pod) else node
