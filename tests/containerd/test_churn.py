"""Everything at once, at random: whatever the way, the files decide what runs in the end.

`KUBELET_TRIO_SEED` repeats a run's choices (not its timing); each run prints its own.
`KUBELET_TRIO_CROWD` is how many pods end together.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import grpc

from kubelet_trio.cri import v1
from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, Containerd, CriClient, Json, container, eventually, forever, pod

STEPS = 80
CROWD = int(os.environ.get("KUBELET_TRIO_CROWD", "24"))
NAMES = [f"churn-{n}" for n in range(6)]
MEMORY: Json = {"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]}
MOUNTS = [{"name": "m", "mountPath": "/m", "subPath": "x"}]
SLOW = "trap 'sleep 0.5; exit 0' TERM; while :; do sleep 1000 & wait $!; done"

SHAPES: list[Callable[[str], Json]] = [
    pod,
    lambda name: pod(name, container("main", SLOW)),
    lambda name: pod(name, container("main", forever(), volumeMounts=MOUNTS), **MEMORY),
    lambda name: pod(
        name,
        container("main", forever()),
        container("other", forever()),
        initContainers=[
            container("first", "true"),
            container("sidecar", forever(), restartPolicy="Always"),
        ],
    ),
]


@dataclass(slots=True)
class Churn:
    """What may happen to a node, one method each."""

    agent: Agent
    containerd: Containerd
    cri: CriClient
    choose: random.Random
    wanted: dict[str, Json] = field(default_factory=dict)

    def put(self) -> None:
        name = self.choose.choice(NAMES)
        manifest = self.choose.choice(SHAPES)(name)
        manifest["metadata"]["labels"] = {"edit": str(self.choose.randrange(1000))}
        self.wanted[name] = manifest
        self.agent.put(manifest)

    def drop(self) -> None:
        if self.wanted:
            name = self.choose.choice(sorted(self.wanted))
            del self.wanted[name]
            self.agent.drop(name)

    def kill_container(self) -> None:
        running = v1.ContainerState.CONTAINER_RUNNING
        live = [c.id for c in self.cri.containers() if c.state == running]
        if live:
            with suppress(grpc.RpcError, ProcessLookupError):  # gone meanwhile
                self.cri.kill(self.choose.choice(live))

    def stop_sandbox(self) -> None:
        live = [s.id for s in self.cri.sandboxes() if s.state == v1.PodSandboxState.SANDBOX_READY]
        if live:
            with suppress(grpc.RpcError):
                self.cri.stop_sandbox(self.choose.choice(live))

    def kill_agent(self) -> None:
        self.agent.kill()
        self.agent.start()

    def restart_agent(self) -> None:
        assert self.agent.stop() == 0
        self.agent.start()

    def restart_runtime(self) -> None:
        self.containerd.stop()
        self.containerd.start()

    def pause(self) -> None:
        time.sleep(self.choose.random())

    def step(self) -> None:
        weights = {
            self.put: 6,
            self.drop: 3,
            self.kill_container: 2,
            self.stop_sandbox: 1,
            self.kill_agent: 1,
            self.restart_agent: 0.5,
            self.restart_runtime: 0.5,
            self.pause: 3,
        }
        (step,) = self.choose.choices(list(weights), list(weights.values()))
        step()
        assert self.agent.is_running

    def runs_exactly_what_is_wanted(self) -> bool:
        live: dict[str, list[str]] = {}
        for found in self.cri.containers():
            if found.state == v1.ContainerState.CONTAINER_RUNNING:
                name = found.labels["io.kubernetes.pod.name"].removesuffix("-node")
                live.setdefault(name, []).append(found.labels["io.kubernetes.container.name"])
        return {name: sorted(names) for name, names in live.items()} == {
            name: sorted(staying(manifest)) for name, manifest in self.wanted.items()
        }

    def remains(self) -> list[object]:
        """Return what is left of pods, wherever a pod leaves something."""
        agent = self.agent
        directories = (agent.root / "pods", agent.logs, agent.log_links)
        return [
            *self.cri.sandboxes(),
            *self.cri.containers(),
            *(entry for directory in directories for entry in directory.iterdir()),
            *(line for line in agent.cli("tree").splitlines() if "-node@" in line),
        ]


def staying(manifest: Json) -> list[str]:
    """Return the names of the containers that shall run in the end."""
    spec = manifest["spec"]
    sidecars = [c for c in spec.get("initContainers", ()) if "restartPolicy" in c]
    return [c["name"] for c in [*spec["containers"], *sidecars]]


def test_after_any_churn_exactly_the_wanted_pods_run(
    make_agent: MakeAgent, containerd: Containerd, cri: CriClient
) -> None:
    seed = int(os.environ.get("KUBELET_TRIO_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"KUBELET_TRIO_SEED={seed}")
    agent = make_agent(config={"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}})
    agent.start()
    churn = Churn(agent, containerd, cri, random.Random(seed))
    for _ in range(STEPS):
        churn.step()
    for name in churn.wanted:
        agent.wait_ready(name)
    eventually(churn.runs_exactly_what_is_wanted, within=30)
    eventually(lambda: sorted(agent.pods()) == sorted(churn.wanted), what="the agent to agree")
    while churn.wanted:
        churn.drop()
    eventually(lambda: not churn.remains(), within=30, what="nothing left")
    said = agent.output.read_text().splitlines()
    assert [line for line in said if "child.restart" in line] == [], "a worker crashed"


# What containers say whose start was cut in the middle.
_CUT_SHORT = ("StartError", "context canceled", "signal: killed")
_PROBES = {
    kind: {"exec": {"command": ["true"]}, "periodSeconds": 1}
    for kind in ("livenessProbe", "readinessProbe")
}


def cut_short(cri: CriClient, agent: Agent) -> list[str]:
    """Return what is said of starts and commands that were cancelled in the middle."""
    exited = v1.ContainerState.CONTAINER_EXITED
    found = []
    for one in cri.containers():
        if one.state == exited:
            with suppress(grpc.RpcError):  # removed meanwhile
                status = cri.container_status(one.id)
                if status.reason == "StartError" or status.exit_code == 128:
                    found.append(f"{status.reason} {status.exit_code}: {status.message}")
    said = agent.output.read_text().splitlines()
    return found + [line for line in said if any(words in line for words in _CUT_SHORT)]


def test_pods_deleted_at_any_moment_of_their_start_leave_no_start_error(
    make_agent: MakeAgent, cri: CriClient
) -> None:
    choose = random.Random(int(os.environ.get("KUBELET_TRIO_SEED") or 1))
    agent = make_agent()
    agent.start()
    found: list[str] = []
    for wave in range(6):
        due = []
        for number in range(15):
            name = f"brief-{wave}-{number}"
            agent.put(pod(name, container("main", forever(), **_PROBES)))
            due.append((time.monotonic() + choose.uniform(0.2, 3.0), name))
        for moment, name in sorted(due):
            time.sleep(max(0.0, moment - time.monotonic()))
            agent.drop(name)
        found += cut_short(cri, agent)
    eventually(lambda: not cri.sandboxes(), within=60, what="no sandbox left")
    assert found + cut_short(cri, agent) == []


def test_pods_with_busy_exec_probes_end_together(make_agent: MakeAgent, cri: CriClient) -> None:
    agent = make_agent()
    agent.start()
    names = [f"probed-{number}" for number in range(8)]
    for name in names:
        agent.put(pod(name, container("main", SLOW, **_PROBES)))
    running = v1.ContainerState.CONTAINER_RUNNING
    eventually(
        lambda: [c.state for c in cri.containers()].count(running) == len(names),
        within=60,
        what="all of them to run",
    )
    time.sleep(2)  # some commands are under way at any moment from here on
    for name in names:
        agent.drop(name)
    eventually(lambda: not cri.sandboxes(), within=60, what="no sandbox left")
    assert cut_short(cri, agent) == []


def test_a_crowd_ends_together_beside_three_commands_a_second(
    make_agent: MakeAgent, containerd: Containerd, cri: CriClient
) -> None:
    agent = make_agent()
    agent.start()
    before = containerd.log.stat().st_size
    asked = {"readinessProbe": _PROBES["readinessProbe"]}
    busy = pod("busy", *(container(f"c{number}", SLOW, **asked) for number in range(3)))
    names = [f"crowd-{number}" for number in range(CROWD - 1)]
    for manifest in (busy, *(pod(name, container("main", SLOW)) for name in names)):
        agent.put(manifest)
    running = v1.ContainerState.CONTAINER_RUNNING
    eventually(
        lambda: [c.state for c in cri.containers()].count(running) == CROWD + 2,
        within=30 + 3 * CROWD,
        what="all of them to run",
    )
    agent.wait_ready("busy")
    time.sleep(2)  # some command is under way at any moment from here on
    for name in ("busy", *names):
        agent.drop(name)
    eventually(lambda: not cri.sandboxes(), within=30 + 3 * CROWD, what="no sandbox left")
    assert cut_short(cri, agent) == []
    with containerd.log.open(errors="replace") as log:
        log.seek(before)
        cut = [line for line in log if "ExecSync" in line and "context canceled" in line]
    assert cut == []
