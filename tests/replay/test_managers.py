"""CPUs, memory and topology, replayed: who gets which CPUs, and which pod is not admitted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.managers import ManagerSettings, load_managers
from kubelet_trio.recorder import Entry, Kind, RecordingError, read_recording, write_recording
from kubelet_trio.replay import Replay, replay_recording
from tests.agent.node import Node, guaranteed, make_pod
from tests.managers.node.machines import static, two_nodes
from tests.replay.recordings import record
from tests.replay.test_evictions import changed
from tests.replay.test_restarts import record_lives

SETTINGS = static(topology="single-numa-node")
FIRST, SECOND, WIDE = guaranteed("first", "3"), guaranteed("second", "2"), guaranteed("wide", "9")
SHARED = make_pod("shared")


def with_machine(node: Node, settings: ManagerSettings = SETTINGS) -> None:
    """Give the node's agents this machine, and what their checkpoints say."""
    node.managers = partial(load_managers, settings, node.base / "root", two_nodes)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02}
    with_machine(node)
    return node


@pytest.fixture
def shares(node: Node) -> Path:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(SHARED)
        await trio.sleep(10)
        node.feed.put(SHARED, FIRST, SECOND)
        await trio.sleep(20)
        node.feed.put(SHARED, SECOND, WIDE)
        await trio.sleep(30)
        assert node.status(WIDE).reason == "TopologyAffinityError"

    return record(node, story, managers=SETTINGS)


def calls(found: Replay, pod: str) -> list[str]:
    told = (d for d in found.decisions if d.kind == "call" and d.pod == f"default/{pod}-node")
    return [d.text for d in told if "CPUs" in d.text]


def test_the_same_containers_get_the_same_cpus(shares: Path) -> None:
    found = replay_recording(shares)
    found.check()
    assert found.notes == ()
    (first,), (second,) = calls(found, "first"), calls(found, "second")
    assert first.startswith("create container web, attempt 0, CPUs ")
    assert first != second
    assert len(calls(found, "shared")) >= 3  # what is shared shrinks and grows
    said = [d.text for d in found.decisions if d.pod == "default/wide-node"]
    assert any("Failed (TopologyAffinityError)" in text for text in said)


def test_other_cpus_are_found(shares: Path) -> None:
    other = static(topology="single-numa-node", reserved=frozenset({1}))
    found = replay_recording(changed(shares, "managers", _told(other)))
    assert found.divergence is not None
    assert found.divergence.recorded == "resize container web, CPUs 0,3-7,11-15"
    assert found.divergence.decided == "resize container web, CPUs 1,3-7,11-15"


def test_a_pod_that_is_admitted_now_is_found(shares: Path) -> None:
    # Without alignment it could have the CPUs of both nodes.
    other = static(topology="best-effort")
    found = replay_recording(changed(shares, "managers", _told(other)))
    assert found.divergence is not None
    assert found.divergence.pod in ("default/wide-node", "default/shared-node")
    assert found.divergence.at - found.began == pytest.approx(30, abs=2)


def _told(settings: ManagerSettings) -> object:
    return msgspec.json.decode(msgspec.json.encode(settings))


def test_the_next_agent_goes_on_from_the_checkpoint(node: Node) -> None:
    async def first(_agent: Agent) -> None:
        node.feed.put(SHARED, FIRST, SECOND)
        await trio.sleep(15)
        node.feed.put(SHARED, SECOND)
        await trio.sleep(15)

    async def second(_agent: Agent) -> None:
        node.feed.put(SHARED, SECOND)
        await trio.sleep(15)
        node.feed.put(SHARED, SECOND, FIRST)
        await trio.sleep(15)

    found = replay_recording(record_lives(node, [first, second], between=3, managers=SETTINGS))
    found.check()
    assert found.starts == 2
    assert len(calls(found, "first")) == 2


def test_an_older_recording_without_the_machine_says_so(shares: Path) -> None:
    kept = [e for e in read_recording(shares) if e.kind not in (Kind.MACHINE, Kind.CHECKPOINT)]
    path = shares.with_name("older.rec")
    write_recording(path, kept)
    found = replay_recording(path, after=25)
    assert "the machine is not in the recording" in " ".join(found.notes)


def test_devices_of_plugins_are_said_not_to_be_replayed(shares: Path) -> None:
    entries = list(read_recording(shares))
    body = b'{"Data": {"RegisteredDevices": {"example.com/gpu": ["a"]}}}'
    held = Entry(
        entries[-1].at, Kind.CHECKPOINT, "device-plugins/kubelet_internal_checkpoint", body
    )
    path = shares.with_name("devices.rec")
    write_recording(path, [*entries, held])
    found = replay_recording(path)
    found.check()
    assert "recorded devices of plugins are not replayed" in found.notes[0]
    assert "recorded devices" in found.decisions[-1].text


@pytest.mark.parametrize(
    ("kind", "key", "body"),
    [
        (Kind.MACHINE, "", b'{"cpus": 7}'),
        (Kind.MACHINE, "", b"{"),
        (Kind.CHECKPOINT, "cpu_manager_state", b"{}"),
        (Kind.CHECKPOINT, "device-plugins/x", b"{"),
    ],
)
def test_entries_of_another_form_are_refused_by_name(
    tmp_path: Path, kind: Kind, key: str, body: bytes
) -> None:
    told = {"reason": "start", "wall": 1, "node": "n", "settings": {"managers": _told(SETTINGS)}}
    start = Entry(0, Kind.START, "", msgspec.json.encode(told))
    machine = Entry(0, Kind.MACHINE, "", msgspec.json.encode(two_nodes()))
    found = [start, Entry(0, kind, key, body), machine, Entry(0, Kind.SNAPSHOT, "")]
    path = tmp_path / "bad.rec"
    write_recording(path, found)
    with pytest.raises(RecordingError, match=kind.name):
        replay_recording(path)
