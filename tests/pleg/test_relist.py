"""The relist: what it finds, what it costs, and who waits for whom."""

from __future__ import annotations

import trio

from kubelet_trio.cri import RuntimeUnavailableError, v1
from kubelet_trio.model import ContainerState, PodKey
from kubelet_trio.testing import FakeRuntime, FaultKind, TrioClock
from kubelet_trio.testing.fixtures import run_pod, sandbox_config, start_container
from tests.pleg.node import OTHER, WEB, watched

EXITED, RUNNING = ContainerState.EXITED, ContainerState.RUNNING


async def test_what_runs_at_the_start_is_known_at_once(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    runtime.latency[""] = 0.02
    sandbox_id, [container_id] = await run_pod(runtime)
    await run_pod(runtime, "other", images=("run", "exit-1"))
    started = trio.current_time()
    async with watched(runtime) as node:
        await node.pleg.wait_synced(WEB)
        pod = node.pleg.get(WEB)
        assert trio.current_time() - started < 0.07
        assert (pod.namespace, pod.name) == ("default", "web")
        [sandbox], [container] = pod.sandboxes, pod.containers
        assert (sandbox.id, sandbox.ready, len(sandbox.ips)) == (sandbox_id, True, 1)
        assert (container.id, container.sandbox_id) == (container_id, sandbox_id)
        assert container.pid == runtime.containers[container_id].pid
        await node.pleg.wait_synced(OTHER)
        assert node.pleg.known_uids == {WEB, OTHER}
        assert {uid for _, uid in node.wakes} == {WEB, OTHER}
        assert len(node.wakes) == 2


async def test_an_idle_relist_asks_two_questions_and_decodes_nothing(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    for number in range(20):
        await run_pod(runtime, f"pod{number}")
    async with watched(runtime) as node:
        await trio.sleep(25)
        runtime.calls.clear()
        decoded, woken = runtime.decoded, len(node.wakes)
        await trio.sleep(60)
        assert [call.name for call in runtime.calls] == ["ListPodSandbox", "ListContainers"] * 6
        assert runtime.decoded == decoded
        assert len(node.wakes) == woken


async def test_a_hanging_status_delays_its_own_pod_only(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    _, [stuck] = await run_pod(runtime)
    _, [main] = await run_pod(runtime, "other")
    runtime.faults.add(FaultKind.HANG, "ContainerStatus", "web", times=None)
    async with watched(runtime) as node:
        await node.pleg.wait_synced(OTHER)
        assert trio.current_time() == 0
        assert node.state(main, OTHER) is RUNNING
        await trio.sleep(30)
        runtime.kill(main)
        await trio.sleep(0.1)
        assert node.state(main, OTHER) is EXITED
        # Nothing is said of the pod until all of it is known: half a pod is a wrong one.
        assert not node.pleg.get(WEB).exists
        assert WEB in node.pleg.known_uids
        with trio.move_on_after(1) as waiting:
            await node.pleg.cache.wait_newer(WEB, 0)
        assert waiting.cancelled_caught
        assert len(runtime.calls_of("ContainerStatus", target=stuck)) == 1
        runtime.faults.clear()
        await node.pleg.cache.wait_newer(WEB, 0)
        assert node.state(stuck) is RUNNING


async def test_a_hundred_hanging_pods_do_not_hold_up_another(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    for number in range(100):
        await run_pod(runtime, f"stuck{number}")
        runtime.faults.add(FaultKind.HANG, "ContainerStatus", f"stuck{number}", times=None)
    async with watched(runtime) as node:
        await trio.sleep(5)
        _, [container_id] = await run_pod(runtime)
        await node.pleg.refresh(WEB, listing=True)
        assert node.state(container_id) is RUNNING
        assert trio.current_time() <= 6
        runtime.kill(container_id)
        await trio.sleep(0.1)
        assert node.state(container_id) is EXITED


class LongestTurn(trio.abc.Instrument):
    """Counts the tasks that go on in one turn of the loop."""

    def __init__(self) -> None:
        self.steps = self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps += 1
        self.steps = max(self.steps, self._steps)

    def before_io_wait(self, timeout: float) -> None:
        self._steps = 0


async def test_questions_that_wait_in_vain_do_not_give_up_in_one_turn(
    autojump_clock: object,
) -> None:
    runtime, turn = FakeRuntime(), LongestTurn()
    await run_pod(runtime, images=("run",) * 300)
    runtime.faults.add(FaultKind.HANG, "ContainerStatus", times=None)
    trio.lowlevel.add_instrument(turn)
    async with watched(runtime):
        await trio.sleep(5)
        asked = len(runtime.calls_of("ContainerStatus"))
        trio.lowlevel.remove_instrument(turn)
    assert asked == 300
    assert turn.steps <= 40, turn.steps


async def test_a_failed_status_keeps_the_record_and_is_asked_again_soon(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    runtime.exit_waiter.deaf = True
    _, [container_id] = await run_pod(runtime, images=("exit-0-after-5",))
    async with watched(runtime) as node:
        await trio.sleep(6)
        runtime.faults.add(FaultKind.ERROR, "ContainerStatus", times=2)
        await trio.sleep(4.1)
        assert node.state(container_id) is RUNNING
        assert node.pleg.cache.observed_at(WEB) < 10
        await trio.sleep(2)
        assert node.state(container_id) is EXITED
        assert node.pleg.cache.observed_at(WEB) == 12


async def test_a_runtime_that_is_down_changes_nothing_and_is_asked_again(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    runtime.go_down()
    async with watched(runtime) as node:
        await trio.sleep(3.5)
        assert not list(node.pleg.cache.pods())
        runtime.restart()
        _, [container_id] = await run_pod(runtime)
        await trio.sleep(1)
        assert node.state(container_id) is RUNNING
        runtime.go_down()
        await trio.sleep(100)
        assert node.state(container_id) is RUNNING
        runtime.restart()
        await trio.sleep(1)
        assert node.pleg.cache.observed_at(WEB) > 104


async def test_health_is_lost_after_three_minutes_without_a_relist(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    runtime.go_down()
    async with watched(runtime) as node:
        now = trio.current_time
        assert node.pleg.problem(now()) == "PLEG is not healthy: pleg has yet to be successful"
        await trio.sleep(5)
        assert node.recoveries == []
        runtime.restart()
        await trio.sleep(5)
        runtime.go_down()
        last = 10.0 if trio.current_time() >= 10 else 5.0
        assert node.pleg.problem(now()) is None
        await trio.sleep(300)
        said = node.pleg.problem(now()) or ""
        assert said.startswith("PLEG is not healthy: pleg was last seen active 5m")
        assert said.endswith("s ago; threshold is 3m0s")
        assert node.pleg.problem(last + 170) is None
        assert len(node.recoveries) == 1, "the first relist of all"
        runtime.restart()
        await trio.sleep(1.1)
        assert node.pleg.problem(now()) is None
        assert len(node.recoveries) == 2


async def test_objects_without_kubernetes_labels_are_nobodys(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), v1.PodSandboxConfig(metadata=v1.PodSandboxMetadata(uid="x"))
    sandbox_id = await runtime.run_pod_sandbox(config)
    await start_container(runtime, sandbox_id, config)
    async with watched(runtime) as node:
        await trio.sleep(15)
        assert not node.pleg.known_uids
        assert not runtime.calls_of("ContainerStatus", "PodSandboxStatus")


async def test_newest_comes_first_even_if_the_wall_clock_went_back(
    autojump_clock: object,
) -> None:
    clock = TrioClock()
    runtime, config = FakeRuntime(clock=clock), sandbox_config()
    sandbox_id = await runtime.run_pod_sandbox(config)
    old = await start_container(runtime, sandbox_id, config, image="exit-1")
    clock.step(-3600)
    new = await start_container(runtime, sandbox_id, config, attempt=1)
    async with watched(runtime) as node:
        await node.pleg.wait_synced(WEB)
        assert [c.id for c in node.pleg.get(WEB).containers] == [new, old]


async def test_an_unlabelled_error_of_the_list_is_no_failure(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    error = RuntimeUnavailableError("ListContainers", "gone")
    runtime.faults.add(FaultKind.ERROR, "ListContainers", error=error)
    _, [container_id] = await run_pod(runtime)
    async with watched(runtime) as node:
        await trio.sleep(1.5)
        assert node.state(container_id) is RUNNING


async def test_a_sandbox_without_an_address_is_asked_again(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    sandbox_id, _ = await run_pod(runtime)
    ip, runtime.sandboxes[sandbox_id].ip = runtime.sandboxes[sandbox_id].ip, ""
    async with watched(runtime) as node:
        await node.pleg.wait_synced(WEB)
        assert node.pleg.get(WEB).sandboxes[0].ips == ()
        runtime.sandboxes[sandbox_id].ip = ip
        await trio.sleep(11)
        assert node.pleg.get(WEB).sandboxes[0].ips == (ip,)


async def test_pods_of_a_name_are_told_while_anything_of_them_runs(autojump_clock: object) -> None:
    runtime = FakeRuntime()
    sandbox_id, [container_id] = await run_pod(runtime)
    web = PodKey("default", "web")
    async with watched(runtime) as node:
        await node.pleg.wait_synced(WEB)
        assert node.pleg.namesakes(web, OTHER) == {WEB}
        assert not node.pleg.namesakes(web, WEB)
        assert not node.pleg.namesakes(PodKey("kube-system", "web"), OTHER)
        runtime.kill(container_id, 1)
        await trio.sleep(15)
        assert node.pleg.namesakes(web, OTHER) == {WEB}  # there is its sandbox still
        await runtime.stop_pod_sandbox(sandbox_id)
        await trio.sleep(15)
        assert not node.pleg.namesakes(web, OTHER)


async def test_what_cannot_be_asked_about_is_as_it_is_listed(autojump_clock: object) -> None:
    """A dead pod with a broken record in the runtime keeps no other from its name for ever."""
    runtime = FakeRuntime()
    sandbox_id, [container_id] = await run_pod(runtime)
    web = PodKey("default", "web")
    runtime.faults.add(FaultKind.ERROR, "ContainerStatus", "web", times=None)
    async with watched(runtime) as node:
        await trio.sleep(5)
        assert node.pleg.namesakes(web, OTHER) == {WEB}
        runtime.kill(container_id, 1)
        await runtime.stop_pod_sandbox(sandbox_id)
        await trio.sleep(15)
        assert not node.pleg.namesakes(web, OTHER)


async def test_a_pod_that_changes_during_its_first_inspection_is_not_observed_as_empty(
    autojump_clock: object,
) -> None:
    runtime = FakeRuntime()
    runtime.latency[""] = 0.02
    old = await runtime.run_pod_sandbox(sandbox_config())
    async with watched(runtime) as node, trio.open_nursery() as worker:
        # The relist knows the old sandbox by its entry; its status is on the way.
        await node.pleg.wait_synced()
        await trio.sleep(0.01)
        new = runtime.node.run_sandbox(sandbox_config(attempt=1), "").id
        worker.start_soon(lambda: node.pleg.refresh(WEB, sandboxes=[new]))
        await node.pleg.wait_synced(WEB)
        assert [sandbox.id for sandbox in node.pleg.get(WEB).sandboxes] == [new, old]


async def test_a_relist_confirms_no_pod_that_it_passed_over(autojump_clock: object) -> None:
    runtime, config = FakeRuntime(), sandbox_config()
    sandbox_id, [first] = await run_pod(runtime)
    runtime.latency["ContainerStatus"] = 2.5
    async with watched(runtime, waiter=None, relist_period=1) as node:
        await trio.sleep(0.5)
        second = await start_container(runtime, sandbox_id, config, "second")
        # The relists of t=1 and t=2 list it, and leave the pod to the inspection in flight.
        pod = await node.pleg.cache.wait_newer(WEB, 0)
        assert (trio.current_time(), [c.id for c in pod.containers]) == (2.5, [first])
        pod = await node.pleg.cache.wait_newer(WEB, 1)
        assert {c.id for c in pod.containers} == {first, second}
        assert pod.observed_at == node.pleg.cache.observed_at(WEB) == 3


async def test_an_answer_about_a_part_of_a_pod_makes_its_snapshot_no_newer(
    autojump_clock: object,
) -> None:
    runtime, config = FakeRuntime(events=True), sandbox_config()
    sandbox_id, [first] = await run_pod(runtime)
    runtime.faults.add(FaultKind.SLOW, "ContainerStatus", delay=4)
    async with watched(runtime, waiter=None) as node:
        await trio.sleep(0.5)
        second = await start_container(runtime, sandbox_id, config, "second")
        # Its event brings a relist at t=1.5, which leaves the pod to the inspection in flight.
        await trio.sleep(1.5)
        runtime.kill(first)
        await trio.sleep(0.1)
        assert (node.state(first), node.state(second)) == (EXITED, None)
        assert node.pleg.cache.observed_at(WEB) < 0
        pod = await node.pleg.cache.wait_newer(WEB, 1.5)
        assert {c.id for c in pod.containers} == {first, second}
