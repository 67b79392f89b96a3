"""Write the runtime's own metrics of pods, for the gate PodAndContainerStatsFromCRI. No I/O.

The runtime says names, helps and labels; they are passed on as they are. What a Prometheus would
not take is left out: names and labels that are none, samples without a descriptor or with another
number of labels.

Source: KEP-2371, pkg/kubelet/metrics/collectors/cri_metrics.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kubelet_trio.cri import v1
from kubelet_trio.stats.text import Exposition, label_text

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_KINDS = {v1.MetricType.COUNTER: "counter", v1.MetricType.GAUGE: "gauge"}
_MILLION = 1_000_000


def write_runtime_metrics(
    page: Exposition,
    descriptors: Iterable[v1.MetricDescriptor],
    pods: Iterable[v1.PodSandboxMetrics],
) -> None:
    """Write the metrics of pods and their containers."""
    known = {d.name: d for d in descriptors if _is_usable(d)}
    seen: set[tuple[str, str]] = set()
    for metric in _metrics(pods):
        described, kind = known.get(metric.name), _KINDS.get(metric.metric_type)
        if described is None or kind is None or metric.value is None:
            continue
        if len(described.label_keys) != len(metric.label_values):
            continue
        labels = label_text(zip(described.label_keys, metric.label_values, strict=True))
        if (metric.name, labels) in seen:
            continue
        seen.add((metric.name, labels))
        # From nanoseconds; a timestamp of 0 is none.
        time = f" {metric.timestamp // _MILLION}" if metric.timestamp else ""
        text = described.help.replace("\\", "\\\\")
        page.add(metric.name, kind, text, metric.value.value, labels, time)


def _is_usable(descriptor: v1.MetricDescriptor) -> bool:
    keys = descriptor.label_keys
    is_unique = len(set(keys)) == len(keys)
    return (
        _NAME.fullmatch(descriptor.name) is not None
        and is_unique
        and all(map(_LABEL.fullmatch, keys))
    )


def _metrics(pods: Iterable[v1.PodSandboxMetrics]) -> Iterator[v1.Metric]:
    for pod in pods:
        yield from pod.metrics
        for container in pod.container_metrics:
            yield from container.metrics
