"""Statuses reach the API server: at once, coalesced, in spite of it, and never backwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import structlog
import trio
from lightkube.models.core_v1 import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodStatus,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from kubelet_trio.kube import KubeError, NotFoundError
from kubelet_trio.model import PodUid, pod_uid
from kubelet_trio.status.manager import StatusManager
from kubelet_trio.status.mirrors import mirror_of
from kubelet_trio.testing import FakeKube, KubeFaultKind, TrioClock
from tests.status.make import (
    NODE,
    add_node,
    api_pod,
    condition,
    conditions,
    observed,
    static_pod,
    with_status,
)


class World:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.node = add_node(self.kube)
        self.manager = StatusManager(self.kube.node(NODE), TrioClock())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.manager.run)
            yield
            nursery.cancel_scope.cancel()

    def add(self, pod: Pod | None = None) -> Pod:
        made = self.kube.add(pod or api_pod())
        self.observe()
        return made

    def observe(self) -> None:
        self.manager.observe(*observed(self.kube))

    def status(self, name: str = "web") -> PodStatus | None:
        found = self.kube.find(Pod, name)
        return found.status if found is not None else None

    def phase(self, name: str = "web") -> str | None:
        status = self.status(name)
        return status.phase if status is not None else None

    async def wait(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(120):
            await self.kube.wait_until(lambda _kube: condition())
        await wait_all_tasks_blocked()

    def verbs(self) -> list[str]:
        return [r.verb for r in self.kube.requests if r.resource.startswith("pods")]


async def test_a_status_is_there_at_once_with_one_request(autojump_clock: MockClock) -> None:
    world = World()
    pod = world.add()
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await world.wait(lambda: world.phase() == "Running")
        assert trio.current_time() < 0.1
        assert world.verbs() == ["patch"]


async def test_our_own_echo_and_an_equal_status_are_not_sent(autojump_clock: MockClock) -> None:
    world = World()
    pod = world.add()
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await world.wait(lambda: world.phase() == "Running")
        world.observe()
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await trio.sleep(60)
        assert world.verbs() == ["patch"]


async def test_a_pod_that_no_watch_has_told_of_yet_is_asked_for(autojump_clock: MockClock) -> None:
    world = World()
    pod = world.kube.add(api_pod())
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await world.wait(lambda: world.phase() == "Running")
        assert world.verbs() == ["get", "patch"]


async def test_while_a_server_is_slow_only_the_newest_waits(autojump_clock: MockClock) -> None:
    world = World()
    pod = world.add()
    world.kube.latency = 1.0
    async with world.running():
        for round_ in range(50):
            world.manager.put(pod_uid(pod), with_status(pod, "Running", message=str(round_)))
            await trio.sleep(0.01)
        await world.wait(lambda: (world.status() or PodStatus()).message == "49")
        assert len(world.verbs()) <= 3


async def test_conditions_of_others_survive(autojump_clock: MockClock) -> None:
    world = World()
    gate = {"status": {"conditions": [{"type": "example.com/gate", "status": "True"}]}}
    pod = world.add()
    async with world.running():
        world.kube.change(Pod, "web", gate, subresource="status")  # the watch lags
        world.manager.put(
            pod_uid(pod), with_status(pod, "Running", conditions=[condition("Ready")])
        )
        await world.wait(lambda: world.phase() == "Running")
        assert conditions(world.status()) == {"example.com/gate": "True", "Ready": "True"}


async def test_what_somebody_wrote_over_is_put_right(autojump_clock: MockClock) -> None:
    world = World()
    pod = world.add()
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Running", message="ours"))
        await world.wait(lambda: world.phase() == "Running")
        world.kube.change(Pod, "web", {"status": {"message": "theirs"}}, subresource="status")
        world.observe()
        await world.wait(lambda: (world.status() or PodStatus()).message == "ours")


async def test_a_terminal_phase_that_somebody_set_is_not_undone(autojump_clock: MockClock) -> None:
    world = World()
    pod = world.add()
    async with world.running():
        world.kube.change(Pod, "web", {"status": {"phase": "Failed"}}, subresource="status")
        world.observe()
        world.manager.put(pod_uid(pod), with_status(pod, "Running", message="x"))
        await trio.sleep(10)
        assert world.phase() == "Failed"


async def test_a_server_that_goes_away_is_tried_until_it_is_back(autojump_clock: MockClock) -> None:
    world = World()
    pods = [world.add(api_pod(f"p{i}")) for i in range(20)]
    world.kube.go_down()
    async with world.running():
        for pod in pods:
            world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await trio.sleep(300)
        assert len(world.verbs()) < 20 * 10  # and not each pod by itself for ever
        assert len(list(world.manager.waiting())) == 20
        world.kube.come_back()
        await world.wait(lambda: all(world.phase(f"p{i}") == "Running" for i in range(20)))
        assert trio.current_time() < 300 + 6


async def test_a_pod_that_the_server_refuses_holds_up_no_other(autojump_clock: MockClock) -> None:
    world = World()
    bad, good = world.add(api_pod("bad")), world.add(api_pod("good"))
    refusal = KubeError(422, "Invalid", "no")
    world.kube.faults.add(
        KubeFaultKind.ERROR, "patch", "pods/status", "bad", times=5, error=refusal
    )
    async with world.running():
        world.manager.put(pod_uid(bad), with_status(bad, "Running"))
        world.manager.put(pod_uid(good), with_status(good, "Running"))
        await world.wait(lambda: world.phase("good") == "Running")
        assert trio.current_time() < 0.1
        await world.wait(lambda: world.phase("bad") == "Running")


async def test_the_object_goes_after_the_final_status(autojump_clock: MockClock) -> None:
    world = World()
    pod = world.add()
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await world.wait(lambda: world.phase() == "Running")
        world.kube.remove(Pod, "web")
        world.observe()
        await trio.sleep(30)
        assert world.kube.find(Pod, "web") is not None
        world.manager.put(pod_uid(pod), with_status(pod, "Failed"))
        await world.wait(lambda: world.phase() == "Failed")
        await trio.sleep(30)
        assert world.kube.find(Pod, "web") is not None  # something of it is still here
        world.manager.put(pod_uid(pod), with_status(pod, "Failed"), is_finished=True)
        await world.wait(lambda: world.kube.find(Pod, "web") is None)


async def test_a_pod_that_ended_long_ago_goes_when_it_is_asked_to(
    autojump_clock: MockClock,
) -> None:
    world = World()
    pod = world.add()
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Succeeded"), is_finished=True)
        await world.wait(lambda: world.phase() == "Succeeded")
        await trio.sleep(3600)
        world.kube.remove(Pod, "web")
        world.observe()
        await world.wait(lambda: world.kube.find(Pod, "web") is None)


async def test_a_new_pod_of_the_same_name_is_not_spoken_of(autojump_clock: MockClock) -> None:
    world = World()
    old = world.add()
    async with world.running():
        world.kube.remove(Pod, "web", grace_period=0)
        new = world.kube.add(api_pod())
        world.manager.put(pod_uid(old), with_status(old, "Failed"), is_finished=True)
        await trio.sleep(60)
        assert world.phase() != "Failed"
        found = world.kube.find(Pod, "web")
        assert found is not None
        assert pod_uid(found) == pod_uid(new)
        assert len(world.verbs()) <= 3


async def test_a_status_that_is_refused_for_long_is_a_line_for_each_reason(
    autojump_clock: MockClock,
) -> None:
    world = World()
    pod = world.add()
    add = partial(world.kube.faults.add, KubeFaultKind.ERROR, resource="pods/status", times=None)
    with structlog.testing.capture_logs() as logs:
        async with world.running():
            for text in ("no", "no quota"):
                add(error=KubeError(403, "Forbidden", text))
                world.manager.put(pod_uid(pod), with_status(pod, "Running"))
                await trio.sleep(120)
                world.kube.faults.clear()
            await world.wait(lambda: world.phase() == "Running")
    assert world.verbs().count("patch") > 10
    told = [line["error"] for line in logs if line["event"] == "status.refused"]
    assert told == ["no", "no quota"]


async def test_a_pod_is_not_given_up_that_is_not_found_and_yet_is_there(
    autojump_clock: MockClock,
) -> None:
    """Not every 404 is an API server's: a proxy on the way may answer so for a while."""
    world = World()
    pod = world.add()
    missing = NotFoundError(404, "NotFound", "the server could not find the requested resource")
    world.kube.faults.add(KubeFaultKind.ERROR, resource="pods/status", times=4, error=missing)
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await world.wait(lambda: world.phase() == "Running")


