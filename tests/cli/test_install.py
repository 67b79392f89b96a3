"""`install`, `uninstall` and `check` as a person runs them, below another root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kubelet_trio.cli.main import cli


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plugins = tmp_path / "usr/lib/cni"
    plugins.mkdir(parents=True)
    for name in ("bridge", "host-local", "loopback"):
        (plugins / name).touch()
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_a_plan_is_shown_and_carried_out_and_undone(root: Path) -> None:
    before = sorted(root.rglob("*"))
    at = ("--root", str(root))
    shown = run("install", *at, "--dry-run")
    assert "create  /var/lib/kubelet/config.yaml: the agent's configuration" in shown.output
    assert sorted(root.rglob("*")) == before
    asked = run("install", *at)
    assert asked.exit_code == 2
    assert "--yes" in asked.output
    assert sorted(root.rglob("*")) == before
    assert run("install", *at, "--yes").exit_code == 0
    assert (root / "var/lib/kubelet/config.yaml").exists()
    undone = run("uninstall", *at, "--yes")
    assert undone.exit_code == 0
    assert "remove  /var/lib/kubelet/config.yaml" in undone.output
    assert sorted(root.rglob("*")) == before
    assert run("uninstall", *at, "--yes").output == "Nothing is installed.\n"


def test_bad_addresses_are_refused_and_change_nothing(root: Path) -> None:
    before = sorted(root.rglob("*"))
    done = run("install", "--root", str(root), "--yes", "--pod-cidr", "10.0.0.1/8")
    assert done.exit_code == 1
    assert "error: --pod-cidr: 10.0.0.1/8 has host bits set" in done.output
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("command", [("check",), ("install", "--check")])
def test_check_exits_with_1_where_pods_could_not_run(root: Path, command: tuple[str, ...]) -> None:
    endpoint = f"--container-runtime-endpoint=unix://{root}/none.sock"
    arguments = (*command, "--root", str(root), endpoint)
    done = run(*arguments)
    assert done.exit_code == 1
    assert "PROBLEM runtime" in done.output
    assert run(*arguments, "--ignore", "all").exit_code == 0
    shown = run(*arguments, "-o", "json", "--ignore", "all").output
    checks = {check["check"]: check for check in json.loads(shown)["checks"]}
    assert checks["runtime"]["result"] == "problem"
    assert checks["runtime"]["cure"]


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_in_a_user_namespace_nothing_of_the_machine_is_installed(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_trio.cli.install.in_user_namespace", lambda: True)
    done = run(command, "--yes")
    assert done.exit_code == 1
    assert f"error: {command} is for the root of a machine" in done.output
    assert "docs/rootless.md" in done.output


@pytest.mark.parametrize("flag", ["before", "after"])
def test_check_knows_the_agent_of_another_root_directory(root: Path, flag: str) -> None:
    at = ("--root-dir", str(root / "agent"))
    endpoint = "--container-runtime-endpoint=process"
    arguments = ("check", "--root", str(root), endpoint, "-o", "json", "--ignore", "all")
    shown = run(*at, *arguments) if flag == "before" else run(*arguments, *at)
    (disk,) = (c for c in json.loads(shown.output)["checks"] if c["check"] == "disk")
    assert str(root / "agent") in disk["message"]


def test_the_unit_is_printed_for_packages() -> None:
    done = run("install", "--print-unit")
    assert "ExecStart=/usr/bin/kubelet-trio run" in done.output
