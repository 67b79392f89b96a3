"""What an edit would do is what it does: each plan is carried out, and compared."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from lightkube.models.core_v1 import Pod
from trio.testing import MockClock

from kubelet_trio.agent import Agent
from kubelet_trio.model import PodUid, metadata, pod_uid
from kubelet_trio.pods import EditPlan, PodChange, Verdict
from kubelet_trio.sources import Edit, ManifestError, edited
from tests.agent.node import Node, make_pods

DIRECTORY = "feed"  # the origin of the source


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def manifest(name: str = "web", *, image: str = "web:1", more: str = "", spec: str = "") -> str:
    """Return a pod of one container; `more` are fields of it, `spec` lines of the pod."""
    return f"""apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  {spec or "restartPolicy: Always"}
  containers:
  - {{name: main, image: "{image}"{more}}}
"""


def pods_of(*texts: str) -> tuple[Pod, ...]:
    return tuple(pod for text in texts for pod in make_pods(text))


async def planned(agent: Agent, *texts: str, prune: bool = False) -> EditPlan:
    edit = Edit({f"{index}.yaml": text for index, text in enumerate(texts)}, prune)
    found = await agent.plan(msgspec.json.encode(edit))
    again = msgspec.json.decode(msgspec.json.encode(found), type=EditPlan)
    assert again == found
    return found


def carry_out(node: Node, *texts: str, prune: bool = False) -> None:
    """Make the edit: what the source would deliver is delivered."""
    assert node.feed.delivered is not None
    edit = Edit({f"{index}.yaml": text for index, text in enumerate(texts)}, prune)
    after = edited(node.feed.delivered, edit, DIRECTORY, "node")
    node.feed.put(*after.pods, objects=after.objects)


def of_server(pod: Pod) -> Pod:
    """Return the pod as an API server's: static pods are critical, and give way to none."""
    meta = msgspec.structs.replace(
        metadata(pod), annotations={"kubernetes.io/config.source": "api"}
    )
    return msgspec.structs.replace(pod, metadata=meta)


def actions(change: PodChange) -> dict[str, str]:
    return {each.name: each.action for each in change.containers}


class Watched:
    """What a runtime is asked from now on."""

    def __init__(self, node: Node) -> None:
        self._node = node
        node.runtime.calls.clear()
        self._names: dict[str, str] = {c.id: c.name for c in node.runtime.containers.values()}

    def happened(self) -> dict[str, str]:
        """Return what became of each container, in the words of a plan."""
        runtime = self._node.runtime
        self._names |= {str(c.id): c.name for c in runtime.containers.values()}
        stopped = {self._names[c.target] for c in runtime.calls_of("StopContainer")}
        started = {self._names[c.target] for c in runtime.calls_of("StartContainer")}
        resized = {self._names[c.target] for c in runtime.calls_of("UpdateContainerResources")}
        found = dict.fromkeys(stopped - started, "end") | dict.fromkeys(started - stopped, "start")
        found |= dict.fromkeys(stopped & started, "restart")
        return found | {name: "resize" for name in resized if name not in found}


LIMITED = ', resources: {requests: {cpu: "%s"}}'
RESTARTING = (
    ', resources: {requests: {cpu: "%s"}}, '
    "resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]"
)


