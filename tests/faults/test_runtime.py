"""A container runtime that hangs, goes away, comes back and forgets."""

from __future__ import annotations

import time

import pytest

from tests.faults.bed import Bed
from tests.harness import CriClient, eventually, live_containers
from tests.harness.hang import hang, resume


@pytest.fixture
def remote(bed: Bed) -> Bed:
    if bed.containerd is None:
        pytest.skip("the embedded runtime is part of the agent")
    return bed


def test_a_hanging_runtime_holds_nothing_else_up(remote: Bed) -> None:
    assert remote.containerd is not None
    steady = remote.pid_of("steady")
    hang(remote.containerd.pid)
    try:
        remote.agent.put(remote.pod("late"))
        for _ in range(5):
            assert remote.agent.ask("/status")["node_name"]
            time.sleep(1)
        remote.agent.kill()
        remote.agent.start()  # ready is running, not connected
    finally:
        resume(remote.containerd.pid)
    remote.wait_runs({"steady": 0, "late": 0}, within=120)
    assert remote.pid_of("steady") == steady


def test_a_runtime_that_restarts_costs_no_container(remote: Bed) -> None:
    assert remote.containerd is not None
    steady = remote.pid_of("steady")
    for edit in range(3):
        remote.containerd.stop()
        remote.agent.put(remote.pod("late", edit))
        remote.containerd.start()
    remote.wait_runs({"steady": 0, "late": 2}, within=120)
    assert remote.pid_of("steady") == steady


def test_what_the_runtime_forgets_is_made_again(remote: Bed) -> None:
    assert remote.containerd is not None
    with CriClient(remote.containerd.socket) as cri:
        forgotten = live_containers(cri, "steady-node")["main"]
        cri.remove_container(forgotten)
        eventually(lambda: live_containers(cri, "steady-node").get("main", forgotten) != forgotten)
        remote.wait_runs({"steady": 0}, within=60)
        (sandbox,) = cri.sandboxes()
        cri.stop_sandbox(sandbox.id)
        cri.remove_sandbox(sandbox.id)
        eventually(lambda: sandbox.id not in {s.id for s in cri.sandboxes()})
        remote.wait_runs({"steady": 0}, within=120)
