"""What a worker asks for itself, how few calls that takes, and how it races the relist."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import trio

from kubelet_trio.cri import RuntimeCallError, RuntimeUnavailableError, v1
from kubelet_trio.model import ConfiguredResources, ContainerId, ContainerState, SandboxId
from kubelet_trio.testing import FakeRuntime, FaultKind
from kubelet_trio.testing.fixtures import (
    container_config,
    run_pod,
    sandbox_config,
    start_container,
)
from tests.pleg.node import OTHER, WEB, watched

CREATED, EXITED, RUNNING = (
    ContainerState.CREATED,
    ContainerState.EXITED,
    ContainerState.RUNNING,
)


async def test_the_status_calls_of_a_pods_life_are_few(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(status_lag=0.06), sandbox_config()
    async with watched(runtime) as node:
        refresh = node.pleg.refresh
        await trio.sleep(1)
        runtime.calls.clear()
        sandbox_id = await runtime.run_pod_sandbox(config)
        pod = await refresh(WEB, sandboxes=[sandbox_id])
        assert pod.sandboxes[0].ips
        container_id = await start_container(runtime, sandbox_id, config)
        pod = await refresh(WEB, containers=[container_id])
        assert pod.containers[0].state is RUNNING
        await trio.sleep(5)
        await runtime.stop_container(container_id, 30)
        pod = await refresh(WEB, containers=[container_id])
        assert pod.containers[0].state is EXITED
        await runtime.stop_pod_sandbox(sandbox_id)
        pod = await refresh(WEB, sandboxes=[sandbox_id])
        assert not pod.sandboxes[0].ready
        await runtime.remove_pod_sandbox(sandbox_id)
        pod = await refresh(WEB, removed=[sandbox_id])
        assert not pod.exists
        calls = Counter(call.name for call in runtime.calls)
        # Verbose for the PID, and once after the stop.
        assert calls["ContainerStatus"] == 2
        assert calls["PodSandboxStatus"] == 2
        assert calls["ListContainers"] == 0
        await trio.sleep(60)
        calls = Counter(call.name for call in runtime.calls)
        assert (calls["ContainerStatus"], calls["PodSandboxStatus"]) == (2, 2)
        assert not node.wakes


async def test_a_change_of_resources_is_seen_by_the_refresh_and_costs_nothing_later(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(11)
        node.wakes.clear()
        runtime.calls.clear()
        change = v1.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=1 << 26)
        await runtime.update_container_resources(container_id, change)
        pod = await node.pleg.refresh(WEB, containers=[container_id])
        expected = ConfiguredResources(cpu_shares=512, memory_limit=1 << 26)
        assert pod.containers[0].resources == expected
        assert len(runtime.calls_of("ContainerStatus")) == 1
        await trio.sleep(60)
        assert len(runtime.calls_of("ContainerStatus")) == 1
        assert not node.wakes


async def test_a_lost_reply_to_a_change_of_resources_is_cleared_up(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(11)
        runtime.faults.add(FaultKind.LOST_REPLY, "UpdateContainerResources")
        with pytest.raises(RuntimeUnavailableError):
            await runtime.update_container_resources(
                container_id, v1.LinuxContainerResources(cpu_shares=512)
            )
        pod = await node.pleg.refresh(WEB, containers=[container_id], listing=True)
        assert pod.containers[0].resources == ConfiguredResources(cpu_shares=512)


async def test_equal_resources_are_no_change(autojump_clock: object) -> None:
    runtime = FakeRuntime(events=True)
    _, [container_id] = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(11)
        node.wakes.clear()
        before = node.pleg.cache.get(WEB)
        for _ in range(2):
            await runtime.update_container_resources(container_id, v1.LinuxContainerResources())
            after = await node.pleg.refresh(WEB, containers=[container_id])
            assert after.containers == before.containers
        assert not node.wakes


async def test_a_restart_after_a_death_asks_about_the_new_instance_only(
    autojump_clock: object,
) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id, containers = await run_pod(runtime, images=("run", "run", "run"))
    async with watched(runtime) as node:
        await trio.sleep(11)
        runtime.calls.clear()
        runtime.kill(containers[0])
        await trio.sleep(0.1)
        assert len(runtime.calls_of("ContainerStatus")) == 1
        new = await start_container(runtime, sandbox_id, config, attempt=1)
        pod = await node.pleg.refresh(WEB, containers=[new])
        assert [c.id for c in pod.of("main")] == [new, containers[0]]
        await trio.sleep(30)
        assert len(runtime.calls_of("ContainerStatus")) == 2
        assert not runtime.calls_of("PodSandboxStatus")


async def test_a_worker_is_woken_by_changes_it_did_not_see(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    async with watched(runtime) as node:
        await trio.sleep(1)
        sandbox_id = await runtime.run_pod_sandbox(config)
        await node.pleg.refresh(WEB, sandboxes=[sandbox_id])
        await trio.sleep(20)
        assert not node.wakes
        await start_container(runtime, sandbox_id, config)
        await trio.sleep(10)
        assert node.wakes == [(30.0, WEB)]


async def test_a_lost_reply_is_cleared_up_by_a_listing(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    async with watched(runtime) as node:
        await trio.sleep(1)
        runtime.faults.add(FaultKind.LOST_REPLY, "RunPodSandbox")
        with pytest.raises(RuntimeUnavailableError):
            await runtime.run_pod_sandbox(config)
        pod = await node.pleg.refresh(WEB, listing=True)
        assert len(pod.sandboxes) == 1


async def test_a_failed_refresh_raises_and_is_made_good_within_a_second(
    autojump_clock: object,
) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    async with watched(runtime) as node:
        await trio.sleep(1)
        sandbox_id = await runtime.run_pod_sandbox(config)
        await node.pleg.refresh(WEB, sandboxes=[sandbox_id])
        await trio.sleep(0.1)
        container_id = await start_container(runtime, sandbox_id, config)
        runtime.faults.add(FaultKind.ERROR, "ContainerStatus", times=2)
        with pytest.raises(RuntimeCallError):
            await node.pleg.refresh(WEB, containers=[container_id])
        # What is known now lacks the container: who waits for newer does not get it.
        with trio.move_on_after(0.5) as waiting:
            await node.pleg.cache.wait_newer(WEB, trio.current_time())
        assert waiting.cancelled_caught
        pod = await node.pleg.cache.wait_newer(WEB, trio.current_time())
        assert [c.id for c in pod.containers] == [container_id]
        assert node.woken_at() == trio.current_time() <= 2.1


@pytest.mark.parametrize("call", ["ContainerStatus", "PodSandboxStatus"])
async def test_the_status_of_another_object_is_no_answer(autojump_clock: object, call: str) -> None:
    runtime, config = Confused(), sandbox_config()
    async with watched(runtime) as node:
        await trio.sleep(1)
        sandbox_id = await runtime.run_pod_sandbox(config)
        container_id = await start_container(runtime, sandbox_id, config)
        runtime.confused = call
        with pytest.raises(RuntimeCallError, match=f"{call}: the runtime returned the status of"):
            await node.pleg.refresh(WEB, sandboxes=[sandbox_id], containers=[container_id])
        assert not node.pleg.is_certain(WEB)
        runtime.confused = ""
        await trio.sleep(5)
        assert node.pleg.is_certain(WEB)
        assert node.pleg.get(WEB).containers[0].state is RUNNING


class Confused(FakeRuntime):
    """Returns the status of another object for `confused`, a call's name."""

    confused = ""

    async def container_status(
        self, container_id: ContainerId, *, verbose: bool = False
    ) -> tuple[v1.ContainerStatus, int]:
        status, pid = await super().container_status(container_id, verbose=verbose)
        is_other = self.confused == "ContainerStatus"
        return (replace(status, id="other") if is_other else status), pid

    async def pod_sandbox_status(self, sandbox_id: SandboxId) -> v1.PodSandboxStatus:
        status = await super().pod_sandbox_status(sandbox_id)
        return replace(status, id="other") if self.confused == "PodSandboxStatus" else status


