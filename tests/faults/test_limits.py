"""The agent's own limits: however much comes, it stays small and goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.bed import Bed, HostProcesses, MakeBed
from tests.faults.served import STORM
from tests.harness import Agent, CriClient, eventually, leftovers

MB = 1024 * 1024
LIMIT = 10 * MB  # of a manifest


# A runtime in memory, over CRI's own protocol


class Served(HostProcesses):
    """A `FakeRuntime` that is served on a socket."""

    def __init__(self, socket: Path) -> None:
        self.socket, self.storm = socket, socket.with_name(STORM)
        self.endpoint = f"unix://{socket}"


Serve = Callable[[int], tuple[Served, Agent]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve a runtime with so many dead containers, and have an agent for it."""
    made: list[tuple[subprocess.Popen[bytes], Agent]] = []

    def make(dead: int) -> tuple[Served, Agent]:
        base = tmp_path / str(len(made))
        base.mkdir()
        served = Served(base / "runtime.sock")
        command = [sys.executable, "-m", "tests.faults.served", str(served.socket), str(dead)]
        process = subprocess.Popen(command)
        agent = Agent(base / "node", served)  # type: ignore[arg-type]  # has what is asked of it
        made.append((process, agent))
        eventually(served.socket.exists, within=60, what="the runtime is served")
        return served, agent

    yield make
    for process, agent in made:
        agent.end()
        process.kill()
        process.wait()
        leftovers.unmount_under(agent.base)


def fake_pod(name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "web"}]},
    }


def test_five_thousand_dead_containers_at_the_start_are_collected(serve: Serve) -> None:
    served, agent = serve(0)
    agent.start()
    agent.put(fake_pod("steady"))
    agent.wait_ready("steady")
    small = agent.rss_bytes()
    agent.end()
    served, agent = serve(5000)
    agent.start()
    agent.put(fake_pod("steady"))
    agent.wait_ready("steady", within=180)
    peak = 0

    def is_clean() -> bool:
        nonlocal peak
        peak = max(peak, agent.rss_bytes())
        with CriClient(served.socket) as cri:
            return {s.metadata.name for s in cri.sandboxes() if s.metadata} == {"steady-node"}

    eventually(is_clean, within=300, what="the dead are gone")
    assert agent.healthz()[0] == 200
    assert peak - small < 150 * MB


def test_a_storm_of_events_holds_nobody_up(serve: Serve) -> None:
    """Half a minute's worth at a thousand a second, sent as fast as they are taken."""
    served, agent = serve(1)
    agent.start()
    agent.put(fake_pod("steady"))
    agent.wait_ready("steady")
    before = agent.rss_bytes()
    aside = served.storm.with_suffix(".new")
    aside.write_text("30000")
    aside.rename(served.storm)
    agent.put(fake_pod("beside"))
    agent.wait_ready("beside", within=120)
    eventually(lambda: not served.storm.exists(), within=300, what="all events are taken")
    assert agent.rss_bytes() - before < 40 * MB
    assert len(agent.ask("/events")["items"]) <= 1000
    with CriClient(served.socket) as cri:
        assert len([s for s in cri.sandboxes() if s.metadata and s.metadata.name != "old0"]) == 2


# Both runtimes


def padded(pod: dict[str, object], size: int) -> bytes:
    """Return a manifest of exactly so many bytes."""
    text = json.dumps(pod).encode()
    return text + b"\n" * (size - len(text))


def test_a_manifest_runs_up_to_ten_megabytes_and_no_further(bed: Bed) -> None:
    before = bed.agent.rss_bytes()
    for name, size in (("fits", LIMIT), ("over", LIMIT + 1)):
        written = bed.agent.base / "manifest.tmp"
        written.write_bytes(padded(bed.pod(name), size))
        written.rename(bed.agent.manifests / f"{name}.yaml")
    bed.agent.wait_ready("fits")

    def over_is_named() -> bool:
        return any("over.yaml" in p["where"] for p in bed.agent.problems())

    eventually(over_is_named, within=60)
    bed.wait_runs({"steady": 0, "fits": 0}, within=60)
    assert bed.agent.rss_bytes() - before < 60 * MB


ROUNDS, PODS = 20, 10


def test_two_hundred_lives_leave_nothing_open(make_bed: MakeBed) -> None:
    """Files, threads and parts of the tree come back to what they were."""
    bed = make_bed()
    rounds = ROUNDS if bed.containerd is None else 3
    bed.agent.start()
    bed.agent.put(bed.pod("steady"))
    bed.agent.wait_ready("steady")
    live_and_die(bed)  # what is made once is made now
    base = open_things(bed)
    for _ in range(rounds):
        live_and_die(bed)

    def is_back() -> bool:
        return all(now <= then + 2 for now, then in zip(open_things(bed), base, strict=True))

    eventually(is_back, within=60, what=f"{open_things(bed)} is {base} again")


def live_and_die(bed: Bed) -> None:
    names = [f"short{n}" for n in range(PODS)]
    for name in names:
        bed.agent.put(bed.pod(name))
    bed.wait_runs({"steady": 0, **dict.fromkeys(names, 0)}, within=120)
    for name in names:
        bed.agent.drop(name)
    eventually(lambda: set(bed.agent.pods()) == {"steady"}, within=120)


def open_things(bed: Bed) -> tuple[int, int, int]:
    """Count descriptors, threads and parts of the agent's tree."""
    process = Path("/proc", str(bed.agent.pid))
    descriptors, threads = (len(os.listdir(process / name)) for name in ("fd", "task"))
    return descriptors, threads, count(bed.agent.ask("/tree"))


def count(node: dict[str, object]) -> int:
    children = node.get("children") or ()
    assert isinstance(children, list | tuple)
    return 1 + sum(count(child) for child in children)
