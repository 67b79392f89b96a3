"""Replays of what agents have been told and have decided, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.cri import ExecResult
from kubelet_trio.model import pod_uid
from kubelet_trio.pods.plan import restarts, starts
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_recording, write_recording
from kubelet_trio.replay import Replay, replay_recording
from kubelet_trio.testing import Behaviour, FakeExec, FakeRuntime, FaultKind
from tests.agent.node import Node, make_pod
from tests.replay.recordings import entries_of, record


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02, "RunPodSandbox": 0.3}
    return node


def calls(found: Replay) -> list[str]:
    return [d.text for d in found.decisions if d.kind == "call"]


PROBES = """
- name: web
  image: web
  livenessProbe: {exec: {command: [live]}, periodSeconds: 5, failureThreshold: 2}
  readinessProbe: {exec: {command: [ready]}, periodSeconds: 3}
  startupProbe: {exec: {command: [up]}, periodSeconds: 2, failureThreshold: 10}
"""


def test_probes_find_what_they_found(node: Node) -> None:
    """A container that comes up late, is not ready for a while, and hangs at last."""
    pod = make_pod(containers=PROBES)

    def answer(container: Any, command: list[str]) -> FakeExec:
        age = node.runtime.node.clock.time() - container.started_at
        good = {"up": age > 7, "ready": not 20 < age < 31, "live": age < 60}[command[0]]
        return FakeExec(0.05, ExecResult(b"", b"", 0 if good else 1))

    node.runtime.on_exec = answer

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(160)
        assert node.runtime.starts[pod_uid(pod), "web"] >= 2

    found = replay_recording(record(node, story))
    found.check()
    assert calls(found).count("stop container web, grace 30 s") >= 1
    states = [d.text for d in found.decisions if d.kind == "status"]
    assert "Running; not ready; web running" in states
    assert "Running; ready; web running" in states


def test_a_hook_over_http_is_not_made(node: Node) -> None:
    """The replay reaches nobody, and goes on when the recorded agent did."""
    containers = """
- name: web
  image: web
  lifecycle: {preStop: {httpGet: {port: 1, host: 127.0.0.1}}}
"""
    pod = make_pod(containers=containers)

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(5)
        node.feed.put()
        await trio.sleep(40)

    found = replay_recording(record(node, story))
    found.check()
    assert "remove the sandbox" in calls(found)


def test_a_restart_although_never_is_found(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.runtime = FakeRuntime(behave=lambda _c: Behaviour(exits_after=5.0, exit_code=1))
    pod = make_pod(spec=["restartPolicy: Never"])

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(20)
        node.feed.put(pod, make_pod("other"))
        await trio.sleep(2)

    path = record(node, story)
    replay_recording(path).check()
    for module in (restarts, starts):
        monkeypatch.setattr(module, "restarts_after", lambda *_: True, raising=False)
    found = replay_recording(path)
    assert found.divergence is not None
    assert found.divergence.pod == "default/web-node"
    assert found.divergence.recorded == "nothing of the kind"
    again = ("create container web, attempt 1", "pull image web:latest")
    assert found.divergence.decided in again
    assert found.divergence.at - found.began == pytest.approx(5, abs=0.5)


def test_an_agent_that_is_killed_and_started_again(node: Node) -> None:
    pod = make_pod()

    async def live(seconds: float) -> None:
        async with node.running(pod, recorder_size=1 << 20):
            await trio.sleep(seconds)

    async def main() -> None:
        await live(0.25)  # it is killed while the sandbox starts
        await trio.sleep(3)
        await live(20)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    path = node.base / "node.rec"
    write_recording(path, entries_of(node))
    found = replay_recording(path)
    found.check()
    assert found.starts == 2
    assert calls(found)[-1] == "start container web"


@pytest.mark.parametrize("kib", [200, 218, 236, 254, 256])
def test_a_recording_whose_beginning_was_overwritten(node: Node, kib: int) -> None:
    """It begins with a later segment, as an agent that starts on what there is by then.

    Some begin between the calls that start a container.
    """
    node.runtime = FakeRuntime(
        behave=lambda _c: Behaviour(exits_after=30.0, exit_code=1), status_lag=0.06
    )
    pod = make_pod()

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(4000)

    path = record(node, story, size=kib * 1024)
    assert b'"segment"' in next(read_recording(path)).body
    found = replay_recording(path)
    found.check()
    assert "in the middle of an agent's life" in found.notes[0]
    assert "create container web" in " ".join(calls(found))


def test_a_volume_with_objects_of_the_api(node: Node) -> None:
    """The values are not in the recording, and a path of the host is none of the replay's."""
    pods = make_pod(
        spec=[
            "volumes: [{name: data, hostPath: {path: /nowhere/at/all, type: DirectoryOrCreate}}]"
        ],
        containers="- {name: web, image: web, volumeMounts: [{name: data, mountPath: /data}]}",
    )
    spec = pods.spec
    assert spec is not None

    assert spec.volumes is not None
    (volume,) = spec.volumes
    assert volume.hostPath is not None
    root = msgspec.structs.replace(volume.hostPath, path="/")
    changed = msgspec.structs.replace(volume, hostPath=root)

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(
            msgspec.structs.replace(pods, spec=msgspec.structs.replace(spec, volumes=[changed]))
        )
        await trio.sleep(10)

    found = replay_recording(record(node, story))
    found.check()
    assert not Path("/nowhere").exists()


def test_it_stops_at_a_time_and_follows_one_pod(node: Node) -> None:
    first, second = make_pod("one"), make_pod("two")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(first)
        await trio.sleep(10)
        node.feed.put(first, second)
        await trio.sleep(10)

    path = record(node, story)
    early = replay_recording(path, after=9)
    early.check()
    assert early.ended - early.began == pytest.approx(9)
    assert {d.pod for d in early.decisions if d.pod} == {"default/one-node"}
    one = replay_recording(path, pod="default/two-node")
    one.check()
    assert {d.pod for d in one.decisions if d.pod} == {"default/two-node"}


def test_a_call_that_hangs_hangs_again(node: Node) -> None:
    pod = make_pod()
    node.runtime.faults.add(FaultKind.HANG, "CreateContainer", times=1)

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(60)

    found = replay_recording(record(node, story))
    found.check()
    assert calls(found)[-1] == "create container web, attempt 0"


def entries(*given: Entry) -> Iterator[Entry]:
    yield from given


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "has no START"),
        ([Entry(0, Kind.START, "", b"{}")], r"entry 1 \(START \): .*field `reason`"),
        (
            [
                Entry(0, Kind.START, "", b'{"reason": "start", "wall": 1, "node": "n"}'),
                Entry(1, Kind.CALL, "run_pod_sandbox", b"[]"),
            ],
            r"entry 2 \(CALL run_pod_sandbox\)",
        ),
        (
            [
                Entry(0, Kind.START, "", b'{"reason": "start", "wall": 1, "node": "n"}'),
                Entry(0, Kind.WANTED, "file/u", b'{"spec": 7}'),
                Entry(0, Kind.SNAPSHOT, ""),
            ],
            "WANTED file/u",
        ),
        (
            [
                Entry(
                    0,
                    Kind.START,
                    "",
                    b'{"reason": "start", "wall": 1, "settings": {"sync_period": []}}',
                )
            ],
            "START: settings: sync_period",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(
    tmp_path: Path, given: list[Entry], says: str
) -> None:
    path = tmp_path / "bad.rec"
    write_recording(path, entries(*given))
    with pytest.raises(RecordingError, match=says):
        replay_recording(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.rec"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(RecordingError, match="this is no recording"):
        replay_recording(path)
