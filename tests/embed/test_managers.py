"""CPUs of their own for pods of a program: for the block that runs them, and no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio import (
    Kubelet,
    KubeletConfig,
    KubeletFailedError,
    ManagerSettings,
    PodEndedError,
    RunningPod,
    open_kubelet,
)
from kubelet_trio.testing import FakeRuntime
from kubelet_trio.testing.embedded import fake_world
from tests.embed.programs import pod
from tests.managers.node.machines import two_nodes

STATIC = ManagerSettings(cpu_policy="static", reserved_cpus=frozenset({0}))
ALL = "0-15"


def whole(name: str, cpus: str) -> dict[str, object]:
    """Return a Guaranteed pod that asks for whole CPUs."""
    resources = {"limits": {"cpu": cpus, "memory": "1Gi"}}
    container = {"name": "main", "image": "web", "imagePullPolicy": "IfNotPresent"}
    return pod(name, containers=[{**container, "resources": resources}])


@asynccontextmanager
async def opened(
    runtime: FakeRuntime, root: Path, managers: ManagerSettings = STATIC
) -> AsyncIterator[Kubelet]:
    config = KubeletConfig(root_dir=root, runtime=runtime, node_name="node", managers=managers)
    world = replace(fake_world(runtime, config), machine=two_nodes)
    async with open_kubelet(config, world=world) as kubelet:
        yield kubelet


def cpus(runtime: FakeRuntime, running: RunningPod) -> str:
    (container,) = runtime.alive(running.uid)
    return container.resources.cpuset_cpus


async def test_a_block_has_its_cpus_for_itself_until_it_ends(
    autojump_clock: MockClock, fake_runtime: FakeRuntime, tmp_path: Path
) -> None:
    async with opened(fake_runtime, tmp_path) as kubelet, kubelet.run_pod(pod("shared")) as shared:
        await shared.wait_ready()
        async with kubelet.run_pod(whole("own", "2")) as own:
            await own.wait_ready()
            assert cpus(fake_runtime, own) == "1,9"
            await trio.sleep(1)
            assert cpus(fake_runtime, shared) == "0,2-8,10-15"
        await trio.sleep(1)
        assert cpus(fake_runtime, shared) == ALL
    assert fake_runtime.violations == []


async def test_a_pod_without_enough_cpus_fails(
    autojump_clock: MockClock, fake_runtime: FakeRuntime, tmp_path: Path
) -> None:
    async with opened(fake_runtime, tmp_path) as kubelet:
        async with kubelet.run_pod(whole("large", "16")) as large:
            with pytest.raises(PodEndedError):
                await large.wait_ready()
            assert large.status.value.reason == "UnexpectedAdmissionError"


async def test_pods_that_outlive_the_program_keep_their_cpus(
    autojump_clock: MockClock, fake_runtime: FakeRuntime, tmp_path: Path
) -> None:
    async with opened(fake_runtime, tmp_path) as kubelet:
        (own,) = await kubelet.apply(whole("own", "2"))
        await own.wait_ready()
    async with opened(fake_runtime, tmp_path) as kubelet:
        async with kubelet.run_pod(whole("second", "2")) as second:
            await second.wait_ready()
            assert cpus(fake_runtime, kubelet.get("own")) == "1,9"
            assert cpus(fake_runtime, second) == "2,10"


async def test_another_policy_does_not_go_on_from_the_state(
    autojump_clock: MockClock, fake_runtime: FakeRuntime, tmp_path: Path
) -> None:
    async with opened(fake_runtime, tmp_path) as kubelet:
        (own,) = await kubelet.apply(whole("own", "2"))
        await own.wait_ready()
    with pytest.raises(KubeletFailedError, match="drain this node and delete"):
        async with opened(fake_runtime, tmp_path, ManagerSettings()):
            pytest.fail("it has started")


def test_processes_have_no_cpu_sets() -> None:
    with pytest.raises(ValueError, match="static policies need a container runtime"):
        KubeletConfig(root_dir="/r", managers=STATIC)
