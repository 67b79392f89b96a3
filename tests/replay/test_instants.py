"""What a replay must keep of the instants at which a recorded agent has looked at its runtime.

A replayed agent that looks a little earlier or later sees something else, and decides otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kubelet_trio.agent import Agent
from kubelet_trio.cri import RuntimeUnavailableError
from kubelet_trio.recorder import Kind, read_recording
from kubelet_trio.replay import Replay, replay_recording
from kubelet_trio.replay.observed import Observed, Versions
from kubelet_trio.replay.outages import Outages
from kubelet_trio.replay.recorded import Life, Reading
from kubelet_trio.testing import FaultKind
from tests.agent.node import Node, make_pod
from tests.replay.recordings import record

CREATE = (Kind.CALL, "create_container")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.runtime.latency = {"": 0.02, "RunPodSandbox": 0.3, "StartContainer": 0.15}
    return node


def calls(found: Replay) -> list[str]:
    return [d.text for d in found.decisions if d.kind == "call"]


def test_an_outage_ends_waits_when_the_recorded_agent_has_found_it(node: Node) -> None:
    """A slow Status: 5 s later than the replayed agent, the recorded one asks again."""
    node.runtime.latency["Status"] = 0.5
    pod = make_pod(image="missing")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(
            16
        )  # its pull waits; the recorded agent asks at 16.6, the replayed at 15.5
        node.runtime.go_down()
        await trio.sleep(10)
        node.runtime.restart()
        await trio.sleep(10)

    replay_recording(record(node, story)).check()


def test_a_relist_while_a_container_is_being_started(node: Node) -> None:
    """It has shown that it is not running yet: after the start that is out of date."""
    node.runtime.latency["StartContainer"] = 1.0
    pod = make_pod()

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(0.9)
        agent.parts.runtime.pleg.relist_soon()
        await trio.sleep(20)

    found = replay_recording(record(node, story))
    found.check()
    assert calls(found)[-1] == "start container web"


def test_an_image_that_could_not_be_pulled_is_not_there(node: Node) -> None:
    """Whether it is there was asked once; a pull that failed has not changed it."""
    pod = make_pod(image="missing")

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(60)

    found = replay_recording(record(node, story))
    found.check()
    assert set(calls(found)) == {"run the sandbox", "pull image missing:latest"}


def test_a_list_does_not_wait_for_what_a_later_call_has_made(node: Node) -> None:
    """A list that showed nothing new is not recorded; the next one came after the new sandbox."""
    node.runtime.images.pull_takes = 0.3

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(make_pod())
        await trio.sleep(0.5)  # its image is being pulled
        (sandbox,) = node.runtime.sandboxes
        node.runtime.kill_sandbox(sandbox)
        await trio.sleep(0.5)  # its second sandbox is being started
        assert len(node.runtime.calls_of("RunPodSandbox")) == 2
        node.feed.put()  # what waits for a list is given up
        await trio.sleep(20)

    found = replay_recording(record(node, story))
    found.check()
    assert calls(found).count("run the sandbox") == 2


def test_a_runtime_that_answers_is_not_away_yet(node: Node) -> None:
    """A list fails less than 0.6 s after another one, by which a dead sandbox was found."""
    node.runtime.images.pull_takes = 0.3

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(make_pod())
        await trio.sleep(0.5)  # its image is being pulled
        (sandbox,) = node.runtime.sandboxes
        node.runtime.kill_sandbox(sandbox)
        await trio.sleep(0.5)  # its second sandbox is being started
        assert len(node.runtime.calls_of("RunPodSandbox")) == 2
        node.runtime.go_down()
        agent.parts.runtime.pleg.relist_soon()
        await trio.sleep(10)
        node.runtime.restart()
        await trio.sleep(20)

    replay_recording(record(node, story)).check()


def test_a_runtime_that_answers_is_not_away_any_more(node: Node) -> None:
    """A sandbox that died in a short outage is found by a list, and then by its status."""

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(make_pod())
        await trio.sleep(3)
        (sandbox,) = node.runtime.sandboxes
        node.runtime.go_down()
        agent.parts.runtime.pleg.relist_soon()
        await trio.sleep(0.1)
        node.runtime.kill_sandbox(sandbox)
        node.runtime.restart()
        agent.parts.runtime.pleg.relist_soon()
        await trio.sleep(20)

    found = replay_recording(record(node, story))
    found.check()
    assert calls(found).count("run the sandbox") == 2


def test_what_failed_is_tried_again_when_it_was(node: Node) -> None:
    """A jitter of its own would let a retry come before or after what happened meanwhile."""
    node.runtime.faults.add(FaultKind.ERROR, "CreateContainer", times=4)

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(make_pod())
        await trio.sleep(60)

    path = record(node, story)
    found = replay_recording(path)
    found.check()
    tried = [e.at for e in read_recording(path) if (e.kind, e.key) == CREATE]
    again = [d.at - found.began for d in found.decisions if d.text.startswith("create container")]
    assert len(tried) == 5
    assert again == pytest.approx(tried, abs=0.1)


@pytest.mark.parametrize("lasts", [0.2, 0.1])
def test_a_runtime_that_is_back_for_a_moment(node: Node, lasts: float) -> None:
    """The recorded agent asked after an exit in that moment, the replayed one would not.

    In the shorter one its next question has no answer any more.
    """

    async def story(node: Node, agent: Agent) -> None:
        pod = make_pod(spec=["restartPolicy: Never"])
        node.feed.put(pod)
        await trio.sleep(3)
        (container,) = node.runtime.alive()
        node.runtime.go_down()
        node.runtime.kill(container.id, 0)
        await trio.sleep(3.82)
        node.runtime.restart()
        await trio.sleep(lasts)
        node.runtime.go_down()
        assert node.status(pod).phase == "Succeeded"
        await trio.sleep(20)

    replay_recording(record(node, story)).check()


AWAY = RuntimeUnavailableError("ImageStatus", "connection refused")


@pytest.mark.parametrize(
    ("now", "touched", "holds"),
    [
        (2.0, -1.0, 0),
        # An outage is no answer from before it, even if a pull has changed the image meanwhile.
        (5.0, 4.0, 0),
        (7.0, -1.0, 1),
        # The runtime is back, and has answered something else at 8: the failure is over.
        (8.5, -1.0, 2),
        (9.5, -1.0, 2),
    ],
)
def test_a_failure_holds_while_the_runtime_is_away(now: float, touched: float, holds: int) -> None:
    readings = [Reading(1, {"id": "a"}), Reading(6, error=AWAY), Reading(9, {"id": "a"})]
    others = {("image_status", "web"): readings, ("version", ""): [Reading(8, {})]}
    observed = Observed(Outages(Life(0, 0, {}, True, readings=others)))
    versions = Versions(readings, [reading.at for reading in readings])
    assert versions.at(now, max(touched, observed.recovered(versions, now))) == holds


@pytest.mark.parametrize(
    ("now", "other", "told"),
    [
        # The runtime is away from 6 to some time before 9, when it has answered.
        (5.3, None, None),
        (5.9, None, 1),
        (5.9, Reading(5.95, {}), None),
        (6.5, None, None),
        (8.9, None, 2),
        (8.9, Reading(8.95, error=AWAY), None),
        # The image was removed between two answers: that has its own rules.
        (9.9, None, None),
    ],
)
def test_the_answer_to_a_question_was_recorded_later(
    now: float, other: Reading | None, told: int | None
) -> None:
    readings = [
        *(Reading(1, {"id": "a"}), Reading(6, error=AWAY)),
        *(Reading(9, {"id": "a"}), Reading(10, None)),
    ]
    others = {("image_status", "web"): readings, ("version", ""): [other] if other else []}
    observed = Observed(Outages(Life(0, 0, {}, True, readings=others)))
    versions = Versions(readings, [reading.at for reading in readings])
    assert observed.answered_later(versions, now) == told


def test_a_status_that_was_asked_when_the_runtime_went_away(node: Node) -> None:
    """A list has shown a dead sandbox; its status had no answer, so that nothing was certain."""
    node.runtime.images.pull_takes = 0.3
    node.runtime.latency["PodSandboxStatus"] = 0.1

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(make_pod())
        await trio.sleep(0.5)  # its image is being pulled
        (sandbox,) = node.runtime.sandboxes
        node.runtime.kill_sandbox(sandbox)
        await trio.sleep(0.4)
        assert node.runtime.calls[-1].name == "PodSandboxStatus"
        node.runtime.go_down()
        agent.parts.runtime.pleg.relist_soon()
        await trio.sleep(1.2)
        node.runtime.restart()
        agent.parts.runtime.pleg.relist_soon()
        await trio.sleep(20)

    replay_recording(record(node, story)).check()


def test_a_question_that_ended_an_outage_unseen(node: Node) -> None:
    """Nothing else was asked while the runtime was away; the answer came after the question."""
    node.runtime.images.pull_takes = 0.3
    containers = (
        f"- {{name: {name}, image: {name}, imagePullPolicy: IfNotPresent}}"
        for name in ("web", "other")
    )
    pod = make_pod(containers="\n".join(containers))

    async def story(node: Node, agent: Agent) -> None:
        node.feed.put(pod)
        await trio.sleep(0.5)
        assert node.runtime.calls[-1].name == "PullImage"
        node.runtime.go_down()
        await trio.sleep(0.2)  # the pull has failed, and the question for the other image
        node.runtime.restart()
        await trio.sleep(20)

    found = replay_recording(record(node, story))
    found.check()
    assert calls(found).count("pull image other:latest") == 1
