"""Pods' own cgroups on a real kernel: made before the pod, limited, kept over a restart, gone."""

from __future__ import annotations

import os
import uuid
from functools import partial
from pathlib import Path

import pytest

from tests.containerd.conftest import MakeAgent
from tests.harness import Agent, Containerd, Json, container, eventually, forever, is_ready, pod
from tests.harness.leftovers import CGROUPS

V1 = not (CGROUPS / "cgroup.procs").exists()
pytestmark = pytest.mark.skipif(not V1, reason="reads the files of cgroup v1")


def read(containerd: Containerd, controller: str, cgroup: str, file: str) -> str:
    root = containerd.layout.cgroup.lstrip("/")
    return (CGROUPS / controller / root / "kubepods" / cgroup / file).read_text().strip()


def places(containerd: Containerd, cgroup: str) -> list[Path]:
    root = containerd.layout.cgroup.lstrip("/")
    return [p for c in CGROUPS.iterdir() if (p := c / root / "kubepods" / cgroup).is_dir()]


def is_gone(containerd: Containerd, cgroup: str) -> bool:
    return not places(containerd, cgroup)


def sized(name: str, **resources: Json) -> Json:
    return container(name, forever(), resources=resources)


@pytest.fixture(scope="module")
def agent(make_agent: MakeAgent) -> Agent:
    made = make_agent(
        config={"podPidsLimit": 500, "systemReserved": {"cpu": "100m", "memory": "64Mi"}}
    )
    made.start()
    return made


def test_a_pods_cgroup_holds_its_sum_and_outlives_the_agent(
    agent: Agent, containerd: Containerd
) -> None:
    burstable = pod(
        "sum",
        sized("a", requests={"cpu": "250m"}, limits={"cpu": "500m", "memory": "64Mi"}),
        sized("b", requests={"cpu": "250m"}, limits={"cpu": "500m", "memory": "64Mi"}),
    )
    agent.put(burstable)
    uid = agent.wait("sum", is_ready, what="ready")["metadata"]["uid"]
    cgroup = f"burstable/pod{uid}"
    assert read(containerd, "cpu", cgroup, "cpu.shares") == "512"
    assert read(containerd, "cpu", cgroup, "cpu.cfs_period_us") == "100000"
    assert read(containerd, "cpu", cgroup, "cpu.cfs_quota_us") == "100000"
    assert read(containerd, "memory", cgroup, "memory.limit_in_bytes") == str(128 << 20)
    assert read(containerd, "pids", cgroup, "pids.max") == "500"
    # The runtime put the containers below it.
    below = (CGROUPS / "cpu" / containerd.layout.cgroup.lstrip("/") / "kubepods" / cgroup).iterdir()
    assert len([p for p in below if p.is_dir()]) >= 2
    eventually(
        lambda: read(containerd, "cpu", "burstable", "cpu.shares") == "512",
        what="the class weighs what its pods request",
    )
    assert read(containerd, "cpu", "besteffort", "cpu.shares") == "2"
    cpus = os.cpu_count() or 1
    assert read(containerd, "cpu", "", "cpu.shares") == str((cpus * 1000 - 100) * 1024 // 1000)

    # An agent that comes back takes the cgroups over, and what was wrong is put right.
    agent.stop()
    stray = uuid.uuid4()
    shares = CGROUPS / "cpu" / containerd.layout.cgroup.lstrip("/") / "kubepods" / cgroup
    (shares / "cpu.shares").write_text("3")
    (shares.parent / f"pod{stray}").mkdir()
    agent.start()
    eventually(
        lambda: read(containerd, "cpu", cgroup, "cpu.shares") == "512",
        what="limits are written anew",
    )
    eventually(
        partial(is_gone, containerd, f"burstable/pod{stray}"), what="an orphan's cgroup is removed"
    )
    assert agent.wait("sum", is_ready, what="ready")["metadata"]["uid"] == uid

    agent.drop("sum")
    agent.wait_gone("sum")
    eventually(partial(is_gone, containerd, cgroup), what="the pod's cgroup is gone")
    eventually(
        lambda: read(containerd, "cpu", "burstable", "cpu.shares") == "2",
        what="the class weighs nothing without pods",
    )


def test_the_classes_have_their_own_places(agent: Agent, containerd: Containerd) -> None:
    same = {"cpu": "100m", "memory": "64Mi"}
    agent.put(pod("certain", sized("a", requests=same, limits=same)))
    agent.put(pod("rest", sized("a")))
    certain = agent.wait("certain", is_ready, what="ready")["metadata"]["uid"]
    rest = agent.wait("rest", is_ready, what="ready")["metadata"]["uid"]
    assert read(containerd, "cpu", f"pod{certain}", "cpu.cfs_quota_us") == "10000"
    assert read(containerd, "memory", f"pod{certain}", "memory.limit_in_bytes") == str(64 << 20)
    assert read(containerd, "cpu", f"besteffort/pod{rest}", "cpu.shares") == "2"
    assert read(containerd, "cpu", f"besteffort/pod{rest}", "cpu.cfs_quota_us") == "-1"
    for name in ("certain", "rest"):
        agent.drop(name)
        agent.wait_gone(name)
    for cgroup in (f"pod{certain}", f"besteffort/pod{rest}"):
        eventually(partial(is_gone, containerd, cgroup), what=f"{cgroup} is gone")
