"""Probes of whole pods under one agent, in virtual time; commands answer as a test says."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.cri import ExecResult
from kubelet_trio.model import pod_uid
from kubelet_trio.testing import Behaviour, FakeContainer, FakeExec, FaultKind
from tests.agent.node import Node, below, make_pod, ready, without_start


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@dataclass
class Answers:
    """What probes hear, by their command's first word; all is well unless told otherwise."""

    failing: set[str] = field(default_factory=set)
    asked: list[tuple[float, str, str]] = field(default_factory=list)  # time, word, container

    def __call__(self, container: FakeContainer, command: list[str]) -> FakeExec:
        self.asked.append((trio.current_time(), command[0], container.id))
        return FakeExec(result=ExecResult(b"said", b"", int(command[0] in self.failing)))

    def times(self, word: str) -> list[float]:
        return [time for time, asked, _ in self.asked if asked == word]


@pytest.fixture
def answers(node: Node) -> Answers:
    node.runtime.on_exec = Answers()
    return node.runtime.on_exec


def probe(kind: str, word: str, **fields: int) -> str:
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    return f"{kind}Probe: {{exec: {{command: [{word}]}}{more}}}"


def probed(*probes: str, spec: tuple[str, ...] = (), name: str = "web") -> Pod:
    fields = ", ".join(("name: web", "image: web", "imagePullPolicy: IfNotPresent", *probes))
    return make_pod(name, containers=f"- {{{fields}}}", spec=spec)


def labelled(pod: Pod, name: str, value: str) -> Pod:
    assert pod.metadata is not None
    metadata = msgspec.structs.replace(pod.metadata, labels={name: value})
    return msgspec.structs.replace(pod, metadata=metadata)


def messages(node: Node, reason: str) -> list[str]:
    assert node.agent is not None
    return [e.message or "" for e in node.agent.events.events() if e.reason == reason]


