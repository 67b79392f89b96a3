"""The disk of the root directory answers nobody: what is to end ends all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.shutdown import ShutdownPeriod
from tests.agent.hanging import HangingDisk
from tests.agent.node import Node, make_pod, ready
from tests.shutdown.fake import FakeLogind

HOOKED = """- name: web
  image: web
  lifecycle: {preStop: {exec: {command: [bye]}}}"""

SLEEPY = """- name: web
  image: web
  lifecycle: {preStop: {sleep: {seconds: 8}}}
- name: second
  image: web
  lifecycle: {preStop: {sleep: {seconds: 9}}}"""


@pytest.fixture
def disk() -> HangingDisk:
    return HangingDisk()


@pytest.fixture
def node(tmp_path: Path, disk: HangingDisk) -> Node:
    node = Node(tmp_path)
    node.offload = disk
    return node


async def test_a_pod_that_is_deleted_stops_and_is_gone_once_the_disk_answers(
    node: Node, disk: HangingDisk, autojump_clock: MockClock
) -> None:
    goes, stays = make_pod("goes", containers=HOOKED), make_pod("stays")
    async with node.running(goes, stays) as agent:
        await trio.sleep(10)
        with disk.hanging():
            node.feed.put(stays)
            await trio.sleep(20)
            assert not node.runtime.alive(pod_uid(goes))
            assert len(node.calls("ExecSync")) == 1
            assert node.status(goes).phase == "Running"  # nothing is told that is not on disk
        await trio.sleep(10)
        assert pod_uid(goes) not in agent.pods.value
        assert ready(node.status(stays))
        assert pod_uid(goes) not in "".join(node.leftovers())
    assert node.runtime.violations == []


async def test_a_disk_that_hangs_once_a_hook_runs_holds_up_no_stop(
    node: Node, disk: HangingDisk, autojump_clock: MockClock
) -> None:
    pod = make_pod(containers=SLEEPY)
    async with node.running(pod):
        await trio.sleep(10)
        node.feed.put()
        await trio.sleep(5)  # the decision is on disk, and the hooks run
        assert node.runtime.alive(pod_uid(pod))
        with disk.hanging():
            await trio.sleep(15)
            assert not node.runtime.alive(pod_uid(pod))
        await trio.sleep(10)
        assert node.leftovers() == []
    assert node.runtime.violations == []


async def test_a_shutdown_of_the_machine_ends_the_pods_and_is_let_go_on(
    node: Node, disk: HangingDisk, autojump_clock: MockClock
) -> None:
    node.logind = logind = FakeLogind()
    async with node.running(make_pod(), shutdown=(ShutdownPeriod(0, 60),)):
        await trio.sleep(10)
        assert logind.is_held_up
        with disk.hanging():
            logind.announce(True)
            await trio.sleep(20)
            assert not node.runtime.alive()
            await trio.sleep(60)
            assert not logind.is_held_up
