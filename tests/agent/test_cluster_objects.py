"""What pods of an API server refer to there, in a whole agent: environment, and trouble."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import (
    ConfigMap,
    ConfigMapKeySelector,
    Container,
    EnvVar,
    EnvVarSource,
    Node,
    Pod,
    PodSpec,
    Service,
    ServicePort,
    ServiceSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from trio.testing import MockClock

from kubelet_trio.node.object import OBJECT_TTL
from kubelet_trio.objects import ChangeDetection
from tests.agent.test_cluster import NAME, World

KEY = EnvVar(
    name="A", valueFrom=EnvVarSource(configMapKeyRef=ConfigMapKeySelector(key="a", name="config"))
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def add_pod(world: World) -> None:
    container = Container(name="main", image="web", env=[KEY])
    meta = ObjectMeta(name="web", namespace="default")
    world.kube.add(Pod(metadata=meta, spec=PodSpec(containers=[container], nodeName=NAME)))


def environment(world: World) -> dict[str, bytes]:
    instance = world.host.runtime.instances("web")[-1]
    return {variable.key: variable.value for variable in instance.config.envs}


async def test_a_pod_waits_for_its_config_map_and_sees_the_services(
    world: World, autojump_clock: MockClock
) -> None:
    ports = [ServicePort(port=443, name="https")]
    world.kube.add(
        Service(
            metadata=ObjectMeta(name="kubernetes", namespace="default"),
            spec=ServiceSpec(clusterIP="10.96.0.1", ports=ports),
        )
    )
    async with world.running():
        add_pod(world)
        await trio.sleep(5)
        assert world.host.runtime.instances("web") == []
        meta = ObjectMeta(name="config", namespace="default")
        world.kube.add(ConfigMap(metadata=meta, data={"a": "1"}))
        await trio.sleep(5)
        told = environment(world)
        assert told["A"] == b"1"
        assert told["KUBERNETES_SERVICE_HOST"] == b"10.96.0.1"


@pytest.mark.parametrize(("seconds", "seen"), [("3600", b"1"), ("0", b"2")])
async def test_the_node_says_how_long_a_config_map_is_kept(
    world: World, autojump_clock: MockClock, seconds: str, seen: bytes
) -> None:
    world.change_detection = ChangeDetection.CACHE
    meta = ObjectMeta(name="config", namespace="default")
    world.kube.add(ConfigMap(metadata=meta, data={"a": "1"}))
    async with world.running():
        await world.wait(lambda: world.kube.find(Node, NAME) is not None)
        world.kube.change(Node, NAME, {"metadata": {"annotations": {OBJECT_TTL: seconds}}})
        add_pod(world)
        await world.wait(world.is_ready)
        assert environment(world)["A"] == b"1"
        world.kube.change(ConfigMap, "config", {"data": {"a": "2"}})
        world.host.runtime.kill(world.host.runtime.instances("web")[-1].id, 1)
        await world.wait(lambda: len(world.host.runtime.instances("web")) > 1 and world.is_ready())
        assert environment(world)["A"] == seen


async def test_a_server_without_streaming_lists_is_asked_for_one_just_once(
    world: World, autojump_clock: MockClock
) -> None:
    world.kube.streaming_lists = False
    async with world.running():
        await world.wait(world.is_node_ready)
        await trio.sleep(5)
        asked = [(r.verb, r.resource) for r in world.kube.requests]
        listed = {resource for verb, resource in asked if verb == "list"}
        assert {"pods", "nodes", "services"} <= listed
        watches = sum(verb == "watch" and resource in listed for verb, resource in asked)
        assert watches == len(listed) + 1
