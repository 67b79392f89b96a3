"""Directories of pods that nobody wants any more."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.sources import SourceSnapshot
from tests.agent.node import Node, make_pod, ready


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def orphan(node: Node, uid: str) -> Path:
    """A pod's directory as the Go kubelet leaves it when it dies at the wrong moment."""
    directory = node.base / "root/pods" / uid
    volumes = directory / "volumes"
    (volumes / "kubernetes.io~empty-dir/data/deep").mkdir(parents=True)
    (volumes / "kubernetes.io~empty-dir/data/file").touch()
    (volumes / "kubernetes.io~secret/keys").mkdir(parents=True)
    (directory / "plugins/kubernetes.io~empty-dir/data").mkdir(parents=True)
    (directory / "containers/web").mkdir(parents=True)
    (directory / "etc-hosts").touch()
    node.mounter.mount_tmpfs(volumes / "kubernetes.io~secret/keys")
    return directory


async def test_a_directory_that_nobody_wants_goes_with_its_mounts(
    node: Node, autojump_clock: MockClock
) -> None:
    left = orphan(node, "0f-1")
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(5)
        assert not left.exists()
        assert node.mounter.mounts() == []
        assert ready(node.status(pod))
        assert (node.base / "root/pods" / pod_uid(pod)).is_dir()


async def test_what_is_busy_stays_whole_until_it_is_not(
    node: Node, autojump_clock: MockClock
) -> None:
    left = orphan(node, "0f-1")
    busy = left / "volumes/kubernetes.io~secret/keys"
    node.mounter.busy.add(str(busy))
    async with node.running():
        await trio.sleep(200)
        assert [m.path for m in node.mounter.mounts()] == [str(busy)]
        assert busy.is_dir()
        node.mounter.busy.clear()
        await trio.sleep(100)
        assert not left.exists()


async def test_nothing_goes_before_every_source_has_spoken(
    node: Node, autojump_clock: MockClock
) -> None:
    left = orphan(node, "0f-1")
    async with node.running(silent=True):
        await trio.sleep(300)
        assert left.is_dir()
        node.feed.put()
        await trio.sleep(100)
        assert not left.exists()


async def test_files_that_no_agent_made_stay(node: Node, autojump_clock: MockClock) -> None:
    left = orphan(node, "0f-1")
    (left / "notes").touch()
    async with node.running():
        await trio.sleep(300)
    assert (left / "notes").exists()


async def test_a_pod_that_comes_while_its_old_directory_goes_waits_for_it(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    uid = pod_uid(pod)
    async with node.running() as agent:
        await trio.sleep(5)
        registry = agent.parts.pods.registry
        with registry.reclaiming(PodUid(uid)) as is_ours:
            assert is_ours
            node.feed.put(pod)
            await trio.sleep(5)
            assert uid not in registry.workers
        await trio.sleep(5)
        assert ready(node.status(pod))
        with registry.reclaiming(PodUid(uid)) as is_ours:
            assert not is_ours


async def test_an_orphan_that_its_source_keeps_runs_on_until_it_does_not(
    node: Node, autojump_clock: MockClock
) -> None:
    theirs, ours = make_pod(), make_pod(name="other")
    async with node.running(theirs):
        await trio.sleep(5)
    (node.base / "root/pods" / pod_uid(theirs) / "kubelet-trio.json").unlink()
    [container] = node.runtime.alive()
    async with node.running(silent=True):
        node.feed.delivered = SourceSnapshot("file", (ours,), kept=frozenset({pod_uid(theirs)}))
        node.feed.snapshots.put(node.feed.delivered)
        await trio.sleep(300)
        assert ready(node.status(ours))
        assert container.id in {each.id for each in node.runtime.alive()}
        assert (node.base / "root/pods" / pod_uid(theirs)).is_dir()
        node.feed.put(ours)
        await trio.sleep(100)
        assert container.id not in {each.id for each in node.runtime.alive()}
