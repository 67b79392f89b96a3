"""`/metrics`, `/metrics/probes`, `/metrics/slis`: the agent's own, under upstream's names.

Counts and durations come from the meter; what can be counted when asked is counted then. Names that
begin with `kubelet_trio_` are this agent's: restarts in the supervision tree, what waits in its
channels, its tasks and threads, and the event loop's lag.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent.metric_names import FAMILIES, Family
from kubelet_trio.agent.parts import Parts
from kubelet_trio.model import (
    ContainerState,
    Histogram,
    Meter,
    PodUid,
    busy_threads,
    is_static,
    spec,
)
from kubelet_trio.pods import PodStage
from kubelet_trio.supervision import TreeNode

if TYPE_CHECKING:
    from kubelet_trio.stats import Exposition

_LAG_PROBE = 0.005  # seconds that the loop is asked to sleep; what it takes longer is its lag
_PROBES = ("prober_probe_total", "prober_probe_duration_seconds")
_SLIS = ("kubernetes_healthcheck", "kubernetes_healthchecks_total")


class AgentMetrics:
    """Writes the pages."""

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
        from kubelet_trio.stats import Exposition

        lag = await _measure_lag()
        exposition = Exposition()
        metered = [name for name in FAMILIES if name not in (*_PROBES, *_SLIS)]
        for name in metered:
            _write_metered(exposition, name, FAMILIES[name], self._meter)
        stored = *await self._volumes(), *await self._logs()
        counted = *self._derived(), *self._ended(), *self._set_up(), *stored, *self._own(lag)
        for name, labels, value in (*counted, *_process()):
            _write(exposition, name, labels, value)
        for name in metered:
            # A counter that appears with its first count hides that count from rate().
            # (Those of certificates are shown where certificates rotate, as upstream's are.)
            is_plain = FAMILIES[name].kind == "counter" and not FAMILIES[name].labels
            if is_plain and not name.endswith("_renew_errors"):
                exposition.default(name, "counter", FAMILIES[name].help, 0)
        return exposition.text()

    async def probes_page(self) -> str:
        """Return `/metrics/probes`."""
        from kubelet_trio.stats import Exposition

        await trio.lowlevel.checkpoint()
        exposition, meter = Exposition(), self._meter
        for labels, value in meter.counters("prober_probe_total"):
            uid, namespace, pod, container, kind, result = labels
            shown = (container, namespace, pod, uid, kind, result)
            _write(exposition, "prober_probe_total", shown, value)
        family = FAMILIES["prober_probe_duration_seconds"]
        for labels, histogram in meter.histograms("prober_probe_duration_seconds"):
            _, namespace, pod, container, kind = labels
            shown_labels = (container, namespace, pod, kind)
            _write_histogram(
                exposition, "prober_probe_duration_seconds", family, shown_labels, histogram
            )
        return exposition.text()

    async def slis_page(self) -> str:
        """Return `/metrics/slis`: how health checks came out, when somebody asked for health."""
        from kubelet_trio.stats import Exposition

        await trio.lowlevel.checkpoint()
        exposition = Exposition()
        for name in _SLIS:
            _write_metered(exposition, name, FAMILIES[name], self._meter)
        return exposition.text()

    def _derived(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield what upstream keeps in gauges and what is there to be counted here."""
        setup, meter, pleg = self._parts.setup, self._meter, self._parts.runtime.pleg
        node, cluster = setup.settings.node, setup.cluster
        yield "kubelet_node_name", (node.node_name,), 1
        yield "kubernetes_build_info", _build_info(), 1
        yield "kubelet_cgroup_version", (), node.cgroup_version
        snapshots = [pleg.get(uid) for uid in pleg.known_uids]
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
        static = Counter(is_static(pod) for pod in desired.values())
        ephemeral = sum(len(spec(pod).ephemeralContainers or ()) for pod in desired.values())
        yield "kubelet_managed_ephemeral_containers", (), ephemeral
        for is_it in (True, False):
            yield "kubelet_desired_pods", (_go_bool(is_it),), static[is_it]
        yield "kubelet_mirror_pods", (), static[True] if cluster is not None else 0
        yield from self._working(desired)
        calls = dict(meter.counters("kubelet_runtime_operations_total"))
        failed = dict(meter.counters("kubelet_runtime_operations_errors_total"))
        sandboxes = ("run_podsandbox",)
        yield "kubelet_started_pods_total", (), calls.get(sandboxes, 0)
        yield "kubelet_started_pods_errors_total", (), failed.get(sandboxes, 0)
        if cluster is not None:
            yield from cluster.certificate_ttls()
        if pleg.relisted_at is not None:
            ago = trio.current_time() - pleg.relisted_at
            yield "kubelet_pleg_last_seen_seconds", (), setup.seams.clock.time() - ago

    def _ended(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield what was ended and removed to keep the node from running out."""
        for signal, count in sorted(self._parts.upkeep.eviction.evictions.items()):
            yield "kubelet_evictions", (signal,), count
        for reason, count in self._parts.upkeep.images.removed.items():
            yield "kubelet_image_garbage_collected_total", (reason,), count
        shutdown = self._parts.upkeep.shutdown
        if shutdown is not None and shutdown.began_at is not None:
            yield "kubelet_graceful_shutdown_start_time_seconds", (), shutdown.began_at
        if shutdown is not None and shutdown.ended_at is not None:
            yield "kubelet_graceful_shutdown_end_time_seconds", (), shutdown.ended_at

    def _set_up(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield how many volumes pods want, and how many are set up."""
        for labels, count in sorted(self._parts.supplies.services.volumes.totals().items()):
            yield "volume_manager_total_volumes", labels, count

    async def _logs(self) -> list[tuple[str, tuple[str, ...], float]]:
        """Return what the logs of running containers take on disk."""
        name = "kubelet_container_log_filesystem_used_bytes"
        return [(name, labels, used) for labels, used in await self._parts.stats.log_usage()]

    async def _volumes(self) -> list[tuple[str, tuple[str, ...], float]]:
        """Return what volumes behind claims hold, each claim once."""
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
        return [(name, labels, value) for (name, labels), value in found.items()]

    def _working(
        self, desired: Mapping[PodUid, Pod]
    ) -> Iterator[tuple[str, tuple[str, ...], float]]:
        working: Counter[tuple[str, str, str]] = Counter()
        active: Counter[bool] = Counter()
        for uid, worker in self._parts.workers.items():
            static = is_static(worker.pod)
            config = "desired" if uid in desired else "orphan"
            working[worker.stage.name.lower(), config, _go_bool(static)] += 1
            active[static] += worker.stage is not PodStage.TERMINATED
        for is_it in (True, False):
            yield "kubelet_active_pods", (_go_bool(is_it),), active[is_it]
        for labels, count in sorted(working.items()):
            yield "kubelet_working_pods", labels, count

    def _own(self, lag: float) -> Iterator[tuple[str, tuple[str, ...], float]]:
        tree, reports = self._tree(), self._parts.reports
        for path, node in _nodes(tree):
            if "@" not in path:  # one series for all pods: they come and go
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
        statistics = trio.lowlevel.current_statistics()
        yield "kubelet_trio_tasks", ("living",), statistics.tasks_living
        yield "kubelet_trio_tasks", ("runnable",), statistics.tasks_runnable
        others = trio.to_thread.current_default_thread_limiter().borrowed_tokens  # getaddrinfo
        yield "kubelet_trio_worker_threads", (), len(busy_threads()) + others
        yield "kubelet_trio_event_loop_lag_seconds", (), lag


async def _measure_lag() -> float:
    began = trio.current_time()
    await trio.sleep(_LAG_PROBE)
    return max(trio.current_time() - began - _LAG_PROBE, 0.0)


def _nodes(node: TreeNode, path: str = "") -> Iterator[tuple[str, TreeNode]]:
    path = f"{path}/{node.name}" if path else node.name
    yield path, node
    for child in node.children:
        yield from _nodes(child, path)


def _pod_restarts(root: TreeNode) -> int:
    return sum(node.restarts for path, node in _nodes(root) if "@" in path)


def _write_metered(page: Exposition, name: str, family: Family, meter: Meter) -> None:
    if family.kind == "histogram":
        for labels, histogram in meter.histograms(name):
            _write_histogram(page, name, family, labels, histogram)
        return
    series = meter.counters(name) if family.kind == "counter" else meter.gauges(name)
    for labels, value in series:
        _write(page, name, labels, value)


def _write(page: Exposition, name: str, labels: Iterable[str], value: float) -> None:
    from kubelet_trio.stats import label_text

    family = FAMILIES[name]
    text = label_text(zip(family.labels, labels, strict=True))
    page.add(name, family.kind, family.help, value, text)


def _write_histogram(
    page: Exposition, name: str, family: Family, labels: Iterable[str], histogram: Histogram
) -> None:
    from kubelet_trio.stats import label_text, number, sample

    lines = page.family(name, family.kind, family.help)
    own = label_text(zip(family.labels, labels, strict=True))
    below = 0
    for bound, count in zip((*histogram.buckets, float("inf")), histogram.counts, strict=True):
        below += count
        edge = f'le="{number(bound)}"'
        lines.append(sample(f"{name}_bucket", f"{own},{edge}" if own else edge, below))
    lines.append(sample(f"{name}_sum", own, histogram.sum))
    lines.append(sample(f"{name}_count", own, below))


def _go_bool(value: bool) -> str:
    return "true" if value else "false"


def _build_info() -> tuple[str, ...]:
    """Return what upstream's labels hold: build date, compiler, commit, tree state, ..."""
    import kubelet_trio

    version = kubelet_trio.__version__
    major, _, rest = version.partition(".")
    return (
        "",
        platform.python_implementation(),
        "",
        "",
        f"v{version}",
        f"python{platform.python_version()}",
        major,
        rest.partition(".")[0],
        f"{sys.platform}/{platform.machine()}",
    )


def _process() -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield the process' own figures, from /proc/self; nothing where there is none."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        descriptors = len(os.listdir("/proc/self/fd"))
    except (OSError, StopIteration):
        return
    import resource

    ticks = os.sysconf("SC_CLK_TCK")
    yield "process_cpu_seconds_total", (), (int(fields[11]) + int(fields[12])) / ticks
    yield "process_start_time_seconds", (), boot + int(fields[19]) / ticks
    yield "process_virtual_memory_bytes", (), int(fields[20])
    yield "process_resident_memory_bytes", (), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    yield "process_open_fds", (), descriptors
    yield "process_max_fds", (), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
