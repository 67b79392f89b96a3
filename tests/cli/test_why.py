"""`kubelet-trio why` against a real control socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.cli.why import why_lines
from tests.cli.running import ServedView, served
from tests.server.fake_view import FakeView, make_pod

NOW = 1_700_000_000.0


def answer(**changes: Any) -> dict[str, Any]:
    """Return the agent's answer for a pod in a crash loop."""
    return {
        "namespace": "default",
        "name": "web-node1",
        "uid": "u1",
        "now": NOW,
        "summary": "web: it exited with code 1",
        "wanted": {
            "state": "running",
            "source": "file",
            "manifest": "/manifests/web.yaml",
            "generation": None,
            "restart_policy": "Always",
            "containers": [{"name": "web", "kind": "main", "image": "nginx:1"}],
        },
        "actual": {
            "phase": "Running",
            "ready": False,
            "activity": "syncing",
            "since": NOW - 60,
            "sandbox": "0123456789abcdef",
            "sandbox_ready": True,
            "ips": ["10.88.0.2"],
            "doing": [],
            "containers": [
                {
                    "name": "web",
                    "state": "exited",
                    "since": NOW - 5,
                    "restarts": 1,
                    "ready": False,
                    "exit_code": 1,
                    "exit_reason": "Error",
                    "ended_at": NOW - 5,
                }
            ],
        },
        "reasons": [
            {
                "kind": "back-off",
                "text": "it exited with code 1",
                "container": "web",
                "since": NOW - 5,
                "until": NOW + 15,
                "blocks": True,
            }
        ],
        "next": [{"at": NOW + 15, "text": "container web starts again"}],
        **changes,
    }


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    with served(FakeView(make_pod()), tmp_path) as running:
        running.why = answer()
        yield running


def invoke(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--root-dir", str(root), *arguments])


def test_one_screen_tells_wanted_actual_because_and_next(agent: ServedView) -> None:
    result = invoke(agent.root, "why", "web")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "Pod default/web-node1: web: it exited with code 1"
    assert lines[2:4] == [
        "Wanted    pod  running, from /manifests/web.yaml",
        "          web  nginx:1",
    ]
    assert lines[5:8] == [
        "Actual    pod      Running, not ready; syncing for 60s",
        "          sandbox  0123456789abc runs at 10.88.0.2",
        "          web      exited, code 1 Error 5s ago, 1 restart",
    ]
    assert lines[9].startswith("Because   5s  web: it exited with code 1, until ")
    assert lines[11] == "Next      in 15s  container web starts again"


def test_json_is_the_answer_as_it_came(agent: ServedView) -> None:
    assert json.loads(invoke(agent.root, "why", "web", "-o", "json").output) == answer()


def test_describe_has_the_reasons(agent: ServedView) -> None:
    result = invoke(agent.root, "describe", "web")
    (line,) = [line for line in result.output.splitlines() if line.startswith("Why:")]
    assert line.split(None, 1)[1] == "web: it exited with code 1 (for 5s, again in 15s)"


def test_an_unknown_pod_is_refused_by_name(agent: ServedView) -> None:
    result = invoke(agent.root, "why", "other")
    assert result.exit_code == 1
    assert 'pods "other" not found' in result.output
    # It may be in a manifest that is not in force.
    assert "a manifest is not in force: web.yaml: spec.containers: Required value" in result.output


def test_a_pod_without_reasons_says_nothing_of_them(agent: ServedView) -> None:
    shown = why_lines(answer(reasons=[], next=[]))
    assert "Because   nothing" in shown
    assert "Next      nothing" in shown


def test_long_texts_are_wrapped_and_escapes_shown() -> None:
    told = "a \x1b[31m " + "long " * 60
    reason = {"kind": "step", "text": told, "container": "", "since": None, "until": None}
    shown = why_lines(answer(reasons=[{**reason, "blocks": False}]), 80)
    assert max(map(len, shown)) <= 80
    assert "\x1b" not in "".join(shown)
    assert any("(note) a \\x1b[31m long" in line for line in shown)
