"""A pods' cgroup that runs short on a real runtime: the right pod goes, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from lightkube.models.core_v1 import Pod

from kubelet_trio.agent import Agent
from kubelet_trio.containers import memory_capacity
from kubelet_trio.model import pod_key, pod_uid
from tests.agent.node import Feed, ready
from tests.harness import Containerd, Json, container, forever, pod
from tests.harness.inside import api_pod, inside_agent

MI = 1 << 20
POOL = 420  # MiB for all pods
# Holds what it read in memory, for nobody takes it from it.
HOG = "head -c 320m /dev/zero | tail | sleep 1000"


def _reason(pod: Pod | None) -> str | None:
    return pod.status.reason if pod is not None and pod.status is not None else None


@pytest.fixture
def agent(containerd: Containerd, tmp_path: Path) -> tuple[Agent, Feed]:
    """An agent whose pods have POOL MiB together."""
    config: Json = {
        "enforceNodeAllocatable": ["pods"],
        "systemReserved": {"memory": str(memory_capacity() - POOL * MI)},
        "evictionHard": {"memory.available": "150Mi"},
    }
    return inside_agent(containerd, tmp_path, config)


async def test_the_pod_that_uses_more_than_it_asked_for_goes_and_the_other_stays(
    agent: tuple[Agent, Feed],
) -> None:
    running, feed = agent
    manifests = [
        pod(
            "modest",
            container("main", forever(), resources={"requests": {"memory": "100Mi"}}),
        ),
        pod(
            "hog",
            container("main", HOG, resources={"requests": {"memory": "10Mi"}}),
            restartPolicy="Never",
        ),
    ]
    modest, hog = (api_pod(manifest) for manifest in manifests)
    feed.put(modest, hog)
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            await nursery.start(running.run)

            await running.pods.wait_value(lambda seen: _reason(seen.get(pod_uid(hog))) is not None)
            status = running.pods.value[pod_uid(hog)].status
            assert status is not None
            assert (status.phase, status.reason) == ("Failed", "Evicted")
            assert (status.message or "").startswith("The node was low on resource: memory. ")
            assert "Container main was using " in (status.message or "")
            assert running.pressure.value.memory
            await running.pods.wait_value(
                lambda seen: (s := seen[pod_uid(modest)].status) is not None and ready(s)
            )
            events = [e for e in running.events.events() if e.reason == "Evicted"]
            names = {e.involvedObject.name for e in events}
            assert names == {pod_key(hog).name}
            await running.remove_pods()
            nursery.cancel_scope.cancel()
