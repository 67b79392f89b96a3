from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from kubelet_trio.config import gate_values
from kubelet_trio.cri import v1
from kubelet_trio.model import pod_uid
from kubelet_trio.stats import FAMILIES, Filesystem
from kubelet_trio.testing import FaultKind
from tests.agent.node import Node, make_pod, ready
from tests.harness.mixin import OF_A_CLUSTER, OTHERS

# Name, kind and labels of what the Go kubelet's own registry shows.
RECORDED = {
    name: (kind, frozenset(filter(None, "".join(labels).split(","))))
    for line in Path(__file__).with_name("kubelet_metrics.txt").read_text("ascii").splitlines()
    for name, kind, *labels in [line.split()]
}
PROBED = """\
- name: web
  image: web
  imagePullPolicy: IfNotPresent
  livenessProbe: {exec: {command: [check]}, periodSeconds: 5}
"""


@pytest.mark.parametrize("name", sorted(n for n in FAMILIES if not n.startswith("kubelet_trio_")))
def test_a_family_is_the_go_kubelets(name: str) -> None:
    family = FAMILIES[name]
    assert (family.kind, frozenset(family.labels)) == RECORDED[name]


def documented() -> tuple[list[str], list[str]]:
    """Return the names in the documentation: of what is shown, and of what is not."""
    text = (Path(__file__).parents[2] / "docs/metrics.md").read_text("utf-8")
    shown, absent = (re.findall(r"`([a-z_*]+)", part) for part in text.split("## Not shown"))
    return shown, absent


@pytest.mark.parametrize("page", ["metrics", "metrics_probes"])
def test_every_family_of_a_go_kubelet_is_shown_or_has_its_reason(page: str) -> None:
    recorded = json.loads((Path(__file__).parents[1] / "golden/data/metrics.json").read_text())
    _, absent = documented()
    assert len(recorded[page]) > 4
    for sample, labels in recorded[page].items():
        family = FAMILIES.get(sample) or FAMILIES.get(sample.rsplit("_", 1)[0])
        if family is None:
            assert any(fnmatchcase(sample, pattern) for pattern in absent), sample
        else:
            assert set(labels) - {"le"} == set(family.labels), sample


@pytest.mark.parametrize("expression", [*OF_A_CLUSTER, *OTHERS])
def test_what_dashboards_ask_of_other_nodes_is_among_the_families(expression: str) -> None:
    names = re.findall(r"\b(?:kubelet|rest_client)_\w+", expression)
    assert names
    for name in names:
        family = FAMILIES.get(name) or FAMILIES[name.removesuffix("_bucket")]
        grouped = re.search(r"sum by \(([^)]*)\)", expression)
        labels = set(grouped[1].split(", ")) - {"le"} if grouped else set()
        assert labels <= set(family.labels), name


def test_the_documentation_tells_what_is_shown_and_what_is_not() -> None:
    shown, absent = documented()
    assert RECORDED
    for name in RECORDED:
        is_told = any(fnmatchcase(name, pattern) for pattern in shown)
        is_absent = any(fnmatchcase(name, pattern) for pattern in absent)
        # `go_*` is absent, but for one.
        assert is_absent == (name not in FAMILIES) or name == "go_goroutines", name
        assert is_told or is_absent, name
    for name in FAMILIES:
        assert any(fnmatchcase(name, pattern) for pattern in shown), name


def is_ready(pod: Pod | None) -> bool:
    return pod is not None and pod.status is not None and ready(pod.status)


def families(page: str) -> dict[str, Metric]:
    """Read a page as Prometheus would; a counter is found by its whole name."""
    found = {}
    for family in text_string_to_metric_families(page):
        name = family.name
        if family.type == "counter" and f"# TYPE {name}_total " in page:
            name += "_total"
        found[name] = family
    return found


def value(page: dict[str, Metric], family: str, suffix: str = "", **labels: str) -> float:
    samples = [s for s in page[family].samples if s.name in (family + suffix, f"{family}_total")]
    (found,) = [s for s in samples if labels.items() <= s.labels.items()]
    return float(found.value)


