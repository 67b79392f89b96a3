"""Small things that others go by, as the Go kubelet has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.model import pod_uid
from kubelet_trio.testing import FaultKind
from tests.agent.node import Node, make_pod, ready
from tests.agent.test_eviction import HARD, MI, Machine, hungry, use


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def condition(node: Node, pod: Pod, name: str) -> str | None:
    found = node.status(pod).conditions or ()
    return next((c.status for c in found if c.type == name), None)


async def test_a_pod_is_ready_to_start_containers_while_its_images_are_pulled(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod()
    node.runtime.faults.add(FaultKind.SLOW, "PullImage", delay=60)
    async with node.running(pod):
        await trio.sleep(10)
        assert condition(node, pod, "PodReadyToStartContainers") == "True"
        assert node.status(pod).podIP
        assert condition(node, pod, "Ready") == "False"
        await trio.sleep(60)
        assert ready(node.status(pod))


@pytest.mark.parametrize("recorded", [False, True])
async def test_a_pod_that_nobody_knows_has_a_second_to_end(
    node: Node, autojump_clock: MockClock, recorded: bool
) -> None:
    pod = make_pod(image="stubborn", spec=["terminationGracePeriodSeconds: 60"])
    async with node.running(pod):
        await trio.sleep(5)
    if not recorded:
        (node.base / "root" / "pods" / pod_uid(pod) / "kubelet-trio.json").unlink()
    async with node.running():
        await trio.sleep(5)
        assert bool(node.runtime.alive()) == recorded
        await trio.sleep(60)
        assert not node.runtime.alive()


async def test_what_an_evicted_pod_leaves_in_the_runtime_goes_at_once_and_its_logs_stay(
    node: Node, autojump_clock: MockClock
) -> None:
    machine = Machine()
    node.signals = machine
    use(node)
    pod = hungry("large", 300)
    async with node.running(pod, eviction=HARD):
        await trio.sleep(15)
        assert ready(node.status(pod))
        machine.memory = 90 * MI
        await trio.sleep(30)
        machine.memory = 900 * MI
        assert node.status(pod).reason == "Evicted"
        assert not node.runtime.containers
        assert not node.runtime.sandboxes
        ended = node.container(pod).state
        assert ended is not None
        assert ended.terminated is not None
        assert ended.terminated.exitCode == 143
        assert list((node.base / "pods").glob("*/web/*.log"))
    async with node.running(pod, eviction=HARD):
        await trio.sleep(30)
        assert node.status(pod).reason == "Evicted"
        assert node.container(pod).state == ended
    assert len(node.calls("StartContainer")) == 1


@pytest.mark.parametrize(("takes", "is_late"), [(3.0, False), (30.0, True)])
async def test_a_pod_that_the_node_ends_and_that_takes_too_long_is_told_of(
    node: Node, autojump_clock: MockClock, takes: float, is_late: bool
) -> None:
    machine = Machine()
    node.signals = machine
    use(node)
    pod = hungry("large", 300)
    async with node.running(pod, eviction=HARD):
        await trio.sleep(15)
        node.runtime.faults.add(FaultKind.SLOW, "StopContainer", delay=takes)
        machine.memory = 90 * MI
        await trio.sleep(60)
        assert node.status(pod).reason == "Evicted"
        assert ("ExceededGracePeriod" in node.reasons(pod)) == is_late


async def test_a_new_pod_gets_the_hosts_resolver_file_as_it_is_now(
    node: Node, tmp_path: Path, autojump_clock: MockClock
) -> None:
    # A DHCP client writes it when the network comes up, which may be after the agent's start.
    file = tmp_path / "resolv.conf"
    node.node_fields = {"resolver_file": str(file)}
    pods = [make_pod(name, spec=("dnsPolicy: Default",)) for name in ("early", "late", "later")]
    async with node.running(pods[0]) as agent:
        await trio.sleep(3)
        assert not node.runtime.sandboxes
        told = {e.message for e in agent.events.events() if e.reason == "FailedCreatePodSandBox"}
        assert len(told) == 1
        assert str(file) in (told.pop() or "")
        file.write_text("nameserver 192.0.2.1\n")
        await trio.sleep(60)
        node.feed.put(*pods[:2])
        await trio.sleep(3)
        file.write_text("nameserver 192.0.2.2\nsearch example.org\n")
        node.feed.put(*pods)
        await trio.sleep(3)
    made = (sandbox.config for sandbox in node.runtime.sandboxes.values())
    dns = [config.dns_config for config in made if config.dns_config is not None]
    assert [(each.servers, each.searches) for each in dns] == [
        (["192.0.2.1"], []),
        (["192.0.2.1"], []),
        (["192.0.2.2"], ["example.org"]),
    ]
