"""What a shell offers at a TAB, and the man pages."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kubelet_trio.cli.main import COMMANDS, cli
from tests.cli.running import ServedView, served
from tests.server.fake_view import FakeView, make_pod


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedView]:
    spec = {"nodeName": "node1", "containers": [{"name": "job"}], "initContainers": [{"name": "i"}]}
    job = make_pod("job-node1", uid="u2", namespace="batch", spec=spec)
    with served(FakeView(make_pod(), job), tmp_path) as running:
        yield running


def offered(root: Path, *words: str) -> list[str]:
    *args, incomplete = words
    shell = ShellComplete(cli, {}, "kubelet-trio", "_KUBELET_TRIO_COMPLETE")
    found = shell.get_completions(["--root-dir", str(root), *args], incomplete)
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("des",), ["describe"]),
        (("logs", ""), ["job-node1", "web-node1"]),
        (("logs", "pod/w"), ["pod/web-node1"]),
        (("logs", "-n", "batch", ""), ["job-node1"]),
        (("logs", "-n", ""), ["batch", "default"]),
        (("logs", "job", ""), ["i", "job"]),
        (("logs", "web", "-c", "w"), ["web"]),
        (("exec", "j"), ["job-node1"]),
        (("describe", ""), ["node", "pod", "job-node1", "web-node1"]),
        (("get", "n"), ["nodes"]),
        (("get", "pods", "w"), ["web-node1"]),
        (("get", "pod/j"), ["pod/job-node1"]),
        (("pods", "--no-h"), ["--no-headers"]),
        (("run", "--eviction-h"), ["--eviction-hard"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_names_are_completed(
    agent: ServedView, words: tuple[str, ...], expected: list[str]
) -> None:
    assert offered(agent.root, *words) == expected
    assert socket.getdefaulttimeout() is None  # which every other socket would take


def test_without_an_agent_nothing_is_offered(tmp_path: Path) -> None:
    assert offered(tmp_path, "logs", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_what_the_shell_reads(shell: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["completion", shell], prog_name="kubelet-trio")
    assert shown.exit_code == 0
    assert f"_KUBELET_TRIO_COMPLETE={shell}_complete" in shown.output
    if (program := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(shown.output)
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True)


def test_there_is_a_page_for_every_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["man", str(tmp_path)], prog_name="kubelet-trio")
    assert (done.exit_code, done.output) == (0, "")
    names = {path.name for path in (tmp_path / "man1").iterdir()}
    assert names == {"kubelet-trio.1"} | {f"kubelet-trio-{c}.1" for c in COMMANDS if c != "run"}
    assert [path.name for path in (tmp_path / "man8").iterdir()] == ["kubelet-trio.8"]
    run = (tmp_path / "man8/kubelet-trio.8").read_text()
    assert "\\-\\-pod\\-manifest\\-path" in run
    assert "\\-\\-all\\-containers" in (tmp_path / "man1/kubelet-trio-logs.1").read_text()


def test_the_pages_are_roff(tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["man", str(tmp_path)], prog_name="kubelet-trio")
    for path in tmp_path.glob("man?/*"):
        lines = path.read_text().splitlines()
        title = f'.TH "{path.stem.upper()}" "{path.suffix[1:]}"'
        assert lines[0].startswith(title)
        assert lines[1] == ".SH NAME"
        assert re.fullmatch(r"kubelet-trio[\w\\-]*? \\- \S.*", lines[2].replace("\\-trio", "-trio"))
        requests = {line.split(" ")[0] for line in lines if line[:1] in (".", "'")}
        assert requests <= {".TH", ".SH", ".SS", ".TP", ".PP", ".B"}
        assert all(line for line in lines)
        # An item has its name and its text after it.
        for index, line in enumerate(lines):
            if line == ".TP":
                assert lines[index + 1].startswith(".B ")
                assert not lines[index + 2].startswith(".")
        if (mandoc := shutil.which("mandoc")) is not None:
            subprocess.run([mandoc, "-T", "lint", "-W", "error", str(path)], check=True)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(cli, ["man", f"{tmp_path}/file{os.sep}x"])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: cannot write ")