async def test_a_pod_that_is_gone_is_let_be(autojump_clock: MockClock) -> None:
    world = World()
    old = world.add()
    async with world.running():
        world.kube.remove(Pod, "web", grace_period=0)
        world.manager.put(pod_uid(old), with_status(old, "Failed"), is_finished=True)
        await trio.sleep(0.1)
        world.observe()  # a watch tells so a little later
        await trio.sleep(60)
        world.manager.put(pod_uid(old), with_status(old, "Failed", message="x"), is_finished=True)
        await trio.sleep(60)
        assert world.verbs() == ["patch", "get"]


async def test_a_static_pod_is_spoken_of_by_its_mirror(autojump_clock: MockClock) -> None:
    world = World()
    pod = static_pod()
    uid = world.node.metadata.uid if world.node.metadata is not None else None
    async with world.running():
        world.manager.put(PodUid("hash-1"), with_status(pod, "Running"))
        await trio.sleep(60)
        assert world.verbs() == []
        world.add(mirror_of(pod, NODE, uid or ""))
        await world.wait(lambda: world.phase("etcd-node-1") == "Running")
        # A mirror that was made anew knows nothing yet.
        world.kube.remove(Pod, "etcd-node-1", grace_period=0)
        world.add(mirror_of(pod, NODE, uid or ""))
        await world.wait(lambda: world.phase("etcd-node-1") == "Running")


