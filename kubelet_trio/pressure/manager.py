"""Keeps the node from running out: looks, reclaims, and evicts one pod at a time.

Every ten seconds, and when the kernel says that memory runs short, the node's signals are
read: a few files. Nothing else is, until a threshold is met. Then, as the Go kubelet does: what is
of the node goes first (dead containers, unused images), and if that is not enough, the one pod
that ranks highest, after which the node gets time to recover. What is decided is `PressureState`
and `rank_for_eviction`; this carries it out.

Pods with limits of their own on local storage are watched by a task beside it, `run_limits`:
counting their files may take long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio
from lightkube.models.core_v1 import Pod
from trio_util import AsyncValue

from kubelet_trio.containers import pod_qos
from kubelet_trio.cri import Runtime, RuntimeCallError
from kubelet_trio.model import (
    AnnotatedEventSink,
    Meter,
    Offload,
    PodUid,
    get_logger,
    is_critical,
    node_ref,
    pod_key,
    pod_object_ref,
    spec,
)
from kubelet_trio.node import Pressure
from kubelet_trio.pressure.local_storage import has_local_limits, local_storage_excess
from kubelet_trio.pressure.ranking import (
    disk_parts,
    eviction_verdict,
    rank_for_eviction,
    reclaimers,
)
from kubelet_trio.pressure.signals import FileSystems, Layout, file_system_layout
from kubelet_trio.pressure.thresholds import (
    EvictionPolicy,
    Observations,
    PressureState,
    Threshold,
    memory_limits,
    met,
    pressure_message,
    rejects,
    with_container_fs,
)
from kubelet_trio.pressure.usage import UsageReader

log = get_logger()

PERIOD = 10.0
# How long an evicted pod may take to be cleaned up before the node is looked at again.
_CLEAN_UP = 30.0
_AT_ONCE = 1  # seconds of grace under a hard threshold
# How much longer than a look at the pods' own limits took, the next one waits.
_DISK_PAUSE = 10.0
_MEMORY_TAINT = "node.kubernetes.io/memory-pressure"
_DISK_RESOURCES = ("ephemeral-storage", "inodes")


class EvictablePods(Protocol):
    """What eviction asks of the pods."""

    def running(self) -> Sequence[tuple[PodUid, Pod]]:
        """Return the pods that may be evicted: those that run and are not being ended."""
        ...

    def evict(self, uid: PodUid, grace_period: int, message: str) -> None:
        """Record that a pod is evicted. Never blocks."""
        ...

    async def wait_ended(self, uid: PodUid) -> None:
        """Wait until nothing of a pod runs and its volumes are unmounted."""
        ...


class Signals(Protocol):
    """Reads the node's signals; blocks."""

    def observe(self, places: FileSystems) -> Observations:
        """Return what can be read; of a file system without a path nothing is."""
        ...


class MemoryWake(Protocol):
    """The kernel's word that memory runs short."""

    async def wait(self, below: Mapping[str, int]) -> None:
        """Wait until one of these signals may be below so many bytes; perhaps for ever."""
        ...


@dataclass(frozen=True, slots=True)
class Reclaim:
    """What gives the node room without anybody's pod going."""

    containers: Callable[[], Awaitable[object]]
    images: Callable[[], Awaitable[object]]
    errors: tuple[type[Exception], ...]  # what comes out of the two


