"""Pods as an API server has them: their deletion is asked for, and their object goes last."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod, PodCondition, PodStatus

from kubelet_trio.model import PodUid, metadata, pod_uid
from kubelet_trio.status import StatusStore
from tests.agent.node import Node, from_api, make_pod, ready

DELETED_AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def asked_to_go(pod: Pod, grace: int = 30) -> Pod:
    meta = msgspec.structs.replace(
        metadata(pod), deletionTimestamp=DELETED_AT, deletionGracePeriodSeconds=grace
    )
    return msgspec.structs.replace(pod, metadata=meta)


class Heard:
    """What a listener of the status store is told last."""

    def __init__(self) -> None:
        self.finished: dict[PodUid, bool] = {}

    def put(self, uid: PodUid, pod: Pod, *, is_finished: bool = False) -> None:
        self.finished[uid] = is_finished

    def forget(self, uid: PodUid) -> None:
        self.finished.pop(uid, None)


async def test_a_pod_whose_deletion_was_asked_for_ends_and_stays_until_its_object_is_gone(
    node: Node, autojump_clock: object
) -> None:
    pod = from_api(make_pod())
    async with node.running(pod) as agent:
        await agent.pods.wait_value(
            lambda pods: any(p.status and ready(p.status) for p in pods.values())
        )
        node.feed.put(asked_to_go(pod))
        await agent.pods.wait_value(
            lambda pods: any(p.status and p.status.phase == "Failed" for p in pods.values())
        )
        state = node.container(pod).state
        assert state is not None
        assert state.terminated is not None
        assert not node.runtime.alive()
        await trio.sleep(3600)
        assert pod_uid(pod) in agent.pods.value
        node.feed.put()
        await agent.wait_pod_gone(pod)
    assert node.leftovers() == []
    assert node.runtime.violations == []


async def test_a_pod_is_shown_with_its_newest_labels_while_it_ends_and_when_it_has_ended(
    node: Node, autojump_clock: object
) -> None:
    """/pods has what the API server says of a pod, as podManager of the Go kubelet."""
    pod = from_api(make_pod("web", containers="- {name: web, image: slow-stop-5}"))

    def labelled(of: Pod, label: str) -> Pod:
        meta = msgspec.structs.replace(metadata(of), labels={"state": label})
        return msgspec.structs.replace(of, metadata=meta)

    async with node.running(pod) as agent:
        await agent.pods.wait_value(
            lambda pods: any(p.status and ready(p.status) for p in pods.values())
        )
        ending = asked_to_go(pod)
        for label in ("ending", "still ending", "ended", "more"):
            node.feed.put(labelled(ending, label))
            await trio.sleep(2)
            assert metadata(agent.pods.value[pod_uid(pod)]).labels == {"state": label}
        assert node.status(pod).phase == "Failed"


async def test_a_pod_that_was_asked_to_go_before_it_began_never_starts(
    node: Node, autojump_clock: object
) -> None:
    pod = asked_to_go(from_api(make_pod()))
    async with node.running(pod) as agent:
        await agent.pods.wait_value(
            lambda pods: any(p.status and p.status.phase == "Failed" for p in pods.values())
        )
    assert node.calls("RunPodSandbox", "CreateContainer") == []


async def test_a_pod_that_the_api_says_has_ended_never_starts(
    node: Node, autojump_clock: object
) -> None:
    over = PodStatus(phase="Succeeded", message="done")
    pod = msgspec.structs.replace(from_api(make_pod()), status=over)
    async with node.running(pod):
        await trio.sleep(60)
        assert node.status(pod).phase == "Succeeded"
        assert node.status(pod).message == "done"
    assert node.calls("RunPodSandbox", "CreateContainer") == []


async def test_an_agent_that_starts_anew_goes_on_with_a_deletion(
    node: Node, autojump_clock: object
) -> None:
    pod = from_api(make_pod())
    async with node.running(pod) as agent:
        await agent.pods.wait_value(
            lambda pods: any(p.status and ready(p.status) for p in pods.values())
        )
        node.feed.put(asked_to_go(pod))
        await agent.pods.wait_value(
            lambda pods: any(p.status and p.status.phase == "Failed" for p in pods.values())
        )
    before = len(node.calls("CreateContainer"))
    async with node.running(asked_to_go(pod)):
        await trio.sleep(60)
        assert node.status(pod).phase == "Failed"
    assert len(node.calls("CreateContainer")) == before


async def test_a_condition_of_somebody_else_holds_back_nothing_and_restarts_nothing(
    node: Node, autojump_clock: object
) -> None:
    pod = from_api(make_pod())
    theirs = PodStatus(
        phase="Running", conditions=[PodCondition(type="example.com/x", status="True")]
    )
    async with node.running(pod) as agent:
        await agent.pods.wait_value(
            lambda pods: any(p.status and ready(p.status) for p in pods.values())
        )
        node.feed.put(msgspec.structs.replace(pod, status=theirs))
        await agent.pods.wait_value(
            lambda pods: any(
                c.type == "example.com/x"
                for p in pods.values()
                for c in (p.status and p.status.conditions) or ()
            )
        )
    assert len(node.calls("CreateContainer")) == 1


def test_a_listener_is_told_what_is_finished() -> None:
    heard = Heard()
    store = StatusStore(heard)
    pod = make_pod()
    store.put(pod_uid(pod), pod)
    store.deliver()
    assert heard.finished == {pod_uid(pod): False}
    store.finish(pod_uid(pod))
    store.deliver()
    assert heard.finished == {pod_uid(pod): True}
    store.forget(pod_uid(pod))
    store.deliver()
    assert heard.finished == {}
