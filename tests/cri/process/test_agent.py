"""The whole agent on the embedded runtime: in this process, killed, and as an ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import ContainerStatus, Pod

import kubelet_trio
from kubelet_trio.cri.process.process_state import kill_marked
from tests.cri.process.agent_program import open_agent
from tests.cri.process.processes import processes_at

REPOSITORY = Path(kubelet_trio.__file__).parent.parent

WEB = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 5
  volumes: [{name: data, emptyDir: {}}]
  initContainers:
  - name: prepare
    image: any
    command: [sh, -c, "echo prepared > $KUBELET_TRIO_MOUNT_DATA/file"]
    volumeMounts: [{name: data, mountPath: /data}]
  - name: sidecar
    image: any
    restartPolicy: Always
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"]
  containers:
  - name: main
    image: registry.example/some/image:1
    workingDir: /data
    command: [sh, -c, "cat file; echo ready > here; setsid sleep 5000 & exec sleep 2000"]
    volumeMounts: [{name: data, mountPath: /data}]
  - name: crash
    image: any
    command: [sh, -c, "echo because > $KUBELET_TRIO_TERMINATION_LOG; exit 3"]
"""


def write_manifest(base: Path, text: str = WEB) -> Path:
    path = base / "manifests" / "web.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def containers(pod: Pod) -> dict[str, ContainerStatus]:
    assert pod.status is not None
    statuses = [*(pod.status.initContainerStatuses or ()), *(pod.status.containerStatuses or ())]
    return {status.name: status for status in statuses}


async def test_a_pod_runs_restarts_and_is_taken_down(tmp_path: Path, as_root: None) -> None:
    manifest = write_manifest(tmp_path)
    async with open_agent(tmp_path, allow_root=True) as agent:
        with trio.fail_after(20):
            pods = await agent.pods.wait_value(lambda pods: any(map(_has_crashed, pods.values())))
        (pod,) = pods.values()
        assert pod.status is not None
        assert pod.status.podIP == "127.0.0.1"
        running = containers(pod)["main"]
        assert running.state is not None
        assert running.state.running is not None
        assert running.imageID == "process:registry.example/some/image:1"
        assert (running.containerID or "").startswith("process://")
        last = containers(pod)["crash"].lastState
        assert last is not None
        assert last.terminated is not None
        assert (last.terminated.exitCode, last.terminated.message) == (3, "because\n")
        (log,) = (tmp_path / "logs").glob("*/main/0.log")
        assert log.read_bytes().endswith(b" stdout F prepared\n")
        assert len([p for p in processes_at(tmp_path) if "sleep" in p]) >= 2
        manifest.unlink()
        with trio.fail_after(20):
            await agent.pods.wait_value(lambda pods: not pods)
        assert [p for p in processes_at(tmp_path) if "sleep" in p] == []
    assert list((tmp_path / "root" / "pods").iterdir()) == []
    assert list((tmp_path / "logs").iterdir()) == []
    assert [p for p in (tmp_path / "root" / "process-runtime").iterdir() if p.is_dir()] == []


async def test_a_stopped_agent_leaves_containers_and_the_next_restarts_none(
    tmp_path: Path, as_root: None
) -> None:
    manifest = write_manifest(tmp_path)
    async with open_agent(tmp_path, allow_root=True) as agent:
        with trio.fail_after(20):
            pods = await agent.pods.wait_value(lambda pods: any(map(_is_up, pods.values())))
        (before,) = pods.values()
    alive = [p for p in processes_at(tmp_path) if "sleep" in p]
    assert len(alive) >= 2
    async with open_agent(tmp_path, allow_root=True) as agent:
        with trio.fail_after(20):
            pods = await agent.pods.wait_value(lambda pods: any(map(_is_up, pods.values())))
        (after,) = pods.values()
        for name in ("main", "sidecar"):
            assert containers(after)[name] == containers(before)[name]
        manifest.unlink()
        with trio.fail_after(20):
            await agent.pods.wait_value(lambda pods: not pods)


SIGNALLED = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  os: {name: linux}
  terminationGracePeriodSeconds: 60
  initContainers:
  - name: sidecar
    image: any
    restartPolicy: Always
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"]
  containers:
  - name: main
    image: any
    lifecycle: {stopSignal: SIGUSR1}
    command: [sh, -c, "trap 'touch %s; exit 0' USR1; trap '' TERM; while :; do sleep 1; done"]
