from __future__ import annotations

from kubelet_trio.model import CALLS, STARTS, Meter


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    meter = Meter()
    for value in (0.5, 1.0, 1.5, 9.0):
        meter.observe("h", value, ("a",), (1.0, 2.0))
    ((labels, histogram),) = meter.histograms("h")
    assert labels == ("a",)
    assert histogram.counts == [2, 1, 1]
    assert (histogram.count, histogram.sum) == (4, 12.0)


def test_series_are_apart_and_forgotten_by_their_first_label() -> None:
    meter = Meter()
    meter.count("c", ("a", "x"))
    meter.count("c", ("a", "x"), by=2)
    meter.count("c", ("b", "x"))
    meter.set("g", 5, ("a",))
    assert dict(meter.counters("c")) == {("a", "x"): 3, ("b", "x"): 1}
    assert dict(meter.gauges("g")) == {("a",): 5}
    meter.forget("c", "a")
    assert dict(meter.counters("c")) == {("b", "x"): 1}


def test_the_buckets_are_the_go_kubelets() -> None:
    assert [round(bound, 4) for bound in CALLS[:4]] == [0.005, 0.0125, 0.0312, 0.0781]
    assert (len(CALLS), len(STARTS), STARTS[-1]) == (14, 25, 3600)
    assert list(STARTS) == sorted(STARTS)
