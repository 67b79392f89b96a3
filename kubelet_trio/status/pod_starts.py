"""Measures how long pods take to start: from being wanted to running.

A pod that already ran in its first published status was adopted, not started: it does not count.

The time from a pod's creation, and the SLI, are of pods of an API server that no agent has taken
before and that were scheduled at once; a start ends when all containers run at the same time.
Upstream: pkg/kubelet/util/pod_startup_latency_tracker.go.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio
from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.model import (
    COUNTS,
    STARTS,
    Meter,
    PodUid,
    WallClock,
    is_static,
    is_terminal,
    metadata,
    spec,
)
from kubelet_trio.status.pull_times import PullTimes


@dataclass(slots=True)
class PodStarts:
    """Observes each pod until it runs or is gone, and records the metrics of its start."""

    meter: Meter
    clock: WallClock
    pulls: PullTimes = field(default_factory=PullTimes)
    _seen: dict[PodUid, float] = field(default_factory=dict)  # trio time; until it runs
    _known: set[PodUid] = field(default_factory=set)
    _has_network: bool = False  # whether a pod with a network of its own has started
    _pending: set[PodUid] = field(default_factory=set)  # published, and not running yet
    _measured: set[PodUid] = field(default_factory=set)  # whose time from the creation is to come

    def wanted(self, pods: Mapping[PodUid, Pod]) -> None:
        """Note the set of wanted pods."""
        current, now = set(pods), trio.current_time()
        for uid in current - self._known:
            self._seen[uid] = now
            if _is_measured(pods[uid]):
                self._measured.add(uid)
                self.pulls.track(uid)
            count = len(spec(pods[uid]).containers)
            self.meter.observe("kubelet_containers_per_pod_count", count, (), COUNTS)
        for uid in self._known - current:
            self._forget(uid)
        self._known = current

    def delivered(self, changed: Mapping[PodUid, Pod | None]) -> None:
        """Note statuses that are being published; None: the pod is gone."""
        for uid, pod in changed.items():
            if pod is None:
                self._forget(uid)
            else:
                if uid in self._seen:
                    self._observe(uid, pod)
                if uid in self._measured and pod.status is not None:
                    self._measure(uid, pod, pod.status)

    def _observe(self, uid: PodUid, pod: Pod) -> None:
        waited = trio.current_time() - self._seen[uid]
        if pod.status is not None and _has_started(pod.status):
            del self._seen[uid]
            if uid in self._pending:
                self.meter.observe("kubelet_pod_start_duration_seconds", waited, (), STARTS)
            self._pending.discard(uid)
        elif uid not in self._pending:
            self._pending.add(uid)
            self.meter.observe("kubelet_pod_worker_start_duration_seconds", waited)

    def _measure(self, uid: PodUid, pod: Pod, status: PodStatus) -> None:
        """Record the time from the pod's creation, once all its containers run."""
        runs, created = _runs(status), metadata(pod).creationTimestamp
        if runs and created is not None:
            self._record(uid, pod, status, created)
        if runs or is_terminal(status):
            self._measured.discard(uid)
            self.pulls.forget(uid)

    def _record(self, uid: PodUid, pod: Pod, status: PodStatus, created: datetime.datetime) -> None:
        total = max(self.clock.time() - created.timestamp(), 0.0)
        self.meter.observe("kubelet_pod_start_total_duration_seconds", total, (), STARTS)
        if _has_state(pod):
            return
        # The SLI excludes image pulls and init containers (pod_startup_latency_tracker.go).
        own = max(total - self.pulls.seconds(uid) - _init_seconds(status), 0.0)
        self.meter.observe("kubelet_pod_start_sli_duration_seconds", own, (), STARTS)
        if not (self._has_network or spec(pod).hostNetwork):
            self._has_network = True
            self.meter.set("kubelet_first_network_pod_start_sli_duration_seconds", own)

    def _forget(self, uid: PodUid) -> None:
        self._seen.pop(uid, None)
        self._pending.discard(uid)
        self._measured.discard(uid)
        self.pulls.forget(uid)
        # Series with a pod's UID as a label: they would pile up.
        for name in ("prober_probe_total", "prober_probe_duration_seconds"):
            self.meter.forget(name, uid)


def _is_measured(pod: Pod) -> bool:
    """Whether the time from the pod's creation is that of its start by this agent."""
    # A static pod has no creation time of an API server to count from.
    if is_static(pod) or metadata(pod).creationTimestamp is None:
        return False
    status = pod.status or PodStatus()
    return status.startTime is None and not any(
        c.type == "PodScheduled" and c.status == "False" for c in status.conditions or ()
    )


def _has_state(pod: Pod) -> bool:
    """Whether the pod has volumes that its start may wait long for: the SLO leaves it out."""
    # Source: isStatefulPod in pkg/kubelet/util/pod_startup_latency_tracker.go.
    return not all(
        v.secret or v.configMap or v.downwardAPI or v.emptyDir or v.projected
        for v in spec(pod).volumes or ()
    )


def _has_started(status: PodStatus) -> bool:
    containers = status.containerStatuses or ()
    return bool(containers) and all(
        c.state is not None and (c.state.running is not None or c.state.terminated is not None)
        for c in containers
    )


def _runs(status: PodStatus) -> bool:
    containers = status.containerStatuses or ()
    return bool(containers) and all(c.state is not None and c.state.running for c in containers)


def _init_seconds(status: PodStatus) -> float:
    total = datetime.timedelta()
    for container in status.initContainerStatuses or ():
        ended = container.state.terminated if container.state is not None else None
        if ended is not None and ended.startedAt is not None and ended.finishedAt is not None:
            total += ended.finishedAt - ended.startedAt
    return total.total_seconds()
