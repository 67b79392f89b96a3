"""The eviction manager: observe signals, reclaim node-level resources, evict one pod at a time.

Every ten seconds, and when the kernel reports memory pressure, it reads the node's signals: a few
small files. If a threshold is met it acts as the Go kubelet does: it removes dead containers and
unused images, and if that is not enough it evicts the pod that ranks first, and gives the node
time to recover. `PressureState` and `rank_for_eviction` decide; this module acts.

A second task, `run_limits`, checks pods with limits on local storage.
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
    Bell,
    Meter,
    Offload,
    PodUid,
    about_pod,
    get_logger,
    is_critical,
    next_due,
    node_ref,
    pod_key,
    pod_object_ref,
    spec,
)
from kubelet_trio.node import Pressure
from kubelet_trio.pressure.inputs import (
    PERIOD,
    EvictionNotes,
    NoEvictionNotes,
    PodUsages,
    Signals,
)
from kubelet_trio.pressure.local_storage import has_local_limits, local_storage_excess
from kubelet_trio.pressure.ranking import (
    PodUsage,
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
    is_own_limit,
    memory_limits,
    met,
    pressure_message,
    rejects,
    with_container_fs,
)

log = get_logger()

# Seconds to wait for an evicted pod before the next look at the signals: Go's podCleanupTimeout.
_CLEAN_UP = 30.0
# Grace period in seconds under a hard threshold: Go's immediateEvictionGracePeriodSeconds.
_AT_ONCE = 1
# `run_limits` pauses this many times as long as its last count took: a tenth of the time at most.
_DISK_PAUSE = 10.0
# Seconds between two looks at least, if the kernel notifies.
_PAUSE = 1.0
_MEMORY_TAINT = "node.kubernetes.io/memory-pressure"
_DISK_RESOURCES = ("ephemeral-storage", "inodes")


class EvictablePods(Protocol):
    """The pods, as eviction needs them."""

    def running(self) -> Sequence[tuple[PodUid, Pod]]:
        """Return the candidates for eviction: pods that hold something of the node.

        Also those in back-off, of which nothing runs now, and those that are being deleted.
        """
        ...

    def evict(
        self, uid: PodUid, grace_period: int, message: str, *, is_over_limit: bool = False
    ) -> None:
        """Request the eviction of a pod. Never blocks.

        `is_over_limit`: for a limit of its own, not for the node's sake.
        """
        ...

    async def wait_ended(self, uid: PodUid) -> None:
        """Wait until nothing of a pod runs and its volumes are unmounted."""
        ...


class MemoryWake(Protocol):
    """The kernel's notification of memory pressure."""

    async def wait(self, below: Mapping[str, int]) -> None:
        """Wait until one of the signals may be below its number of bytes; possibly for ever."""
        ...


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Node-level reclaim: the steps before a pod is evicted."""

    containers: Callable[[], Awaitable[object]]
    images: Callable[[], Awaitable[object]]
    errors: tuple[type[Exception], ...]  # what the two raise


def pressure_rejection(pod: Pod, pressure: Pressure) -> tuple[str, str] | None:
    """Return reason and message if a pod is not admitted under this pressure, else None."""
    shortages = {
        "DiskPressure": pressure.disk,
        "MemoryPressure": pressure.memory,
        "PIDPressure": pressure.pid,
    }
    conditions = tuple(name for name, is_met in shortages.items() if is_met)
    if not rejects(
        conditions,
        is_critical=lambda: is_critical(pod),
        is_best_effort=lambda: pod_qos(pod) == "BestEffort",
        tolerates_memory=lambda: _tolerates_memory_pressure(pod),
    ):
        return None
    return "Evicted", pressure_message(conditions)


@dataclass(slots=True)
class EvictionManager:
    """The child `eviction`. `pressure` is the node's state, for other rooms."""

    policy: EvictionPolicy
    signals: Signals
    usage: PodUsages
    pods: EvictablePods
    reclaim: Reclaim
    runtime: Runtime
    node_name: str
    root_dir: str
    events: AnnotatedEventSink
    offload: Offload
    disk_offload: Offload  # for calls that hang on a dead disk or file server
    wake: MemoryWake | None = None
    layout: Callable[[FileSystems], Layout] = file_system_layout
    notes: EvictionNotes = field(default_factory=NoEvictionNotes)
    pressure: AsyncValue[Pressure] = field(default_factory=lambda: AsyncValue(Pressure()))
    evictions: Counter[str] = field(default_factory=Counter)  # by signal
    meter: Meter = field(default_factory=Meter)
    period: float = PERIOD
    look_soon: Bell = field(default_factory=Bell)  # rung by those who know of news
    check_limits_soon: Bell = field(default_factory=Bell)  # likewise, of pods' own limits
    _state: PressureState = field(default_factory=PressureState)
    _places: FileSystems | None = None
    _layout: Layout = field(default_factory=Layout)
    _thresholds: tuple[Threshold, ...] = ()
    _memory_limits: Mapping[str, int] = field(default_factory=dict)  # for `wake`
    _last_error: str = ""
    _observed_at: float = 0.0  # trio time of the current observations
    _clearing: bool = False  # whether pods beyond their own limits are terminating

    async def run_limits(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Enforce the pods' limits on local storage, until cancelled.

        A task of its own: a count of files can take long, and memory pressure cannot wait for it.
        """
        task_status.started()
        if not self.policy.local_storage:
            await trio.sleep_forever()
        while True:
            began = trio.current_time()
            evicted = await self._check_limits()
            ended = trio.current_time()
            self._clearing = bool(evicted)
            with trio.move_on_after(_CLEAN_UP):
                for uid in evicted:
                    await self.pods.wait_ended(uid)
            self._clearing = False
            rested = trio.current_time() + (ended - began) * _DISK_PAUSE
            with trio.move_on_at(max(next_due(self.period), rested)):
                await self.check_limits_soon.wait_ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Observe and act until cancelled; do nothing without thresholds and limits."""
        task_status.started()
        if self.policy.is_off:
            await trio.sleep_forever()
        while True:
            evicted = await self.look()
            with trio.move_on_after(_CLEAN_UP):
                for uid in evicted:
                    await self.pods.wait_ended(uid)
            if not evicted:  # else look again at once: another pod may have to be evicted
                await self._wait()

    async def look(self) -> Sequence[PodUid]:
        """Observe once and act; return the evicted pods."""
        places = await self._file_systems()
        # Before the read: the age of the stats in the metric includes a slow disk.
        self._observed_at = trio.current_time()
        try:
            observed = await self._observe(places)
        except TimeoutError as exc:
            self.notes.unknown(str(exc))
            self._log_error(f"the node's signals are unknown: {exc}")
            return ()
        self._note(observed)
        self._update_state(observed)
        self._memory_limits = memory_limits(self.policy.thresholds, observed)
        try:
            return await self._relieve(observed, places)
        except (RuntimeCallError, TimeoutError) as exc:
            self._log_error(str(exc))
            return ()

    async def _observe(self, places: FileSystems) -> Observations:
        """Read all signals, without file systems if one hangs. Raises TimeoutError."""
        try:
            return await self.disk_offload(self.signals.observe, places)
        except TimeoutError as exc:
            # Memory must not wait for a dead mount, whose threads may never return.
            self._log_error(f"the node's file systems are unknown: {exc}")
            return await self.offload(self.signals.observe, FileSystems(""))

    def _note(self, observed: Observations) -> None:
        is_calm = not met(self._thresholds, observed, with_reclaim=True)
        self.notes.observed(observed, self._layout, is_calm=is_calm)

    async def _wait(self) -> None:
        looked = trio.current_time()
        with trio.move_on_at(next_due(self.period)):
            if self.wake is None or not self._memory_limits:
                await self.look_soon.wait_ring()
            else:
                await self.wake.wait(self._memory_limits)
                # Pressure that lasts notifies again at once: without a pause this would spin.
                await trio.sleep_until(looked + _PAUSE)

    async def _file_systems(self) -> FileSystems:
        """Ask the runtime once for the paths of images and containers; first use the node's."""
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
            # Not kept in `_places`: the next look asks again.
            self._log_error(f"the file systems of the runtime are unknown: {exc}")
            self._thresholds = self.policy.thresholds
            return only
        self._places = places
        self._thresholds = with_container_fs(
            self.policy.thresholds, dedicated=self._layout.dedicated, split=self._layout.split
        )
        return places

    def _update_state(self, observed: Observations) -> None:
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

    # Limits on local storage

    async def _check_limits(self) -> Sequence[PodUid]:
        """Evict the pods that exceed limits of their own; return them."""
        try:
            return await self._evict_over_limit()
        except RuntimeCallError as exc:
            self._log_error(str(exc))
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
        evicted: list[PodUid] = []
        for uid, pod in limited:
            usage = usages.get(uid)
            if usage is None:
                continue
            excess = local_storage_excess(pod, usage, dedicated=self._layout.dedicated)
            if excess is not None:
                if not evicted:
                    seconds = trio.current_time() - read_at
                    self.notes.measured(usages, seconds, all_pods=False)
                self._evict(uid, pod, _AT_ONCE, excess.message, excess.signal)
                evicted.append(uid)
        return evicted

    # The node's thresholds

    async def _relieve(self, observed: Observations, places: FileSystems) -> Sequence[PodUid]:
        if not self._state.acted_on:
            return ()
        # Only the first: relief for it often resolves the others (getReclaimableThreshold).
        threshold = self._state.acted_on[0]
        if self._clearing and threshold.resource in _DISK_RESOURCES:
            return ()  # a pod beyond its own limits is terminating, which may free enough
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
        """Remove dead containers and unused images; return whether that was enough."""
        layout = self._layout
        names = reclaimers(signal, dedicated=layout.dedicated, split=layout.split)
        steps = {"containers": self.reclaim.containers, "images": self.reclaim.images}
        for name in names:
            try:
                await steps[name]()
            except self.reclaim.errors as exc:
                # For example an image in use, or a log directory that cannot be removed. Eviction
                # must not depend on it.
                log.warning("eviction.reclaim_failed", what=name, error=str(exc))
        if not names:
            return False
        # As upstream: enough means that no threshold at all is met, its minimum reclaim included.
        observed = await self._observe(places)
        self._note(observed)
        return not met(self._thresholds, observed, with_reclaim=True)

    async def _evict_one(self, threshold: Threshold, observed: Observations) -> Sequence[PodUid]:
        running = list(self.pods.running())
        if not running:
            log.error("eviction.nobody_runs", resource=threshold.resource)
            return ()
        began = trio.current_time()
        usages = await self._usages(running, threshold)
        layout = self._layout
        parts = disk_parts(threshold.signal, dedicated=layout.dedicated, split=layout.split)
        ranked = rank_for_eviction(running, usages, threshold.resource, parts)
        log.info("eviction.ranked", pods=[str(pod_key(pod)) for _, pod in ranked])
        for signal in {t.signal for t in self._state.acted_on if t.signal in observed}:
            age = trio.current_time() - self._observed_at
            self.meter.observe("kubelet_eviction_stats_age_seconds", age, (signal,))
        grace = _AT_ONCE if threshold.is_hard else self.policy.max_pod_grace
        # One pod in each look, as upstream: the next look sees what it freed.
        for uid, pod in ranked:
            # kubernetes/kubernetes#40573
            if is_critical(pod):
                log.warning("eviction.pod_is_critical", **about_pod(pod))
                continue
            self.notes.measured(usages, trio.current_time() - began, all_pods=True)
            verdict = eviction_verdict(
                pod, usages.get(uid), threshold.resource, self._state.acted_on, observed
            )
            self._evict(uid, pod, grace, verdict.message, threshold.signal, verdict.annotations)
            return (uid,)
        log.warning("eviction.nobody_may_go", resource=threshold.resource)
        return ()

    async def _usages(
        self, running: Sequence[tuple[PodUid, Pod]], threshold: Threshold
    ) -> Mapping[PodUid, PodUsage]:
        """Read the usage of the candidates. Raises `RuntimeCallError`."""
        began, needs_disk = trio.current_time(), threshold.resource in _DISK_RESOURCES
        try:
            return await self.usage.read(running, all_pods=True, disk=needs_disk)
        except RuntimeCallError as exc:
            self.notes.not_measured(exc, trio.current_time() - began)
            raise

    def _evict(
        self,
        uid: PodUid,
        pod: Pod,
        grace: int,
        message: str,
        signal: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        log.warning(
            "eviction.pod_evicted",
            **about_pod(pod),
            signal=signal,
            message=message,
            **(annotations or {}),
        )
        self.events.emit_annotated(
            pod_object_ref(pod), "Warning", "Evicted", message, annotations or {}
        )
        self.notes.evicted(uid, signal, grace, message)
        self.pods.evict(uid, grace, message, is_over_limit=is_own_limit(signal))
        self.evictions[signal] += 1

    def _log_error(self, error: str) -> None:
        """Log an error once, not at every look."""
        if error != self._last_error:
            log.warning("eviction.trouble", error=error)
        self._last_error = error


def _tolerates_memory_pressure(pod: Pod) -> bool:
    for toleration in spec(pod).tolerations or ():
        if toleration.effect not in (None, "", "NoSchedule"):
            continue
        if toleration.key in (None, "") and toleration.operator == "Exists":
            return True
        # The taint has no value, so `Equal` tolerates it without one.
        if toleration.key == _MEMORY_TAINT and (
            toleration.operator == "Exists" or not toleration.value
        ):
            return True
    return False
