"""A bug that one pod brings out in a task that serves all of them is that pod's alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.agent.admission import AdmissionSettings
from kubelet_trio.model import pod_key
from kubelet_trio.pods import Rejected
from kubelet_trio.supervision import TreeNode
from tests.agent.node import Node, make_pod, ready

BAD, GOOD = make_pod("bad"), make_pod("good")
REASON = "UnexpectedAdmissionError"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def restarts(tree: TreeNode) -> int:
    return tree.restarts + sum(map(restarts, tree.children))


def raise_for_bad(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Let a function of the agent fail for the pod `bad`, as a bug would."""
    module, name = place.rsplit(".", 1)
    real = getattr(__import__(module, fromlist=[name]), name)

    def broken(*args: object, **more: object) -> object:
        if any(isinstance(each, Pod) and pod_key(each).name == "bad-node" for each in args):
            raise ZeroDivisionError("a bug")
        return real(*args, **more)

    monkeypatch.setattr(place, broken)


@pytest.mark.parametrize(
    "place",
    [
        "kubelet_trio.pods.worker.admitter.decide_beside",
        "kubelet_trio.pods.worker.worker.pod_probes",
    ],
    ids=["admission", "construction"],
)
async def test_the_pod_is_rejected_and_nobody_else_touched(
    node: Node, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, place: str
) -> None:
    raise_for_bad(monkeypatch, place)
    async with node.running(BAD, GOOD) as agent:
        await trio.sleep(30)
        node.feed.put(BAD, GOOD, make_pod("late"))
        await trio.sleep(30)
        assert ready(node.status(GOOD))
        assert ready(node.status(make_pod("late")))
        status = node.status(BAD)
        assert (status.phase, status.reason) == ("Failed", REASON)
        assert "a bug" in (status.message or "")
        assert node.reasons(BAD) == [REASON]
        assert restarts(agent.tree()) == 0
        # Its end is as any pod's.
        node.feed.put(GOOD)
        await trio.sleep(30)
        assert [pod_key(pod).name for pod in agent.pods.value.values()] == ["good-node"]
    assert node.runtime.violations == []


async def test_what_runs_of_it_is_neither_ended_nor_called_failed(
    node: Node, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with node.running(BAD, GOOD):
        await trio.sleep(30)
    raise_for_bad(monkeypatch, "kubelet_trio.pods.worker.worker.pod_probes")
    async with node.running(BAD, GOOD) as agent:
        await trio.sleep(120)
        assert len(node.runtime.alive()) == 2
        assert ready(node.status(GOOD))
        assert REASON in node.reasons(BAD)
        failed = [p for p in agent.pods.value.values() if p.status and p.status.phase == "Failed"]
        assert failed == []
        assert restarts(agent.tree()) == 0


async def test_a_pod_that_was_edited_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    with monkeypatch.context() as broken:
        raise_for_bad(broken, "kubelet_trio.pods.worker.worker.pod_probes")
        async with node.running(BAD):
            await trio.sleep(30)
            assert node.status(BAD).reason == REASON
            broken.undo()
            node.feed.put(BAD)
            await trio.sleep(30)
            assert node.status(BAD).reason == REASON
            edited = make_pod("bad", image="other")
            node.feed.put(edited)
            await trio.sleep(30)
            assert ready(node.status(edited))


async def test_reasons_are_told_in_upstreams_order(node: Node, autojump_clock: MockClock) -> None:
    """What rejects a pod for what it is comes before what is wrong with the node for now."""

    def last(_pod: Pod, _others: Sequence[Pod]) -> Rejected | None:
        return Rejected("NodeShutdown", "the node goes down")

    pod = make_pod("os", spec=["os: {name: windows}"])
    settings = AdmissionSettings(checks=(last,))
    async with node.running(pod, GOOD, admission=settings):
        await trio.sleep(5)
        assert node.status(pod).reason == "PodOSNotSupported"
        assert node.status(GOOD).reason == "NodeShutdown"
