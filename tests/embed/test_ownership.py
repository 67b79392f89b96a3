"""Agents that share a runtime: each ends and watches its own pods, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio import KubeletConfig, open_kubelet
from kubelet_trio.model import INSTANCE, pod_annotations
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.embedded import fake_world
from tests.agent.node import Node, make_pod, make_pods
from tests.embed.programs import Machine, pod


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A daemon's node; its runtime is shared with the embedded kubelets."""
    (tmp_path / "daemon").mkdir()
    return Node(tmp_path / "daemon")


def machine(node: Node) -> Machine:
    base = node.base.parent / "embedded"
    base.mkdir(exist_ok=True)
    return Machine(base, node.runtime)


def alive(runtime: FakeRuntime) -> list[str]:
    return sorted(c.sandbox.metadata.name for c in runtime.alive())


@asynccontextmanager
async def cut_off(machine: Machine, name: str) -> AsyncIterator[None]:
    """An embedded kubelet whose program is killed: nothing of it is ended."""
    config = machine.config(name)
    async with open_kubelet(config, world=fake_world(machine.runtime, config)) as kubelet:
        for running in await kubelet.apply(pod(f"{name}-pod")):
            await running.wait_ready()
    yield


async def test_a_daemon_and_two_embedded_kubelets_share_a_runtime(
    node: Node, autojump_clock: MockClock
) -> None:
    shared = machine(node)
    async with node.running(make_pod("daemons")):
        async with shared.opened("a") as a, shared.opened("b") as b:
            async with a.run_pod(pod("of-a")) as one:
                async with b.run_pod(pod("of-b")) as other:
                    await one.wait_ready()
                    await other.wait_ready()
                    await trio.sleep(100)
                    assert alive(node.runtime) == ["daemons-node", "of-a", "of-b"]
                    assert list(a.pods.value) == [one.uid]
                await trio.sleep(100)
                assert alive(node.runtime) == ["daemons-node", "of-a"]
        await trio.sleep(100)
        assert alive(node.runtime) == ["daemons-node"]
    assert node.runtime.violations == []


async def test_a_new_daemon_does_not_end_what_embedded_kubelets_have_left_running(
    node: Node, autojump_clock: MockClock
) -> None:
    async with cut_off(machine(node), "a"), cut_off(machine(node), "b"):
        pass
    async with node.running(make_pod("daemons")) as agent:
        await trio.sleep(100)
        assert alive(node.runtime) == ["a-pod", "b-pod", "daemons-node"]
        assert len(agent.pods.value) == 1
        node.feed.put()
        await trio.sleep(60)
        assert alive(node.runtime) == ["a-pod", "b-pod"]


async def test_an_embedded_kubelet_ends_what_is_its_own_and_not_wanted(
    node: Node, autojump_clock: MockClock
) -> None:
    shared = machine(node)
    async with cut_off(shared, "a"), cut_off(shared, "b"):
        pass
    (shared.base / "a" / "kept.json").unlink()
    async with shared.opened("a"):
        await trio.sleep(100)
    assert alive(node.runtime) == ["b-pod"]


async def test_a_manifest_cannot_say_whose_it_is(node: Node, autojump_clock: MockClock) -> None:
    (pod_,) = make_pods(
        "apiVersion: v1\nkind: Pod\n"
        f"metadata: {{name: web, annotations: {{{INSTANCE}: other}}}}\n"
        "spec: {containers: [{name: web, image: web}]}\n"
    )
    assert INSTANCE not in pod_annotations(pod_)


async def test_pods_of_a_manifest_directory_are_the_embedded_kubelets_own(
    tmp_path: Path, node: Node
) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: static}\n"
        "spec: {containers: [{name: web, image: web, imagePullPolicy: IfNotPresent}]}\n"
    )
    config = KubeletConfig(
        root_dir=tmp_path / "a", runtime=node.runtime, node_name="node", manifests=manifests
    )
    # Real time: the directory is watched by inotify, which no virtual clock sees.
    with trio.fail_after(10):
        async with open_kubelet(config, world=fake_world(node.runtime, config)) as kubelet:
            await kubelet.pods.wait_value(lambda pods: len(pods) == 1)
            await kubelet.get("static").wait_ready()
            (sandbox,) = node.runtime.sandboxes.values()
            assert sandbox.config.annotations[INSTANCE] == kubelet.instance
