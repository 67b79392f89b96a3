"""Write pages of the metrics in `FAMILIES`: single samples, and the series of a `Meter`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from kubelet_trio.model import Histogram, Meter
from kubelet_trio.stats.families import FAMILIES
from kubelet_trio.stats.text import Exposition, label_text, number, sample

# The name of a family, the values of its labels, and the value.
Sample: TypeAlias = tuple[str, tuple[str, ...], float]


class MetricPage:
    """One page of metrics, written from top to bottom."""

    def __init__(self) -> None:
        self._page = Exposition()

    def text(self) -> str:
        return self._page.text()

    def add(self, samples: Iterable[Sample]) -> None:
        """Write samples."""
        for name, labels, value in samples:
            family = FAMILIES[name]
            text = label_text(zip(family.labels, labels, strict=True))
            self._page.add(name, family.kind, family.help, value, text)

    def add_metered(self, names: Iterable[str], meter: Meter) -> None:
        """Write all series of these families that the meter has."""
        for name in names:
            kind = FAMILIES[name].kind
            if kind == "histogram":
                for labels, histogram in meter.histograms(name):
                    self.add_histogram(name, labels, histogram)
            else:
                series = meter.counters(name) if kind == "counter" else meter.gauges(name)
                self.add((name, tuple(labels), value) for labels, value in series)

    def add_histogram(self, name: str, labels: Iterable[str], histogram: Histogram) -> None:
        """Write one histogram."""
        family = FAMILIES[name]
        lines = self._page.family(name, family.kind, family.help)
        own = label_text(zip(family.labels, labels, strict=True))
        # The text format has cumulative buckets; a `Histogram` counts each bucket alone.
        below = 0
        for bound, count in zip((*histogram.buckets, float("inf")), histogram.counts, strict=True):
            below += count
            edge = f'le="{number(bound)}"'
            lines.append(sample(f"{name}_bucket", f"{own},{edge}" if own else edge, below))
        lines.append(sample(f"{name}_sum", own, histogram.sum))
        lines.append(sample(f"{name}_count", own, below))

    def add_zeros(self, names: Iterable[str]) -> None:
        """Write 0 for the counters without labels that have not counted yet."""
        # Prometheus' `rate()` needs a sample before the first count, or it does not see that count.
        for name in names:
            family = FAMILIES[name]
            # The label values of other counters are not known before they count.
            if family.kind == "counter" and not family.labels:
                self._page.default(name, "counter", family.help, 0)