async def test_a_pod_in_doubt_is_woken_once_it_is_certain_even_if_nothing_changed(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(1)
        assert node.pleg.is_certain(WEB)
        node.wakes.clear()
        runtime.go_down()
        with pytest.raises(RuntimeCallError):
            await node.pleg.refresh(WEB, listing=True)
        await trio.sleep(30)
        assert not node.pleg.is_certain(WEB)
        assert not node.wakes
        runtime.restart()
        await trio.sleep(1.1)
        assert node.pleg.is_certain(WEB)
        assert {uid for _, uid in node.wakes} == {WEB}


async def test_a_cancelled_refresh_is_made_good_by_the_relist(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    async with watched(runtime) as node:
        await trio.sleep(1)
        _, [container_id] = await run_pod(runtime)
        runtime.latency["ListContainers"] = 1
        with trio.move_on_after(0.2):
            await node.pleg.refresh(WEB, listing=True)
        assert node.state(container_id) is None
        await trio.sleep(2.5)
        assert node.state(container_id) is RUNNING


async def test_a_relist_in_flight_does_not_undo_what_was_learnt_since(
    autojump_clock: object,
) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id, [first] = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(9.5)
        node.wakes.clear()
        # The relist of t=10 gets its lists at once, and their reply at t=14.
        runtime.latency["ListContainers"] = runtime.latency["ListPodSandbox"] = 0
        runtime.faults.add(FaultKind.SLOW, "ListPodSandbox", delay=4)
        await trio.sleep(1)
        await runtime.stop_container(first, 0)
        await node.pleg.refresh(WEB, containers=[first])
        new = await start_container(runtime, sandbox_id, config, attempt=1)
        await node.pleg.refresh(WEB, containers=[new])
        await runtime.remove_container(first)
        await node.pleg.refresh(WEB, removed=[first])
        await trio.sleep(30)
        assert [c.id for c in node.pleg.get(WEB).containers] == [new]
        assert not node.wakes


@pytest.mark.parametrize("late", [0.5, 1.5, 3.0])
async def test_an_old_listing_neither_brings_back_nor_drops(
    late: float, autojump_clock: object
) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id, [first] = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(9)
        # Replies come `late`: what they say was so at the beginning.
        runtime.latency["ListContainers"] = 2 * late
        await trio.sleep(1 + late + 0.1)
        await runtime.stop_container(first, 0)
        await runtime.remove_container(first)
        new = await start_container(runtime, sandbox_id, config, attempt=1)
        await node.pleg.refresh(WEB, containers=[new], removed=[first])
        assert [c.id for c in node.pleg.get(WEB).containers] == [new]
        node.wakes.clear()
        await trio.sleep(late)
        assert [c.id for c in node.pleg.get(WEB).containers] == [new]
        assert not node.wakes
        await trio.sleep(20)
        assert [c.id for c in node.pleg.get(WEB).containers] == [new]


async def test_a_container_created_and_lost_before_any_listing_is_dropped(
    autojump_clock: object,
) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id, _ = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(1)
        made = await runtime.create_container(sandbox_id, container_config(config, "x"), config)
        await node.pleg.refresh(WEB, containers=[made])
        assert node.state(made) is CREATED
        runtime.forget(made)
        await trio.sleep(10)
        assert node.state(made) is None


async def test_without_a_sandbox_named_a_new_container_belongs_to_the_newest(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    old, _ = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(1)
        runtime.kill(runtime.instances("web")[0].id)
        await runtime.stop_pod_sandbox(old)
        config = sandbox_config(attempt=1)
        new = await runtime.run_pod_sandbox(config)
        await node.pleg.refresh(WEB, sandboxes=[old, new])
        container_id = await start_container(runtime, new, config, "other")
        pod = await node.pleg.refresh(WEB, containers=[container_id])
        assert pod.latest("other").sandbox_id == new  # type: ignore[union-attr]
        assert [s.id for s in pod.sandboxes] == [new, old]
        pod = await node.pleg.refresh(WEB, listing=True)
        assert pod.latest("main").sandbox_id == old  # type: ignore[union-attr]


async def test_a_pod_unknown_to_the_runtime_is_empty_once_it_was_listed(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    async with watched(runtime) as node:
        pod = await node.pleg.cache.wait_newer(OTHER, 5)
        assert trio.current_time() == 10
        assert (pod.uid, pod.exists) == (OTHER, False)


async def test_a_second_run_of_the_pleg_goes_on_with_what_is_known(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    _, [container_id] = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(2)
        pleg = node.pleg
    async with trio.open_nursery() as nursery:
        await nursery.start(pleg.run)
        await trio.sleep(0.1)
        assert pleg.watched == 1
        runtime.kill(container_id)
        await trio.sleep(0.1)
        assert pleg.get(WEB).containers[0].state is EXITED
        nursery.cancel_scope.cancel()
