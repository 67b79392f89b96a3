"""What a pod's security context becomes on a whole agent: the runtime's requests, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.node_v1 import Overhead, RuntimeClass
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.cri import v1
from kubelet_trio.testing import FaultKind
from tests.agent.node import Node, make_pod, ready


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def message(node: Node, reason: str) -> str:
    assert node.agent is not None
    return next(e.message or "" for e in node.agent.events.events() if e.reason == reason)


async def users_counted(agent: Agent) -> tuple[int, int]:
    """Return the pods with users of their own that were started, and those that failed."""
    page = dict(line.rsplit(" ", 1) for line in (await agent.metrics.page()).splitlines())
    name = "kubelet_started_user_namespaced_pods"
    return int(float(page[f"{name}_total"])), int(float(page.get(f"{name}_errors_total", "0")))


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ((None, ""), "container has runAsNonRoot and image will run as root"),
        ((None, "www"), "container has runAsNonRoot and image has non-numeric user (www)"),
        ((7, ""), ""),
    ],
)
async def test_run_as_non_root_is_verified_against_the_image(
    node: Node, autojump_clock: MockClock, user: tuple[int | None, str], expected: str
) -> None:
    node.runtime.images.users["web"] = user
    pod = make_pod(spec=["securityContext: {runAsNonRoot: true}"])
    async with node.running(pod):
        await trio.sleep(5)
        if not expected:
            assert ready(node.status(pod))
            (started,) = node.runtime.instances("web-node")
            linux = started.config.linux
            assert linux is not None
            assert linux.security_context is not None
            assert linux.security_context.run_as_user == v1.Int64Value(value=7)
            return
        state = node.container(pod).state
        assert state is not None
        assert state.waiting is not None
        assert state.waiting.reason == "CreateContainerConfigError"
        assert (state.waiting.message or "").startswith(expected)
        assert not node.runtime.instances("web-node")


async def test_users_of_its_own_are_refused_where_the_runtime_has_none(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(spec=["hostUsers: false"])
    async with node.running(pod):
        await trio.sleep(5)
        assert message(node, "FailedCreatePodSandBox") == (
            "Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not "
            "support user namespaces"
        )
        assert not node.runtime.sandboxes


async def test_users_of_its_own_stay_the_same_over_a_restart(
    node: Node, autojump_clock: MockClock
) -> None:
    node.runtime.handler_features[""] = v1.RuntimeHandlerFeatures(user_namespaces=True)
    pod = make_pod(spec=["hostUsers: false"])

    def users() -> list[v1.UserNamespace | None]:
        options = [s.namespaces for s in node.runtime.sandboxes.values()]
        return [o.userns_options for o in options if o is not None]

    async with node.running(pod):
        await trio.sleep(5)
        assert ready(node.status(pod))
        (first,) = users()
        assert first is not None
        assert first.mode == v1.NamespaceMode.POD
    for sandbox_id in list(node.runtime.sandboxes):
        node.runtime.kill_sandbox(sandbox_id)
    async with node.running(pod):
        await trio.sleep(60)
        assert ready(node.status(pod))
        assert users() == [first, first]
    async with node.running():
        await trio.sleep(60)
        assert node.leftovers() == []


@pytest.mark.parametrize(
    ("fault", "started", "failed"),
    [
        (None, 1, 0),
        ("RunPodSandbox", 2, 1),  # it is created again
        # What fails after the sandbox counts for the round that made the sandbox, and only for it.
        ("CreateContainer", 1, 1),
        ("StartContainer", 1, 1),
    ],
)
async def test_pods_with_users_of_their_own_are_counted_and_those_that_do_not_start(
    node: Node, autojump_clock: MockClock, fault: str | None, started: int, failed: int
) -> None:
    node.runtime.handler_features[""] = v1.RuntimeHandlerFeatures(user_namespaces=True)
    pods = make_pod("plain"), make_pod("own", spec=["hostUsers: false"])
    async with node.running(pods[0]) as agent:
        await trio.sleep(5)
        if fault is not None:
            node.runtime.faults.add(FaultKind.ERROR, fault)
        node.feed.put(*pods)
        await trio.sleep(120)
        assert all(ready(node.status(pod)) for pod in pods)
        assert await users_counted(agent) == (started, failed)


async def test_a_pod_whose_users_the_runtime_cannot_give_is_counted_as_failed(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running(make_pod(spec=["hostUsers: false"])) as agent:
        await trio.sleep(0.5)
        assert await users_counted(agent) == (1, 1)


async def test_a_runtime_class_gives_handler_and_overhead(
    node: Node, autojump_clock: MockClock
) -> None:
    pod = make_pod(spec=["runtimeClassName: gvisor"])
    gvisor = RuntimeClass(
        metadata=ObjectMeta(name="gvisor"),
        handler="runsc",
        overhead=Overhead(podFixed={"cpu": "250m", "memory": "1Mi"}),
    )
    async with node.running(pod, objects=[gvisor]):
        await trio.sleep(5)
        assert ready(node.status(pod))
        (sandbox,) = node.runtime.sandboxes.values()
        assert sandbox.runtime_handler == "runsc"
        assert sandbox.config.linux is not None
        assert sandbox.config.linux.overhead is not None
        assert sandbox.config.linux.overhead.cpu_shares == 256
        assert sandbox.config.linux.overhead.memory_limit_in_bytes == 2**20


async def test_a_pod_waits_for_its_runtime_class(node: Node, autojump_clock: MockClock) -> None:
    pod = make_pod(spec=["runtimeClassName: gvisor"])
    async with node.running(pod):
        await trio.sleep(5)
        assert message(node, "FailedCreatePodSandBox") == (
            'Failed to create pod sandbox: runtimeclass.node.k8s.io "gvisor" not found'
        )
        gvisor = RuntimeClass(metadata=ObjectMeta(name="gvisor"), handler="runsc")
        node.feed.put(pod, objects=[gvisor])
        await trio.sleep(15)
        assert ready(node.status(pod))


@pytest.mark.parametrize("selinux", [False, True])
async def test_a_pods_volumes_are_relabelled_on_a_host_with_selinux(
    node: Node, autojump_clock: MockClock, selinux: bool
) -> None:
    node.selinux = selinux
    pod = make_pod(
        containers="- {name: web, image: web, volumeMounts: [{name: d, mountPath: /d}]}",
        spec=["securityContext: {seLinuxOptions: {level: 's0:c1,c2'}}", "volumes: [{name: d}]"],
    )
    async with node.running(pod):
        await trio.sleep(5)
        assert ready(node.status(pod))
        (started,) = node.runtime.instances("web-node")
        (mount,) = [m for m in started.config.mounts if m.container_path == "/d"]
        assert mount.selinux_relabel is selinux
