"""What users ask an agent for, asked again in a replay."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from kubelet_trio.agent import Agent, core
from kubelet_trio.model import pod_uid
from kubelet_trio.pods import RestartRefusedError
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_recording, write_recording
from kubelet_trio.replay import replay_recording
from kubelet_trio.testing import Behaviour, FakeRuntime
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record

POD = make_pod()
DEBUG = {"name": "shell", "image": "shell", "env": [{"name": "API_TOKEN", "value": "hunter2"}]}


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    node = Node(tmp_path)
    node.runtime = FakeRuntime(behave=lambda _config: Behaviour(stop_takes=6.0), status_lag=0.06)
    node.runtime.latency = {"": 0.02}

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(POD)
        await trio.sleep(15)
        assert agent.restart(pod_uid(POD), "web") == ["web"]
        await trio.sleep(15)
        agent.debug(pod_uid(POD), msgspec.json.encode(DEBUG))
        await trio.sleep(15)
        agent.restart(pod_uid(POD), "")
        await trio.sleep(30)
        node.feed.put()
        await trio.sleep(0.1)
        agent.shorten_grace(pod_uid(POD), 1)
        await trio.sleep(20)

    return record(node, story)


def test_they_are_asked_for_again(asked: Path) -> None:
    found = replay_recording(asked)
    found.check()
    told = [(round(d.at - found.began), d.text) for d in found.decisions if d.kind == "asked"]
    assert told == [
        (15, "restart container web"),
        (30, "add ephemeral container shell"),
        (45, "restart the containers"),
        (75, "shorten the grace period to 1 s"),
    ]
    calls = [d.text for d in found.decisions if d.kind == "call"]
    assert "start container shell" in calls
    assert calls.count("start container web") == 3


def test_no_secret_of_theirs_is_recorded(asked: Path) -> None:
    assert b"hunter2" not in b"".join(entry.body for entry in read_recording(asked))


def test_one_that_is_refused_now_is_found(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise RestartRefusedError("never")

    monkeypatch.setattr(core.Agent, "restart", refuse)
    found = replay_recording(asked)
    assert found.divergence is not None
    assert found.divergence.recorded == "restart container web"
    assert found.divergence.decided == "refused: never"


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("restart/u", b"[]"),
        ("restart/u", b'{"container": 7}'),
        ("debug/u", b'{"manifest": {}}'),
        ("grace/u", b'{"seconds": "1"}'),
        ("other/u", b"{}"),
    ],
)
def test_entries_of_another_form_are_refused_by_name(tmp_path: Path, key: str, body: bytes) -> None:
    start = Entry(0, Kind.START, "", b'{"reason": "start", "wall": 1, "node": "n"}')
    path = tmp_path / "bad.rec"
    write_recording(path, [start, Entry(0, Kind.SNAPSHOT, ""), Entry(1, Kind.REQUEST, key, body)])
    with pytest.raises(RecordingError, match=f"REQUEST {key}"):
        replay_recording(path)
