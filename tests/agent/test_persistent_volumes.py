"""Persistent volumes in a whole agent: on their nodes only, with their groups."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from lightkube.models.core_v1 import Node, PersistentVolume, PersistentVolumeClaim, Pod
from trio.testing import MockClock

from tests.agent.test_cluster import NAME, World

POD = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "nodeName": NAME,
        "containers": [
            {
                "name": "web",
                "image": "web",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            {"name": "other", "image": "web"},
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}],
    },
}
IN_ZONE_B = {
    "required": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["b"]}]}
        ]
    }
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def add_claimed_pod(world: World) -> None:
    """Add a pod with a bound claim, and its volume: for nodes with disk b, of group 4321."""
    claim = {
        "metadata": {"name": "claim", "namespace": "default"},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]},
    }
    made = world.kube.add(msgspec.convert(claim, PersistentVolumeClaim))
    world.kube.change(
        PersistentVolumeClaim, "claim", {"status": {"phase": "Bound"}}, subresource="status"
    )
    assert made.metadata is not None
    owner = {"namespace": "default", "name": "claim", "uid": made.metadata.uid}
    volume = {
        "metadata": {"name": "pv", "annotations": {"pv.beta.kubernetes.io/gid": "4321"}},
        "spec": {
            "hostPath": {"path": "/opt"},
            "claimRef": owner,
            "nodeAffinity": IN_ZONE_B,
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
        },
        "status": {"phase": "Bound"},
    }
    world.kube.add(msgspec.convert(volume, PersistentVolume))
    world.kube.add(msgspec.convert(POD, Pod))


async def test_a_pod_waits_for_the_right_node_and_has_its_volumes_group(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.running() as agent:
        await world.wait(lambda: world.kube.find(Node, NAME) is not None)
        add_claimed_pod(world)
        events = agent.parts.reports.events.ring
        await world.wait(lambda: any(e.reason == "FailedMount" for e in events.events()))
        (failed,) = {e.message for e in events.events() if e.reason == "FailedMount"}
        assert failed == (
            'MountVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms'
        )
        assert world.host.runtime.instances("web") == []
        world.kube.change(Node, NAME, {"metadata": {"labels": {"disk": "b"}}})
        await world.wait(world.is_ready)
        containers = world.host.runtime.instances("web")
        assert len(containers) == 2
        for container in containers:
            assert container.config.linux is not None
            assert container.config.linux.security_context is not None
            assert container.config.linux.security_context.supplemental_groups == [4321]
            sandbox = container.sandbox.config.linux
            assert sandbox is not None
            assert sandbox.security_context is not None
            assert sandbox.security_context.supplemental_groups == [4321]
