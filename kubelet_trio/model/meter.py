"""Metrics of the agent, kept as plain numbers until /metrics is requested.

One `Meter` per agent. An update costs a dictionary look-up and an addition. `agent.metrics`
writes the page, with help texts and label names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

Labels = tuple[str, ...]
Buckets = tuple[float, ...]

# Prometheus' default buckets; most of the Go kubelet's histograms use them.
SECONDS: Buckets = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# ExponentialBuckets(.005, 2.5, 14), for calls of the runtime.
CALLS: Buckets = tuple(0.005 * 2.5**n for n in range(14))
# podStartupDurationBuckets.
STARTS: Buckets = (
    *(0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600),
    *(900, 1200, 1800, 2700, 3600),
)
# imagePullDurationBuckets.
PULLS: Buckets = (
    *(1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
# Of client-go's requests.
REQUESTS: Buckets = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
# Of the bodies of client-go's requests, in bytes.
SIZES: Buckets = (*(64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216),)
# storageOperationMetric.
STORAGE: Buckets = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)
# PodStatusSyncDuration.
STATUSES: Buckets = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60)
# podResizeDurationBuckets, in milliseconds.
RESIZES: Buckets = (
    *(10, 50, 100, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000),
    600_000,
)
# ExponentialBuckets(1, 2, 5).
COUNTS: Buckets = (1, 2, 4, 8, 16)


# topologyManagerAdmissionDuration, in milliseconds: ExponentialBuckets(.05, 2, 15).
ADMISSIONS: Buckets = tuple(0.05 * 2.0**n for n in range(15))


class Histogram:
    """The number of values in each bucket, and their sum."""

    __slots__ = ("buckets", "counts", "sum")

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)  # the last one counts values above all buckets
        self.sum = 0.0

    def observe(self, value: float) -> None:
        # Left: the bound of a Prometheus bucket is inclusive (`le`).
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Meter:
    """Counters, histograms and gauges by name and label values."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], float] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter."""
        key = name, labels
        self._counters[key] = self._counters.get(key, 0) + by

    def set(self, name: str, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        self._gauges[name, labels] = value

    def change(self, name: str, by: float, labels: Labels = ()) -> None:
        """Add to a gauge; a new one starts at 0."""
        key = name, labels
        self._gauges[key] = self._gauges.get(key, 0) + by

    def observe(
        self, name: str, value: float, labels: Labels = (), buckets: Buckets = SECONDS
    ) -> None:
        """Put a value into a histogram; its first value sets the `buckets`."""
        key = name, labels
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = Histogram(buckets)
        histogram.observe(value)

    def begin(self, name: str, buckets: Buckets) -> None:
        """Show a histogram without labels before its first value."""
        self._histograms.setdefault((name, ()), Histogram(buckets))

    def forget(self, name: str, label: str) -> None:
        """Drop all series of a metric whose first label has this value."""
        for table in (self._counters, self._gauges, self._histograms):
            for key in [k for k in table if k[0] == name and k[1][:1] == (label,)]:
                del table[key]

    def counters(self, name: str) -> Iterator[tuple[Labels, float]]:
        """Yield a counter's series."""
        return ((labels, value) for (n, labels), value in self._counters.items() if n == name)

    def gauges(self, name: str) -> Iterator[tuple[Labels, float]]:
        """Yield a gauge's series."""
        return ((labels, value) for (n, labels), value in self._gauges.items() if n == name)

    def histograms(self, name: str) -> Iterator[tuple[Labels, Histogram]]:
        """Yield a histogram's series."""
        return ((labels, value) for (n, labels), value in self._histograms.items() if n == name)