@dataclass(slots=True)
class EvictionManager:
    """The child `eviction`. `pressure` is what others may know of the node's state."""

    policy: EvictionPolicy
    signals: Signals
    usage: UsageReader
    pods: EvictablePods
    reclaim: Reclaim
    runtime: Runtime
    node_name: str
    root_dir: str
    events: AnnotatedEventSink
    offload: Offload
    disk_offload: Offload  # for what a dead disk or file server makes hang
    wake: MemoryWake | None = None
    layout: Callable[[FileSystems], Layout] = file_system_layout
    pressure: AsyncValue[Pressure] = field(default_factory=lambda: AsyncValue(Pressure()))
    evictions: Counter[str] = field(default_factory=Counter)  # by signal
    meter: Meter = field(default_factory=Meter)
    _state: PressureState = field(default_factory=PressureState)
    _places: FileSystems | None = None
    _layout: Layout = field(default_factory=Layout)
    _thresholds: tuple[Threshold, ...] = ()
    _memory_limits: Mapping[str, int] = field(default_factory=dict)  # what to be woken for
    _trouble: str = ""
    _looked_at: float = 0.0  # trio time of what is acted upon
    _clearing: bool = False  # whether pods beyond their own limits are being ended

    async def run_limits(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Watch the pods' own limits on local storage, until cancelled.

        A task of its own: counting files may take long, and a node that runs out of memory
        meanwhile cannot wait for it.
        """
        task_status.started()
        if not self.policy.local_storage:
            await trio.sleep_forever()
        while True:
            began = trio.current_time()
            evicted = await self._look_at_limits()
            pause = (trio.current_time() - began) * _DISK_PAUSE
            self._clearing = bool(evicted)
            with trio.move_on_after(_CLEAN_UP):
                for uid in evicted:
                    await self.pods.wait_ended(uid)
            self._clearing = False
            await trio.sleep(max(PERIOD, pause))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look until cancelled; without thresholds and limits to watch do nothing."""
        task_status.started()
        if self.policy.is_off:
            await trio.sleep_forever()
        while True:
            evicted = await self.look()
            with trio.move_on_after(_CLEAN_UP):
                for uid in evicted:
                    await self.pods.wait_ended(uid)
            if not evicted:
                await self._wait()

    def rejection(self, pod: Pod) -> tuple[str, str] | None:
        """Return reason and message if a pod may not come now."""
        conditions = self._state.conditions
        if not rejects(
            conditions,
            is_critical=lambda: is_critical(pod),
            is_best_effort=lambda: pod_qos(pod) == "BestEffort",
            tolerates_memory=lambda: _tolerates_memory_pressure(pod),
        ):
            return None
        return "Evicted", pressure_message(conditions)

    async def look(self) -> Sequence[PodUid]:
        """Look once and act; return whom that has evicted."""
        places = await self._file_systems()
        self._looked_at = trio.current_time()
        try:
            observed = await self._observe(places)
        except TimeoutError as exc:
            self._tell(f"the node's signals are not known: {exc}")
            return ()
        self._remember(observed)
        self._memory_limits = memory_limits(self.policy.thresholds, observed)
        try:
            return await self._relieve(observed, places)
        except (RuntimeCallError, TimeoutError) as exc:
            self._tell(str(exc))
            return ()

    async def _observe(self, places: FileSystems) -> Observations:
        """Read all signals; without the file systems if one of them hangs. Raises TimeoutError."""
        try:
            return await self.disk_offload(self.signals.observe, places)
        except TimeoutError as exc:
            # Memory must not wait for a dead mount, whose threads may never come back.
            self._tell(f"the node's file systems are not known: {exc}")
            return await self.offload(self.signals.observe, FileSystems(""))

    async def _wait(self) -> None:
        with trio.move_on_after(PERIOD):
            if self.wake is None or not self._memory_limits:
                await trio.sleep_forever()
            else:
                # Woken by what lasts, it must not look without a pause.
                await trio.sleep(1.0)
                await self.wake.wait(self._memory_limits)

    async def _file_systems(self) -> FileSystems:
        """Ask the runtime once where images and containers are; until it answers, the node's."""
        if self._places is not None:
            return self._places
        only = FileSystems(self.root_dir)
        try:
            answer = await self.runtime.image_fs_info()
            paths = [
                next((u.fs_id.mountpoint for u in listed if u.fs_id and u.fs_id.mountpoint), "")
                for listed in (answer.image_filesystems, answer.container_filesystems)
            ]
            places = FileSystems(self.root_dir, *paths)
            self._layout = await self.disk_offload(self.layout, places)
        except (RuntimeCallError, OSError) as exc:
            self._tell(f"the file systems of the runtime are not known: {exc}")
            self._thresholds = self.policy.thresholds
            return only
        self._places = places
        self._thresholds = with_container_fs(
            self.policy.thresholds, dedicated=self._layout.dedicated, split=self._layout.split
        )
        return places

    def _remember(self, observed: Observations) -> None:
        before = self._state.conditions
        self._state = self._state.next(
            self._thresholds, observed, trio.current_time(), self.policy.transition_period
        )
        conditions = self._state.conditions
        if conditions != before:
            log.warning("eviction.conditions", conditions=conditions, before=before)
        self.pressure.value = Pressure(
            memory="MemoryPressure" in conditions,
            disk="DiskPressure" in conditions,
            pid="PIDPressure" in conditions,
        )

    # Limits of pods' own

    async def _look_at_limits(self) -> Sequence[PodUid]:
        """Evict the pods that exceed limits of their own; return whom."""
        try:
            return await self._evict_over_limit()
        except RuntimeCallError as exc:
            self._tell(str(exc))
            return ()

    async def _evict_over_limit(self) -> Sequence[PodUid]:
        limited = [
            (uid, pod)
            for uid, pod in self.pods.running()
            if has_local_limits(pod) and not is_critical(pod)
        ]
        if not limited:
            return ()
        await self._file_systems()
        read_at = trio.current_time()
        usages = await self.usage.read(limited, all_pods=False, disk=True)
        evicted = []
        for uid, pod in limited:
            usage = usages.get(uid)
            if usage is None:
                continue
            excess = local_storage_excess(pod, usage, dedicated=self._layout.dedicated)
            if excess is not None:
                self._evict(uid, pod, _AT_ONCE, excess.message, excess.signal, read_at)
                evicted.append(uid)
        return evicted

    # The node's thresholds

    async def _relieve(self, observed: Observations, places: FileSystems) -> Sequence[PodUid]:
        if not self._state.acted_on:
            return ()
        threshold = self._state.acted_on[0]
        if self._clearing and threshold.resource in _DISK_RESOURCES:
            return ()  # a pod beyond its own limits is going: that may be enough
        log.warning("eviction.reclaiming", signal=threshold.signal, resource=threshold.resource)
        self.events.emit(
            node_ref(self.node_name),
            "Warning",
            "EvictionThresholdMet",
            f"Attempting to reclaim {threshold.resource}",
        )
        if await self._reclaim_from_node(threshold.signal, places):
            log.info("eviction.reclaimed_without_pods", resource=threshold.resource)
            return ()
        return await self._evict_one(threshold, observed)

    async def _reclaim_from_node(self, signal: str, places: FileSystems) -> bool:
        """Let dead containers and unused images go; return whether that was enough."""
        layout = self._layout
        names = reclaimers(signal, dedicated=layout.dedicated, split=layout.split)
        steps = {"containers": self.reclaim.containers, "images": self.reclaim.images}
        for name in names:
            try:
                await steps[name]()
            except self.reclaim.errors as exc:
                # An image in use, a log directory that cannot be removed: eviction is what
                # is left, and must not wait for them.
                log.warning("eviction.reclaim_failed", what=name, error=str(exc))
        if not names:
            return False
        observed = await self._observe(places)
        return not met(self._thresholds, observed, with_reclaim=True)

    async def _evict_one(self, threshold: Threshold, observed: Observations) -> Sequence[PodUid]:
        running = list(self.pods.running())
        if not running:
            log.error("eviction.nobody_runs", resource=threshold.resource)
            return ()
        needs_disk = threshold.resource in _DISK_RESOURCES
        usages = await self.usage.read(running, all_pods=True, disk=needs_disk)
        layout = self._layout
        parts = disk_parts(threshold.signal, dedicated=layout.dedicated, split=layout.split)
        ranked = rank_for_eviction(running, usages, threshold.resource, parts)
        log.info("eviction.ranked", pods=[str(pod_key(pod)) for _, pod in ranked])
        grace = _AT_ONCE if threshold.is_hard else self.policy.max_pod_grace
        for uid, pod in ranked:
            if is_critical(pod):
                log.warning("eviction.pod_is_critical", pod=str(pod_key(pod)))
                continue
            verdict = eviction_verdict(
                pod, usages.get(uid), threshold.resource, self._state.acted_on, observed
            )
            self._evict(
                uid,
                pod,
                grace,
                verdict.message,
                threshold.signal,
                self._looked_at,
                verdict.annotations,
            )
            return (uid,)
        log.warning("eviction.nobody_may_go", resource=threshold.resource)
        return ()

    def _evict(
        self,
        uid: PodUid,
        pod: Pod,
        grace: int,
        message: str,
        signal: str,
        read_at: float,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        log.warning(
            "eviction.pod_evicted",
            pod=str(pod_key(pod)),
            uid=uid,
            signal=signal,
            message=message,
            **(annotations or {}),
        )
        self.events.emit_annotated(
            pod_object_ref(pod), "Warning", "Evicted", message, annotations or {}
        )
        self.pods.evict(uid, grace, message)
        self.evictions[signal] += 1
        age = trio.current_time() - read_at
        self.meter.observe("kubelet_eviction_stats_age_seconds", age, (signal,))

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("eviction.trouble", error=trouble)
        self._trouble = trouble


def _tolerates_memory_pressure(pod: Pod) -> bool:
    for toleration in spec(pod).tolerations or ():
        if toleration.effect not in (None, "", "NoSchedule"):
            continue
        if toleration.key in (None, "") and toleration.operator == "Exists":
            return True
        if toleration.key == _MEMORY_TAINT and (
            toleration.operator == "Exists" or not toleration.value
        ):
            return True
    return False
