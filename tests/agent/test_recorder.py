"""A whole agent with a flight recorder: what its ring holds, and that it harms nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from lightkube.models.core_v1 import ConfigMap, Secret
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.model import pod_uid
from kubelet_trio.recorder import (
    Entry,
    Kind,
    Recorder,
    read_body,
    read_entries,
    segment_contents,
)
from kubelet_trio.recorder import ring as ring_module
from kubelet_trio.testing import TrioClock
from tests.agent.node import Node, make_pod

SIZE = 1 << 20


def recorder_of(agent: Agent) -> Recorder:
    taps = agent.parts.setup.taps
    assert taps is not None
    return taps.recorder


def segments_of(tmp_path: Path) -> list[tuple[Path, bytes]]:
    return list(segment_contents(tmp_path / "root" / "recorder"))


def ring(tmp_path: Path) -> list[list[Entry]]:
    """Return the entries of each segment, oldest first."""
    return [list(read_entries(data, str(path))) for path, data in segments_of(tmp_path)]


def of(entries: list[Entry], *kinds: Kind) -> list[Entry]:
    return [entry for entry in entries if entry.kind in kinds]


def told(entry: Entry) -> Any:
    return read_body(entry.body)


async def test_a_pods_life_is_in_the_ring(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = Node(tmp_path)
    pod = make_pod(image="run")
    uid = pod_uid(pod)
    async with node.running(pod, recorder_size=SIZE) as agent:
        await trio.sleep(30)
        (container,) = node.runtime.node.containers.values()
        node.runtime.node.kill(container, 7)
        await trio.sleep(30)
        node.feed.put()
        await trio.sleep(60)
        assert recorder_of(agent).lost == 0
    (entries,) = ring(tmp_path)

    assert [entry.kind for entry in entries[:2]] == [Kind.START, Kind.SNAPSHOT]
    start = told(entries[0])
    assert (start["reason"], start["node"], start["is_complete"]) == ("start", "node", True)
    assert start["settings"]["parallel_pulls"] == 2
    assert start["settings"]["node"]["host_ips"] == ["192.0.2.7"]
    assert start["wall"] + entries[0].at == pytest.approx(node.runtime.node.clock.time() - 120)

    wanted = of(entries, Kind.WANTED)
    assert [entry.key for entry in wanted] == [f"file/{uid}"] * 2
    assert told(wanted[0])["metadata"]["name"] == "web-node"
    assert wanted[1].body == b""
    assert told(of(entries, Kind.SOURCES)[0]) == {"all_ready": True, "kept": []}

    # Every call that changes something, with its answer.
    calls = {told(entry)["call"]: entry for entry in of(entries, Kind.CALL)}
    answers = {int(entry.key): told(entry) for entry in of(entries, Kind.ANSWER)}
    assert calls.keys() == answers.keys()
    made = [entry.key for entry in calls.values()]
    assert made[:4] == ["run_pod_sandbox", "pull_image", "create_container", "start_container"]
    assert made[4:6] == ["create_container", "start_container"]
    assert {"stop_container", "stop_pod_sandbox", "remove_pod_sandbox"} <= set(made)

    # Its exit, and what the agent made of it.
    first, _ = of(entries, Kind.EXIT)
    assert first.key == container.id
    assert first.at == pytest.approx(30)
    key = f"container_status:{container.id}"
    statuses = [told(e)["ok"]["status"] for e in of(entries, Kind.READ) if e.key == key]
    assert [status["exit_code"] for status in statuses][-1] == 7
    plans = [told(entry)["lines"] for entry in of(entries, Kind.PLAN)]
    assert plans[0] == ["create a sandbox, attempt 0", "start web, attempt 0"]
    assert ["start web, attempt 1"] in plans
    reported = of(entries, Kind.STATUS)
    assert reported[-1].body == b""
    counts = [
        one["restartCount"]
        for entry in reported
        if entry.body
        for one in told(entry).get("containerStatuses", ())
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 1
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)


async def test_what_does_not_change_is_not_repeated(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    async with node.running(make_pod(image="run"), recorder_size=SIZE) as agent:
        await trio.sleep(300)
        before = recorder_of(agent).entries
        await trio.sleep(600)
        assert recorder_of(agent).entries <= before + 20


async def test_a_segment_begins_with_what_an_agent_would_read_then(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    pod = make_pod(image="run")
    other = make_pod("other", "exit-1")
    async with node.running(pod, other, recorder_size=256 * 1024):
        while len(ring(tmp_path)) < 3:
            await trio.sleep(60)
            for container in list(node.runtime.node.containers.values()):
                if container.alive:
                    node.runtime.node.kill(container, 1)
    last = ring(tmp_path)[-1]
    start = told(last[0])
    assert (start["reason"], start["is_complete"]) == ("segment", True)
    end = [entry.kind for entry in last].index(Kind.SNAPSHOT)
    snapshot = last[1:end]
    assert {entry.at for entry in snapshot} == {last[0].at}
    uids = {pod_uid(pod), pod_uid(other)}
    for kind in (Kind.RECORD, Kind.PLAN, Kind.STATUS):
        assert {entry.key for entry in of(snapshot, kind)} == uids
    assert {entry.key for entry in of(snapshot, Kind.WANTED)} == {f"file/{uid}" for uid in uids}
    record = told(of(snapshot, Kind.RECORD)[0])
    assert record["pod"]["metadata"]["uid"] in uids
    lists = {e.key: told(e)["ok"]["entries"] for e in snapshot if e.key.startswith("list_")}
    assert len(lists["list_pod_sandboxes:"]) == 2
    listed = {entry["id"] for entry in lists["list_containers:"]}
    # Nothing of containers that are gone.
    reads = {e.key.partition(":")[2] for e in snapshot if e.key.startswith("container_status:")}
    assert listed <= reads
    assert len(reads) <= 6


async def test_a_restarted_agent_begins_with_the_records(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    pod = make_pod(image="run")
    async with node.running(pod, recorder_size=SIZE):
        await trio.sleep(10)
    async with node.running(pod, recorder_size=SIZE):
        await trio.sleep(10)
    first, second = ring(tmp_path)
    assert of(first, Kind.RECORD) == []
    (record,) = of(second, Kind.RECORD)
    assert record.key == pod_uid(pod)
    assert told(second[0])["reason"] == "start"


async def test_an_agent_without_one_has_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = Node(tmp_path)
    async with node.running(make_pod(image="run")) as agent:
        await trio.sleep(10)
        assert agent.parts.setup.taps is None
        assert "recorder" not in [child.name for child in agent.tree().children]
    assert not (tmp_path / "root" / "recorder").exists()


async def test_secrets_of_manifests_and_documents_are_left_out(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    env = [
        "{name: DB_PASSWORD, value: planted-env}",
        "{name: FROM, valueFrom: {secretKeyRef: {name: keys, key: token}}}",
        "{name: URL, value: 'postgres://user:planted-url@db/x'}",
    ]
    lines = [
        "- name: web",
        "  image: run",
        f"  env: [{', '.join(env)}]",
        "  command: [serve, --password, planted-flag, --token=planted-assigned, $(FROM)]",
        "  livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: Authorization, value: "
        "Basic planted-header}]}}",
        "  lifecycle: {preStop: {exec: {command: [curl, -H, 'X-Auth-Token: planted-hook']}}}",
    ]
    pod = make_pod(containers="\n".join(lines))
    documents = (
        Secret(
            metadata=ObjectMeta(name="keys", namespace="default"),
            stringData={"token": "planted-secret"},
        ),
        ConfigMap(
            metadata=ObjectMeta(name="settings", namespace="default"),
            data={"file": "planted-config"},
        ),
    )
    async with node.running(pod, objects=documents, recorder_size=SIZE):
        await trio.sleep(60)
        node.feed.put()
        await trio.sleep(60)
    (entries,) = ring(tmp_path)
    everything = b"".join(entry.key.encode() + entry.body for entry in entries)
    assert b"planted" not in everything
    # What stays says that there was something, and under which name.
    assert b"DB_PASSWORD" in everything
    secret, config_map = of(entries, Kind.OBJECT)[:2]
    assert (secret.key, config_map.key) == ("Secret/default/keys", "ConfigMap/default/settings")
    assert told(secret)["stringData"] == {"token": "{}"}
    assert told(config_map)["data"] == {"file": "{}"}


FAILURES = {"full": errno.ENOSPC, "read-only": errno.EROFS, "broken": errno.EIO}


@pytest.mark.parametrize("number", FAILURES.values(), ids=FAILURES)
async def test_a_disk_that_fails_harms_nothing_but_the_recording(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    really_open, really_write, fails = os.open, ring_module._write, True

    def fail() -> None:
        if fails:
            raise OSError(number, os.strerror(number))

    def open_file(path: Any, flags: int, *args: Any, **told: Any) -> int:
        if "/recorder/" in str(path) and number == errno.EROFS:
            fail()
        return really_open(path, flags, *args, **told)

    def write(fd: int, data: bytes | bytearray) -> None:
        fail()
        really_write(fd, data)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(ring_module, "_write", write)
    node = Node(tmp_path)
    pod = make_pod(image="run")
    async with node.running(pod, recorder_size=SIZE) as agent:
        await trio.sleep(30)
        recorder = recorder_of(agent)
        assert node.status(pod).phase == "Running"
        assert (recorder.entries, recorder.size) == (0, 0)
        lost = recorder.lost
        assert lost > 10
        fails = False
        node.feed.put()
        await trio.sleep(30)
        assert node.calls("RemovePodSandbox") == ["RemovePodSandbox"]
        assert recorder.lost == lost
    said = capsys.readouterr().out
    assert said.count("recorder.failed") == 1
    assert said.count("recorder.works_again") == 1
    (entries,) = ring(tmp_path)
    # The recording begins with what was there then, and says what is missing.
    assert of(entries, Kind.WANTED)[0].key == f"file/{pod_uid(pod)}"
    (gap,) = of(entries, Kind.GAP)
    assert told(gap)["lost"] == lost
    assert os.strerror(number) in told(gap)["reason"]


async def test_a_wall_clock_that_jumps(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = Node(tmp_path)
    async with node.running(make_pod(image="run"), recorder_size=SIZE) as agent:
        await trio.sleep(30)
        assert isinstance(agent.seams.clock, TrioClock)
        agent.seams.clock.step(100.0)
        await trio.sleep(30)
        node.feed.put()
        await trio.sleep(30)
    (entries,) = ring(tmp_path)
    (jump,) = of(entries, Kind.CLOCK)
    assert told(jump)["jump"] == pytest.approx(100.0)


async def test_the_metrics_and_the_flush(tmp_path: Path, autojump_clock: MockClock) -> None:
    node = Node(tmp_path)
    async with node.running(make_pod(image="run"), recorder_size=SIZE) as agent:
        await trio.sleep(0.1)
        before = recorder_of(agent).entries
        told = await agent.flush_recording()
        assert told["entries"] > before
        assert told["bytes"] == sum(len(data) for _, data in segments_of(tmp_path))
        page = await agent.metrics.page()
    assert f"kubelet_trio_recorder_entries_total {told['entries']}\n" in page
    assert "kubelet_trio_recorder_lost_total 0\n" in page
    assert f"kubelet_trio_recorder_bytes {told['bytes']}\n" in page


async def test_nothing_is_flushed_where_it_is_off(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path)
    async with node.running(make_pod(image="run")) as agent:
        with pytest.raises(ValueError, match="flightRecorderSize is 0"):
            await agent.flush_recording()
