"""Lifecycle hooks of whole pods under one agent, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult, v1
from kubelet_trio.testing import FakeContainer, FakeExec, FaultKind
from tests.agent.node import Node, make_pod, ready
from tests.handlers.server import http


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def hooked(hooks: str, *more: str, spec: tuple[str, ...] = (), image: str = "web") -> Pod:
    """Return a pod of a container `web` with these hooks, and other containers."""
    web = f"name: web, image: {image}, imagePullPolicy: IfNotPresent, lifecycle: {{{hooks}}}"
    return make_pod(containers="\n".join([f"- {{{web}}}", *more]), spec=spec)


OTHER = "- {name: other, image: web, imagePullPolicy: IfNotPresent}"


def messages(node: Node, reason: str) -> list[str]:
    assert node.agent is not None
    return [e.message or "" for e in node.agent.events.events() if e.reason == reason]


def call_times(node: Node, name: str) -> list[float]:
    return [call.time for call in node.runtime.calls_of(name)]


async def test_the_next_container_waits_for_post_start(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = hooked("postStart: {sleep: {seconds: 5}}", OTHER)
    async with node.running(pod):
        await trio.sleep(10)
        first, second = call_times(node, "StartContainer")
        assert 4.99 < second - first < 5.5
        assert ready(node.status(pod))


async def test_no_container_is_running_before_its_post_start_hook_has_ended(
    node: Node, autojump_clock: MockClock
) -> None:
    # "Container Lifecycle Hooks" of the Kubernetes documentation: the status is not Running before.
    sidecar = (
        "{name: side, image: web, imagePullPolicy: IfNotPresent, restartPolicy: Always, "
        "lifecycle: {postStart: {sleep: {seconds: 10}}}}"
    )
    pod = hooked("postStart: {sleep: {seconds: 10}}", spec=(f"initContainers: [{sidecar}]",))
    async with node.running(pod):
        await trio.sleep(8)
        status = node.status(pod)
        assert (status.phase, ready(status)) == ("Pending", False)
        for name in ("side", "web"):
            state = node.container(pod, name).state
            assert state is not None
            assert state.waiting is not None
        # The sandbox is shown all the same.
        shown = {c.type: c.status for c in status.conditions or ()}
        assert shown["PodReadyToStartContainers"] == "True"
        await trio.sleep(8)
        assert node.container(pod, "side").ready
        assert not node.container(pod).started
        await trio.sleep(8)
        assert ready(node.status(pod))
    assert not node.runtime.violations


async def test_a_post_start_command_runs_as_it_is_written(
    node: Node, autojump_clock: MockClock
) -> None:
    seen: list[list[str]] = []

    def run(_container: FakeContainer, command: list[str]) -> FakeExec:
        seen.append(command)
        return FakeExec()

    node.runtime.on_exec = run
    pod = hooked("postStart: {exec: {command: [echo, $(HOME)]}}")
    async with node.running(pod):
        await trio.sleep(1)
        assert seen == [["echo", "$(HOME)"]]


async def test_a_failed_post_start_kills_the_container(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(result=ExecResult(b"", b"no", 7))
    pod = hooked("postStart: {exec: {command: [sh, -c, fails]}}", OTHER)
    async with node.running(pod):
        await trio.sleep(0.9)
        waiting = node.container(pod).state
        assert waiting is not None
        assert waiting.waiting is not None
        assert waiting.waiting.reason == "PostStartHookError"
        uid = pod.metadata.uid if pod.metadata is not None else ""
        assert waiting.waiting.message == (
            'Exec lifecycle hook ([sh -c fails]) for Container "web" in Pod '
            f"\"web-node_default({uid})\" failed - error: command 'sh -c fails' exited with 7: "
            'no, message: "no"'
        )
        assert messages(node, "FailedPostStartHook") == ["PostStartHook failed"]
        assert messages(node, "Killing") == ["FailedPostStartHook"]
        assert [c.name for c in node.runtime.alive()] == ["other"]
        await trio.sleep(10)
        assert node.container(pod).restartCount >= 1
    assert node.runtime.violations == []


async def test_a_removed_pod_does_not_wait_for_its_post_start(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = hooked("postStart: {sleep: {seconds: 25}}")
    async with node.running(pod) as agent:
        await trio.sleep(2)
        node.feed.put()
        await trio.sleep(3)
        assert agent.pods.value == {}
    assert node.leftovers() == []


async def test_pre_stop_runs_before_the_stop_and_off_the_grace(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = hooked(
        "preStop: {sleep: {seconds: 4}}",
        spec=("terminationGracePeriodSeconds: 10",),
        image="stubborn",
    )
    async with node.running(pod) as agent:
        await trio.sleep(1)
        ended = trio.current_time()
        node.feed.put()
        await trio.sleep(15)
        (stop,) = call_times(node, "StopContainer")
        assert 3.99 < stop - ended < 4.5
        assert agent.pods.value == {}
        (gone, *_) = call_times(node, "StopPodSandbox")
        assert 9.5 < gone - ended < 11  # 10 s of grace in all
        assert messages(node, "Killing") == ["Stopping container web"]


async def test_a_pre_stop_that_takes_too_long_leaves_the_least_there_is(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(takes=1000)
    pod = hooked(
        "preStop: {exec: {command: [hangs]}}",
        spec=("terminationGracePeriodSeconds: 5",),
        image="stubborn",
    )
    async with node.running(pod):
        await trio.sleep(1)
        ended = trio.current_time()
        node.feed.put()
        await trio.sleep(15)
        (stop,) = call_times(node, "StopContainer")
        assert 4.99 < stop - ended < 5.5
        (gone, *_) = call_times(node, "StopPodSandbox")
        assert 6.9 < gone - ended < 7.6


async def test_a_failed_pre_stop_is_told_and_the_stop_goes_on(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(result=ExecResult(b"", b"", 1))
    pod = hooked("preStop: {exec: {command: [fails]}}")
    async with node.running(pod) as agent:
        await trio.sleep(1)
        node.feed.put()
        await trio.sleep(1)
        assert messages(node, "FailedPreStopHook") == ["PreStopHook failed"]
        assert agent.pods.value == {}


async def test_without_grace_there_is_no_pre_stop(node: Node, autojump_clock: MockClock) -> None:
    probe = "livenessProbe: {exec: {command: [x]}, periodSeconds: 1, failureThreshold: 1}"
    seen: list[str] = []

    def run(_container: FakeContainer, command: list[str]) -> FakeExec:
        seen.append(command[0])
        return FakeExec(result=ExecResult(b"", b"", int(command[0] == "x")))

    node.runtime.on_exec = run
    pod = make_pod(
        containers="- {name: web, image: web, imagePullPolicy: IfNotPresent, "
        f"lifecycle: {{preStop: {{exec: {{command: [hook]}}}}}}, {probe}}}",
        spec=("terminationGracePeriodSeconds: 0", "restartPolicy: Never"),
    )
    async with node.running(pod):
        await trio.sleep(5)
        assert "x" in seen
        assert "hook" not in seen


async def test_hooks_of_sidecars_begin_at_once_and_their_stop_waits(
    node: Node, autojump_clock: MockClock
) -> None:
    begun: dict[str, float] = {}

    def run(container: FakeContainer, _command: list[str]) -> FakeExec:
        begun[container.name] = trio.current_time()
        return FakeExec(takes=1)

    node.runtime.on_exec = run
    hook = "lifecycle: {preStop: {exec: {command: [x]}}}"
    common = f"image: slow-stop-3, imagePullPolicy: IfNotPresent, {hook}"
    sides = [f"- {{name: {name}, restartPolicy: Always, {common}}}" for name in ("one", "two")]
    pod = make_pod(
        containers=f"- {{name: web, {common}}}",
        spec=("initContainers:", *sides),
    )
    async with node.running(pod):
        await trio.sleep(2)
        ended = trio.current_time()
        node.feed.put()
        await trio.sleep(20)
        assert {round(t - ended) for t in begun.values()} == {0}
        assert sorted(begun) == ["one", "two", "web"]
        stops = [round(t - ended) for t in call_times(node, "StopContainer")]
        assert stops == [1, 4, 7]
    assert node.runtime.violations == []


async def test_sidecars_whose_hooks_outlast_the_grace_period_stop_at_once(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(takes=1000)
    hook = "lifecycle: {preStop: {exec: {command: [x]}}}"
    common = "image: stubborn, imagePullPolicy: IfNotPresent"
    sides = [
        f"- {{name: {name}, restartPolicy: Always, {common}, {hook}}}"
        for name in ("one", "two", "three")
    ]
    pod = make_pod(containers=f"- {{name: web, {common}}}", spec=("initContainers:", *sides))
    async with node.running(pod):
        await trio.sleep(2)
        ended = trio.current_time()
        node.feed.put()
        await trio.sleep(50)
        stops = [round(t - ended) for t in call_times(node, "StopContainer")]
        assert stops == [0, 30, 30, 30]
        (gone, *_) = call_times(node, "StopPodSandbox")
        assert 31.9 < gone - ended < 33
    assert node.runtime.violations == []


async def test_a_sidecar_waits_no_longer_than_the_grace_period(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(takes=1000)
    hook = "lifecycle: {preStop: {exec: {command: [x]}}}"
    common = "image: stubborn, imagePullPolicy: IfNotPresent"
    pod = make_pod(
        containers=f"- {{name: web, {common}, {hook}}}",
        spec=(
            "terminationGracePeriodSeconds: 10",
            f"initContainers: [{{name: side, restartPolicy: Always, {common}}}]",
        ),
    )
    async with node.running(pod):
        await trio.sleep(2)
        ended = trio.current_time()
        node.feed.put()
        await trio.sleep(30)
        stops = [round(t - ended) for t in call_times(node, "StopContainer")]
        assert stops == [10, 10]
        (gone, *_) = call_times(node, "StopPodSandbox")
        assert 11.9 < gone - ended < 13


async def test_a_sidecar_does_not_wait_for_an_init_container(
    node: Node, autojump_clock: MockClock
) -> None:
    common = "image: stubborn, imagePullPolicy: IfNotPresent"
    pod = make_pod(
        containers=f"- {{name: web, {common}}}",
        spec=(
            "initContainers:",
            f"- {{name: side, restartPolicy: Always, {common}}}",
            f"- {{name: init, {common}}}",
        ),
    )
    async with node.running(pod):
        await trio.sleep(2)
        assert [c.name for c in node.runtime.alive()] == ["side", "init"]
        ended = trio.current_time()
        node.feed.put()
        await trio.sleep(40)
        assert [round(t - ended) for t in call_times(node, "StopContainer")] == [0, 0]
    assert node.runtime.violations == []


async def test_a_container_that_stopped_is_shown_while_another_is_in_its_hook(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = hooked(
        "preStop: {sleep: {seconds: 500}}", OTHER, spec=("terminationGracePeriodSeconds: 600",)
    )
    async with node.running(pod):
        await trio.sleep(2)
        assert ready(node.status(pod))
        node.feed.put()
        await trio.sleep(5)
        shown = {c.name: c for c in node.status(pod).containerStatuses or ()}
        assert {name: c.ready for name, c in shown.items()} == {"web": True, "other": False}
        ended = shown["other"].state
        assert ended is not None
        assert ended.terminated is not None
        assert not ready(node.status(pod))


async def test_a_hook_that_ran_does_not_run_again_after_a_restart_of_the_agent(
    node: Node, autojump_clock: MockClock
) -> None:
    ran: list[float] = []

    def run(_container: FakeContainer, _command: list[str]) -> FakeExec:
        ran.append(trio.current_time())
        return FakeExec(takes=1)

    node.runtime.on_exec = run
    pod = hooked("preStop: {exec: {command: [x]}}", image="slow-stop-20")
    async with node.running(pod):
        await trio.sleep(1)
        node.feed.put()
        await trio.sleep(4)
        assert len(ran) == 1
        assert len(node.runtime.alive()) == 1
    async with node.running() as agent:
        await trio.sleep(40)
        assert agent.pods.value == {}
    assert len(ran) == 1
    assert node.leftovers() == []


async def test_a_hook_that_was_cut_short_runs_again_after_a_restart_of_the_agent(
    node: Node, autojump_clock: MockClock
) -> None:
    ran: list[float] = []

    def run(_container: FakeContainer, _command: list[str]) -> FakeExec:
        ran.append(trio.current_time())
        return FakeExec(takes=5)

    node.runtime.on_exec = run
    pod = hooked("preStop: {exec: {command: [x]}}")
    async with node.running(pod):
        await trio.sleep(1)
        node.feed.put()
        await trio.sleep(2)
    async with node.running() as agent:
        await trio.sleep(20)
        assert agent.pods.value == {}
    assert len(ran) == 2


async def test_a_teardown_that_starts_over_does_not_run_the_hook_again(
    node: Node, autojump_clock: MockClock
) -> None:
    ran: list[float] = []

    def run(_container: FakeContainer, _command: list[str]) -> FakeExec:
        ran.append(trio.current_time())
        return FakeExec()

    node.runtime.on_exec = run
    async with node.running(hooked("preStop: {exec: {command: [x]}}")) as agent:
        await trio.sleep(1)
        node.runtime.faults.add(FaultKind.ERROR, "StopContainer", times=2)
        node.feed.put()
        await trio.sleep(10)
        assert agent.pods.value == {}
    assert len(ran) == 1


async def test_the_hook_of_a_pod_that_nobody_knows_is_in_its_container(
    node: Node, autojump_clock: MockClock
) -> None:
    ran: list[list[str]] = []

    def run(_container: FakeContainer, command: list[str]) -> FakeExec:
        ran.append(command)
        return FakeExec()

    node.runtime.on_exec = run
    async with node.running(hooked("preStop: {exec: {command: [from, annotation]}}")):
        await trio.sleep(1)
    for record in (node.base / "root/pods").glob("*/kubelet-trio.json"):
        record.unlink()
    async with node.running() as agent:
        await trio.sleep(10)
        assert agent.pods.value == {}
        assert not node.runtime.alive()
    assert ran == [["from", "annotation"]]


async def test_a_restarted_container_runs_its_pre_stop_too(
    node: Node, autojump_clock: MockClock
) -> None:
    seen: list[str] = []

    def run(_container: FakeContainer, command: list[str]) -> FakeExec:
        seen.append(command[0])
        code = int(command[0] == "alive" and "hook" not in seen)
        return FakeExec(result=ExecResult(b"", b"", code))

    node.runtime.on_exec = run
    pod = make_pod(
        containers="- {name: web, image: web, imagePullPolicy: IfNotPresent, "
        "lifecycle: {preStop: {exec: {command: [hook]}}}, "
        "livenessProbe: {exec: {command: [alive]}, periodSeconds: 1}}",
    )
    async with node.running(pod):
        await trio.sleep(20)
        assert seen.count("hook") == 1
        assert node.container(pod).restartCount == 1


async def test_a_stop_signal_is_ignored_while_its_gate_is_off(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = hooked("stopSignal: SIGRTMIN+3", spec=("os: {name: linux}",))
    async with node.running(pod):
        await trio.sleep(1)
        (container,) = node.runtime.alive()
        assert container.config.stop_signal == v1.Signal.RUNTIME_DEFAULT
        assert node.container(pod).stopSignal is None


async def test_a_stop_signal_reaches_the_runtime_and_the_status_with_its_gate(
    node: Node, autojump_clock: MockClock
) -> None:
    node.node_fields = {"stop_signals": True}
    sidecar = (
        "{name: helper, image: web, imagePullPolicy: IfNotPresent, restartPolicy: Always, "
        "lifecycle: {stopSignal: SIGUSR1}}"
    )
    pod = hooked(
        "stopSignal: SIGRTMIN+3", OTHER, spec=("os: {name: linux}", f"initContainers: [{sidecar}]")
    )
    async with node.running(pod):
        await trio.sleep(5)
        sent = {c.name: c.config.stop_signal for c in node.runtime.alive()}
        assert sent == {
            "helper": v1.Signal.SIGUSR1,
            "other": v1.Signal.RUNTIME_DEFAULT,
            "web": v1.Signal.SIGRTMINPLUS3,
        }
        status = node.status(pod)
        shown = [*(status.initContainerStatuses or ()), *(status.containerStatuses or ())]
        # This runtime tells nothing of a container without a signal of its own.
        assert {c.name: c.stopSignal for c in shown} == {
            "helper": "SIGUSR1",
            "other": None,
            "web": "SIGRTMIN+3",
        }


async def test_a_hook_over_https_goes_on_in_plain_http_where_that_is_spoken(
    tmp_path: Path,
) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        asked = await stream.receive_some()
        await stream.send_all(http(200) if asked.startswith(b"GET /hook ") else http(400))

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    hook = f"postStart: {{httpGet: {{scheme: HTTPS, host: 127.0.0.1, path: /hook, port: {port}}}}}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        async with Node(tmp_path).running(hooked(hook)) as agent:
            with trio.fail_after(60):
                await agent.pods.wait_value(
                    lambda pods: any(p.status and ready(p.status) for p in pods.values())
                )
            counted = agent.meter.counters("kubelet_lifecycle_handler_http_fallbacks_total")
            assert dict(counted) == {(): 1}
        nursery.cancel_scope.cancel()


async def test_what_a_hook_printed_is_told_in_part(node: Node, autojump_clock: MockClock) -> None:
    printed = b"\xff" * 3_000_000
    node.runtime.on_exec = lambda _c, _cmd: FakeExec(result=ExecResult(printed, printed, 7))
    pod = hooked("postStart: {exec: {command: [sh, -c, fails]}}")
    async with node.running(pod):
        await trio.sleep(0.9)
        waiting = node.container(pod).state
        assert waiting is not None
        assert waiting.waiting is not None
        message = waiting.waiting.message or ""
        assert "exited with 7: " in message
        assert len(message.encode()) <= 10 * 1024
