"""`kubelet-trio plan` and `diff` against a real control socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli
from kubelet_trio.cli.plan import plan_lines
from kubelet_trio.sources import FieldError, ManifestError
from tests.cli.running import ServedView, served
from tests.server.fake_view import FakeView

NOTHING: dict[str, Any] = {
    "pods": [],
    "objects": [],
    "problems": [],
    "changes": False,
    "refused": False,
}


def change(**more: Any) -> dict[str, Any]:
    return {
        "namespace": "default",
        "name": "web-node1",
        "action": "replace",
        "manifest": "/m/web.yaml",
        "uid": "u2",
        "was_uid": "u1",
        "fields": ["spec.containers[web].image"],
        "containers": [{"name": "web", "action": "restart", "why": "in a new pod"}],
        "volumes": [
            {"name": "data", "kind": "emptyDir", "action": "unmount", "loses_data": True},
            {"name": "data", "kind": "emptyDir", "action": "mount", "loses_data": False},
        ],
        "verdict": {"decision": "admitted", "reason": "", "message": "", "victims": []},
        "before": {"spec": {"containers": [{"name": "web", "image": "nginx:1"}]}},
        "after": {"spec": {"containers": [{"name": "web", "image": "nginx:2"}]}},
        **more,
    }


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    with served(FakeView(), tmp_path) as running:
        yield running


@pytest.fixture
def edit(tmp_path: Path) -> str:
    path = tmp_path / "web.yaml"
    path.write_text("kind: Pod\n")
    return str(path)


def invoke(agent: ServedView, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--root-dir", str(agent.root), *arguments])


def test_the_documents_are_sent_and_the_plan_is_shown(agent: ServedView, edit: str) -> None:
    seen: list[tuple[Any, bool]] = []

    def plan(given: bytes, with_manifests: bool) -> object:
        seen.append((json.loads(given), with_manifests))
        return {**NOTHING, "pods": [change()], "changes": True}

    agent.plan = plan
    result = invoke(agent, "plan", "-f", edit, "--prune")
    assert seen == [({"documents": {edit: "kind: Pod\n"}, "prune": True}, False)]
    assert result.output.splitlines() == [
        "± pod default/web-node1: it ends, and a new pod of the name starts",
        "    changes    spec.containers[web].image",
        "    restart    container web  (in a new pod)",
        "    unmount    volume data (emptyDir), and its content is lost",
        "    mount      volume data (emptyDir)",
        "    admission  the node admits it",
        "1 pod: 1 to replace",
    ]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (NOTHING, 0),
        ({**NOTHING, "changes": True, "pods": [change()]}, 1),
        ({**NOTHING, "changes": True, "refused": True, "pods": [change()]}, 3),
    ],
)
def test_scripts_learn_it_from_the_exit_code(
    agent: ServedView, edit: str, answer: dict[str, Any], code: int
) -> None:
    agent.plan = lambda _given, _manifests: answer
    result = invoke(agent, "plan", "-f", edit, "-o", "json")
    assert result.exit_code == code
    assert json.loads(result.output) == answer


def test_trouble_is_2(agent: ServedView, edit: str, tmp_path: Path) -> None:
    def invalid(_given: bytes, _manifests: bool) -> object:
        raise ManifestError("web.yaml", [FieldError("spec.containers", "Required value")])

    def no_directory(_given: bytes, _manifests: bool) -> object:
        raise ValueError("the agent reads no manifest directory")

    for command in ("plan", "diff"):
        for plan, text in (
            (invalid, "web.yaml: spec.containers: Required value"),
            (no_directory, "the agent reads no manifest directory"),
        ):
            agent.plan = plan
            result = invoke(agent, command, "-f", edit)
            assert result.exit_code == 2
            assert text in result.output
        assert invoke(agent, command, "-f", str(tmp_path / "none.yaml")).exit_code == 2
        assert invoke(agent, command).exit_code == 2
        nobody = CliRunner().invoke(cli, ["--root-dir", "/nowhere", command, "-f", edit])
        assert nobody.exit_code == 2


def test_diff_prints_what_differs(agent: ServedView, edit: str) -> None:
    agent.plan = lambda _given, manifests: {**NOTHING, "pods": [change()] if manifests else []}
    result = invoke(agent, "diff", "-f", edit)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[:2] == ["--- now/pod/default/web-node1", "+++ then/pod/default/web-node1"]
    assert any(line.startswith("-") and "nginx:1" in line for line in lines)
    assert any(line.startswith("+") and "nginx:2" in line for line in lines)


def test_no_difference_prints_nothing(agent: ServedView, edit: str) -> None:
    agent.plan = lambda _given, _manifests: NOTHING
    result = invoke(agent, "diff", "-f", edit)
    assert (result.exit_code, result.output) == (0, "")
    assert invoke(agent, "plan", "-f", edit).output == "nothing would change\n"


def test_a_refusal_is_loud() -> None:
    verdict = {"decision": "rejected", "reason": "OutOfcpu", "message": "too little"}
    lines = plan_lines({**NOTHING, "pods": [change(verdict=verdict)]})
    assert lines[0].endswith("it ends, and nothing takes its place")
    assert "    admission  THE NODE WOULD NOT ADMIT IT: OutOfcpu: too little" in lines


def test_objects_and_problems_are_told() -> None:
    thing = {"kind": "ConfigMap", "namespace": "default", "name": "settings", "action": "update"}
    lines = plan_lines(
        {**NOTHING, "objects": [{**thing, "used_by": ["default/web"]}], "problems": ["a \x1b["]}
    )
    assert lines == [
        "~ ConfigMap default/settings: update",
        "    its volumes are refreshed in default/web",
        "! a \\x1b[",
        "no pod would change",
    ]
