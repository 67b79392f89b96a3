"""With the gate PodAndContainerStatsFromCRI the runtime's own metrics are passed on."""

from __future__ import annotations

from pathlib import Path

import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from kubelet_trio.cri import v1
from kubelet_trio.model import inline_offload
from kubelet_trio.stats import StatsProvider, StatsSettings
from kubelet_trio.stats.cri_metrics import write_runtime_metrics
from kubelet_trio.stats.text import Exposition
from kubelet_trio.testing import FakeRuntime, TrioClock
from tests.stats import trees

DESCRIBED = [
    v1.MetricDescriptor(name="container_odd_total", help="Odd things.", label_keys=["id", "pod"]),
    v1.MetricDescriptor(name="container_level", help="A level.", label_keys=["id"]),
    v1.MetricDescriptor(name="no name", help="", label_keys=[]),
    v1.MetricDescriptor(name="wrong_label", help="", label_keys=["a-b"]),
]


def metric(name: str, value: int | None, *labels: str, gauge: bool = False) -> v1.Metric:
    return v1.Metric(
        name=name,
        timestamp=1_700_000_000_123_456_789,
        metric_type=v1.MetricType.GAUGE if gauge else v1.MetricType.COUNTER,
        label_values=list(labels),
        value=None if value is None else v1.UInt64Value(value=value),
    )


PODS = [
    v1.PodSandboxMetrics(
        pod_sandbox_id="s",
        metrics=[metric("container_odd_total", 7, "/s", "web"), metric("unknown", 1)],
        container_metrics=[
            v1.ContainerMetrics(
                container_id="c",
                metrics=[
                    metric("container_level", 3, 'a "b"', gauge=True),
                    metric("container_level", 4, 'a "b"', gauge=True),  # told twice
                    metric("container_level", 5, "too", "many", gauge=True),
                    metric("container_odd_total", None, "/c", "web"),
                    metric("no name", 1),
                    metric("wrong_label", 1, "x"),
                ],
            )
        ],
    )
]


def read(page: str) -> dict[str, tuple[dict[str, str], float]]:
    return {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_what_the_runtime_says_is_passed_on_and_what_is_malformed_is_not() -> None:
    page = Exposition()
    write_runtime_metrics(page, DESCRIBED, PODS)
    assert read(page.text()) == {
        "container_odd_total": ({"id": "/s", "pod": "web"}, 7.0),
        "container_level": ({"id": 'a "b"'}, 3.0),
    }
    assert "# HELP container_level A level.\n# TYPE container_level gauge\n" in page.text()
    assert 'container_odd_total{id="/s",pod="web"} 7 1700000000123\n' in page.text()


def provider(base: Path, runtime: FakeRuntime) -> StatsProvider:
    return StatsProvider(
        StatsSettings("node", str(base), ("/kubepods.slice",), from_runtime=True),
        trees.write_v2(base, trees.CONTAINER_V2),
        runtime,
        lambda: (),
        lambda _name: None,
        TrioClock(),
        inline_offload,
    )


async def test_the_page_has_the_machine_and_what_the_runtime_says(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    runtime.metrics = (DESCRIBED, PODS)
    shown = read(b"".join(await provider(tmp_path, runtime).cadvisor()).decode())
    assert shown["container_odd_total"][1] == 7
    assert shown["machine_memory_bytes"][1] > 0
    assert shown["container_scrape_error"][1] == 0
    assert "container_cpu_usage_seconds_total" not in shown


async def test_a_runtime_without_metrics_is_told_of(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    runtime = FakeRuntime()
    with trio.fail_after(60):
        shown = read(b"".join(await provider(tmp_path, runtime).cadvisor()).decode())
    assert shown["container_scrape_error"][1] == 1
    assert shown["machine_memory_bytes"][1] > 0
