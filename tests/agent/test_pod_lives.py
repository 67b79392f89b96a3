"""Pods' whole lives under one agent, in virtual time."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.cgroups import CgroupHost, CgroupTree
from kubelet_trio.cri import RuntimeCallError, RuntimeUnavailableError
from kubelet_trio.model import Offload, Purpose, inline_offload, metadata, pod_uid
from kubelet_trio.pods.plan import BackOffPolicy, plan_pod
from kubelet_trio.supervision import ChildState
from kubelet_trio.testing import FakeExec, FaultKind
from tests.agent.node import Node, make_pod, ready, without_start

P = ParamSpec("P")
T = TypeVar("T")

TWO = """- {name: web, image: web, imagePullPolicy: IfNotPresent}
- {name: beside, image: web, imagePullPolicy: IfNotPresent}"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_pod_starts_runs_and_is_removed_without_a_trace(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(1)
        assert ready(node.status(pod))
        node.feed.put()
        await trio.sleep(40)
        assert agent.pods.value == {}
        assert node.leftovers() == []
        assert not node.runtime.sandboxes
        assert [c.name for c in agent.tree().children if c.name == "pods"] == ["pods"]
        assert not next(c for c in agent.tree().children if c.name == "pods").children
    assert node.runtime.violations == []


async def test_a_pods_life_costs_few_runtime_calls(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod()
    # As any runtime, longer than for a status: what is asked beside it has been answered by then.
    node.runtime.latency = {"RunPodSandbox": 0.05}
    async with node.running(pod):
        await trio.sleep(1)
        node.runtime.calls.clear()
        second = make_pod("second")
        node.feed.put(pod, second)
        await trio.sleep(1)
        began, calls = node.calls()[:2], node.calls()[2:]
        assert sorted(began) == ["ImageStatus", "RunPodSandbox"]  # side by side
        assert calls == [
            "PodSandboxStatus",
            "CreateContainer",
            "StartContainer",
            "ContainerStatus",
        ]
        node.runtime.calls.clear()
        node.feed.put(pod)
        await trio.sleep(1)
        # No listing: every call for this pod was this agent's, and answered.
        first, *beside, last = node.calls()
        assert first == "StopContainer"
        assert sorted(beside) == ["ContainerStatus", "StopPodSandbox"]  # side by side
        assert last == "RemovePodSandbox"  # takes its containers along


class CountedHops:
    """Work of any purpose that takes a second, so that what follows each other can be counted."""

    def __init__(self) -> None:
        self.takes = 0.0

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.sleep(self.takes)
        return await inline_offload(fn, *args, **kwargs)


async def test_a_start_waits_for_few_threads_one_after_the_other(
    node: Node, autojump_clock: MockClock
) -> None:
    node.offload = hops = CountedHops()
    node.cgroup_tree = lambda driver: CgroupTree(CgroupHost(1), driver, hops)
    pod = make_pod()
    async with node.running() as agent:
        await trio.sleep(1)
        hops.takes, wanted = 1.0, trio.current_time()
        node.runtime.latency = {"RunPodSandbox": 10, "CreateContainer": 10}
        node.feed.put(pod)
        await agent.pods.wait_value(
            lambda pods: pod_uid(pod) in pods and ready(pods[pod_uid(pod)].status)
        )
        seen = trio.current_time() - wanted
        times = [
            node.runtime.calls_of(name)[0].time - wanted
            for name in ("RunPodSandbox", "CreateContainer", "StartContainer")
        ]
        # The record; the cgroup beside the directories. Beside RunPodSandbox the container's files,
        # beside CreateContainer the addresses in one of them. The log's link beside
        # ContainerStatus; the record.
        assert [*times, seen] == pytest.approx([2, 2 + 10, 2 + 20, 2 + 20 + 2], abs=0.2)


@dataclass
class Disk:
    """Work in threads, of which what `function` does takes a second, and fails while it is told."""

    function: str
    fails: bool = False
    done: int = 0

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(fn, "__name__", "") != self.function:
            return await inline_offload(fn, *args, **kwargs)
        with trio.CancelScope(shield=True):  # as a thread that changes something
            await trio.sleep(1)
        if self.fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.done += 1
        return fn(*args, **kwargs)


def takes_its_time(node: Node) -> None:
    node.runtime.latency = {"RunPodSandbox": 3, "CreateContainer": 0.5}


def hosts_of(node: Node, pod: Pod) -> str:
    return (node.base / "root" / "pods" / pod_uid(pod) / "etc-hosts").read_text()


def failure(node: Node, pod: Pod) -> str:
    """Return why the pod's container could not be configured, as status and event say alike."""
    state = node.container(pod).state
    assert state is not None
    assert state.waiting is not None
    assert state.waiting.reason == "CreateContainerConfigError"
    text = state.waiting.message or ""
    assert node.agent is not None
    (event,) = [e for e in node.agent.events.events() if e.reason == "Failed"]
    assert event.message == f"Error: {text}"
    return text


async def test_no_container_starts_before_its_hosts_file_has_the_pods_address(
    node: Node, autojump_clock: MockClock
) -> None:
    takes_its_time(node)
    node.offload = disk = Disk("write_hosts")
    pod = make_pod(containers=TWO)
    async with node.running(pod):
        await trio.sleep(3.4)
        assert "web-node" not in hosts_of(node, pod)  # made beside RunPodSandbox
        await trio.sleep(0.6)
        (created,) = node.runtime.containers.values()
        assert node.calls("StartContainer") == []
        await trio.sleep(5)
        assert ready(node.status(pod))
        address = node.status(pod).podIP
        assert f"{address}\tweb-node\n" in hosts_of(node, pod)
        assert disk.done == 1  # the second container finds it complete
        assert len(node.runtime.alive()) == 2
        mounts = {m.container_path: Path(m.host_path) for m in created.config.mounts}
        assert mounts["/etc/hosts"].read_text() == hosts_of(node, pod)
        assert mounts["/dev/termination-log"].read_text() == ""
    assert node.runtime.violations == []


async def test_a_container_whose_hosts_file_cannot_be_completed_does_not_start(
    node: Node, autojump_clock: MockClock
) -> None:
    takes_its_time(node)
    node.offload = disk = Disk("write_hosts", fails=True)
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(4.05)
        (created,) = node.runtime.containers
        assert failure(node, pod) == "[Errno 28] No space left on device"
        assert node.calls("StartContainer") == []
        disk.fails = False
        await trio.sleep(30)
        assert ready(node.status(pod))
        assert "web-node" in hosts_of(node, pod)
        (started,) = node.runtime.containers
        assert started != created
    assert node.runtime.violations == []


async def test_files_that_cannot_be_made_beside_the_sandbox_are_told_of_by_the_start(
    node: Node, autojump_clock: MockClock
) -> None:
    takes_its_time(node)
    node.offload = disk = Disk("container_files", fails=True)
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(3.2)
        assert len(node.runtime.sandboxes) == 1
        assert "Failed" not in node.reasons(pod)
        await trio.sleep(0.85)
        assert failure(node, pod) == "[Errno 28] No space left on device"
        assert node.calls("CreateContainer") == []
        disk.fails = False
        await trio.sleep(30)
        assert ready(node.status(pod))
        assert node.container(pod).restartCount == 0
    assert node.runtime.violations == []


@pytest.mark.parametrize("function", ["container_files", "write_hosts"])
@pytest.mark.parametrize("after", [0.002, 0.5, 2.5, 3.2, 3.7, 4.2])
async def test_an_agent_that_ends_beside_any_step_leaves_the_start_to_the_next(
    node: Node, autojump_clock: MockClock, function: str, after: float
) -> None:
    takes_its_time(node)
    node.offload = Disk(function)
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(after)
    async with node.running(pod):
        await trio.sleep(30)
        assert ready(node.status(pod))
        assert f"{node.status(pod).podIP}\tweb-node\n" in hosts_of(node, pod)
        assert len(node.runtime.alive()) == 1
        node.feed.put()
        await trio.sleep(10)
        assert not node.runtime.sandboxes
        assert node.leftovers() == []
    assert node.runtime.violations == []


@pytest.mark.parametrize("after", [0.5, 3.2, 3.7, 4.2])
async def test_a_pod_that_goes_beside_any_step_leaves_nothing(
    node: Node, autojump_clock: MockClock, after: float
) -> None:
    takes_its_time(node)
    node.offload = Disk("write_hosts")
    async with node.running(make_pod()):
        await trio.sleep(after)
        node.feed.put()
        await trio.sleep(10)
        assert not node.runtime.sandboxes
        assert node.leftovers() == []
    assert node.runtime.violations == []


class SlowRecords:
    """A disk on which each write of a pod's record takes its time, and may be left."""

    async def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await inline_offload(fn, *args, **kwargs)

    def of(self, purpose: Purpose) -> Offload:
        return self._write if purpose is Purpose.RECORDS else inline_offload

    async def _write(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.sleep(0.3)
        return await inline_offload(fn, *args, **kwargs)


@pytest.mark.parametrize("hook_takes", [2.5 + 0.1 * step for step in range(12)])
async def test_a_start_that_ends_while_its_sandbox_is_being_shown_is_told(
    node: Node, autojump_clock: MockClock, hook_takes: float
) -> None:
    node.offload = SlowRecords()
    node.runtime.on_exec = lambda _container, _command: FakeExec(takes=hook_takes)
    pod = make_pod(
        containers="- {name: web, image: web, imagePullPolicy: IfNotPresent, "
        "lifecycle: {postStart: {exec: {command: [warm-up]}}}}"
    )
    async with node.running(pod):
        await trio.sleep(10)
        assert ready(node.status(pod))


async def test_an_edit_that_changes_no_status_is_told(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(1)
        labelled = msgspec.structs.replace(metadata(pod), labels={"edit": "1"})
        edited = msgspec.structs.replace(pod, metadata=labelled)
        node.feed.put(edited)
        await trio.sleep(1)
        (told,) = agent.pods.value.values()
        assert metadata(told).labels == {"edit": "1"}
        assert ready(node.status(pod))
    assert node.runtime.violations == []


async def test_the_restart_count_goes_on_from_the_logs_of_instances_the_runtime_has_lost(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(1)
        (first,) = node.runtime.alive()
        node.runtime.forget(first.id)
        await trio.sleep(30)
        (second,) = node.runtime.alive()
        assert Path(second.log_path).name == "1.log"
        assert node.container(pod).restartCount == 1
        (link,) = (node.base / "containers").glob(f"*{second.id}.log")
        assert link.resolve() == Path(second.log_path)


async def test_a_killed_container_is_started_again_as_soon_as_the_runtime_says_it_died(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(1)
        (container,) = node.runtime.alive()
        died = trio.current_time()
        node.runtime.kill(container.id)
        await trio.sleep(1)
        (start,) = [c for c in node.runtime.calls_of("StartContainer") if c.time > died]
        assert start.time - died < 0.1  # the runtime told after 0.06 s
        assert node.container(pod).restartCount == 1


async def test_cancelling_the_agent_stops_no_container(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod("a"), make_pod("b")):
        await trio.sleep(1)
    assert len(node.runtime.alive()) == 2
    assert node.calls("StopContainer", "StopPodSandbox") == []


async def test_an_agent_started_again_adopts_and_restarts_nothing(
    node: Node, autojump_clock: MockClock
) -> None:
    pods = [make_pod(f"p{i}") for i in range(5)]
    async with node.running(*pods):
        await trio.sleep(1)
        node.runtime.kill(node.runtime.instances("p0-node")[0].id)
        await trio.sleep(1)
        before = [without_start(node.status(pod)) for pod in pods]
        started = node.calls("StartContainer")
    await trio.sleep(100)
    async with node.running(*pods):
        await trio.sleep(1)
        assert [without_start(node.status(pod)) for pod in pods] == before
        assert node.calls("StartContainer") == started
        assert node.container(pods[0]).restartCount == 1


async def test_readiness_does_not_flip_while_the_runtime_is_not_read_yet(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(1)
    node.runtime.go_down()
    async with node.running(pod):
        await trio.sleep(30)
        assert ready(node.status(pod))


async def test_a_pod_whose_manifest_went_while_the_agent_was_down_is_ended(
    node: Node, autojump_clock: MockClock
) -> None:
    kept, gone = make_pod("kept"), make_pod("gone")
    async with node.running(kept, gone):
        await trio.sleep(1)
    async with node.running(kept):
        await trio.sleep(10)
        assert [c.sandbox.metadata.name for c in node.runtime.alive()] == ["kept-node"]
        assert len(node.runtime.sandboxes) == 1
    assert node.runtime.violations == []


async def test_nothing_is_ended_before_every_source_has_delivered(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(1)
    async with node.running(pod):
        pass  # cancelled at once: had it not delivered, nothing was to be ended either
    assert len(node.runtime.alive()) == 1


async def test_with_the_runtime_down_at_boot_the_whole_tree_runs(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.go_down()
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(20)
        assert {c.state for c in agent.tree().children} == {ChildState.RUNNING}
        assert agent.status().runtime.problem
        assert node.status(pod).phase == "Pending"
        node.runtime.restart()
        await trio.sleep(2)
        assert ready(node.status(pod))
        assert not agent.status().runtime.problem


async def test_a_worker_that_always_raises_leaves_the_other_pods_undisturbed(
    node: Node, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = make_pod("bad"), make_pod("good")

    def plan_or_crash(pod: object, *args: object, **more: object) -> object:
        if pod is bad:
            raise ZeroDivisionError("a bug")
        return plan_pod(pod, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("kubelet_trio.pods.worker.sync.plan_pod", plan_or_crash)
    async with node.running(bad, good) as agent:
        await trio.sleep(600)
        assert ready(node.status(good))
        assert node.container(good).restartCount == 0
        pods = next(c for c in agent.tree().children if c.name == "pods")
        crashed = next(c for c in pods.children if "bad" in c.name)
        assert crashed.restarts > 10
        assert crashed.last_error is not None
        assert "a bug" in crashed.last_error
        assert "FailedSync" in node.reasons(bad)
        assert not any(c.restarts for c in agent.tree().children)


async def test_a_teardown_goes_on_after_a_restart_with_what_is_left_of_its_grace(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="stubborn", spec=["terminationGracePeriodSeconds: 60"])
    async with node.running(pod):
        await trio.sleep(1)
        node.feed.put()
        await trio.sleep(20)
    assert len(node.runtime.alive()) == 1  # cancelling cut the wait short, not the container
    async with node.running():
        await trio.sleep(30)
        assert len(node.runtime.alive()) == 1
        await trio.sleep(12)
        assert not node.runtime.alive()
        assert not node.runtime.sandboxes
        assert node.leftovers() == []


async def test_a_pod_wanted_again_during_its_teardown_starts_anew_afterwards(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="slow-stop-4")
    async with node.running(pod):
        await trio.sleep(1)
        first = node.runtime.alive()[0].id
        node.feed.put()
        await trio.sleep(1)
        node.feed.put(pod)
        await trio.sleep(10)
        (container,) = node.runtime.alive()
        assert container.id != first
        assert ready(node.status(pod))
        assert node.container(pod).restartCount == 1  # as with the Go kubelet


async def test_a_teardown_recorded_before_a_restart_is_done_before_the_pod_runs_again(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="slow-stop-9")
    async with node.running(pod):
        await trio.sleep(1)
        first = node.runtime.alive()[0].id
        node.feed.put()
        await trio.sleep(1)
    async with node.running(pod):
        await trio.sleep(20)
        (container,) = node.runtime.alive()
        assert container.id != first
        assert ready(node.status(pod))
    assert node.runtime.violations == []


async def test_an_edited_pod_waits_until_the_one_before_is_gone(
    node: Node, autojump_clock: MockClock
) -> None:
    old, new = make_pod(image="slow-stop-5"), make_pod(image="other")
    assert pod_uid(old) != pod_uid(new)
    async with node.running(old):
        await trio.sleep(1)
        node.feed.put(new)
        await trio.sleep(3)
        assert {c.name for c in node.runtime.alive(pod_uid(new))} == set()
        await trio.sleep(7)
        assert [c.sandbox.metadata.uid for c in node.runtime.alive()] == [pod_uid(new)]
        assert ready(node.status(new))


async def test_an_image_pull_in_flight_does_not_hold_up_the_teardown(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    node.runtime.faults.add(FaultKind.HANG, "PullImage", times=None)
    async with node.running(pod):
        await trio.sleep(5)
        assert node.calls("PullImage") == ["PullImage"]
        node.feed.put()
        await trio.sleep(1)
        assert not node.runtime.sandboxes
        assert node.leftovers() == []


async def test_a_pull_that_fails_backs_off_and_says_so(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="missing-thing")
    async with node.running(pod):
        await trio.sleep(1)
        waiting = node.container(pod).state
        assert waiting is not None
        assert waiting.waiting is not None
        assert waiting.waiting.reason == "ErrImagePull"
        await trio.sleep(6)
        waiting = node.container(pod).state
        assert waiting is not None
        assert waiting.waiting is not None
        assert waiting.waiting.reason == "ImagePullBackOff"
        await trio.sleep(600)
        pulls = [c.time for c in node.runtime.calls_of("PullImage")]
        gaps = [round(b - a) for a, b in itertools.pairwise(pulls)]
        assert gaps[:4] == pytest.approx([10, 20, 40, 80], abs=2)


async def test_pulls_are_limited_to_their_number(node: Node, autojump_clock: MockClock) -> None:
    node.runtime.latency["PullImage"] = 10
    async with node.running(*(make_pod(f"p{i}", image=f"image-{i}") for i in range(4))):
        await trio.sleep(11)
        assert len(node.runtime.alive()) == 2  # parallel_pulls=2
        await trio.sleep(10)
        assert len(node.runtime.alive()) == 4


async def test_a_hung_call_of_one_pod_holds_up_no_other(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.faults.add(FaultKind.HANG, "CreateContainer", "stuck-node", times=None)
    stuck, good = make_pod("stuck"), make_pod("good")
    async with node.running(stuck, good):
        await trio.sleep(2)
        assert ready(node.status(good))
        node.feed.put(good)
        await trio.sleep(100)
        assert len(node.runtime.sandboxes) == 2  # the call may still make something
        await trio.sleep(30)
        assert pod_uid(stuck) not in node.agent.pods.value if node.agent else False
        assert len(node.runtime.sandboxes) == 1


async def test_a_lost_reply_leaves_no_second_instance(
    node: Node, autojump_clock: MockClock
) -> None:
    for call in ("RunPodSandbox", "CreateContainer", "StartContainer"):
        node.runtime.faults.add(FaultKind.LOST_REPLY, call)
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(60)
        assert ready(node.status(pod))
        assert len(node.runtime.alive()) == 1
        assert len([s for s in node.runtime.sandboxes.values() if s.ready]) == 1
    assert node.runtime.violations == []


async def test_a_stop_that_fails_is_tried_until_it_works(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.faults.add(
        FaultKind.ERROR,
        "StopContainer",
        times=5,
        error=RuntimeUnavailableError("StopContainer", "connection refused"),
    )
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(1)
        node.feed.put()
        await trio.sleep(1)
        assert len(node.runtime.alive()) == 1
        assert "FailedKillPod" in node.reasons(pod)
        await trio.sleep(60)
        assert not node.runtime.sandboxes
        assert node.leftovers() == []
    assert node.runtime.violations == []


async def test_active_deadline_ends_the_pod_and_it_stays_failed(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(spec=["activeDeadlineSeconds: 30"])
    async with node.running(pod):
        await trio.sleep(29)
        assert ready(node.status(pod))
        await trio.sleep(5)
        assert (node.status(pod).phase, node.status(pod).reason) == ("Failed", "DeadlineExceeded")
        assert not node.runtime.alive()
    async with node.running(pod):
        await trio.sleep(30)
        assert (node.status(pod).phase, node.status(pod).reason) == ("Failed", "DeadlineExceeded")
        assert not node.runtime.alive()
        node.feed.put()
        await trio.sleep(2)
        assert node.leftovers() == []


async def test_a_finished_pod_keeps_its_logs_until_its_manifest_goes(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="exit-0-after-2", spec=["restartPolicy: Never"])
    async with node.running(pod) as agent:
        await trio.sleep(5)
        assert node.status(pod).phase == "Succeeded"
        (container,) = node.runtime.instances("web-node")
        assert agent.log_path(pod_uid(pod), container.id) is not None
        assert not any(s.ready for s in node.runtime.sandboxes.values())
        node.feed.put()
        await trio.sleep(2)
        assert not node.runtime.containers
        assert node.leftovers() == []


async def test_sidecars_stop_after_the_main_containers(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(
        spec=[
            "initContainers:",
            "- {name: first, image: first, restartPolicy: Always}",
            "- {name: second, image: second, restartPolicy: Always}",
        ],
        image="slow-stop-3",
    )
    async with node.running(pod):
        await trio.sleep(2)
        names = {c.id: c.name for c in node.runtime.alive()}
        node.feed.put()
        await trio.sleep(10)
        stops = node.runtime.calls_of("StopContainer")
        assert [names[c.target] for c in stops] == ["web", "second", "first"]  # type: ignore[index]
        assert stops[1].time - stops[0].time == pytest.approx(3, abs=0.1)


async def test_a_stopped_agent_lets_the_step_in_hand_finish(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.latency["RunPodSandbox"] = 3
    async with node.running(make_pod()) as agent:
        await trio.sleep(1)
        agent.stop()
        await trio.sleep(4)
        assert len(node.runtime.sandboxes) == 1
    assert node.runtime.violations == []


async def test_a_second_agent_on_the_same_root_directory_is_refused(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod()):
        await trio.sleep(1)
        with pytest.RaisesGroup(pytest.RaisesExc(Exception, match="runs on")):
            async with Node(node.base).running():
                await trio.sleep(1)
        assert len(node.runtime.alive()) == 1


async def test_a_process_that_the_runtime_lost_keeps_no_pod_from_going(
    node: Node, autojump_clock: MockClock
) -> None:
    """As containerd 1.6 after a start whose caller was killed: its task is there, and unknown."""
    pod = make_pod()
    async with node.running(pod):
        await trio.sleep(20)
        lost = node.runtime.faults.add(FaultKind.ERROR, "RemovePodSandbox", times=None)
        node.cgroups.on_kill = partial(node.runtime.faults.lift, lost)
        node.feed.put()
        await trio.sleep(120)
        assert not node.runtime.sandboxes
        assert not list((node.base / "root" / "pods").iterdir())


async def test_a_crash_loop_says_so_each_time(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod(image="exit-1")
    async with node.running(pod) as agent:
        await trio.sleep(100)
        name = metadata(pod).name or ""
        told = [e for e in agent.events.events(name=name) if e.reason == "BackOff"]
        (event,) = told  # of one text: it counts
        assert event.type == "Warning"
        assert event.message == (
            f"Back-off restarting failed container web in pod {name}_default({pod_uid(pod)})"
        )
        assert event.involvedObject.fieldPath == "spec.containers{web}"
        assert (event.count or 0) > 1


async def test_a_container_that_restarts_for_the_first_time_is_in_no_back_off(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="exit-1-after-700")
    async with node.running(pod):
        await trio.sleep(2500)
        assert node.container(pod).restartCount == 3
        assert "BackOff" not in node.reasons(pod)


async def test_a_crash_back_off_grows_as_the_settings_say(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(image="exit-1")
    policy = BackOffPolicy(base=1.0, cap=2.0)
    async with node.running(pod, crash_back_off=policy):
        await trio.sleep(60)
        assert node.container(pod).restartCount > 15


async def test_a_sandbox_that_cannot_be_looked_at_says_so(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    node.runtime.faults.add(FaultKind.ERROR, "PodSandboxStatus")
    async with node.running(pod):
        await trio.sleep(30)
        assert "FailedPodSandBoxStatus" in node.reasons(pod)
        assert "FailedCreatePodSandBox" not in node.reasons(pod)
        assert ready(node.status(pod))


async def test_a_pod_that_the_runtime_does_not_tell_of_says_so(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    async with node.running(pod) as agent:
        await trio.sleep(5)
        error = RuntimeCallError("ContainerStatus", "database is locked", code="Unknown")
        fault = node.runtime.faults.add(FaultKind.ERROR, "ContainerStatus", times=None, error=error)
        node.runtime.kill(node.runtime.alive()[0].id, 1)
        await trio.sleep(100)
        told = {e.message for e in agent.events.events() if e.reason == "FailedSync"}
        assert told == {
            "error determining status: rpc error: code = Unknown desc = database is locked"
        }
        node.runtime.faults.lift(fault)
        await trio.sleep(5)
        assert ready(node.status(pod))
        assert node.container(pod).restartCount == 1


async def test_a_node_without_cluster_dns_says_so_on_the_pod_and_on_the_node(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod()) as agent:
        await trio.sleep(1)
        found = [e for e in agent.events.events() if e.reason == "MissingClusterDNS"]
        involved = [e.involvedObject for e in found]
        assert sorted(i.kind or "" for i in involved) == ["Node", "Pod"]
        on_node = next(e for e in found if e.involvedObject.kind == "Node")
        assert on_node.involvedObject.name == agent.settings.node.node_name
        assert (on_node.message or "").startswith("kubelet does not have ClusterDNS IP")
