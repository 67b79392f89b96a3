"""How long pods take to start: from being wanted to running, told to the meter.

A pod that already ran when this agent first told of it was adopted, not started.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio
from lightkube.models.core_v1 import Pod, PodStatus

from kubelet_trio.cri import PULL_SECONDS
from kubelet_trio.model import (
    COUNTS,
    STARTS,
    Meter,
    PodUid,
    WallClock,
    is_static,
    metadata,
    spec,
)


@dataclass(slots=True)
class PodStarts:
    """Follows each pod until it runs, or is gone."""

    meter: Meter
    clock: WallClock
    _seen: dict[PodUid, float] = field(default_factory=dict)  # trio time; until it runs
    _known: set[PodUid] = field(default_factory=set)
    _told: set[PodUid] = field(default_factory=set)  # not running yet, as delivered

    def wanted(self, pods: Mapping[PodUid, Pod]) -> None:
        """Take note of the pods that are wanted now."""
        current, now = set(pods), trio.current_time()
        for uid in current - self._known:
            self._seen[uid] = now
            count = len(spec(pods[uid]).containers)
            self.meter.observe("kubelet_containers_per_pod_count", count, (), COUNTS)
        for uid in self._known - current:
            self._forget(uid)
        self._known = current

    def delivered(self, changed: Mapping[PodUid, Pod | None]) -> None:
        """Look at statuses that were just told."""
        for uid, pod in changed.items():
            if pod is None:
                self._forget(uid)
            elif uid in self._seen:
                self._look(uid, pod)

    def _look(self, uid: PodUid, pod: Pod) -> None:
        waited = trio.current_time() - self._seen[uid]
        if pod.status is not None and _has_started(pod.status):
            del self._seen[uid]
            if uid in self._told:
                self._started(uid, pod, pod.status, waited)
            self._told.discard(uid)
        elif uid not in self._told:
            self._told.add(uid)
            self.meter.observe("kubelet_pod_worker_start_duration_seconds", waited)

    def _started(self, uid: PodUid, pod: Pod, status: PodStatus, waited: float) -> None:
        self.meter.observe("kubelet_pod_start_duration_seconds", waited, (), STARTS)
        created = metadata(pod).creationTimestamp
        if created is None or is_static(pod):
            return
        total = max(self.clock.time() - created.timestamp(), 0.0)
        self.meter.observe("kubelet_pod_start_total_duration_seconds", total, (), STARTS)
        pulled = dict(self.meter.counters(PULL_SECONDS)).get((uid,), 0.0)
        own = max(total - pulled - _init_seconds(status), 0.0)
        self.meter.observe("kubelet_pod_start_sli_duration_seconds", own, (), STARTS)

    def _forget(self, uid: PodUid) -> None:
        self._seen.pop(uid, None)
        self._told.discard(uid)
        self.meter.forget(PULL_SECONDS, uid)
        for name in ("prober_probe_total", "prober_probe_duration_seconds"):
            self.meter.forget(name, uid)


def _has_started(status: PodStatus) -> bool:
    containers = status.containerStatuses or ()
    return bool(containers) and all(
        c.state is not None and (c.state.running is not None or c.state.terminated is not None)
        for c in containers
    )


def _init_seconds(status: PodStatus) -> float:
    total = datetime.timedelta()
    for container in status.initContainerStatuses or ():
        ended = container.state.terminated if container.state is not None else None
        if ended is not None and ended.startedAt is not None and ended.finishedAt is not None:
            total += ended.finishedAt - ended.startedAt
    return total.total_seconds()
