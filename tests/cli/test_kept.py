from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from kubelet_trio.cli.describe import describe_pod
from kubelet_trio.cli.kept import kept_pods
from kubelet_trio.cli.main import cli
from kubelet_trio.server import AgentStatus, ProblemInfo, RuntimeInfo, SourceInfo
from tests.cli.running import served
from tests.server.fake_view import FakeView, make_pod

WHERE = "/m/a.yaml:8:7: spec.containers[0].imagee"


class Broken(FakeView):
    """An agent of which one manifest has errors."""

    def status(self) -> AgentStatus:
        (name,) = (f"{p.metadata.namespace}/{p.metadata.name}" for p in self.pods.value.values())
        problems = tuple(ProblemInfo(f"{WHERE}{n}", "unknown field", (name,)) for n in ("", "2"))
        source = SourceInfo("file:/m", delivered=True, pods=1, problems=problems)
        return AgentStatus("node1", "/r", 0.0, RuntimeInfo("e"), (source,))


def test_only_problems_that_keep_pods_are_of_pods() -> None:
    problem = {"where": "/m/b.yaml:1:1", "message": "x\x1b[0m", "pods": ["default/b"]}
    status = {"sources": [{"problems": [{"where": "/m", "message": "gone"}, problem]}]}
    assert kept_pods(status) == {"default/b": ["/m/b.yaml:1:1: x\\x1b[0m"]}
    assert kept_pods({}) == {}


def test_a_list_of_pods_says_which_do_not_follow_their_manifest(tmp_path: Path) -> None:
    with served(Broken(make_pod()), tmp_path):
        result = CliRunner().invoke(cli, ["--root-dir", str(tmp_path), "pods"])
        described = CliRunner().invoke(cli, ["--root-dir", str(tmp_path), "describe", "pod", "web"])
        machine = CliRunner().invoke(cli, ["--root-dir", str(tmp_path), "pods", "-o", "json"])
    assert result.exit_code == 0
    assert result.stderr.endswith(f" runs on as it was: {WHERE}: unknown field (and 1 more)\n")
    assert machine.stderr == ""
    assert f"Manifest Errors:  {WHERE}: unknown field\n" in described.output
    assert f"{WHERE}2: unknown field\n" in described.output


def test_a_pod_with_a_good_manifest_has_no_such_line() -> None:
    assert "Manifest Errors" not in describe_pod({"metadata": {"name": "x"}}, [], 0.0)
