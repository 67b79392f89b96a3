"""`kubelet-trio top` against a real control socket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.cli.top import cores, mebibytes, percent
from tests.cli.running import ServedView, served
from tests.server.fake_view import FakeView, make_pod

MIB = 2**20


def used(nanocores: int | None, mebibytes: int | None) -> dict[str, Any]:
    cpu = {} if nanocores is None else {"usageNanoCores": nanocores}
    memory = {} if mebibytes is None else {"workingSetBytes": mebibytes * MIB}
    return {"cpu": cpu, "memory": memory}


def pod(namespace: str, name: str, *containers: dict[str, Any], **use: Any) -> dict[str, Any]:
    return {
        "podRef": {"namespace": namespace, "name": name, "uid": f"uid-{name}"},
        "containers": list(containers),
        **use,
    }


SUMMARY = {
    "node": {
        "nodeName": "edge-1",
        "cpu": {"usageNanoCores": (os.cpu_count() or 1) * 250_000_000},
        "memory": {"workingSetBytes": 1024 * MIB, "availableBytes": 3072 * MIB},
    },
    "pods": [
        pod(
            "default",
            "web-edge-1",
            {"name": "web", **used(9_000_001, 20)},
            {"name": "log", **used(1_000_000, 70)},
            **used(10_000_001, 90),
        ),
        pod("batch", "job-edge-1", {"name": "job", **used(None, None)}, **used(200_000_000, 8)),
    ],
}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedView]:
    monkeypatch.setattr("kubelet_trio.cli.top._APART", 0.0)
    with served(FakeView(), tmp_path) as running:
        running.summary = msgspec.json.encode(SUMMARY)
        yield running


def invoke(agent: ServedView, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--root-dir", str(agent.root), "top", *words])


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()]


def test_pods_are_listed_by_name_with_what_they_use(agent: ServedView) -> None:
    assert rows(invoke(agent)) == [
        ["NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)"],
        ["batch", "job-edge-1", "200m", "8Mi"],
        ["default", "web-edge-1", "11m", "90Mi"],
    ]


def test_pods_are_chosen_by_namespace_and_sorted_by_use(agent: ServedView) -> None:
    assert [row[1] for row in rows(invoke(agent, "pods", "-n", "batch"))[1:]] == ["job-edge-1"]
    by_memory = rows(invoke(agent, "--sort-by", "memory"))
    assert [row[1] for row in by_memory[1:]] == ["web-edge-1", "job-edge-1"]
    by_cpu = rows(invoke(agent, "--sort-by", "cpu"))
    assert [row[1] for row in by_cpu[1:]] == ["job-edge-1", "web-edge-1"]


def test_containers_have_a_line_each_and_what_is_not_known_is_said(agent: ServedView) -> None:
    assert rows(invoke(agent, "pods", "--containers")) == [
        ["NAMESPACE", "POD", "NAME", "CPU(cores)", "MEMORY(bytes)"],
        ["batch", "job-edge-1", "job", "<unknown>", "<unknown>"],
        ["default", "web-edge-1", "log", "1m", "70Mi"],
        ["default", "web-edge-1", "web", "10m", "20Mi"],
    ]


def test_pods_are_chosen_by_name_and_label(agent: ServedView) -> None:
    labels = {"name": "web-edge-1", "namespace": "default", "uid": "uid-web-edge-1"}
    spec = {"nodeName": "edge-1", "containers": []}
    web = make_pod(metadata={**labels, "labels": {"app": "web"}}, spec=spec)
    agent.do(lambda: agent.view.put(web))
    for words in (("pod", "web"), ("po", "web-edge-1"), ("pods", "-l", "app=web")):
        shown = invoke(agent, *words, "-A", "--no-headers")
        assert rows(shown) == [["default", "web-edge-1", "11m", "90Mi"]]
    assert invoke(agent, "pod", "nosuch").exit_code == 1
    assert rows(invoke(agent, "nodes", "edge-1"))[1][0] == "edge-1"
    other = invoke(agent, "node", "other")
    assert other.output == 'error: nodes "other" not found: this agent is "edge-1"\n'


def test_the_node_is_shown_with_its_share_of_the_machine(agent: ServedView) -> None:
    header, line = rows(invoke(agent, "node"))
    assert header == ["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]
    assert line == ["edge-1", f"{(os.cpu_count() or 1) * 250}m", "25%", "1024Mi", "25%"]


def test_other_forms_have_the_figures_as_they_are(agent: ServedView) -> None:
    found = msgspec.json.decode(invoke(agent, "-o", "json").output)
    assert [each["podRef"]["name"] for each in found] == ["job-edge-1", "web-edge-1"]
    assert "nodeName: edge-1\n" in invoke(agent, "node", "-o", "yaml").output


def test_no_pods_are_no_failure(agent: ServedView) -> None:
    result = invoke(agent, "-n", "none")
    assert (result.exit_code, result.output) == (0, "No resources found\n")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (cores(0), "0m"),
        (cores(1), "1m"),
        (cores(1_500_000_000), "1500m"),
        (cores(None), "<unknown>"),
        (mebibytes(MIB - 1), "0Mi"),
        (mebibytes(None), "<unknown>"),
        (percent(1, 3), "33%"),
        (percent(1, 0), "<unknown>"),
        (percent(None, 3), "<unknown>"),
    ],
)
def test_figures_are_shown_as_kubectl_does(shown: str, expected: str) -> None:
    assert shown == expected
