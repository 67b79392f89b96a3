"""What the pods of the node hold: the one owner of the managers' states.

Each manager's state is an immutable value. An admission asks the topology manager, which returns
new states or a refusal, and takes them over at once: no other admission comes in between, and a
refusal has changed nothing. Nothing here blocks but `settle`.

A pod keeps its shares until it has terminated, over restarts of the agent and of its containers:
the checkpoints have them. Source: pkg/kubelet/cm, removeStaleState of its managers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lightkube.models.core_v1 import Container, Pod

from kubelet_trio.managers.node.checkpoints import CheckpointKeeper
from kubelet_trio.managers.settings import NONE
from kubelet_trio.managers.shares import NO_SHARE, ContainerShare, DeviceHealth
from kubelet_trio.managers.types import Hint, Hints, Machine, Manager, Refusal
from kubelet_trio.model import (
    Bell,
    ContainerId,
    Meter,
    PodUid,
    about_pod,
    get_logger,
    pod_uid,
)

if TYPE_CHECKING:
    from kubelet_trio.managers.affinity import Verdict
    from kubelet_trio.managers.devices.provider import LoadedDevices

log = get_logger()

S = TypeVar("S")

_ALIGNED = "kubelet_container_aligned_compute_resources_count"
_MISALIGNED = "kubelet_container_aligned_compute_resources_failure_count"


class Provider(Protocol[S]):
    """One manager on this node: its rules, its checkpoint, and what its state means.

    Attributes:
        file: its checkpoint, below the root directory; upstream's name.
        rules: its pure decisions.
    """

    @property
    def file(self) -> str: ...

    @property
    def rules(self) -> Manager[S]: ...

    def encode(self, state: S) -> bytes:
        """Return the checkpoint."""
        ...

    def pods(self, state: S) -> Collection[PodUid]:
        """Return the pods that hold something."""
        ...

    def share(self, state: S, uid: PodUid, container: str, share: ContainerShare) -> ContainerShare:
        """Return `share` with what this manager adds for a container."""
        ...

    def started(self, state: S, pod: Pod, container: Container) -> S:
        """Return the state once a container runs: earlier init containers have ended."""
        ...

    def count(
        self, state: S, pod: Pod, container: Container, result: S | Refusal, meter: Meter
    ) -> None:
        """Count an allocation for a container, and what came of it."""
        ...

    def measure(self, state: S, meter: Meter) -> None:
        """Set the gauges."""
        ...

    def begin(self, meter: Meter) -> None:
        """Make the counters that exist before anything is counted."""
        ...


class Aligner(Protocol):
    """The topology manager: see `affinity.Affinity`."""

    @property
    def policy(self) -> str: ...

    @property
    def scope(self) -> str: ...

    def admit_pod(
        self, pod: Pod, managers: Sequence[Manager[Any]], states: tuple[Any, ...]
    ) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class CountedRules(Generic[S]):
    """The rules of a provider, which count each allocation."""

    provider: Provider[S]
    meter: Meter

    def hints(self, state: S, pod: Pod, container: Container) -> Hints:
        return self.provider.rules.hints(state, pod, container)

    def pod_hints(self, state: S, pod: Pod) -> Hints:
        return self.provider.rules.pod_hints(state, pod)

    def allocate(self, state: S, pod: Pod, container: Container, affinity: Hint) -> S | Refusal:
        result = self.provider.rules.allocate(state, pod, container, affinity)
        self.provider.count(state, pod, container, result, self.meter)
        return result

    def release(self, state: S, uid: PodUid) -> S:
        return self.provider.rules.release(state, uid)


@dataclass(frozen=True, slots=True)
class LoadedManagers:
    """The managers of this node with the states that checkpoints or fresh managers give.

    Attributes:
        machine: the CPUs and memory that they give away.
        providers: each with its state, by name, in the order in which they allocate: devices,
            CPUs, memory.
        aligner: merges their hints.
        written: the names of those whose checkpoint has that very state.
        devices: what an earlier agent has left of devices; None: the node has no device plugins.
    """

    machine: Machine
    providers: Mapping[str, tuple[Provider[Any], Any]]
    aligner: Aligner
    written: frozenset[str] = frozenset()
    devices: LoadedDevices | None = None


class ResourceManagers:
    """The holdings of all pods. The registry of pods and the workers call it."""

    def __init__(self, loaded: LoadedManagers, keeper: CheckpointKeeper, meter: Meter) -> None:
        """Begin with what was loaded; `keeper` writes the states."""
        providers = loaded.providers
        self._names = tuple(providers)
        self._providers = tuple(provider for provider, _ in providers.values())
        self._rules = tuple(provider.rules for provider in self._providers)
        self._counted = tuple(CountedRules(each, meter) for each in self._providers)
        self._states: tuple[Any, ...] = tuple(state for _, state in providers.values())
        self.machine = loaded.machine
        self.keeper = keeper
        self._aligner = loaded.aligner
        self._meter = meter
        self._decided: set[PodUid] = set()  # pods that were asked for, or found running
        self._replaced: set[PodUid] = set()  # pods that still end while others have their shares
        self._versions: dict[PodUid, int] = {}  # of the checkpoint that has a pod's shares
        self._applied: dict[ContainerId, str] = {}  # the CPU set that a container has
        self.changed = Bell()  # rung when containers may need other CPU sets
        if loaded.aligner.policy != NONE:
            for scope in ("container", "pod"):
                for counter in (_ALIGNED, _MISALIGNED):
                    meter.count(counter, (scope, "numa_node"), by=0)
        for name, (provider, state) in providers.items():
            provider.begin(meter)
            provider.measure(state, meter)
            if name not in loaded.written:
                keeper.put(provider.file, partial(provider.encode, state))

    def state(self, name: str) -> Any:
        """Return a manager's state, None if there is no such manager."""
        return self._states[self._names.index(name)] if name in self._names else None

    def provider(self, name: str) -> Provider[Any] | None:
        """Return a manager's rules and file, None if there is no such manager."""
        return self._providers[self._names.index(name)] if name in self._names else None

    def change(self, name: str, change: Callable[[Any], Any]) -> None:
        """Replace a manager's state by what `change` makes of it."""
        at = self._names.index(name)
        states = list(self._states)
        states[at] = change(states[at])
        self._take(tuple(states))

    # Admission

    def admit(self, pod: Pod, replaces: Collection[PodUid] = ()) -> Refusal | None:
        """Reserve what a pod needs; return why that is not possible, None if it is.

        Args:
            pod: the pod. One that has its shares already keeps them.
            replaces: unwanted pods of the same name, which end before this one starts: their
                shares are free for it.
        """
        uid = pod_uid(pod)
        verdict = self._aligner.admit_pod(pod, self._counted, self._without(replaces))
        self._count(verdict)
        if verdict.refusal is not None:
            return verdict.refusal
        self._decided.add(uid)
        held = {other for other in replaces if self.holds(other)}
        if self._take(verdict.states):
            self._versions[uid] = self.keeper.version
        self._replaced |= held
        return None

    def would_refuse(
        self, pod: Pod, leaving: Collection[PodUid], *, counts: bool = False
    ) -> Refusal | None:
        """Return why a pod would not be admitted even once other pods have left.

        `counts`: as an admission in the metrics, because the pod is rejected whatever this returns.
        """
        rules = self._counted if counts else self._rules
        verdict = self._aligner.admit_pod(pod, rules, self._without(leaving))
        if counts:
            self._count(verdict)
        return verdict.refusal

    def adopt(self, pod: Pod) -> None:
        """Give a pod its shares that was admitted before, and whose shares are not known.

        Its checkpoint is lost, or no manager was active. It stays as it is if there are none left.
        A manager that knows the pod is not asked: it has freed what ended init containers had.
        """
        uid = pod_uid(pod)
        if uid in self._decided:
            return
        self._decided.add(uid)
        unaware = [n for n, (p, s) in enumerate(self._each()) if uid not in p.pods(s)]
        rules, states = self._counted, self._states
        verdict = self._aligner.admit_pod(
            pod, [rules[n] for n in unaware], tuple(states[n] for n in unaware)
        )
        if verdict.refusal is not None:
            log.warning(
                "pod.without_share",
                **about_pod(pod),
                reason=verdict.refusal.reason,
                error=verdict.refusal.message,
            )
            return
        adopted = dict(zip(unaware, verdict.states, strict=True))
        if self._take(tuple(adopted.get(n, state) for n, state in enumerate(states))):
            self._versions[uid] = self.keeper.version

    def lost(self, _pod: Pod) -> Refusal | None:
        """Return nothing: CPUs and memory are the same after a reboot."""
        return None

    def _count(self, verdict: Verdict) -> None:
        if verdict.is_error:
            self._meter.count("kubelet_topology_manager_admission_errors_total")
        labels = self._aligner.scope, "numa_node"
        if verdict.aligned:
            self._meter.count(_ALIGNED, labels, by=verdict.aligned)
        if verdict.misaligned:
            self._meter.count(_MISALIGNED, labels)

    # Release

    def retain(self, pods: Collection[PodUid]) -> None:
        """Release the shares of all other pods: they have terminated, or are gone."""
        held = {uid for p, s in self._each() for uid in p.pods(s)}
        gone = [uid for uid in held if uid not in pods]
        if gone:
            self._take(self._without(gone))
        self._decided.intersection_update(pods)
        self._replaced.intersection_update(pods)
        for uid in [uid for uid in self._versions if uid not in pods]:
            del self._versions[uid]

    def give_back(self, uid: PodUid) -> None:
        """Release what one pod has at once."""
        self._take(self._without((uid,)))

    def await_kept(self, uid: PodUid) -> None:
        """Let the next `settle` of a pod wait for the changes up to now."""
        self._versions[uid] = self.keeper.version

    def _without(self, uids: Collection[PodUid]) -> tuple[Any, ...]:
        states = []
        for provider, state in self._each():
            for uid in uids:
                state = provider.rules.release(state, uid)
            states.append(state)
        return tuple(states)

    def _take(self, states: tuple[Any, ...]) -> bool:
        """Take states over; return whether any has changed."""
        has_changed = False
        for provider, before, after in zip(self._providers, self._states, states, strict=True):
            if after is not before and after != before:
                has_changed = True
                provider.measure(after, self._meter)
                self.keeper.put(provider.file, partial(provider.encode, after))
        self._states = states
        if has_changed:
            self.changed.ring()
        return has_changed

    # What pods have

    def holds(self, uid: PodUid) -> bool:
        """Whether a pod has a share of its own of anything."""
        return any(uid in provider.pods(state) for provider, state in self._each())

    def share(self, uid: PodUid, container: str) -> ContainerShare:
        """Return what a container gets when it is created now."""
        share = NO_SHARE
        for provider, state in self._each():
            share = provider.share(state, uid, container, share)
        return share

    def has_no_quota(self, pod: Pod) -> bool:
        """Whether the pod's cgroup has no CFS quota: a container of it has none."""
        uid, body = pod_uid(pod), pod.spec
        if body is None:
            return False
        containers = (*(body.initContainers or ()), *body.containers)
        return any(self.share(uid, container.name).no_quota for container in containers)

    def is_settled(self, pod: Pod) -> bool:
        """Whether the shares of a pod are on disk, or it has none."""
        return self._versions.get(pod_uid(pod), 0) <= self.keeper.kept

    async def settle(self, pod: Pod) -> None:
        """Wait until the shares of an admitted pod are on disk: before its first container.

        Raises:
            CheckpointError: the disk does not take them now; call again later.
            PlacementError: the pod cannot have them, and is to be rejected.
        """
        version = self._versions.get(pod_uid(pod))
        if version is not None:
            await self.keeper.wait_kept(version)

    async def prepare(self, pod: Pod, container: Container) -> None:
        """Get a container's devices ready for a start: see `DeviceManagers`."""

    def device_health(self, uid: PodUid, container: str) -> tuple[DeviceHealth, ...]:
        """Return the health of a container's devices: see `DeviceManagers`."""
        return ()

    # Containers

    def note_started(
        self, pod: Pod, container: Container, container_id: ContainerId, share: ContainerShare
    ) -> None:
        """Note that a container runs, which was created with `share`."""
        uid = pod_uid(pod)
        self._applied[container_id] = share.cpuset_cpus
        if self.share(uid, container.name).cpuset_cpus != share.cpuset_cpus:
            self.changed.ring()  # the shared pool has changed since
        started = [p.started(s, pod, container) for p, s in self._each()]
        self._take(tuple(started))

    def cpuset_due(self, uid: PodUid, container: str, container_id: ContainerId) -> str:
        """Return the CPU set that a running container must get, "" if it has the right one."""
        if uid in self._replaced:
            return ""  # it ends, and its successor waits for that
        wanted = self.share(uid, container).cpuset_cpus
        return "" if wanted == self._applied.get(container_id) else wanted

    def note_applied(self, container_id: ContainerId, cpus: str) -> None:
        """Note the CPU set that a running container has got."""
        self._applied[container_id] = cpus

    def forget_containers(self, existing: Collection[ContainerId]) -> None:
        """Drop what is known of other containers."""
        for container_id in [each for each in self._applied if each not in existing]:
            del self._applied[container_id]

    def _each(self) -> list[tuple[Provider[Any], Any]]:
        return list(zip(self._providers, self._states, strict=True))
