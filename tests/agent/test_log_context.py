"""Log lines name the pod and the container that they are about, by their context."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio
from trio.testing import MockClock

from kubelet_trio.cli.logging import configure_logging
from kubelet_trio.cri import ExecResult, RuntimeCallError
from kubelet_trio.model import pod_uid, set_verbosity
from kubelet_trio.testing import FakeExec, FaultKind
from tests.agent.node import Node, make_pod

Line = dict[str, Any]
HOOKED = """\
- name: web
  image: web
  livenessProbe: {exec: {command: [check]}, periodSeconds: 5}
  lifecycle: {preStop: {exec: {command: [bye]}}}
"""


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    before, out = structlog.get_config(), io.StringIO()
    configure_logging(4, request.param, out)
    # Else loggers would keep writing to this stream in later tests.
    structlog.configure(**{**structlog.get_config(), "cache_logger_on_first_use": False})
    yield out
    set_verbosity(0)
    structlog.configure(**before)


def lines_of(log: io.StringIO) -> list[Line]:
    return [msgspec.json.decode(line) for line in log.getvalue().splitlines()]


def calls(lines: list[Line], operation: str) -> list[Line]:
    return [x for x in lines if x["event"] == "runtime.call" and x["operation"] == operation]


@pytest.mark.parametrize("log", ["json"], indirect=True)
async def test_what_is_done_for_a_container_names_it(
    tmp_path: Path, autojump_clock: MockClock, log: io.StringIO
) -> None:
    node, pod = Node(tmp_path), make_pod(containers=HOOKED)
    failed = ExecResult(b"", b"no", 1)
    node.runtime.on_exec = lambda _container, _command: FakeExec(result=failed)
    async with node.running(pod) as agent:
        await trio.sleep(60)  # the liveness probe ends it, after its failing hook
        node.feed.put()
        await agent.pods.wait_value(lambda pods: not pods)
    lines = lines_of(log)
    of_pod = {"pod": "default/web-node", "podUID": str(pod_uid(pod))}
    of_container = {**of_pod, "containerName": "web"}
    for operation in ("create_container", "start_container", "stop_container", "exec_sync"):
        found = calls(lines, operation)
        assert found, operation
        assert all(of_container.items() <= line.items() for line in found), operation
    for operation in ("run_podsandbox", "stop_podsandbox"):
        (found_one,) = calls(lines, operation)[:1]
        assert of_pod.items() <= found_one.items()
        assert "containerName" not in found_one
    probes = [line for line in calls(lines, "exec_sync") if line.get("probe") == "liveness"]
    assert probes
    for name in ("container.pre_stop_failed", "probe.result", "pod.synced"):
        (one, *_) = [line for line in lines if line["event"] == name]
        assert of_pod.items() <= one.items()
    (list_call, *_) = calls(lines, "list_podsandbox")  # of the PLEG: about no pod
    assert "pod" not in list_call


@pytest.mark.parametrize("log", ["text"], indirect=True)
async def test_text_has_the_same_keys(
    tmp_path: Path, autojump_clock: MockClock, log: io.StringIO
) -> None:
    node, pod = Node(tmp_path), make_pod()
    node.runtime.faults.add(FaultKind.ERROR, "RunPodSandbox")
    async with node.running(pod):
        await trio.sleep(5)
    (failed,) = [line for line in log.getvalue().splitlines() if " pod.step_failed " in line]
    assert f" pod.step_failed pod=default/web-node podUID={pod_uid(pod)} reason=" in failed
    assert failed.endswith(f" child=kubelet/pods/default/web-node@{pod_uid(pod)}")


async def test_a_step_that_fails_again_and_again_is_one_line_for_each_reason(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node, pod = Node(tmp_path), make_pod()

    def fails(message: str) -> None:
        node.runtime.faults.clear()
        error = RuntimeCallError("RunPodSandbox", message)
        node.runtime.faults.add(FaultKind.ERROR, "RunPodSandbox", error=error, times=None)

    fails("no network")
    with structlog.testing.capture_logs() as logs:
        async with node.running(pod):
            await trio.sleep(300)
            fails("no image")
            await trio.sleep(300)
            node.runtime.faults.clear()
            await trio.sleep(60)
            (sandbox,) = node.runtime.sandboxes.values()
            fails("no image")
            node.runtime.kill_sandbox(sandbox.id)
            await trio.sleep(300)
    assert len(node.calls("RunPodSandbox")) > 20
    told = [line["error"] for line in logs if line["event"] == "pod.step_failed"]
    assert [text.rpartition(": ")[2] for text in told] == ["no network", "no image", "no image"]


@pytest.mark.parametrize(
    ("method", "event"),
    [("ContainerStatus", "pleg.inspect_failed"), ("StopContainer", "pod.teardown_failed")],
)
async def test_what_the_runtime_refuses_again_and_again_is_one_line(
    tmp_path: Path, autojump_clock: MockClock, method: str, event: str
) -> None:
    node, pod = Node(tmp_path), make_pod()
    with structlog.testing.capture_logs() as logs:
        async with node.running(pod):
            await trio.sleep(20)
            node.runtime.faults.add(FaultKind.ERROR, method, times=None)
            if method == "StopContainer":
                node.feed.put()
            else:
                node.runtime.kill(node.runtime.alive()[0].id)
            await trio.sleep(300)
            assert len(node.calls(method)) > 20
            node.runtime.faults.clear()
            await trio.sleep(60)
            assert bool(node.runtime.alive()) == (method != "StopContainer")
    assert [line["event"] for line in logs].count(event) == 1
