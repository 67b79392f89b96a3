"""Write `/metrics/resource`, which metrics-server reads. No I/O.

Source: pkg/kubelet/metrics/collectors/resource_metrics.go.
"""

from __future__ import annotations

from kubelet_trio.stats.read import NodeUsage
from kubelet_trio.stats.subjects import ContainerSubject, PodSubject
from kubelet_trio.stats.summary import Snapshot
from kubelet_trio.stats.text import Exposition, label_text, milliseconds
from kubelet_trio.stats.usage import CgroupUsage, Cpu, Memory

_NANO = 1e9
_ERROR = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise"


def resource_text(snapshot: Snapshot | None) -> str:
    """Return the page; without a snapshot it only reports an error."""
    page = Exposition()
    if snapshot is not None:
        _node(page, snapshot.reading.node)
        for pod in snapshot.pods:
            for container in pod.containers:
                _container(page, snapshot, pod, container)
            _pod(page, snapshot, pod)
    page.add("resource_scrape_error", "gauge", _ERROR, int(snapshot is None))
    return page.text()


def _node(page: Exposition, node: NodeUsage) -> None:
    _cpu_and_memory(page, "node", "node", node.usage, "")
    page.add(
        "node_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
        node.swap_total - node.swap_free,
        "",
        milliseconds(node.usage.time),
    )


def _container(
    page: Exposition, snapshot: Snapshot, pod: PodSubject, container: ContainerSubject
) -> None:
    labels = label_text(
        (("container", container.name), ("namespace", pod.namespace), ("pod", pod.name))
    )
    # Without a timestamp, as upstream (collectContainerStartTime).
    if container.started_at:
        page.add(
            "container_start_time_seconds",
            "gauge",
            "[STABLE] Start time of the container since unix epoch in seconds",
            container.started_at,
            labels,
        )
    usage = snapshot.of_container(container.id)
    if usage is None:
        return
    _cpu_and_memory(page, "container", "container", usage, labels)
    memory = usage.memory
    if memory is None or memory.swap is None:
        return
    time = milliseconds(usage.time)
    page.add(
        "container_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap usage in bytes. "
        "Reported only on non-windows systems",
        memory.swap,
        labels,
        time,
    )
    if memory.swap_limit is not None:
        page.add(
            "container_swap_limit_bytes",
            "gauge",
            "[ALPHA] Current amount of the container swap limit in bytes. "
            "Reported only on non-windows systems",
            memory.swap_limit,
            labels,
            time,
        )


def _pod(page: Exposition, snapshot: Snapshot, pod: PodSubject) -> None:
    labels = label_text((("namespace", pod.namespace), ("pod", pod.name)))
    usage = snapshot.of_pod(pod)
    if usage is None:
        usage = _summed(snapshot, pod)
    if usage is None:
        return
    _cpu_and_memory(page, "pod", "pod", usage, labels)
    if usage.memory is not None and usage.memory.swap is not None:
        page.add(
            "pod_swap_usage_bytes",
            "gauge",
            "[ALPHA] Current amount of the pod swap usage in bytes. "
            "Reported only on non-windows systems",
            usage.memory.swap,
            labels,
            milliseconds(usage.time),
        )


def _summed(snapshot: Snapshot, pod: PodSubject) -> CgroupUsage | None:
    """Return the sum of the containers' usage, for a pod without a cgroup of its own."""
    usages = [u for c in pod.containers if (u := snapshot.of_container(c.id)) is not None]
    if not usages:
        return None
    return CgroupUsage(
        time=max(u.time for u in usages),
        cpu=Cpu(usage=sum(u.cpu.usage for u in usages if u.cpu is not None)),
        # Only `working_set` is shown, which without inactive pages is the usage.
        memory=Memory(usage=sum(u.memory.working_set for u in usages if u.memory is not None)),
    )


def _cpu_and_memory(
    page: Exposition, prefix: str, subject: str, usage: CgroupUsage, labels: str
) -> None:
    time = milliseconds(usage.time)
    if usage.cpu is not None:
        page.add(
            f"{prefix}_cpu_usage_seconds_total",
            "counter",
            f"[STABLE] Cumulative cpu time consumed by the {subject} in core-seconds",
            usage.cpu.usage / _NANO,
            labels,
            time,
        )
    if usage.memory is not None:
        page.add(
            f"{prefix}_memory_working_set_bytes",
            "gauge",
            f"[STABLE] Current working set of the {subject} in bytes",
            usage.memory.working_set,
            labels,
            time,
        )