async def test_an_edited_static_pod_does_not_speak_by_the_mirror_of_the_old(
    autojump_clock: MockClock,
) -> None:
    world = World()
    old, new = static_pod(config="hash-1"), static_pod(config="hash-2")
    uid = world.node.metadata.uid if world.node.metadata is not None else None
    async with world.running():
        world.add(mirror_of(old, NODE, uid or ""))
        world.manager.put(PodUid("hash-1"), with_status(old, "Running"))
        world.manager.put(PodUid("hash-2"), with_status(new, "Pending", message="new"))
        await world.wait(lambda: world.phase("etcd-node-1") == "Running")
        await trio.sleep(60)
        assert world.phase("etcd-node-1") == "Running"


async def test_an_old_server_that_drops_a_field_is_not_told_for_ever(
    autojump_clock: MockClock,
) -> None:
    world = World()
    pod = world.add()
    patch = world.manager._api.patch

    async def of_an_old_server(*args: object, **kwargs: object) -> object:
        body = args[2]
        assert isinstance(body, dict)
        body["status"].pop("observedGeneration", None)
        return await partial(patch, *args, **kwargs)()  # type: ignore[arg-type]

    world.manager._api.patch = of_an_old_server  # type: ignore[method-assign,assignment]
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Running", observedGeneration=7))
        await world.wait(lambda: world.phase() == "Running")
        for _ in range(5):
            world.observe()
            world.manager.put(pod_uid(pod), with_status(pod, "Running", observedGeneration=7))
            await trio.sleep(10)
        assert world.verbs() == ["patch"]


async def test_what_was_said_last_still_leaves(autojump_clock: MockClock) -> None:
    world = World()
    pod, static = world.add(), static_pod()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.manager.run)
        world.manager.put(pod_uid(static), with_status(static, "Running"))  # has no mirror
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        world.manager.stop()
    assert world.phase() == "Running"
    assert trio.current_time() < 1


