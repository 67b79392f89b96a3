"""Pods' cgroups of version 2, under the driver that the run is for: systemd's or cgroupfs."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import (
    Agent,
    Containerd,
    CriClient,
    Json,
    container,
    eventually,
    forever,
    live_containers,
    pod,
)
from tests.harness.leftovers import CGROUPS
from tests.harness.machine import CGROUP_DRIVER

MI = 1 << 20
SYSTEMD = CGROUP_DRIVER == "systemd"
RESERVED = "ktreserved.slice"  # of the node's daemons


def place(containerd: Containerd, *parts: str) -> Path:
    """Return the directory of a cgroup below that of all pods."""
    names = [containerd.layout.cgroup.lstrip("/"), "kubepods", *parts]
    if SYSTEMD:
        names = [name.replace("-", "_") for name in names]
        names = ["-".join(names[: i + 1]) + ".slice" for i in range(len(names))]
    return CGROUPS.joinpath(*names)


def read(cgroup: Path, file: str) -> str:
    return (cgroup / file).read_text().strip()


def container_cgroup(cri: CriClient, container: str) -> Path:
    """Return where the runtime put a container, as the kernel says."""
    line = Path(f"/proc/{cri.container_pid(container)}/cgroup").read_text().strip()
    return CGROUPS / line.removeprefix("0::/")


def sized(name: str, **resources: Json) -> Json:
    return container(name, forever(), resources=resources)


@pytest.fixture(scope="module")
def agent(make_agent: MakeAgent) -> Agent:
    config: Json = {"podPidsLimit": 500, "systemReserved": {"cpu": "100m", "memory": "64Mi"}}
    if SYSTEMD:
        subprocess.run(["systemctl", "start", RESERVED], check=True)
        config["kubeReserved"] = {"memory": "96Mi"}
        config["kubeReservedCgroup"] = f"/{RESERVED}"
        config["enforceNodeAllocatable"] = ["pods", "kube-reserved"]
    made = make_agent(config=config)
    made.start()
    return made


def test_a_pods_cgroup_holds_its_sum_and_its_containers_theirs(
    agent: Agent, containerd: Containerd, cri: CriClient
) -> None:
    half: Json = {"requests": {"cpu": "250m"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
    agent.put(pod("sum", sized("a", **half), sized("b", **half)))
    made = agent.wait_ready("sum")
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    own = place(containerd, "burstable", f"pod{uid}")
    expected = {
        "cpu.weight": "20",  # 512 shares
        "cpu.max": "100000 100000",
        "memory.max": str(128 * MI),
        "pids.max": "500",
    }
    assert {file: read(own, file) for file in expected} == expected
    for container_id in live_containers(cri, name).values():
        inner = container_cgroup(cri, container_id)
        assert inner.parent == own
        assert read(inner, "cpu.max") == "50000 100000"
        assert read(inner, "memory.max") == str(64 * MI)
        assert read(inner, "memory.oom.group") == "1"
    best = place(containerd, "besteffort")
    assert read(best, "cpu.weight") == "1"
    if SYSTEMD:  # what systemd was not told would be lost now
        reserved = CGROUPS / RESERVED
        eventually(lambda: read(reserved, "memory.max") == str(96 * MI), what="it is held")
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        assert {file: read(own, file) for file in expected} == expected
        assert read(best, "cpu.weight") == "1"
        assert read(CGROUPS / RESERVED, "memory.max") == str(96 * MI)


def test_an_agent_that_comes_back_puts_right_what_is_wrong(
    agent: Agent, containerd: Containerd
) -> None:
    same = {"cpu": "100m", "memory": "64Mi"}
    agent.put(pod("certain", sized("a", requests=same, limits=same)))
    uid = agent.wait_ready("certain")["metadata"]["uid"]
    own = place(containerd, f"pod{uid}")
    assert read(own, "cpu.max") == "10000 100000"
    agent.stop()
    (own / "memory.max").write_text("max")
    orphan = place(containerd, "burstable", f"pod{uuid.uuid4()}")
    if SYSTEMD:
        subprocess.run(["systemctl", "start", orphan.name], check=True)
    else:
        orphan.mkdir()
    assert orphan.is_dir()
    agent.start()
    eventually(lambda: read(own, "memory.max") == str(64 * MI), what="limits are written anew")
    eventually(lambda: not orphan.exists(), what="the orphan's cgroup is removed")
    assert agent.wait_ready("certain")["metadata"]["uid"] == uid
    agent.drop("certain")
    agent.wait_gone("certain")
    eventually(lambda: not own.exists(), what="the pod's cgroup is gone")