async def test_admissions_are_shown_before_the_first(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with Node(tmp_path).running() as agent:
        await trio.sleep(1)
        page = families(await agent.metrics.page())
    admission = "kubelet_topology_manager_admission_"
    assert value(page, f"{admission}requests_total") == 0
    assert value(page, f"{admission}errors_total") == 0
    assert value(page, f"{admission}duration_ms", "_count") == 0


async def test_the_page_tells_of_a_pods_start(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, pod = Node(tmp_path), make_pod()
    node.runtime.latency = {"StartContainer": 4.0}
    async with node.running(pod) as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        await trio.sleep(30)
        page = families(await agent.metrics.page())
    assert value(page, "kubelet_running_pods") == 1
    assert value(page, "kubelet_running_containers", container_state="running") == 1
    assert value(page, "kubelet_desired_pods", static="true") == 1
    assert value(page, "kubelet_desired_pods", static="") == 0
    working = {"lifecycle": "sync", "config": "desired"}
    assert value(page, "kubelet_working_pods", **working, static="true") == 1
    assert value(page, "kubelet_started_pods_total") == 1
    assert value(page, "kubelet_started_containers_total", container_type="container") == 1
    started = "kubelet_pod_start_duration_seconds"
    assert value(page, started, "_count") == 1
    assert 4 <= value(page, started, "_sum") < 10
    assert value(page, started, "_bucket", le="3") == 0
    assert value(page, started, "_bucket", le="+Inf") == 1
    # A static pod is no part of the SLI, which begins with an API object's creation.
    assert "kubelet_pod_start_sli_duration_seconds" not in page
    operations = "kubelet_runtime_operations_total"
    assert value(page, operations, operation_type="start_container") == 1
    took = "kubelet_runtime_operations_duration_seconds"
    assert value(page, took, "_sum", operation_type="start_container") == 4
    assert value(page, "kubelet_pleg_relist_duration_seconds", "_count") >= 3
    assert value(page, "kubelet_node_name", node="node") == 1
    assert value(page, "kubelet_trio_child_restarts_total", child="kubelet/runtime/pleg") == 0
    assert value(page, "kubelet_trio_channel_depth", channel="events") == 0
    assert value(page, "kubelet_trio_tasks", state="living") > 5
    assert value(page, "process_open_fds") > 3


async def test_a_runtime_that_the_go_kubelet_soon_refuses_is_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, name = Node(tmp_path), "kubelet_cri_losing_support"
    async with node.running() as agent:
        assert name not in families(await agent.metrics.page())
        node.runtime.config = None
        await trio.sleep(100)  # Version and RuntimeConfig are called once a minute
        page = families(await agent.metrics.page())
        assert value(page, name, version="1.37.0") == 1
        node.runtime.config = v1.RuntimeConfigResponse()
        await trio.sleep(100)
        assert name not in families(await agent.metrics.page())


async def test_what_fails_is_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, pod = Node(tmp_path), make_pod()
    node.runtime.faults.add(FaultKind.ERROR, "RunPodSandbox")
    async with node.running(pod) as agent:
        with trio.fail_after(120):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        page = families(await agent.metrics.page())
    errors = "kubelet_runtime_operations_errors_total"
    assert value(page, errors, operation_type="run_podsandbox") == 1
    assert value(page, "kubelet_started_pods_total") == 2
    assert value(page, "kubelet_started_pods_errors_total") == 1


async def test_a_pod_that_is_adopted_has_not_started(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, pod = Node(tmp_path), make_pod()
    for _ in range(2):
        async with node.running(pod) as agent:
            with trio.fail_after(60):
                await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
            page = families(await agent.metrics.page())
    assert "kubelet_pod_start_duration_seconds" not in page
    assert value(page, "kubelet_running_pods") == 1


async def test_probes_are_counted_and_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, pod = Node(tmp_path), make_pod(containers=PROBED)
    async with node.running(pod) as agent:
        with trio.fail_after(60):
            await agent.pods.wait_value(lambda pods: is_ready(pods.get(pod_uid(pod))))
        await trio.sleep(60)
        page = families(await agent.metrics.probes_page())
        labels = {
            "container": "web",
            "namespace": "default",
            "pod": "web-node",
            "probe_type": "Liveness",
        }
        uid = str(pod_uid(pod))
        made = value(page, "prober_probe_total", pod_uid=uid, result="successful", **labels)
        assert made >= 10
        assert value(page, "prober_probe_duration_seconds", "_count", **labels) == made
        node.feed.put()
        with trio.fail_after(120):
            await agent.pods.wait_value(lambda pods: not pods)
        assert set(families(await agent.metrics.probes_page())) == {"process_start_time_seconds"}


async def test_every_gate_has_its_stage_and_value(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    gates = partial(gate_values, {"CSIVolumeHealth": True})
    async with Node(tmp_path).running(gates=gates) as agent:
        page = families(await agent.metrics.page())
    name = "kubernetes_feature_enabled"
    assert value(page, name, name="NodeSwap", stage="") == 1
    assert value(page, name, name="KubeletPSI", stage="") == 1
    assert value(page, name, name="CSIVolumeHealth", stage="ALPHA") == 1
    assert value(page, name, name="QOSReserved", stage="ALPHA") == 0
    assert value(page, name, name="GracefulNodeShutdown", stage="BETA") == 1
    assert value(page, name, name="GitRepoVolumeDriver", stage="DEPRECATED") == 0


async def test_volumes_behind_claims_are_told(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claimed_volumes() -> list[tuple[str, str, Filesystem]]:
        await trio.lowlevel.checkpoint()
        # Two pods that share a claim tell of the same volume.
        return [("prod", "data", Filesystem(1.0, capacity=100, available=60, used=40))] * 2

    async with Node(tmp_path).running() as agent:
        monkeypatch.setattr(agent.stats, "claimed_volumes", claimed_volumes)
        page = families(await agent.metrics.page())
    labels = {"namespace": "prod", "persistentvolumeclaim": "data"}
    assert value(page, "kubelet_volume_stats_capacity_bytes", **labels) == 100
    assert value(page, "kubelet_volume_stats_used_bytes", **labels) == 40
    assert "kubelet_volume_stats_inodes" not in page


async def test_a_counter_without_labels_is_there_before_anything_was_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    async with node.running() as agent:
        text = await agent.metrics.page()
    own = {"prober_probe_total", "kubernetes_healthchecks_total"}
    for name, family in FAMILIES.items():
        is_plain = family.kind == "counter" and not family.labels and name not in own
        if is_plain and not name.endswith("_renew_errors"):
            assert len(re.findall(rf"^{name} ", text, re.MULTILINE)) == 1, name


async def test_ended_containers_are_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    node, pod = Node(tmp_path), make_pod(image="exit-3")
    async with node.running(pod) as agent:
        await trio.sleep(40)
        page = families(await agent.metrics.page())
    restarts = node.runtime.calls_of("StartContainer")
    count = value(
        page,
        "kubelet_terminated_containers_total",
        container_type="container",
        exit_code="3",
        reason="Error",
    )
    assert count == len(restarts)
