"""Pods that are ended WHILE the agent's disk takes nothing: full, or read-only."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from structlog.testing import capture_logs
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.pods import load_records
from kubelet_trio.pressure import EvictionPolicy, parse_thresholds
from tests.agent.node import Node, from_api, make_pod, ready
from tests.agent.test_eviction import MI, Machine
from tests.agent.test_hooks import hooked
from tests.simulation.hard_world import Disk

FULL, READ_ONLY = errno.ENOSPC, errno.EROFS


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def node(tmp_path: Path, disk: Disk) -> Node:
    node = Node(tmp_path)
    node.offload = disk.offload
    return node


def phase(node: Node, pod: Pod) -> str | None:
    return node.status(pod).phase


@pytest.mark.parametrize("error", [FULL, READ_ONLY])
async def test_a_pod_that_is_deleted_stops(
    node: Node, disk: Disk, autojump_clock: MockClock, error: int
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(5)
        assert ready(node.status(pod))
        disk.error = error
        with capture_logs() as logs:
            node.feed.put()
            await trio.sleep(60)
        assert not node.runtime.alive()
        assert not any(s.ready for s in node.runtime.sandboxes.values())
        told = [entry for entry in logs if entry["event"] == "pod.record_failed"]
        assert len(told) == 1
        disk.error = 0
        with trio.fail_after(60):
            await agent.wait_pod_gone(pod)
        assert node.leftovers() == []
    assert node.runtime.violations == []


async def test_the_eviction_that_frees_the_disk_goes_ahead(
    node: Node, disk: Disk, autojump_clock: MockClock
) -> None:
    machine = Machine()
    node.signals = machine
    pod = from_api(make_pod())
    eviction = EvictionPolicy(parse_thresholds({"nodefs.available": "100Mi"}))
    async with node.running(pod, eviction=eviction):
        await trio.sleep(15)
        assert ready(node.status(pod))
        disk.error, machine.disk = FULL, 0
        await trio.sleep(60)
        assert not node.runtime.alive()
        assert phase(node, pod) == "Failed"
        assert node.status(pod).reason == "Evicted"
        # What nobody could write down is written as soon as it can be.
        assert _request(node, pod) is None
        disk.error, machine.disk = 0, 1000 * MI
        await trio.sleep(120)
        assert _request(node, pod) == "evicted"
    assert node.runtime.violations == []


async def test_a_decision_is_on_disk_as_soon_as_the_disk_takes_it_while_the_pod_still_ends(
    node: Node, disk: Disk, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="stubborn", spec=["terminationGracePeriodSeconds: 300"])
    async with node.running(pod):
        await trio.sleep(5)
        disk.error = FULL
        node.feed.put()
        await trio.sleep(30)
        assert _request(node, pod) is None
        disk.error = 0
        await trio.sleep(10)
        assert node.runtime.alive()
        assert _request(node, pod) == "deleted"


async def test_a_hook_whose_end_cannot_be_noted_has_run_all_the_same(
    node: Node, disk: Disk, autojump_clock: MockClock
) -> None:
    pod = hooked("preStop: {sleep: {seconds: 4}}")
    async with node.running(pod) as agent:
        await trio.sleep(5)
        disk.error = FULL
        began = trio.current_time()
        node.feed.put()
        await trio.sleep(60)
        assert "FailedSync" not in node.reasons()
        (stop,) = node.runtime.calls_of("StopContainer")
        assert 4 <= stop.time - began < 5
        pods = next(c for c in agent.tree().children if c.name == "pods")
        assert not any(child.restarts for child in pods.children)


def _request(node: Node, pod: Pod) -> str | None:
    record = load_records(node.base / "root" / "pods").get(pod_uid(pod))
    assert record is not None
    return record.termination.reason.value if record.termination is not None else None
