"""grpcio as the independent client of the pod resources API, in real time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import trio

from kubelet_trio.model import pod_uid
from tests.harness.node_stubs import stubs
from tests.managers.podresources.view import FULL, FakeNode, pod_named


async def test_grpcio_reads_both_versions(short_path: Path) -> None:
    web = pod_named("web")
    node = FakeNode(web)
    node.held[pod_uid(web), "main"] = FULL
    node.free = FULL
    with trio.fail_after(60):
        async with node.served(short_path) as socket:
            replies = await trio.to_thread.run_sync(_ask_all, f"unix:{socket}")
    listed, got, allocatable, alpha, refusal = replies
    (pod,) = listed.pod_resources
    assert (pod.name, pod.namespace) == ("web", "ns")
    assert [c.name for c in pod.containers] == ["sidecar", "main", "other"]
    main = pod.containers[1]
    assert list(main.cpu_ids) == [2, 3, 10]
    assert [(m.memory_type, m.size, [n.ID for n in m.topology.nodes]) for m in main.memory] == [
        ("memory", 1 << 30, [0]),
        ("hugepages-1Gi", 2 << 30, [0, 1]),
    ]
    assert [
        (d.resource_name, list(d.device_ids), [n.ID for n in d.topology.nodes])
        for d in main.devices
    ] == [
        ("example.com/disk", ["d0"], []),
        ("example.com/net", ["n1"], [1]),
        ("example.com/net", ["n7"], [0]),
        ("example.com/net", ["n7"], [1]),
    ]
    assert not main.devices[0].HasField("topology")
    # NUMA node 0 is proto3's default, and still there.
    assert main.devices[2].HasField("topology")
    assert got.pod_resources == pod
    assert list(allocatable.cpu_ids) == [2, 3, 10]
    assert allocatable.devices == main.devices
    assert [list(d.device_ids) for d in alpha.pod_resources[0].containers[0].devices] == [
        ["d0"],
        ["n1"],
        ["n7"],
        ["n7"],
    ]
    assert refusal.code() is grpc.StatusCode.UNKNOWN
    assert refusal.details() == "pod none in namespace ns not found"


def _ask_all(target: str) -> tuple[Any, ...]:
    v1, v1_grpc = stubs("podresources")
    alpha, alpha_grpc = stubs("podresources_v1alpha1")
    with grpc.insecure_channel(target) as channel:
        stub = v1_grpc.PodResourcesListerStub(channel)
        refusal = None
        try:
            stub.Get(v1.GetPodResourcesRequest(pod_name="none", pod_namespace="ns"))
        except grpc.RpcError as exc:
            refusal = exc
        return (
            stub.List(v1.ListPodResourcesRequest()),
            stub.Get(v1.GetPodResourcesRequest(pod_name="web", pod_namespace="ns")),
            stub.GetAllocatableResources(v1.AllocatableResourcesRequest()),
            alpha_grpc.PodResourcesListerStub(channel).List(alpha.ListPodResourcesRequest()),
            refusal,
        )
