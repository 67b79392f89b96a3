"""Shutdowns of the node, replayed: the order of the pods and their grace periods."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_recording, write_recording
from kubelet_trio.replay import Replay, replay_recording
from kubelet_trio.shutdown import ShutdownPeriod
from kubelet_trio.testing import Behaviour, FakeRuntime
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record
from tests.replay.test_evictions import changed, from_api
from tests.shutdown.fake import FakeLogind

PERIODS = (ShutdownPeriod(0, 20), ShutdownPeriod(1000, 8), ShutdownPeriod(2_000_000_000, 5))
PLAIN = from_api(make_pod("plain", spec=["terminationGracePeriodSeconds: 60"]))
CRITICAL = make_pod("critical", spec=["priority: 2000001000"])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime = FakeRuntime(behave=lambda _config: Behaviour(stop_takes=6.0), status_lag=0.06)
    node.runtime.latency = {"": 0.02}
    node.logind = FakeLogind()
    return node


@pytest.fixture
def shut_down(node: Node) -> Path:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(PLAIN, CRITICAL)
        await trio.sleep(30)
        node.logind.announce(True)
        await trio.sleep(3)
        node.feed.put(PLAIN, CRITICAL, make_pod("late"))
        await trio.sleep(27)
        assert not node.logind.is_held_up

    return record(node, story, shutdown=PERIODS)


def stops(found: Replay) -> list[tuple[float, str, str]]:
    told = [d for d in found.decisions if d.kind == "call" and d.text.startswith("stop container")]
    return [(round(d.at - found.began), d.pod, d.text) for d in told]


def test_pods_end_in_their_order(shut_down: Path) -> None:
    found = replay_recording(shut_down)
    found.check()
    assert stops(found) == [
        (30, "default/plain-node", "stop container web, grace 20 s"),
        (36, "default/critical-node", "stop container web, grace 5 s"),
    ]
    assert "the node shuts down" in [d.text for d in found.decisions if d.kind == "node"]
    said = [d.text for d in found.decisions if d.pod == "default/late-node"]
    assert any("Failed (NodeShutdown)" in text for text in said)


def test_other_periods_are_found(shut_down: Path) -> None:
    path = changed(shut_down, "shutdown", msgspec.to_builtins((ShutdownPeriod(0, 9), *PERIODS[1:])))
    found = replay_recording(path)
    assert found.divergence is not None
    assert found.divergence.at - found.began == pytest.approx(30, abs=1)
    assert found.divergence.recorded == "stop container web, grace 20 s"
    assert found.divergence.decided == "stop container web, grace 9 s"


def test_a_shutdown_is_called_off_and_logind_comes_and_goes(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(PLAIN, CRITICAL)
        await trio.sleep(20)
        node.logind.go_away()
        await trio.sleep(20)
        node.logind.is_away = False
        await trio.sleep(20)
        node.logind.announce(True)
        await trio.sleep(2)
        node.logind.announce(False)
        await trio.sleep(20)
        node.feed.put(PLAIN, CRITICAL, make_pod("late"))
        await trio.sleep(20)

    path = record(node, story, shutdown=PERIODS)
    found = replay_recording(path)
    found.check()
    (stop,) = stops(found)
    assert stop[:2] == (60, "default/plain-node")
    assert "its shutdown is called off" in [d.text for d in found.decisions if d.kind == "node"]
    # One entry for all attempts to reach it.
    told = [e for e in read_recording(path) if (e.kind, e.key) == (Kind.LOGIND, "open")]
    assert len(told) == 3


@pytest.mark.parametrize(
    ("key", "body"),
    [("wait_change", b"7"), ("wait_change", b'{"ok": "x"}'), ("open", b'{"error": 7}')],
)
def test_entries_of_another_form_are_refused_by_name(tmp_path: Path, key: str, body: bytes) -> None:
    start = Entry(0, Kind.START, "", b'{"reason": "start", "wall": 1, "node": "n"}')
    path = tmp_path / "bad.rec"
    write_recording(path, [start, Entry(0, Kind.SNAPSHOT, ""), Entry(1, Kind.LOGIND, key, body)])
    with pytest.raises(RecordingError, match=f"LOGIND {key}"):
        replay_recording(path)