async def test_an_agent_that_ends_does_not_wait_for_a_server_that_is_away(
    autojump_clock: MockClock,
) -> None:
    world = World()
    pod = world.add()
    world.kube.hang()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.manager.run)
        world.manager.put(pod_uid(pod), with_status(pod, "Running"))
        await trio.sleep(1)
        world.manager.stop()
    assert trio.current_time() < 6


def ended(pod: Pod, *, again: bool = False) -> Pod:
    """The pod with a container that ended for good, or illegally runs again."""
    state = ContainerState(terminated=ContainerStateTerminated(exitCode=0))
    if again:
        state = ContainerState(running=ContainerStateRunning())
    one = ContainerStatus(
        name="web", state=state, image="web", imageID="web", ready=False, restartCount=0
    )
    return with_status(pod, "Running", containerStatuses=[one])


def is_ended(status: PodStatus | None) -> bool:
    containers = (status.containerStatuses if status is not None else None) or ()
    return [c.state.terminated is not None for c in containers if c.state] == [True]


def once_only() -> Pod:
    pod = api_pod()
    assert pod.spec is not None
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, restartPolicy="Never")
    )


async def test_an_illegal_transition_is_dropped_before_it_is_sent(
    autojump_clock: MockClock,
) -> None:
    world = World()
    pod = world.add(once_only())
    async with world.running():
        world.manager.put(pod_uid(pod), ended(pod))
        await world.wait(lambda: is_ended(world.status()))
        world.observe()
        world.manager.put(pod_uid(pod), ended(pod, again=True))
        await trio.sleep(600)
        assert world.verbs() == ["patch"]
        assert list(world.manager.waiting()) == []
        # What is legal is told as ever.
        legal = ended(pod)
        assert legal.status is not None
        legal.status.message = "told"
        world.manager.put(pod_uid(pod), legal)
        await world.wait(lambda: (world.status() or PodStatus()).message == "told")
        assert is_ended(world.status())


async def test_after_a_restart_the_servers_word_stands(autojump_clock: MockClock) -> None:
    """Nothing is remembered then but what the server has: it would refuse for ever."""
    world = World()
    pod = world.add(once_only())
    told = msgspec.to_builtins(ended(pod).status)
    world.kube.change(Pod, "web", {"status": told}, subresource="status")
    world.observe()
    async with world.running():
        world.manager.put(pod_uid(pod), ended(pod, again=True))
        await trio.sleep(600)
        assert world.verbs() == []
        assert list(world.manager.waiting()) == []


async def test_a_pod_that_ends_after_an_illegal_status_is_deleted(
    autojump_clock: MockClock,
) -> None:
    world = World()
    pod = world.add(once_only())
    async with world.running():
        world.manager.put(pod_uid(pod), with_status(pod, "Failed"))
        await world.wait(lambda: world.phase() == "Failed")
        world.kube.remove(Pod, "web")
        world.observe()
        world.manager.put(pod_uid(pod), with_status(pod, "Running"), is_finished=True)
        await world.wait(lambda: world.phase() is None)


async def test_a_mirror_has_no_status_of_a_container_that_its_spec_has_not(
    autojump_clock: MockClock,
) -> None:
    world = World()
    static = static_pod()
    uid = world.node.metadata.uid if world.node.metadata is not None else None
    async with world.running():
        world.add(mirror_of(static, NODE, uid or ""))
        added = ContainerStatus(name="debugger", image="i", imageID="", ready=False, restartCount=0)
        status = with_status(static, "Running", ephemeralContainerStatuses=[added])
        world.manager.put(pod_uid(static), status)
        await world.wait(lambda: world.phase("etcd-node-1") == "Running")
        found = world.status("etcd-node-1")
        assert found is not None
        assert found.ephemeralContainerStatuses is None