async def test_a_pod_is_ready_once_its_readiness_probe_says_so(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    answers.failing.add("ready")
    pod = probed(probe("readiness", "ready", periodSeconds=2, successThreshold=2))
    async with node.running(pod):
        await trio.sleep(10)
        assert not ready(node.status(pod))
        assert node.container(pod).started
        assert messages(node, "Unhealthy") == ["Readiness probe failed: said"]
        answers.failing.clear()
        cleared = trio.current_time()
        await trio.sleep(5)
        assert ready(node.status(pod))
        answers.failing.add("ready")
        await trio.sleep(3)
        assert ready(node.status(pod))  # one failure of three
        await trio.sleep(5)
        assert not ready(node.status(pod))
        assert node.container(pod).restartCount == 0
        # By the clock, and at once where the pod's status is told while it is not ready.
        later = sorted({round(t, 1) for t in answers.times("ready") if t > cleared})
        assert all(abs(b - a - 2) < 0.01 for a, b in itertools.pairwise(later))


async def test_readiness_is_asked_as_soon_as_the_container_runs(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    pod = probed(probe("readiness", "ready", periodSeconds=60))
    async with node.running():
        await trio.sleep(100)  # the agent's start, after which probes are spread, is long ago
        node.feed.put(pod)
        await trio.sleep(0.5)
        assert ready(node.status(pod))


async def test_an_unready_container_is_asked_whenever_its_pod_changes(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    answers.failing.add("ready")
    pod = probed(probe("readiness", "ready", periodSeconds=300))
    async with node.running():
        await trio.sleep(400)
        node.feed.put(pod)
        await trio.sleep(50)
        assert not ready(node.status(pod))
        answers.failing.clear()
        node.feed.put(labelled(pod, "of", "another day"))
        await trio.sleep(1)
        assert ready(node.status(pod))
        asked = len(answers.times("ready"))
        node.feed.put(labelled(pod, "of", "a third day"))
        await trio.sleep(50)
        assert len(answers.times("ready")) == asked  # what is ready waits for its tick


async def test_the_period_counts_from_a_run_that_a_change_of_the_pod_has_caused(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    answers.failing.add("ready")
    pod = probed(probe("readiness", "ready", periodSeconds=10))
    async with node.running():
        await trio.sleep(400)
        node.runtime.faults.add(FaultKind.SLOW, "PullImage", delay=6)
        node.feed.put(pod)
        await trio.sleep(30)
    first, *others = answers.times("ready")
    later = [at - first for at in others if at - first > 1]
    assert [round(at) for at in later] == [10, 20]


async def test_a_failed_liveness_probe_restarts_the_container(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    pod = probed(
        probe("liveness", "alive", periodSeconds=1, terminationGracePeriodSeconds=3),
        spec=("terminationGracePeriodSeconds: 20",),
    )
    async with node.running(pod):
        await trio.sleep(5)
        (first,) = node.runtime.alive()
        first.behaviour = Behaviour(ignores_sigterm=True)
        answers.failing.add("alive")
        failing = trio.current_time()
        await trio.sleep(4)
        # Three failures in a row, and nobody asks while it is being stopped.
        asked = [t for t in answers.times("alive") if t > failing]
        assert len(asked) == 3
        assert messages(node, "Killing") == [
            "Container web failed liveness probe, will be restarted"
        ]
        answers.failing.clear()
        await trio.sleep(4)
        (second,) = node.runtime.alive()
        assert second.id != first.id
        # The probe's own grace period: 3 s of the pod's 20.
        (stop,) = node.runtime.calls_of("StopContainer")
        start = node.runtime.calls_of("StartContainer")[-1]
        assert 2.99 < start.time - stop.time < 3.5
        assert node.container(pod).restartCount == 1
        await trio.sleep(20)
        assert node.container(pod).restartCount == 1
        assert ready(node.status(pod))
    assert node.runtime.violations == []


async def test_the_startup_probe_keeps_the_others_waiting(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    answers.failing.add("start")
    pod = probed(
        probe("startup", "start", periodSeconds=1, failureThreshold=30),
        probe("liveness", "alive", periodSeconds=1),
        probe("readiness", "ready", periodSeconds=10),
    )
    async with node.running(pod):
        await trio.sleep(12)
        assert not node.container(pod).started
        assert not node.container(pod).ready
        assert answers.times("alive") == answers.times("ready") == []
        answers.failing.clear()
        await trio.sleep(2)
        assert node.container(pod).started
        assert ready(node.status(pod))  # asked at once, not in its next period
        asked = len(answers.times("start"))
        await trio.sleep(5)
        assert len(answers.times("start")) == asked
        assert len(answers.times("alive")) >= 5


async def test_a_failed_startup_probe_restarts_the_container(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    answers.failing.add("start")
    pod = probed(probe("startup", "start", periodSeconds=1, failureThreshold=2))
    async with node.running(pod):
        await trio.sleep(5)
        assert "Container web failed startup probe, will be restarted" in messages(node, "Killing")
        assert node.container(pod).restartCount >= 1


async def test_without_restart_a_failed_liveness_probe_ends_the_pod(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    answers.failing.add("alive")
    pod = probed(
        probe("liveness", "alive", periodSeconds=1, failureThreshold=1),
        spec=("restartPolicy: Never",),
    )
    async with node.running(pod):
        await trio.sleep(10)
        assert messages(node, "Killing")[0] == "Container web failed liveness probe"
        assert node.status(pod).phase == "Failed"
        asked = len(answers.asked)
        await trio.sleep(60)
        assert len(answers.asked) == asked


async def test_the_next_container_waits_for_a_sidecar_to_have_started(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    answers.failing.add("start")
    side = probe("startup", "start", periodSeconds=1, failureThreshold=100)
    fields = f"name: side, image: web, imagePullPolicy: IfNotPresent, restartPolicy: Always, {side}"
    pod = make_pod(spec=("initContainers:", f"- {{{fields}}}"))
    async with node.running(pod):
        await trio.sleep(10)
        assert [c.name for c in node.runtime.alive()] == ["side"]
        answers.failing.clear()
        await trio.sleep(2)
        assert sorted(c.name for c in node.runtime.alive()) == ["side", "web"]
        assert ready(node.status(pod))


async def test_a_sidecar_is_restarted_by_its_liveness_probe(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    side = probe("liveness", "alive", periodSeconds=1)
    fields = f"name: side, image: web, imagePullPolicy: IfNotPresent, restartPolicy: Always, {side}"
    pod = make_pod(spec=("initContainers:", f"- {{{fields}}}"))
    async with node.running(pod):
        await trio.sleep(5)
        answers.failing.add("alive")
        await trio.sleep(3.5)
        answers.failing.clear()
        await trio.sleep(5)
        assert messages(node, "Killing") == ["Init container side failed liveness probe"]
        assert node.container(pod, "side").restartCount == 1
        assert node.container(pod).restartCount == 0


async def test_readiness_survives_the_agent(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    pod = probed(
        probe("readiness", "ready", periodSeconds=10),
        probe("startup", "start", periodSeconds=10),
    )
    async with node.running(pod):
        await trio.sleep(30)
        assert ready(node.status(pod))
        before = without_start(node.status(pod))
    asked = len(answers.times("start"))
    await trio.sleep(20)
    async with node.running(pod):
        for _ in range(40):
            await trio.sleep(0.5)
            assert without_start(node.status(pod)) == before
        assert len(answers.times("start")) == asked  # it has started
        answers.failing.add("ready")
        await trio.sleep(35)
        assert not ready(node.status(pod))


async def test_probes_that_are_adopted_are_spread_over_their_period(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    pods = [probed(probe("readiness", "ready", periodSeconds=10), name=f"p{i}") for i in range(20)]
    async with node.running(*pods):
        await trio.sleep(30)
    async with node.running(*pods):
        began = trio.current_time()
        await trio.sleep(10.1)
        asked = [t - began for t in answers.times("ready") if t >= began]
        assert 20 <= len(asked) <= 40
        assert len({round(t) for t in asked}) > 4


async def test_a_probe_that_errs_changes_nothing(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    pod = probed(probe("readiness", "ready", periodSeconds=1))
    async with node.running(pod) as agent:
        await trio.sleep(5)
        assert ready(node.status(pod))
        node.runtime.go_down()
        await trio.sleep(20)
        assert ready(node.status(pod))
        (told, *_) = messages(node, "Unhealthy")
        assert told.startswith("Readiness probe errored and resulted in unknown state: ")
        # Nor is it counted: upstream's doProbe throws its result away.
        page = await agent.metrics.probes_page()
        assert 'result="successful"' in page
        assert 'result="unknown"' not in page
        node.runtime.restart()


async def test_while_a_pod_ends_only_readiness_is_asked(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    pod = make_pod(
        containers="- {name: web, image: slow-stop-8, imagePullPolicy: IfNotPresent, "
        f"{probe('readiness', 'ready', periodSeconds=1, failureThreshold=1)}, "
        f"{probe('liveness', 'alive', periodSeconds=1)}}}",
    )
    async with node.running(pod) as agent:
        await trio.sleep(5)
        answers.failing |= {"ready", "alive"}
        ended = trio.current_time()
        node.feed.put()
        await trio.sleep(4)
        assert not ready(node.status(pod))
        assert [t for t in answers.times("alive") if t > ended + 0.1] == []
        await trio.sleep(10)
        assert max(answers.times("ready")) < ended + 9
        assert pod_uid(pod) not in agent.pods.value
    assert node.runtime.violations == []


async def test_readiness_is_told_while_another_container_is_stopped(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    # SetContainerReadiness of the Go kubelet waits for no sync: endpoints depend on it.
    pod = make_pod(
        containers="- {name: web, image: slow-stop-20, imagePullPolicy: IfNotPresent, "
        f"{probe('liveness', 'alive', periodSeconds=1, failureThreshold=1)}}}\n"
        "- {name: other, image: web, imagePullPolicy: IfNotPresent, "
        f"{probe('readiness', 'ready', periodSeconds=1, failureThreshold=1)}}}",
    )
    async with node.running(pod):
        await trio.sleep(10)
        web = node.container(pod)
        answers.failing.add("alive")
        await trio.sleep(3)
        answers.failing.add("ready")
        await trio.sleep(3)
        assert len(messages(node, "Killing")) == 1
        assert not node.container(pod, "other").ready
        assert not ready(node.status(pod))
        answers.failing.clear()
        await trio.sleep(3)
        assert node.container(pod, "other").ready
        assert node.container(pod) == web  # it is still being stopped
        await trio.sleep(20)
        assert node.container(pod).restartCount == 1
        assert ready(node.status(pod))
    assert not node.runtime.violations


async def test_probes_are_children_of_the_pods_worker(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    pod = probed(probe("readiness", "ready"), probe("liveness", "alive"))
    async with node.running(pod, make_pod("plain")) as agent:
        await trio.sleep(1)

        worker = below(agent.tree(), "pods", "default/web-node")
        assert [c.name for c in worker.children] == ["probes"]
        names = sorted(c.name for c in below(worker, "probes").children)
        assert names == ["web/liveness", "web/readiness"]
        assert below(agent.tree(), "pods", "default/plain-node").children == ()


async def test_a_probe_that_crashes_is_started_again_and_disturbs_nobody(
    node: Node, answers: Answers, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = probed(probe("readiness", "ready", periodSeconds=1))

    def crash(_container: FakeContainer, _command: list[str]) -> FakeExec:
        raise RuntimeError("a bug")

    async with node.running(pod):
        await trio.sleep(5)
        monkeypatch.setattr(node.runtime, "on_exec", crash)
        await trio.sleep(5)
        assert ready(node.status(pod))
        monkeypatch.setattr(node.runtime, "on_exec", answers)
        answers.failing.add("ready")
        await trio.sleep(40)
        assert not ready(node.status(pod))


async def test_a_probe_never_has_two_commands_at_once(
    node: Node, answers: Answers, autojump_clock: MockClock
) -> None:
    node.runtime.latency["ExecSync"] = 30.0
    pod = probed(probe("liveness", "alive", periodSeconds=1, failureThreshold=10))
    async with node.running(pod):
        await trio.sleep(110)
        calls = [call.time for call in node.runtime.calls_of("ExecSync")]
        assert len(calls) == 4
        assert all(after - before >= 30 for before, after in itertools.pairwise(calls))
        # Each was given up in time: a second's timeout, and what the runtime has to answer in.
        assert len(messages(node, "Unhealthy")) >= 1
        assert node.runtime.alive()
    assert not node.runtime.violations
