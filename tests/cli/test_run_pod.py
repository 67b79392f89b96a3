"""`kubelet-trio run-pod` on the process runtime: exit codes, Ctrl-C, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubelet_trio.cli.client import ClientError
from kubelet_trio.cli.run_pod import exit_code, why_stuck
from tests.daemon.running import daemon

PROGRAM = Path(sys.executable).with_name("kubelet-trio")
POD = """apiVersion: v1
kind: Pod
metadata: {name: job}
spec:
  restartPolicy: POLICY
  terminationGracePeriodSeconds: 5
  securityContext: {runAsUser: 65534}
  containers: [{name: main, image: none, command: [sh, -c, "SCRIPT"]}]
"""


@pytest.fixture
def base() -> Iterator[Path]:
    # Not pytest's own: the pod's user may not enter that.
    with tempfile.TemporaryDirectory(prefix="run-pod-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def start(base: Path, script: str, policy: str = "Never") -> subprocess.Popen[str]:
    text = POD.replace("SCRIPT", script).replace("POLICY", policy)
    (base / "pod.yaml").write_text(text)
    command = [str(PROGRAM), "--root-dir", str(base / "none"), "run-pod", str(base / "pod.yaml")]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(base)},
    )


def end(process: subprocess.Popen[str], base: Path) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    assert [path.name for path in base.iterdir()] == ["pod.yaml"]
    return process.returncode, out, err


@pytest.mark.parametrize("code", [0, 3])
def test_the_command_exits_as_its_container_does(base: Path, code: int) -> None:
    ended = end(start(base, f"echo one; echo two; exit {code}"), base)
    assert ended == (code, "one\ntwo\n", "")


def test_an_invalid_pod_could_not_start(base: Path) -> None:
    code, out, err = end(start(base, "true", policy="Sometimes"), base)
    assert (code, out) == (125, "")
    assert err.startswith("error: ")
    assert "restartPolicy" in err


def test_ctrl_c_ends_the_pod_with_its_grace(base: Path) -> None:
    process = start(
        base, "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.1; done", "Always"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    code, out, err = end(process, base)
    assert (code, out) == (130, "bye\n")
    assert "runs until Ctrl-C" in err


def test_an_agents_pod_is_its_manifest_and_goes_with_it(base: Path) -> None:
    text = POD.replace("SCRIPT", "echo hi; exit 3").replace("POLICY", "Never")
    with daemon(base) as agent:
        agent.eventually(lambda: agent.client.get("status"))
        ran = subprocess.run(
            [str(PROGRAM), "--root-dir", str(agent.root), "run-pod", "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (3, "hi\n", "")
        assert list(agent.manifests.iterdir()) == []
        assert agent.client.get("pods")["items"] == []
        agent.terminate()


def failed(**container: Any) -> dict[str, Any]:
    found = {"name": "a", "state": {"terminated": container}}
    return {"status": {"phase": "Failed", "reason": "Evicted", "containerStatuses": [found]}}


def test_the_code_is_that_of_the_first_failed_container() -> None:
    pod = failed(exitCode=4)
    pod["status"]["initContainerStatuses"] = [
        {"name": "side", "state": {"terminated": {"exitCode": 143}}}
    ]
    pod["spec"] = {"initContainers": [{"name": "side", "restartPolicy": "Always"}]}
    assert exit_code(pod) == 4
    assert exit_code({"status": {"phase": "Succeeded"}}) == 0


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (failed(exitCode=128, reason="StartError", message="no such file"), "no such file"),
        ({"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}}, "Evicted: disk"),
    ],
)
def test_a_pod_that_failed_before_it_ran_has_no_code(pod: dict[str, Any], why: str) -> None:
    with pytest.raises(ClientError, match=why):
        exit_code(pod)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ContainerCreating", ("", False)),
        ("CrashLoopBackOff", ("", False)),
        ("CreateContainerError", ("a: CreateContainerError: x", False)),
        ("ImagePullBackOff", ("a: ImagePullBackOff: x", True)),
    ],
)
def test_what_no_time_cures_is_told_at_once(reason: str, expected: tuple[str, bool]) -> None:
    waiting = {"name": "a", "state": {"waiting": {"reason": reason, "message": "x"}}}
    assert why_stuck({"status": {"containerStatuses": [waiting]}}) == expected