"""


async def test_a_container_is_stopped_by_its_own_signal_if_the_gate_is_on(
    tmp_path: Path, as_root: None
) -> None:
    manifest = write_manifest(tmp_path, SIGNALLED % (tmp_path / "told"))
    async with open_agent(tmp_path, allow_root=True, stop_signals=True) as agent:
        with trio.fail_after(20):
            pods = await agent.pods.wait_value(lambda pods: any(map(_is_up, pods.values())))
        (pod,) = pods.values()
        shown = {name: status.stopSignal for name, status in containers(pod).items()}
        assert shown == {"main": "SIGUSR1", "sidecar": "SIGTERM"}
        manifest.unlink()
        with trio.fail_after(20):  # less than the grace period: nothing was killed
            await agent.pods.wait_value(lambda pods: not pods)
    assert (tmp_path / "told").exists()


def _has_crashed(pod: Pod) -> bool:
    crash = containers(pod).get("crash")
    return _is_up(pod) and crash is not None and (crash.restartCount or 0) > 0


def _is_up(pod: Pod) -> bool:
    up = [containers(pod).get(name) for name in ("main", "sidecar")]
    return all(c is not None and c.state is not None and c.state.running is not None for c in up)


# As a program of its own


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{REPOSITORY}:{sysconfig.get_paths()['purelib']}",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def python_for(uid: int) -> str | None:
    """Return an interpreter like ours that a user may run all this on, None if there is none."""
    check = ("-c", "import tests.cri.process.agent_program")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(version, path="/usr/bin:/usr/local/bin")):
        if candidate is not None:
            try:
                subprocess.run(
                    [candidate, *check],
                    cwd="/",
                    env=ENVIRONMENT,
                    user=uid,
                    group=uid,
                    extra_groups=[],
                    check=True,
                    capture_output=True,
                )
            except (OSError, subprocess.CalledProcessError):
                continue
            return candidate
    return None


class Program:
    """An agent as a program, run by a user."""

    def __init__(self, base: Path, python: str, uid: int | None) -> None:
        self.base, self._python, self._uid = base, python, uid
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.base / "pods.json").unlink(missing_ok=True)
        command = [self._python, "-m", "tests.cri.process.agent_program", str(self.base)]
        if self._uid is None:
            command.append("--allow-root")
        with (self.base / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd="/",
                env=ENVIRONMENT,
                user=self._uid,
                group=self._uid,
                extra_groups=None if self._uid is None else [],
                stdout=log,
                stderr=log,
            )

    def end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(20)
        self._process = None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever happened."""
        if self._process is not None:
            self.end(signal.SIGKILL)
        for container in (self.base / "root" / "process-runtime").glob("*/*/spec.json"):
            kill_marked(container.parent.name)

    def wait_pods(self, check: Callable[[list[Any]], bool]) -> list[Any]:
        """Wait until what the agent says of its pods satisfies `check`."""
        deadline = time.monotonic() + 30
        pods: list[Any] = []
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            path = self.base / "pods.json"
            pods = json.loads(path.read_bytes()) if path.exists() else []
            if path.exists() and check(pods):
                return pods
            time.sleep(0.02)
        raise AssertionError(f"{pods}\n{(self.base / 'agent.log').read_text()}")


@contextmanager
def directory_of(uid: int | None) -> Iterator[Path]:
    """A directory that a user owns; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "manifests").mkdir()
        if uid is not None:
            os.chown(base, uid, uid)
            os.chown(base / "manifests", uid, uid)
        base.chmod(0o755)
        yield base


def states(pods: list[Any]) -> dict[str, dict[str, Any]]:
    return {
        status["name"]: status
        for pod in pods
        for status in pod["status"].get("containerStatuses") or ()
    }


def both_up(pods: list[Any]) -> bool:
    found = states(pods)
    return bool(found.get("main", {}).get("state", {}).get("running")) and bool(
        found.get("crash", {}).get("restartCount")
    )


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_a_killed_agent_finds_its_pods_again(user: str, as_root: None) -> None:
    uid = None if user == "root" else pwd.getpwnam(user).pw_uid
    python = sys.executable if uid is None else python_for(uid)
    if python is None:
        pytest.skip(f"no Python that {user} may run")
    with ExitStack() as stack:
        base = stack.enter_context(directory_of(uid))
        manifest = write_manifest(base)
        manifest.chmod(0o644)
        agent = stack.enter_context(Program(base, python, uid))
        agent.start()
        before = states(agent.wait_pods(both_up))["main"]
        (sleeper,) = [p for p in processes_at(base) if p.endswith(": sleep 2000")]
        pid = int(sleeper.split(":")[0])
        assert Path(f"/proc/{pid}").stat().st_uid == (uid or 0)
        agent.end(signal.SIGKILL)
        time.sleep(0.3)
        assert sleeper in processes_at(base)
        agent.start()
        after = states(agent.wait_pods(both_up))["main"]
        assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
        assert sleeper in processes_at(base)
        # A container killed by somebody else is started again.
        os.kill(pid, signal.SIGKILL)
        agent.wait_pods(lambda pods: states(pods)["main"]["restartCount"] == 1 and both_up(pods))
        manifest.unlink()
        agent.wait_pods(lambda pods: not pods)
        agent.end(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while (left := processes_at(base)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == []
