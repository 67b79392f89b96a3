"""Evictions, replayed: the same pod at the same time for the same reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent
from kubelet_trio.model import CONFIG_SOURCE, metadata, pod_uid
from kubelet_trio.pressure import (
    EvictionPolicy,
    FileSystems,
    Observation,
    manager,
    parse_thresholds,
)
from kubelet_trio.pressure.ranking import rank_for_eviction
from kubelet_trio.recorder import (
    Entry,
    Kind,
    PodFilter,
    RecordingError,
    read_body,
    read_recording,
)
from kubelet_trio.recorder import write_recording as write
from kubelet_trio.replay import Replay, replay_recording
from kubelet_trio.testing import Behaviour, FakeContainer, FakeRuntime, FaultKind
from kubelet_trio.testing.objects import FakeUsage
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record

MI = 1 << 20
HARD = EvictionPolicy(parse_thresholds({"memory.available": "100Mi"}))
SOFT = EvictionPolicy(
    parse_thresholds({}, {"memory.available": "200Mi"}, {"memory.available": 25.0}),
    max_pod_grace=7,
)


class Machine:
    """Signals that a test writes."""

    def __init__(self) -> None:
        self.memory = 1000 * MI
        self.is_broken = False

    def observe(self, places: FileSystems) -> Mapping[str, Observation]:
        if self.is_broken:
            raise TimeoutError("the disk hangs")
        return {"memory.available": Observation(self.memory, 1000 * MI)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime = FakeRuntime(write_logs=True, status_lag=0.06)
    node.runtime.latency = {"": 0.02}
    node.runtime.usage = _usage
    node.signals = Machine()
    return node


def _usage(container: FakeContainer) -> FakeUsage:
    used = container.image.removeprefix("use-")
    return FakeUsage(memory=int(used) * MI if used.isdigit() else 0)


def hungry(name: str, amount: int, spec: tuple[str, ...] = ()) -> Pod:
    """Return a pod of an API server that uses so many MiB."""
    containers = (
        f"- {{name: web, image: 'use-{amount}', resources: {{requests: {{memory: 10Mi}}}}}}"
    )
    return from_api(make_pod(name, containers=containers, spec=spec))


def from_api(pod: Pod) -> Pod:
    """Return a pod as of an API server: it is not static, so it is not critical."""
    meta = metadata(pod)
    annotations = {**(meta.annotations or {}), CONFIG_SOURCE: "api"}
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(meta, annotations=annotations)
    )


def evictions(found: Replay) -> list[tuple[float, str, str]]:
    """Return when (seconds from the beginning), which pod, and why."""
    told = [d for d in found.decisions if d.kind == "evict"]
    return [(round(d.at - found.began, 1), d.pod, d.text) for d in told]


def phase(agent: Agent, pod: Pod) -> str:
    status = agent.pods.value[pod_uid(pod)].status
    return status.phase or "" if status is not None else ""


async def ended(agent: Agent, pod: Pod) -> None:
    await agent.pods.wait_value(lambda _pods: phase(agent, pod) == "Failed")


SMALL, LARGE, MIDDLE = hungry("small", 50), hungry("large", 300), hungry("middle", 100)


@pytest.fixture
def short_of_memory(node: Node) -> Path:
    """Two of three pods have to go, one after the other."""

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(SMALL, LARGE, MIDDLE)
        await trio.sleep(33)
        node.signals.memory = 90 * MI
        with trio.fail_after(60):
            await ended(agent, LARGE)
            node.signals.memory = 95 * MI
            await ended(agent, MIDDLE)
        node.signals.memory = 700 * MI
        await trio.sleep(100)
        assert phase(agent, SMALL) == "Running"

    return record(node, story, eviction=HARD)


def test_the_same_pods_go_at_the_same_time_for_the_same_reason(short_of_memory: Path) -> None:
    found = replay_recording(short_of_memory)
    found.check()
    (first, large, why), (second, middle, _) = evictions(found)
    assert (large, middle) == ("default/large-node", "default/middle-node")
    assert 40 <= first < second <= 45
    assert why == (
        "evict for memory.available, grace 1 s: The node was low on resource: memory. "
        "Threshold quantity: 100Mi, available: 90Mi. Container web was using 300Mi, "
        "request is 10Mi, has larger consumption of memory."
    )
    assert "MemoryPressure" in [d.text for d in found.decisions if d.kind == "node"]
    assert "Failed (Evicted)" in " ".join(d.text for d in found.decisions if d.kind == "status")


def changed(path: Path, setting: str, value: Any) -> Path:
    """Return a recording as of an agent with another setting."""
    found = []
    for entry in read_recording(path):
        if entry.kind is Kind.START:
            body = read_body(entry.body)
            body["settings"][setting] = value
            entry = replace(entry, body=msgspec.json.encode(body))
        found.append(entry)
    other = path.with_name("changed.rec")
    write(other, found)
    return other


@pytest.mark.parametrize(
    ("threshold", "recorded", "decided"),
    [
        ("80Mi", "evict for memory.available", "nothing within 2.0 s"),
        ("93Mi", "evict for memory.available, grace 1 s", "Threshold quantity: 93Mi"),
    ],
)
def test_another_threshold_is_found(
    short_of_memory: Path, threshold: str, recorded: str, decided: str
) -> None:
    policy = EvictionPolicy(parse_thresholds({"memory.available": threshold}))
    path = changed(short_of_memory, "eviction", msgspec.to_builtins(policy))
    found = replay_recording(path)
    assert found.divergence is not None
    assert recorded in found.divergence.recorded
    assert decided in found.divergence.decided
    assert found.divergence.pod == "default/large-node"
    assert 40 <= found.divergence.at - found.began <= 42


def test_an_eviction_that_was_none_is_found(short_of_memory: Path) -> None:
    thresholds = parse_thresholds(
        {"memory.available": "100Mi"}, min_reclaim={"memory.available": "900Mi"}
    )
    policy = msgspec.to_builtins(EvictionPolicy(thresholds))
    found = replay_recording(changed(short_of_memory, "eviction", policy))
    assert found.divergence is not None
    assert found.divergence.pod == "default/small-node"
    assert found.divergence.recorded == "nothing of the kind"
    assert found.divergence.decided.startswith("evict for memory.available, grace 1 s")


def test_another_rank_is_found(short_of_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        manager, "rank_for_eviction", lambda *given: rank_for_eviction(*given)[::-1]
    )
    found = replay_recording(short_of_memory)
    assert found.divergence is not None
    assert found.divergence.pod == "default/small-node"
    assert found.divergence.decided.startswith("evict for memory.available")


def test_a_calm_node_notes_one_look(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(SMALL)
        for minute in range(60):
            node.signals.memory = (500 + minute) * MI
            await trio.sleep(60)
        await trio.sleep(3)
        node.signals.memory = 150 * MI  # short, for three looks
        await trio.sleep(30)
        node.signals.memory = 500 * MI
        await trio.sleep(1000)

    path = record(node, story, eviction=SOFT)
    looks = [e for e in read_recording(path) if e.kind is Kind.SIGNALS]
    assert [read_body(e.body)["is_calm"] for e in looks] == [True, False, False, False, True]
    replay_recording(path).check()


def test_a_soft_threshold_is_met_for_its_grace_period(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(SMALL, LARGE)
        await trio.sleep(33)
        node.signals.memory = 150 * MI
        await ended(agent, LARGE)
        node.signals.memory = 600 * MI
        await trio.sleep(30)

    found = replay_recording(record(node, story, eviction=SOFT))
    found.check()
    ((at, pod, why),) = evictions(found)
    assert (pod, round(at)) == ("default/large-node", 70)
    assert why.startswith("evict for memory.available, grace 7 s: ")


def test_a_node_whose_signals_are_unknown_for_a_while(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(SMALL, LARGE)
        await trio.sleep(33)
        node.signals.is_broken = True
        node.signals.memory = 90 * MI
        await trio.sleep(60)
        assert phase(agent, LARGE) == "Running"
        node.signals.is_broken = False
        await ended(agent, LARGE)
        node.signals.memory = 600 * MI
        await trio.sleep(30)

    found = replay_recording(record(node, story, eviction=HARD))
    found.check()
    ((at, _, _),) = evictions(found)
    assert round(at) == 100


def test_a_runtime_that_does_not_tell_the_usage(node: Node) -> None:
    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(SMALL, LARGE)
        await trio.sleep(33)
        node.runtime.faults.add(FaultKind.ERROR, "ListContainerStats", times=3)
        node.signals.memory = 90 * MI
        await ended(agent, LARGE)
        node.signals.memory = 600 * MI
        await trio.sleep(30)

    found = replay_recording(record(node, story, eviction=HARD))
    found.check()
    ((at, _, _),) = evictions(found)
    assert round(at) == 70


def test_a_pod_beyond_its_own_limit(node: Node) -> None:
    containers = "- {name: web, image: web, resources: {limits: {ephemeral-storage: 10Mi}}}"
    pod, other = make_pod(containers=containers), make_pod("other", containers=containers)
    pod, other = from_api(pod), from_api(other)
    full = set[str]()
    node.runtime.usage = lambda container: FakeUsage(
        disk=(50 if container.config.labels["io.kubernetes.pod.name"] in full else 1) * MI
    )

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod, other)
        await trio.sleep(47)
        full.add("web-node")
        await ended(agent, pod)
        await trio.sleep(60)

    path = record(node, story, eviction=EvictionPolicy(local_storage=True))
    found = replay_recording(path)
    found.check()
    ((_, name, why),) = evictions(found)
    assert name == "default/web-node"
    assert why.startswith("evict for ephemeralpodfs.limit, grace 1 s: Pod ephemeral local storage")
    assert len([e for e in read_recording(path) if e.kind is Kind.USAGE]) == 1


def test_dead_containers_and_images_are_removed_first(node: Node) -> None:
    def observe(places: FileSystems) -> Mapping[str, Observation]:
        left = 1000 if phase_of_disk[0] == "calm" else 50
        return {"nodefs.available": Observation(left * MI, 1000 * MI)}

    phase_of_disk = ["calm"]
    node.signals.observe = observe
    once = make_pod("once", spec=("restartPolicy: Never",))
    node.runtime = FakeRuntime(
        behave=lambda config: Behaviour(
            exits_after=5.0 if "once" in config.labels["io.kubernetes.pod.name"] else None
        ),
        write_logs=True,
        status_lag=0.06,
    )
    node.runtime.latency, node.runtime.usage = {"": 0.02}, _usage

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(SMALL, LARGE, once)
        await trio.sleep(33)
        phase_of_disk[0] = "short"
        with trio.fail_after(100):
            await ended(agent, LARGE)
        phase_of_disk[0] = "calm"
        await trio.sleep(30)

    policy = EvictionPolicy(parse_thresholds({"nodefs.available": "100Mi"}))
    found = replay_recording(record(node, story, eviction=policy))
    found.check()
    assert evictions(found)
    assert "DiskPressure" in [d.text for d in found.decisions if d.kind == "node"]


@pytest.mark.parametrize(
    ("kind", "key", "body", "says"),
    [
        (Kind.SIGNALS, "", b'{"look": 1, "observed": {"pid.available": 7}}', "SIGNALS"),
        (Kind.SIGNALS, "", b'{"look": 1, "observed": []}', "SIGNALS"),
        (Kind.SIGNALS, "", b"[1]", "SIGNALS"),
        (Kind.USAGE, "node", b'{"seconds": "a", "pods": {}}', "USAGE node"),
        (
            Kind.USAGE,
            "limits",
            b'{"seconds": 1, "pods": {"u": {"processes": "9"}}}',
            "USAGE limits",
        ),
        (Kind.DECISION, "u", b'{"what": "evict", "signal": 7}', "DECISION u"),
        (Kind.DECISION, "u", b"7", "DECISION u"),
    ],
)
def test_entries_of_another_form_are_refused_by_name(
    tmp_path: Path, kind: Kind, key: str, body: bytes, says: str
) -> None:
    start = Entry(0, Kind.START, "", b'{"reason": "start", "wall": 1, "node": "n"}')
    path = tmp_path / "bad.rec"
    write(path, [start, Entry(0, Kind.SNAPSHOT, ""), Entry(1, kind, key, body)])
    with pytest.raises(RecordingError, match=says):
        replay_recording(path)


def test_of_chosen_pods_evictions_are_repeated(short_of_memory: Path) -> None:
    """Nobody can rank pods that were left out: the replay says so, and does what was done."""
    chosen = PodFilter([pod_uid(MIDDLE)]).filter(read_recording(short_of_memory))
    path = short_of_memory.with_name("chosen.rec")
    write(path, chosen)
    found = replay_recording(path)
    found.check()
    assert [pod for _, pod, _ in evictions(found)] == ["default/middle-node"]
    assert found.notes == ("recorded evictions are repeated, not decided: other pods are left out",)