@pytest.mark.parametrize(
    ("before", "after", "action", "expected"),
    [
        pytest.param(manifest(), manifest(), None, {}, id="nothing"),
        pytest.param(manifest(), manifest() + "# a comment", None, {}, id="what does not count"),
        pytest.param(
            manifest(), manifest(image="web:2"), "replace", {"main": "restart"}, id="image"
        ),
        pytest.param(
            manifest(more=LIMITED % 1),
            manifest(more=LIMITED % 2),
            "update",
            {"main": "resize"},
            id="resize in place",
        ),
        pytest.param(
            manifest(more=RESTARTING % 1),
            manifest(more=RESTARTING % 2),
            "update",
            {"main": "restart"},
            id="resize by a restart",
        ),
        pytest.param(
            manifest(),
            manifest() + '  - {name: second, image: "web:1"}\n',
            "replace",
            {"main": "restart", "second": "start"},
            id="one more container",
        ),
        pytest.param(
            manifest() + '  - {name: second, image: "web:1"}\n',
            manifest(),
            "replace",
            {"main": "restart", "second": "end"},
            id="one container less",
        ),
    ],
)
async def test_an_edit_does_what_was_said(
    node: Node,
    autojump_clock: MockClock,
    before: str,
    after: str,
    action: str | None,
    expected: dict[str, str],
) -> None:
    node.allocatable = {"cpu": 4 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    async with node.running(*pods_of(before)) as agent:
        await trio.sleep(7)  # the health of the runtime is asked for every 5 s
        calls = len(node.runtime.calls)
        plan = await planned(agent, after)
        assert len(node.runtime.calls) == calls
        assert plan.changes == (action is not None)
        assert [change.action for change in plan.pods] == ([action] if action else [])
        told = actions(plan.pods[0]) if plan.pods else {}
        assert told == expected
        watched = Watched(node)
        carry_out(node, after)
        await trio.sleep(90)
        assert watched.happened() == told
        # And then nothing is left to change.
        assert not (await planned(agent, after)).changes


async def test_a_new_pod_and_one_that_goes(node: Node, autojump_clock: MockClock) -> None:
    async with node.running(*pods_of(manifest("a"), manifest("b"))) as agent:
        await trio.sleep(5)
        plan = await planned(agent, manifest("b"), manifest("c"), prune=True)
        assert [(c.name, c.action) for c in plan.pods] == [
            ("a-node", "remove"),
            ("c-node", "create"),
        ]
        assert [actions(change) for change in plan.pods] == [{"main": "end"}, {"main": "start"}]
        carry_out(node, manifest("b"), manifest("c"), prune=True)
        await trio.sleep(60)
        assert sorted(agent.pods.value) == sorted(
            {pod_uid(pods_of(manifest("b"))[0]), plan.pods[1].uid}
        )
        # Without it the others stay.
        assert not (await planned(agent, manifest("c"))).changes


async def test_a_pod_that_would_not_be_admitted(node: Node, autojump_clock: MockClock) -> None:
    node.allocatable = {"cpu": 2 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    small, large = manifest(more=LIMITED % 1), manifest(image="web:2", more=LIMITED % 3)
    async with node.running(*pods_of(small)) as agent:
        await trio.sleep(5)
        plan = await planned(agent, large)
        (change,) = plan.pods
        assert plan.refused
        assert change.verdict is not None
        # A static pod is critical, and nobody can be preempted for it.
        assert change.verdict.decision == "rejected"
        assert "(res: cpu, q: 1000)" in change.verdict.message
        assert actions(change) == {"main": "end"}
        carry_out(node, large)
        await trio.sleep(60)
        status = agent.pods.value[pod_uid(pods_of(large)[0])].status
        assert status is not None
        assert (status.phase, status.reason) == ("Failed", change.verdict.reason)
        assert status.message == f"Pod was rejected: {change.verdict.message}"
        assert not node.runtime.alive()


@pytest.mark.parametrize(
    ("cpu", "decision", "reason"),
    [("2", "deferred", "Deferred"), ("9", "infeasible", "Infeasible")],
)
async def test_a_resize_that_is_not_granted(
    node: Node, autojump_clock: MockClock, cpu: str, decision: str, reason: str
) -> None:
    node.allocatable = {"cpu": 2 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    web, other = manifest(more=LIMITED % 1), manifest("other", more=LIMITED % 1)
    larger = manifest(more=LIMITED % cpu)
    async with node.running(*pods_of(web, other)) as agent:
        await trio.sleep(5)
        (change,) = (await planned(agent, larger)).pods
        assert change.verdict is not None
        assert (change.action, change.verdict.decision) == ("update", decision)
        assert actions(change) == {}
        carry_out(node, larger)
        await trio.sleep(30)
        status = agent.pods.value[pod_uid(pods_of(web)[0])].status
        pending = [c for c in (status and status.conditions) or () if c.type == "PodResizePending"]
        assert [(c.reason, c.message) for c in pending] == [(reason, change.verdict.message)]


async def test_two_pods_of_an_edit_count_for_each_other(
    node: Node, autojump_clock: MockClock
) -> None:
    node.allocatable = {"cpu": 2 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    texts = [manifest(name, more=LIMITED % 1.5) for name in ("a", "b")]
    async with node.running() as agent:
        await trio.sleep(5)
        plan = await planned(agent, *texts)
        decisions = [change.verdict.decision for change in plan.pods if change.verdict]
        assert sorted(decisions) == ["admitted", "rejected"]
        carry_out(node, *texts)
        await trio.sleep(20)
        phases = [p.status.phase for p in agent.pods.value.values() if p.status]
        assert sorted(str(phase) for phase in phases) == ["Failed", "Running"]


async def test_volumes_and_what_is_lost(node: Node, autojump_clock: MockClock) -> None:
    mounts = ", volumeMounts: [{name: data, mountPath: /data}]"
    before = manifest(more=mounts, spec="volumes: [{name: data, emptyDir: {}}]")
    after = manifest(more=mounts, spec="volumes: [{name: data, hostPath: {path: /srv}}]")
    async with node.running(*pods_of(before)) as agent:
        await trio.sleep(5)
        (change,) = (await planned(agent, after)).pods
        assert [(v.name, v.kind, v.action, v.loses_data) for v in change.volumes] == [
            ("data", "emptyDir", "unmount", True),
            ("data", "hostPath", "mount", False),
        ]
        assert change.fields == ("spec.volumes[data].emptyDir", "spec.volumes[data].hostPath")


CONFIG = "apiVersion: v1\nkind: {kind}\nmetadata: {{name: settings}}\n{field}: {{key: {value}}}\n"


async def test_objects_name_who_follows_them(node: Node, autojump_clock: MockClock) -> None:
    mounts = ", volumeMounts: [{name: s, mountPath: /s}]"
    web = manifest(more=mounts, spec="volumes: [{name: s, configMap: {name: settings}}]")
    config = CONFIG.format(kind="ConfigMap", field="data", value="one")
    async with node.running() as agent:
        carry_out(node, web, config)
        await trio.sleep(5)
        plan = await planned(agent, CONFIG.format(kind="ConfigMap", field="data", value="two"))
        assert plan.pods == ()
        (thing,) = plan.objects
        assert (thing.kind, thing.name, thing.action) == ("ConfigMap", "settings", "update")
        assert thing.used_by == ("default/web-node",)


async def test_values_of_secrets_stay_inside(node: Node, autojump_clock: MockClock) -> None:
    old, new = (
        CONFIG.format(kind="Secret", field="stringData", value=value) for value in ("aaa", "bbb")
    )
    async with node.running() as agent:
        carry_out(node, old)
        await trio.sleep(5)
        plan = await planned(agent, new)
        shown = msgspec.json.encode(plan).decode()
        assert plan.objects[0].action == "update"
        assert "***" in shown
        for value in ("aaa", "bbb", "YWFh", "YmJi"):
            assert value not in shown


async def test_an_invalid_manifest_is_refused_by_field(
    node: Node, autojump_clock: MockClock
) -> None:
    async with node.running() as agent:
        with pytest.raises(ManifestError, match=r"spec\.containers\[0\]\.image"):
            await planned(agent, manifest(image=""))
        with pytest.raises(ManifestError, match=r"Pod web is in 0\.yaml, too"):
            await planned(agent, manifest(), manifest(image="web:2"))
        with pytest.raises(ValueError, match="the edit does not parse"):
            await agent.plan(b"[]")


async def test_a_pod_that_has_ended_runs_again_if_it_is_resized(
    node: Node, autojump_clock: MockClock
) -> None:
    once = "restartPolicy: Never"
    ended = manifest(image="exit-0", more=LIMITED % 1, spec=once)
    larger = manifest(image="exit-0", more=LIMITED % 2, spec=once)
    async with node.running(*pods_of(ended)) as agent:
        await trio.sleep(10)
        (change,) = (await planned(agent, larger)).pods
        assert (change.action, actions(change)) == ("replace", {"main": "start"})
        watched = Watched(node)
        carry_out(node, larger)
        await trio.sleep(20)
        assert watched.happened() == {"main": "start"}


async def test_a_critical_pod_displaces_others_by_name(
    node: Node, autojump_clock: MockClock
) -> None:
    node.allocatable = {"cpu": 2 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    (api,) = pods_of(manifest("api", more=LIMITED % 1.5))
    api = of_server(api)
    critical = manifest("critical", more=LIMITED % 1.5)
    async with node.running(api) as agent:
        await trio.sleep(5)
        (change,) = (await planned(agent, critical)).pods
        assert change.verdict is not None
        assert change.verdict.decision == "preempting"
        assert change.verdict.victims == ("default/api-node",)
        watched = Watched(node)
        carry_out(node, critical)
        await trio.sleep(60)
        assert watched.happened() == {"main": "restart"}  # one ends, the other starts
        assert agent.pods.value[pod_uid(api)].status.reason == "Preempting"


async def test_a_pod_is_told_to_displace_none_that_ends_in_any_case(
    node: Node, autojump_clock: MockClock
) -> None:
    """It waits for them, as `Ledger.beside` has it: none is counted with those that stay."""
    node.allocatable = {"cpu": 2 * 10**9, "memory": 4 * 2**30 * 10**9, "pods": 10 * 10**9}
    gone, stays = (
        of_server(*pods_of(manifest(name, image=image, more=LIMITED % cpu)))
        for name, image, cpu in (("gone", "stubborn", 1.2), ("stays", "web:1", 0.2))
    )
    new = manifest("new", more=LIMITED % 1)
    async with node.running(gone, stays) as agent:
        await trio.sleep(5)
        node.feed.put(stays)
        await trio.sleep(5)
        assert node.runtime.alive(pod_uid(gone))
        (change,) = (await planned(agent, new)).pods
        assert change.verdict == Verdict("admitted")
        carry_out(node, new)
        await trio.sleep(60)
        assert not node.runtime.alive(pod_uid(gone))
        assert node.runtime.alive(pod_uid(stays))
        assert node.runtime.alive(PodUid(change.uid))


async def test_a_node_without_manifests_says_so(node: Node, autojump_clock: MockClock) -> None:
    async with node.running(silent=True) as agent:
        await trio.sleep(1)
        with pytest.raises(ValueError, match="has not read feed yet"):
            await planned(agent, manifest())
