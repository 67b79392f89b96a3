"""`/metrics`, `/metrics/probes`, `/metrics/slis`: the agent's own, under upstream's names.

Counts and durations come from the meter; gauges are computed at each request. Names that begin
with `kubelet_trio_` are this agent's own: restarts in the supervision tree, items that wait in its
channels, its tasks and threads, and the event loop's lag.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent.device_info import device_info
from kubelet_trio.agent.parts import Parts
from kubelet_trio.model import (
    STATIC_LABELS,
    ContainerState,
    Meter,
    PodUid,
    busy_threads,
    spec,
    static_label,
)
from kubelet_trio.pods import PodStage
from kubelet_trio.supervision import TreeNode

if TYPE_CHECKING:
    from kubelet_trio.stats import Sample

# As of which version the Go kubelet supports no runtime without RuntimeConfig
# (getCgroupDriverFromCRI in cmd/kubelet/app/server.go).
_NEEDS_RUNTIME_CONFIG = "1.37.0"
_PROBES = ("prober_probe_total", "prober_probe_duration_seconds")
_RUNTIME_ONLY = ("runtime_only", "unknown")
_SLIS = ("kubernetes_healthcheck", "kubernetes_healthchecks_total")


class AgentMetrics:
    """Writes the pages.

    Imports `stats` at the first request: many standalone nodes never get one.
    """

    def __init__(self, parts: Parts, meter: Meter, tree: Callable[[], TreeNode]) -> None:
        """Args:
        parts: the agent.
        meter: holds the counts and durations.
        tree: returns its supervision tree.
        """
        self._parts = parts
        self._meter = meter
        self._tree = tree

    async def page(self) -> str:
        """Return `/metrics`."""
        from kubelet_trio.stats import FAMILIES, MetricPage, process_samples

        page = MetricPage()
        metered = [name for name in FAMILIES if name not in (*_PROBES, *_SLIS)]
        # Before the meter's: this measures volumes.
        stored = *await self._volumes(), *await self._logs()
        page.add_metered(metered, self._meter)
        counted = *self._derived(), *self._ended(), *self._set_up(), *stored, *self._own()
        page.add((*counted, *device_info(self._parts), *process_samples()))
        # Upstream has these only if certificates are renewed.
        page.add_zeros(name for name in metered if not name.endswith("_renew_errors"))
        return page.text()

    async def probes_page(self) -> str:
        """Return `/metrics/probes`."""
        from kubelet_trio.stats import MetricPage, process_samples

        await trio.lowlevel.checkpoint()
        page, meter = MetricPage(), self._meter
        counter, histograms = _PROBES
        # The meter's labels begin with the UID, by which `PodStarts` forgets a pod's series.
        for labels, value in meter.counters(counter):
            uid, namespace, pod, container, kind, result = labels
            page.add([(counter, (container, namespace, pod, uid, kind, result), value)])
        for labels, histogram in meter.histograms(histograms):
            _, namespace, pod, container, kind = labels
            page.add_histogram(histograms, (container, namespace, pod, kind), histogram)
        name = "process_start_time_seconds"
        page.add(sample for sample in process_samples() if sample[0] == name)
        return page.text()

    async def slis_page(self) -> str:
        """Return `/metrics/slis`: the results of the health checks that clients requested."""
        from kubelet_trio.stats import MetricPage

        await trio.lowlevel.checkpoint()
        page = MetricPage()
        page.add_metered(_SLIS, self._meter)
        return page.text()

    def _derived(self) -> Iterator[Sample]:
        """Yield the gauges of upstream that follow from the state of the parts."""
        from kubelet_trio.stats import build_info

        setup, meter, pleg = self._parts.setup, self._meter, self._parts.runtime.pleg
        node, cluster = setup.settings.node, setup.cluster
        yield "kubelet_node_name", (node.node_name,), 1
        yield "kubernetes_build_info", build_info(), 1
        for gate, stage, is_on in setup.settings.gates():
            yield "kubernetes_feature_enabled", (gate, stage), int(is_on)
        yield "kubelet_cgroup_version", (), node.cgroup_version
        if not self._parts.runtime.health.state.value.has_config:
            yield "kubelet_cri_losing_support", (_NEEDS_RUNTIME_CONFIG,), 1
        source = "cri" if setup.settings.stats_from_runtime else "cadvisor"
        yield "kubelet_metrics_provider", (source,), 1
        snapshots = [pleg.get(uid) for uid in pleg.known_uids]
        # updateRunningPodAndContainerMetrics of the PLEG: a pod with a ready sandbox runs.
        yield (
            "kubelet_running_pods",
            (),
            sum(any(s.ready for s in observed.sandboxes) for observed in snapshots),
        )
        states = Counter(c.state for observed in snapshots for c in observed.containers)
        for state in ContainerState:
            if states[state]:
                yield "kubelet_running_containers", (state.value,), states[state]
        desired = self._parts.pods.desired.value.value.pods
        static = Counter(static_label(pod) for pod in desired.values())
        # The workers' pods: those that were added on this node are in no desired pod.
        pods = [worker.pod for worker in self._parts.workers.values()]
        ephemeral = sum(len(spec(pod).ephemeralContainers or ()) for pod in pods)
        yield "kubelet_managed_ephemeral_containers", (), ephemeral
        for label in STATIC_LABELS:
            yield "kubelet_desired_pods", (label,), static[label]
        yield "kubelet_mirror_pods", (), cluster.mirror_count if cluster is not None else 0
        yield from self._working(desired)
        yield from self._resizes()
        calls = dict(meter.counters("kubelet_runtime_operations_total"))
        failed = dict(meter.counters("kubelet_runtime_operations_errors_total"))
        # SyncPod counts a pod when it creates the sandbox.
        sandboxes = ("run_podsandbox",)
        yield "kubelet_started_pods_total", (), calls.get(sandboxes, 0)
        yield "kubelet_started_pods_errors_total", (), failed.get(sandboxes, 0)
        if cluster is not None:
            yield from cluster.certificate_ttls()
            yield from cluster.pod_certificate_states()
        if pleg.relisted_at is not None:
            # From Trio's monotonic clock to Unix seconds.
            ago = trio.current_time() - pleg.relisted_at
            yield "kubelet_pleg_last_seen_seconds", (), setup.seams.clock.time() - ago

    def _ended(self) -> Iterator[Sample]:
        """Yield evictions, removed images, and the last shutdown."""
        for signal, count in sorted(self._parts.upkeep.eviction.evictions.items()):
            yield "kubelet_evictions", (signal,), count
        for reason, count in self._parts.upkeep.images.removed.items():
            yield "kubelet_image_garbage_collected_total", (reason,), count
        shutdown = self._parts.upkeep.shutdown
        if shutdown is not None and shutdown.began_at is not None:
            yield "kubelet_graceful_shutdown_start_time_seconds", (), shutdown.began_at
        if shutdown is not None and shutdown.ended_at is not None:
            yield "kubelet_graceful_shutdown_end_time_seconds", (), shutdown.ended_at

    def _set_up(self) -> Iterator[Sample]:
        """Yield the numbers of desired and of mounted volumes, and of plugins."""
        for labels, count in sorted(self._parts.supplies.services.volumes.totals().items()):
            yield "volume_manager_total_volumes", labels, count
        if self._parts.supplies.claims is not None:
            yield from self._parts.supplies.claims.samples()
        if self._parts.plugins is not None:
            for labels in self._parts.plugins.totals():
                yield "plugin_manager_total_plugins", labels, 1

    async def _logs(self) -> list[Sample]:
        """Return the sizes of the running containers' logs."""
        name = "kubelet_container_log_filesystem_used_bytes"
        return [(name, labels, used) for labels, used in await self._parts.stats.log_usage()]

    async def _volumes(self) -> list[Sample]:
        """Return the use of the volumes behind claims, each claim once."""
        found = {}
        for namespace, claim, fs in await self._parts.stats.claimed_volumes():
            for name, value in (
                ("capacity_bytes", fs.capacity),
                ("available_bytes", fs.available),
                ("used_bytes", fs.used),
                ("inodes", fs.inodes),
                ("inodes_free", fs.inodes_free),
                ("inodes_used", fs.inodes_used),
            ):
                if value is not None:
                    found[f"kubelet_volume_stats_{name}", (namespace, claim)] = value
            if fs.abnormal is not None and self._parts.setup.settings.volume_health:
                name = "kubelet_volume_stats_health_status_abnormal"
                found[name, (namespace, claim)] = int(fs.abnormal)
        return [(name, labels, value) for (name, labels), value in found.items()]

    def _working(self, desired: Mapping[PodUid, Pod]) -> Iterator[Sample]:
        """Yield the numbers of workers: of every combination, as upstream."""
        working: Counter[tuple[str, str, str]] = Counter()
        active: Counter[str] = Counter()
        for uid, worker in self._parts.workers.items():
            static, is_desired = static_label(worker.pod), uid in desired
            config = "desired" if is_desired else "orphan"
            working[worker.stage.value, config, static] += 1
            active[static] += is_desired and worker.stage is not PodStage.TERMINATED
        for static in STATIC_LABELS:
            yield "kubelet_active_pods", (static,), active[static]
        # Every worker has a pod: none is `runtime_only`.
        kinds = (*itertools.product(("desired", "orphan"), STATIC_LABELS), _RUNTIME_ONLY)
        for stage, kind in itertools.product(PodStage, kinds):
            labels = (stage.value, *kind)
            yield "kubelet_working_pods", labels, working[labels]

    def _resizes(self) -> Iterator[Sample]:
        """Yield how many pods have a resize that is pending, and one in progress."""
        resizes = [
            worker.allocation
            for worker in self._parts.workers.values()
            if worker.stage is not PodStage.TERMINATED
        ]
        pending = Counter(r.pending.reason.lower() for r in resizes if r.pending is not None)
        for reason, count in sorted(pending.items()):
            yield "kubelet_pod_pending_resizes", (reason,), count
        in_progress = sum(r.resize is not None for r in resizes)
        yield "kubelet_pod_in_progress_resizes", (), in_progress

    def _own(self) -> Iterator[Sample]:
        tree, reports = self._tree(), self._parts.reports
        for path, node in _nodes(tree):
            if "@" not in path:  # the workers of all pods are one series: pods come and go
                yield "kubelet_trio_child_restarts_total", (path,), node.restarts
        yield (
            "kubelet_trio_child_restarts_total",
            ("kubelet/pods/*",),
            _pod_restarts(tree),
        )
        for channel, depth in (
            ("events", reports.events.waiting),
            ("status", reports.statuses.waiting),
        ):
            yield "kubelet_trio_channel_depth", (channel,), depth
        yield "kubelet_trio_events_dropped_total", (), reports.events.dropped
        taps = self._parts.setup.taps
        if taps is not None:
            yield "kubelet_trio_recorder_entries_total", (), taps.recorder.entries
            yield "kubelet_trio_recorder_lost_total", (), taps.recorder.lost
            yield "kubelet_trio_recorder_bytes", (), taps.recorder.size
        statistics = trio.lowlevel.current_statistics()
        # Dashboards show it beside CPU and memory: here, the tasks are what goroutines are in Go.
        yield "go_goroutines", (), statistics.tasks_living
        yield "kubelet_trio_tasks", ("living",), statistics.tasks_living
        yield "kubelet_trio_tasks", ("runnable",), statistics.tasks_runnable
        # Trio resolves names (getaddrinfo) in threads of its own limiter.
        others = trio.to_thread.current_default_thread_limiter().borrowed_tokens
        yield "kubelet_trio_worker_threads", (), len(busy_threads()) + others


def _nodes(node: TreeNode, path: str = "") -> Iterator[tuple[str, TreeNode]]:
    path = f"{path}/{node.name}" if path else node.name
    yield path, node
    for child in node.children:
        yield from _nodes(child, path)


def _pod_restarts(root: TreeNode) -> int:
    return sum(node.restarts for path, node in _nodes(root) if "@" in path)
